"""What things cost: the host, the GPU, the links. In: sizes. Out: ns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """Costs of one rank's hardware.

    cpu_share: factor on all CPU times. launch_ns: length of a launch call. latency_ns: from the call's begin to the
    earliest start of the work. spacing_ns: between two works of a stream. queue_depth: launches not yet ended before a
    launch call blocks. noise: relative standard deviation of CPU times. pause_every, pause_ns: a garbage collector's
    pause after so many CPU instructions. buffer_every, buffer_ns: after so many launches the profiler wants a buffer,
    and the CPU waits for it. fp8_share: factor on the length of products in fp8.
    """

    cpu_share: float = 1.0
    launch_ns: int = 4_000
    latency_ns: int = 6_000
    spacing_ns: int = 900
    queue_depth: int = 1024
    sync_ns: int = 3_000
    flop_per_s: float = 400e12
    byte_per_s: float = 2e12
    floor_ns: int = 1_800
    link_byte_per_s: float = 150e9
    link_ns: int = 8_000
    noise: float = 0.0
    pause_every: int = 0
    pause_ns: int = 0
    buffer_every: int = 0
    buffer_ns: int = 0
    fp8_share: float = 0.5
    gpu_share: float = 1.0

    def product_ns(self, flops: int) -> int:
        """Length of a matrix product."""
        return round(self.gpu_share * (self.floor_ns + flops / self.flop_per_s * 1e9))

    def elementwise_ns(self, size: int) -> int:
        """Length of a kernel that reads and writes so many bytes."""
        return round(self.gpu_share * (self.floor_ns + size / self.byte_per_s * 1e9))

    def transfer_ns(self, size: int) -> int:
        """Length of moving so many bytes between ranks, once all are there."""
        return round(self.link_ns + size / self.link_byte_per_s * 1e9)


IDEAL = Machine(
    launch_ns=0,
    latency_ns=0,
    spacing_ns=0,
    sync_ns=0,
    floor_ns=0,
    link_ns=0,
    link_byte_per_s=float("inf"),
    cpu_share=0.0,
)
"""No overhead at all: what textbooks assume."""
