"""Where this rank sits in the job. In: living objects, the launcher's word. Out: `Layout`, ready for the metadata.

Named device meshes say the coordinates; the frameworks say the stage, and what no mesh says. Process groups are not
repeated here: the profiler lists them itself (`distributedInfo`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch.distributed as dist

from collectors.frameworks import FRAMEWORKS, Facts, Framework
from collectors.launcher import Process
from collectors.live_objects import LiveObjects
from collectors.models import MODULE, Models

_MESH: Final = "torch.distributed.device_mesh.DeviceMesh"
_USUAL: Final = {
    "data": "dp",
    "data_parallel": "dp",
    "tensor": "tp",
    "model": "tp",
    "tensor_parallel": "tp",
    "pipe": "pp",
    "pipeline": "pp",
    "pipeline_parallel": "pp",
    "context": "cp",
    "context_parallel": "cp",
    "expert": "ep",
    "expert_parallel": "ep",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """rank, world_size: of the process group where there is one. metadata: everything known, under its final names.

    models: what the frameworks run, by name; empty where none says so.
    """

    rank: int
    world_size: int
    metadata: dict[str, Any]
    models: Models


def look_for_layout() -> LiveObjects:
    """The objects that tell a layout, and all modules."""
    wanted = {_MESH, MODULE, *(name for each in frameworks_in_use() for name in each.looks_for)}
    return LiveObjects(wanted)


def frameworks_in_use() -> tuple[Framework, ...]:
    """Those that the script has imported so far."""
    return tuple(each for each in FRAMEWORKS if each.in_use())


def find_layout(alive: LiveObjects, process: Process) -> Layout:
    """Layout of this rank, as far as its objects say it now."""
    known = [(each.name, each.facts(alive)) for each in frameworks_in_use()]
    coordinates: dict[str, int] = {}
    for _, facts in known:
        coordinates |= facts.coordinates
    coordinates |= _of_meshes(alive.of(_MESH))
    stage = _last(facts.stage for _, facts in known)
    rank, world_size = process.rank, process.world_size
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    metadata = {
        "rank": rank,
        "local_rank": process.local_rank,
        "world_size": world_size,
        "launcher": process.launcher,
        "coordinates": dict(sorted(coordinates.items())),
        "stage": coordinates.get("pp") if stage is None else stage,
        "stages": _last(facts.stages for _, facts in known),
        "virtual_stages": list(next((facts.virtual_stages for _, facts in known if facts.virtual_stages), ())),
        "micro_batches": _last(facts.micro_batches for _, facts in known),
        "schedule": _last(facts.schedule for _, facts in known),
        "frameworks": {
            each.name: _version(each)
            for each, (_, facts) in zip(frameworks_in_use(), known, strict=True)
            if facts != Facts() or _has_objects(each, alive)
        },
        **{name: facts.notes for name, facts in known if facts.notes},
    }
    models: Models = {}
    for _, facts in known:
        models = facts.models or models
    return Layout(rank, world_size, metadata, models)


def _has_objects(framework: Framework, alive: LiveObjects) -> bool:
    return any(alive.of(name) for name in framework.looks_for if name != MODULE)


def _of_meshes(meshes: Sequence[Any]) -> dict[str, int]:
    """Position along each named dimension; a name with two positions (on two meshes) says nothing."""
    positions: dict[str, set[int]] = {}
    for mesh in meshes:
        for name, position in _of_mesh(mesh):
            positions.setdefault(_USUAL.get(name, name), set()).add(position)
    return {name: found.pop() for name, found in positions.items() if len(found) == 1}


def _of_mesh(mesh: Any) -> Iterator[tuple[str, int]]:
    names, position = getattr(mesh, "mesh_dim_names", None), mesh.get_coordinate()
    yield from zip(names or (), position or (), strict=False)


def _last(values: Iterator[Any]) -> Any:
    found = None
    for value in values:
        found = found if value is None else value
    return found


def _version(framework: Framework) -> str | None:
    """Version of the package, or of one that it is part of."""
    package = framework.package
    while package:
        version = getattr(sys.modules.get(package), "__version__", None)
        if version is not None:
            return str(version)
        package = package.rpartition(".")[0]
    return None
