"""What a user of HolisticTraceAnalysis runs on one trace. In: a trace file. Out: five results, thrown away.

Runs in the environment of benchmarks/run.py, as a process of its own, so that loading and imports count.
"""

import os
import sys
import time

from hta.trace_analysis import TraceAnalysis


def main(path: str) -> None:
    started = time.perf_counter()
    analysis = TraceAnalysis(trace_files={0: os.path.abspath(path)})
    loaded = time.perf_counter()
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)
    analysis.get_cuda_kernel_launch_stats(visualize=False)
    print(f"load {loaded - started:.2f} s, analyses {time.perf_counter() - loaded:.2f} s", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
