"""torch DistributedDataParallel: the position among the replicas."""

from __future__ import annotations

import torch.distributed as dist

from collectors.frameworks.framework import Facts, Framework
from collectors.live_objects import LiveObjects

_DDP = "torch.nn.parallel.distributed.DistributedDataParallel"


def _facts(alive: LiveObjects) -> Facts:
    groups = [each.process_group for each in alive.of(_DDP)]
    positions = {dist.get_rank(group) for group in groups}
    return Facts(coordinates={"dp": positions.pop()} if len(positions) == 1 else {})


FRAMEWORK = Framework("ddp", "torch.nn.parallel.distributed", (_DDP,), _facts)
