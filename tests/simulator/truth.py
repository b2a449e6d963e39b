"""The right answers about a simulated job. In: logs. Out: `truth.json`, in the names of the analyzer's document.

Everything is added up from what the simulator noted while it ran, never from the traces.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.simulator.cluster import Held
from tests.simulator.log import COMMUNICATION, COMPUTE, COPY, OPERANDS, PATH_KINDS, PHASES, Done, Log
from tests.simulator.tape import OPTIMIZER, UNATTRIBUTED, Phase, Place

_FORWARD, _BACKWARD, _RECOMPUTE, _OTHER, _ACCUMULATE, _SYNC, _OPTIMIZER = range(len(PHASES))
_COLUMNS = {"forward": _FORWARD, "backward": _BACKWARD, "recompute": _RECOMPUTE, "other": _OTHER}


def length_of_union(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of what a set of intervals covers."""
    total, reach = 0, None
    for start, end in sorted(intervals):
        if reach is None or start >= reach:
            total, reach = total + end - start, end
        elif end > reach:
            total, reach = total + end - reach, end
    return total


def modules(log: Log, rank: int, path_of: Callable[[Place], str]) -> list[dict[str, Any]]:
    """A row per module and bracketed row: time by phase, on the CPU and on the GPU."""
    works = log.works()
    places = {each for place in log.places for each in place.around} | {UNATTRIBUTED, OPTIMIZER}
    rows = []
    for place in sorted(places, key=lambda each: each.path):
        below = {number for number, other in enumerate(log.places) if place in other.around}
        own = {number for number in below if log.places[number] is place}
        row: dict[str, Any] = {"rank": rank, "path": path_of(place)}
        row["parent"] = path_of(place.parent) if place.parent else None
        bracketed = place in (UNATTRIBUTED, OPTIMIZER)
        mine = [each for each in works if each.place in below]
        for name, code in _COLUMNS.items():
            row[name] = _phase(log, mine, below, own, {code, _OPTIMIZER} if name == "other" else {code})
            row[name]["calls"] = _calls(log, below, own, code)
        row["total"] = _phase(log, mine, below, own, set(range(len(PHASES))))
        row["calls"] = 0 if bracketed else row["forward"]["calls"]
        for name, code in (("grad_accumulation", _ACCUMULATE), ("grad_sync", _SYNC)):
            row["backward"][f"{name}_ns"] = _busy(each for each in mine if each.phase == code)
            row["backward"][f"{name}_cpu_ns"] = _cpu(log, below, {code})
        rows.append(row)
    return rows


def _phase(log: Log, works: list[Done], below: set[int], own: set[int], codes: set[int]) -> dict[str, int]:
    mine = [each for each in works if each.phase in codes]
    busy = _busy(mine)
    return {
        "cpu_ns": _cpu(log, below, codes),
        "self_cpu_ns": _cpu(log, own, codes),
        "gpu_busy_ns": busy,
        "self_gpu_busy_ns": busy - _busy(each for each in mine if each.place not in own),
        "kernel_ns": sum(each.end_ns - each.start_ns for each in mine),
        "kernels": len(mine),
        "flops": sum(each.flops for each in mine),
    }


def _cpu(log: Log, places: set[int], codes: set[int]) -> int:
    return sum(ns for (_, place, phase), ns in log.cpu_ns.items() if place in places and phase in codes)


def _busy(works: Iterable[Done]) -> int:
    return length_of_union((each.start_ns, each.end_ns) for each in works)


def _calls(log: Log, below: set[int], own: set[int], code: int) -> int:
    """Module calls; for backward the nodes of the module and all below it."""
    counted, places = (log.nodes, below) if code == _BACKWARD else (log.entries, own)
    return sum(count for (place, phase), count in counted.items() if place in places and phase == code)


def steps(log: Log, rank: int) -> list[dict[str, Any]]:
    """CPU time by phase of each step, and the union of what it launched."""
    launched: defaultdict[int, list[Done]] = defaultdict(list)
    for each in log.works():
        launched[each.step].append(each)
    by_step: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for (step, _, phase), ns in log.cpu_ns.items():
        by_step[step][phase] += ns
    rows = []
    for number, begin, end in log.steps:
        spent = by_step[number]
        rows.append(
            {
                "rank": rank,
                "step": number,
                "wall_ns": end - begin,
                "forward_ns": spent[_FORWARD],
                "backward_ns": spent[_BACKWARD] + spent[_ACCUMULATE] + spent[_SYNC],
                "recompute_ns": spent[_RECOMPUTE],
                "optimizer_ns": spent[_OPTIMIZER],
                "gpu_busy_ns": _busy(launched[number]),
            }
        )
    return rows


def gpu(log: Log, rank: int) -> list[dict[str, Any]]:
    """The whole window and one per step: busy, compute, exposed communication and copies, idle by cause."""
    works = log.works()
    if not works:
        return []
    windows: list[tuple[int | None, int, int]] = [(None, works[0].start_ns, max(each.end_ns for each in works))]
    begin = None
    for number in sorted({each.step for each in works}):
        own = [each for each in works if each.step == number]
        begin = own[0].start_ns if begin is None else begin
        end = max(begin, max(each.end_ns for each in own))
        windows.append((number, begin, end))
        begin = end
    gaps = idle_gaps(log, works)
    return [_window(log, works, gaps, rank, *window) for window in windows]


def _window(
    log: Log, works: list[Done], gaps: list[dict[str, Any]], rank: int, step: int | None, low: int, high: int
) -> dict[str, Any]:
    near = [each for each in works if each.start_ns < high and each.end_ns > low]

    def covered(kinds: set[int]) -> int:
        return length_of_union((max(each.start_ns, low), min(each.end_ns, high)) for each in near if each.kind in kinds)

    busy, compute, both = covered({COMPUTE, COMMUNICATION, COPY}), covered({COMPUTE}), covered({COMPUTE, COMMUNICATION})
    own = [each for each in works if step is None or each.step == step]
    causes = dict.fromkeys(("host", "launch_call", "device", "dependency", "host_blocked", "profiler", "unknown"), 0)
    for gap in gaps:
        if low <= gap["start"] < high:
            for cause, ns in gap["causes"].items():
                causes[cause] += ns
    return {
        "rank": rank,
        "device": 0,
        "step": step,
        "window_ns": high - low,
        "busy_ns": busy,
        "compute_ns": compute,
        "exposed_communication_ns": both - compute,
        "exposed_copy_ns": busy - both,
        "communication_ns": covered({COMMUNICATION}),
        "idle_ns": high - low - busy,
        "idle_by_cause": causes,
        "kernels": len(own),
        "kernel_ns": sum(each.end_ns - each.start_ns for each in own),
    }


def idle_gaps(log: Log, works: list[Done]) -> list[dict[str, Any]]:
    """Each time when nothing ran, by what the work that ends it was waiting for."""
    gaps: list[dict[str, Any]] = []
    if not works:
        return gaps
    reach = works[0].start_ns
    waits, overheads = pairs(log.waits), pairs(log.overheads)
    for work in works:
        if work.start_ns > reach:
            gaps.append(_gap(work, reach, waits, overheads))
        reach = max(reach, work.end_ns)
    return gaps


def pairs(flat: Sequence[int]) -> list[tuple[int, int]]:
    """Begins and ends, written one after the other."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def inside(intervals: Iterable[tuple[int, int]], begin: int, end: int) -> int:
    """How much of a stretch a set of intervals covers."""
    return length_of_union((max(low, begin), min(high, end)) for low, high in intervals if low < end and high > begin)


def _gap(work: Done, begin: int, waits: list[tuple[int, int]], overheads: list[tuple[int, int]]) -> dict[str, Any]:
    end = work.start_ns
    call = min(max(work.call_ns, begin), end)
    called = min(max(work.called_ns, call), end)
    arrived = min(max(work.arrived_ns, called), end)
    blocked, profiler = inside(waits, begin, call), inside(overheads, begin, call)
    causes = {
        "host": call - begin - blocked - profiler,
        "host_blocked": blocked,
        "profiler": profiler,
        "launch_call": called - call,
        "device": end - called if arrived == called or end == arrived else arrived - called,
        "dependency": 0 if arrived == called or end == arrived else end - arrived,
    }
    return {"start": begin, "end": end, "call": call, "causes": causes, "place": work.place, "phase": work.phase}


def launches(log: Log, rank: int) -> dict[str, Any]:
    """Launch calls and how far the CPU ran ahead, by nearest rank."""
    first: dict[int, int] = {}
    for each in log.works():
        first.setdefault(each.call_ns, max(each.start_ns - each.called_ns, 0))
    ahead = sorted(first.values())

    def at(percent: int) -> int:
        return ahead[max(-(-len(ahead) * percent // 100) - 1, 0)]

    run_ahead = {"p50": at(50), "p95": at(95), "max": ahead[-1]} if ahead else None
    return {
        "rank": rank,
        "count": log.launches,
        "without_kernel": 0,
        "kernels_without_launch": 0,
        "run_ahead_ns": run_ahead,
    }


def flops(log: Log, rank: int) -> dict[str, int]:
    """Products by what they make; recompute apart."""
    row = {"rank": rank, **dict.fromkeys((*OPERANDS, "recompute"), 0)}
    for each in log.works():
        recompute = PHASES[each.phase] is Phase.RECOMPUTE
        row["recompute" if recompute else OPERANDS[each.operand]] += each.flops
    row["total"] = sum(row[kind] for kind in (*OPERANDS, "recompute"))
    return row


def launch_gaps(log: Log, rank: int, path_of: Callable[[Place], str]) -> list[dict[str, Any]]:
    """Idle time of the GPU by module and phase.

    Host time is charged to the module that the CPU was in, moment by moment; time in and after the launch call to the
    module that launched. gaps: how many gaps the module's launches ended.
    """
    rows: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(
        lambda: dict.fromkeys(("gaps", "host_ns", "launch_call_ns", "device_ns"), 0)
    )

    def row_of(place: Place, phase: int) -> dict[str, int]:
        return rows[path_of(place), PHASES[phase].value]

    waits, overheads = pairs(log.waits), pairs(log.overheads)
    for gap in idle_gaps(log, log.works()):
        row = row_of(log.places[gap["place"]], gap["phase"])
        row["gaps"] += 1
        row["launch_call_ns"] += gap["causes"]["launch_call"]
        row["device_ns"] += gap["causes"]["device"]
        for holder, begin, end in _held(log, gap["start"], gap["call"]):
            place, phase = divmod(holder, len(PHASES)) if holder >= 0 else (-1, _OTHER)
            idle = inside(waits, begin, end) + inside(overheads, begin, end)
            row_of(log.places[place] if place >= 0 else UNATTRIBUTED, phase)["host_ns"] += end - begin - idle
    return [{"rank": rank, "path": path, "phase": phase, **row} for (path, phase), row in sorted(rows.items())]


def _held(log: Log, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Who held the CPU between two moments: (holder, from, until)."""
    first = max(bisect_right(log.moments, begin) - 1, 0)
    last = bisect_left(log.moments, end)
    stretches = []
    for at in range(first, last):
        until = log.moments[at + 1] if at + 1 < len(log.moments) else end
        low, high = max(log.moments[at], begin), min(until, end)
        if low < high:
            stretches.append((log.holders[at], low, high))
    return stretches


def critical_path(log: Log, rank: int) -> dict[str, Any]:
    """The longest chain of causes that leads to the rank's last GPU end, by kind; begins where the simulation did."""
    return {"rank": rank, "step": None, "by_kind": dict(zip(PATH_KINDS, log.critical, strict=True))}


def collectives(held: Iterable[Held]) -> list[dict[str, Any]]:
    """Every meeting that all its members recorded. A receiver's wait is that until the sender was there."""
    rows = []
    for each in held:
        pair = each.meeting.kind in ("send", "recv")
        waits = each.waits_ns
        if pair:
            receiver = each.meeting.ranks[1]
            waits = {receiver: waits[receiver]}
        rows.append(
            {
                "group": list(each.meeting.ranks),
                "kind": "send_recv" if pair else each.meeting.kind,
                "tag": each.meeting.tag,
                "seq": each.seq,
                "bytes": each.meeting.elements_in * 2,
                "wait_ns": {str(rank): ns for rank, ns in sorted(waits.items())},
                "transfer_ns": each.transfer_ns,
                "last_arriver": each.last,
            }
        )
    return sorted(rows, key=lambda row: (row["group"], row["tag"], row["seq"]))
