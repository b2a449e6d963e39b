"""Runs a job. In: `Job`, a folder. Out: `traces/`, a file per rank, and `truth.json`, all marked as synthetic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.simulator import pipeline, truth
from tests.simulator.cluster import Cluster, Held
from tests.simulator.faults import spoil
from tests.simulator.job import Job, head_of, plays_of
from tests.simulator.kineto import Writer
from tests.simulator.player import Player
from tests.simulator.tape import Meeting, Place

_BYTES = 2


def simulate(job: Job, folder: Path) -> dict[str, Any]:
    """Write `traces/`, a file per rank, and `truth.json` about them; returns the truth."""
    traces = folder / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(lambda meeting: job.machine.transfer_ns(_moved(meeting)))
    players = []
    for rank in range(job.ranks):
        path = traces / f"rank-{rank:05d}.trace.json.gz"
        writer = Writer(path, rank, 4000 + rank, 0, head_of(job, rank), job.frames)
        players.append(
            Player(rank, plays_of(job, rank), job.machine_of(rank), job.clock_of(rank), writer, cluster.meet, job.seed)
        )
    cluster.run(players)
    for player in players:
        player.writer.close()
    answer = _truth(job, players, cluster.held)
    answer["faults"] = [
        {"rank": rank, "fault": fault, "records": spoil(traces / f"rank-{rank:05d}.trace.json.gz", fault)}
        for rank, faults in sorted(job.faults.items())
        for fault in faults
    ]
    (folder / "truth.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    return answer


def _moved(meeting: Meeting) -> int:
    """Bytes that one member's link has to carry (ring algorithms)."""
    whole = max(meeting.elements_in, meeting.elements_out) * _BYTES
    members = len(meeting.ranks)
    if meeting.kind == "allreduce":
        return 2 * whole * (members - 1) // members
    if meeting.kind in ("send", "recv"):
        return whole
    return whole * (members - 1) // members


def _truth(job: Job, players: list[Player], held: list[Held]) -> dict[str, Any]:
    answer: dict[str, Any] = {"synthetic": f"tests.simulator {job.name}"}
    per_rank: dict[str, list[Any]] = {name: [] for name in ("modules", "steps", "gpu", "launches", "critical_path")}
    gaps, by_rank = [], []
    for player in players:
        log, rank, path_of = player.log, player.rank, _paths(player)
        per_rank["modules"] += truth.modules(log, rank, path_of)
        per_rank["steps"] += truth.steps(log, rank)
        per_rank["gpu"] += truth.gpu(log, rank)
        per_rank["launches"].append(truth.launches(log, rank))
        per_rank["critical_path"].append(truth.critical_path(log, rank))
        gaps += truth.launch_gaps(log, rank, path_of)
        by_rank.append(truth.flops(log, rank))
        log.forget()
    offsets = [(rank, job.clock_of(rank)) for rank in range(job.ranks)]
    return {
        **answer,
        **per_rank,
        "launch_gaps": {"by_module": gaps},
        "flops": {"by_rank": by_rank, "convention": {"causal": "full", "multiply_add": 2}},
        "pipeline": pipeline.truth_of(job, {player.rank: player.log for player in players}),
        "collectives": truth.collectives(held),
        "clock": {
            "ranks": [
                {"rank": rank, "offset_ns": each.offset_ns, "drift_ppm": each.drift_ppm} for rank, each in offsets
            ]
        },
    }


def _paths(player: Player) -> Callable[[Place], str]:
    if not player.writer.frames:
        return lambda place: place.path

    def labels(place: Place) -> str:
        if place.class_name is None:
            return place.path
        return "/".join(player.writer.label(each.class_name or "", each.path) for each in reversed(place.around))

    return labels
