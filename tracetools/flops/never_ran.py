"""Ops that a recompute entered and left again. In: calls in recompute. Out: which of them did no work.

A non-re-entrant checkpoint stops its recompute as soon as the last tensor that backward asked for is back: an exception
leaves the op that was just entered. The trace shows it like any other, with its shapes and the time of unwinding:

    aten::addmm [[40], [8, 40], [40, 32], [], []]  5.0 ms     inside it only `aten::detach`, of the hook that stopped it
"""

from __future__ import annotations

import numpy as np

from tracetools.attribution.phases import Code
from tracetools.attribution.structure import Structure
from tracetools.table import BoolArray, IntArray
from tracetools.timeline.autograd import is_forward_op
from tracetools.timeline.tree import nearest_self_or_ancestor

_DETACH = ("aten::detach", "detach")


def find_never_ran(structure: Structure, rows: IntArray) -> BoolArray:
    """For each row of an innermost counted op, whether it never ran.

    Where ops launch work, one in recompute that launched none though others of its name did. On the CPU the last
    forward op of a node's recompute that holds nothing but the detaching of what it would have saved.
    """
    again: BoolArray = np.equal(structure.phase[rows], Code.RECOMPUTE)
    if not again.any():
        return np.zeros(len(rows), bool)
    if len(structure.launches.launch_rows):
        again &= _launched_nothing(structure, rows)
    else:
        again[again] = _only_detaches(structure, rows[again]) & _is_last_of_node(structure, rows[again])
    return again


def _launched_nothing(structure: Structure, rows: IntArray) -> BoolArray:
    marked = np.zeros(len(structure.trace.events), bool)
    marked[rows] = True
    held = nearest_self_or_ancestor(structure.tree.parent, marked)[structure.launches.launch_rows]
    launched = np.zeros(len(structure.trace.events), bool)
    launched[held[held >= 0]] = True
    name = structure.trace.events.name[rows]
    return ~launched[rows] & np.isin(name, np.unique(name[launched[rows]]))


def _only_detaches(structure: Structure, rows: IntArray) -> BoolArray:
    parent = structure.tree.parent
    inner = structure.tree.order[parent[structure.tree.order] >= 0]
    detaches = structure.trace.named(lambda name: name in _DETACH)[inner]
    children, others = (
        np.bincount(parent[inner[which]], minlength=len(parent))[rows] for which in (detaches, ~detaches)
    )
    result: BoolArray = (children > 0) & (others == 0)
    return result


def _is_last_of_node(structure: Structure, rows: IntArray) -> BoolArray:
    """Whether no further forward op of the same backward node starts after each row."""
    node, start = structure.autograd.inside_node, structure.tree.start_ns
    forward = is_forward_op(structure.trace) & ~structure.trace.named(lambda name: name in _DETACH) & (node >= 0)
    latest = np.full(len(node), np.iinfo(np.int64).min)
    np.maximum.at(latest, node[forward], start[forward])
    result: BoolArray = start[rows] >= latest[node[rows]]
    return result
