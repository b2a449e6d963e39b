"""Where a rank sits in the job: host, pipeline stage, coordinates. In: metadata of a trace. Out: `Place`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tracetools import trace_file

_PIPELINE_GROUPS = ("PIPELINE_MODEL_PARALLEL_GROUP", "mesh_pp")


@dataclass(frozen=True, slots=True)
class Place:
    """host, stage: None where the trace does not say. coordinates: position along each parallel dimension."""

    host: str | None
    stage: int | None
    coordinates: dict[str, int] = field(default_factory=dict)


def find_place(metadata: Mapping[str, Any], rank: int | None) -> Place:
    """Host, stage and coordinates: from our own metadata, else the stage from a process group named for the pipeline.

    The stage is then the position of the rank among the group's ranks (as Megatron names it).
    """
    own = metadata.get(trace_file.METADATA_KEY)
    own = own if isinstance(own, dict) else {}
    host = own.get("host") or metadata.get("host_name")
    coordinates = own.get("coordinates")
    coordinates = coordinates if isinstance(coordinates, dict) else {}
    stage = own.get("stage")
    if not isinstance(stage, int):
        stage = _stage_from_groups(metadata, rank)
    return Place(
        host=host if isinstance(host, str) else None,
        stage=stage,
        coordinates={str(name): value for name, value in sorted(coordinates.items()) if isinstance(value, int)},
    )


def _stage_from_groups(metadata: Mapping[str, Any], rank: int | None) -> int | None:
    distributed = metadata.get("distributedInfo")
    groups = distributed.get("pg_config") if isinstance(distributed, dict) else None
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, dict) and group.get("pg_desc") in _PIPELINE_GROUPS:
            ranks = list(_ranks_of(group.get("ranks")))
            if rank in ranks:
                return ranks.index(rank)
    return None


def _ranks_of(ranks: Any) -> Iterable[int]:
    """Ranks of a group: a list in traces that the program wrote, a text like "[0, 4]" in those made on demand."""
    if isinstance(ranks, str):
        ranks = ranks.strip("[] ").split(",")
    for rank in ranks if isinstance(ranks, list) else []:
        text = str(rank).strip()
        if text.isdecimal():
            yield int(text)
