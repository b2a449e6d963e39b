"""Where a rank sits: real device meshes over torch's fake process group, which is one process that acts as many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from collectors.launcher import Process
from collectors.live_objects import LiveObjects
from collectors.parallel_layout import find_layout

ALONE = Process(0, 1, None, None)
MESH = "torch.distributed.device_mesh.DeviceMesh"


@contextmanager
def acting_as(rank: int, world_size: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


class Alive(LiveObjects):
    """These objects and no others, so that meshes of another test do not count."""

    def __init__(self, *meshes: Any) -> None:
        self._meshes = list(meshes)

    def of(self, name: str) -> list[Any]:
        return self._meshes if name == MESH else []


def metadata(*meshes: DeviceMesh, process: Process = ALONE) -> dict[str, Any]:
    return find_layout(Alive(*meshes), process).metadata


@pytest.mark.parametrize(("rank", "expected"), [(0, (0, 0, 0)), (5, (1, 0, 1)), (23, (5, 1, 1))])
def test_coordinates_of_a_named_mesh(rank: int, expected: tuple[int, int, int]):
    with acting_as(rank, 24):
        found = metadata(init_device_mesh("cpu", (6, 2, 2), mesh_dim_names=("pp", "dp", "tp")))
    assert found["coordinates"] == dict(zip(("pp", "dp", "tp"), expected, strict=True))
    assert (found["rank"], found["world_size"], found["stage"]) == (rank, 24, expected[0])


def test_long_names_become_the_usual_ones_and_others_stay():
    with acting_as(3, 8):
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("data_parallel", "shard", "tensor"))
        assert metadata(mesh)["coordinates"] == {"dp": 0, "shard": 1, "tp": 1}


def test_a_slice_of_a_mesh_agrees_with_it():
    with acting_as(3, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert metadata(mesh, mesh["tp"])["coordinates"] == {"dp": 1, "tp": 1}


def test_a_name_with_two_positions_says_nothing():
    with acting_as(1, 4):
        wide = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        whole = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        assert metadata(wide, whole)["coordinates"] == {"tp": 1}


def test_a_mesh_without_names_or_without_this_rank_says_nothing():
    with acting_as(3, 4):
        unnamed, others = init_device_mesh("cpu", (4,)), DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",))
        found = metadata(unnamed, others)
    assert (found["coordinates"], found["stage"]) == ({}, None)


def test_without_a_process_group_the_launcher_is_believed():
    found = metadata(process=Process(3, 8, 1, "openmpi"))
    assert [found[name] for name in ("rank", "world_size", "local_rank", "launcher")] == [3, 8, 1, "openmpi"]
    assert (found["coordinates"], found["virtual_stages"], found["stages"]) == ({}, [], None)
