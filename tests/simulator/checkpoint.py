"""Activation checkpointing, both kinds. In: a layer. Out: the same, whose backward computes the forward again."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator.recorder import Part, Recorder
from tests.simulator.tape import Phase, Place


def checkpointed(rec: Recorder, layer: Callable[[Recorder], None]) -> None:
    """A layer whose activations are thrown away and computed again in backward."""
    if rec.style.checkpoint == "none":
        layer(rec)
    elif rec.style.checkpoint == "non_reentrant":
        _non_reentrant(rec, layer)
    else:
        _reentrant(rec, layer)


def _non_reentrant(rec: Recorder, layer: Callable[[Recorder], None]) -> None:
    """The first node that asks for a saved tensor runs the layer again; its nodes are those of the first forward."""
    around, outside = rec.place, rec.nodes
    rec.nodes = []
    layer(rec)
    nodes, rec.nodes = rec.nodes, outside

    def node(rec: Recorder, part: str) -> None:
        adds_up, *others = reversed(nodes)
        adds_up(rec, part)

        def run() -> None:
            again = _recorder_of_recompute(rec, around)
            layer(again)
            rec.after = again.after

        if part != Part.WEIGHT:
            rec.tape.inside_next_node = run
        for each in others:
            each(rec, part)

    rec.nodes.append(node)


def _reentrant(rec: Recorder, layer: Callable[[Recorder], None]) -> None:
    """`CheckpointFunction`: forward without gradient; in backward forward again, then backward of that."""
    around, slot = rec.place, rec.slot()
    assert around is not None
    first = _copy(rec, grad=False)
    with rec.tape.op("CheckpointFunction", 9_000, creates=slot):
        layer(first)
    rec.after = first.after
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        with rec.tape.node("CheckpointFunctionBackward", around, Phase.BACKWARD, 12_000, uses):
            again = _recorder_of_recompute(rec, around)
            layer(again)
            again.backward(again.nodes, part)
            rec.after = again.after

    rec.nodes.append(node)


def _recorder_of_recompute(rec: Recorder, place: Place | None) -> Recorder:
    again = _copy(rec, grad=True)
    again.phase, again.place = Phase.RECOMPUTE, place
    return again


def _copy(rec: Recorder, *, grad: bool) -> Recorder:
    return Recorder(
        rec.tape,
        rec.machine,
        rec.sizes,
        rec.style,
        rec.groups,
        rec.places,
        rec.phase,
        grad,
        rec.after,
        rec.place,
        nodes=[],
    )
