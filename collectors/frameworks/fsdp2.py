"""torch fully_shard (FSDP2): the position among the shards, where no named device mesh says it."""

from __future__ import annotations

import torch.distributed as dist

from collectors.frameworks.framework import Facts, Framework
from collectors.live_objects import LiveObjects

_FSDP = "torch.distributed.fsdp.FSDPModule"


def _facts(alive: LiveObjects) -> Facts:
    if not alive.of(_FSDP) or not dist.is_initialized():
        return Facts()
    # A mesh without names covers the world; a named one is read with the other meshes and wins.
    return Facts(coordinates={"dp": dist.get_rank()}, notes={"sharded_modules": len(alive.of(_FSDP))})


FRAMEWORK = Framework("fsdp2", "torch.distributed.fsdp", (_FSDP,), _facts)
