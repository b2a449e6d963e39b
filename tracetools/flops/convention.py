"""By whose rules FLOPs are counted, for those who compare. In: a name. Out: a `Convention`.

All count a multiply and an add as two and products alone, and all count what ran, not what a formula of the model's
sizes says; they differ in attention. torchtitan's and Megatron-LM's own figures come from such formulas: see
docs/flops.md for what stays between them and these.
"""

from __future__ import annotations

import math
from typing import Final

from tracetools.errors import UsageError
from tracetools.flops.kernels import Precision
from tracetools.results import Convention
from tracetools.settings import Settings

CONVENTIONS: Final = {
    each.name: each
    for each in (
        Convention("torchtitan", causal="full", scores_again=False),
        Convention("megatron", causal="half", scores_again=False),
        Convention("flopcounter", causal="full", scores_again=True),
    )
}


def check_choices(settings: Settings) -> None:
    """Raise UsageError where a convention or a peak is none."""
    if settings.convention not in CONVENTIONS:
        known = ", ".join(CONVENTIONS)
        raise UsageError(f"convention {settings.convention} is not known; choose one of {known}")
    for dtype, peak in settings.peaks.items():
        if dtype not in {*Precision}:
            raise UsageError(f"peak of {dtype}: no such element type; give one of {', '.join(Precision)}")
        if not 0 < peak < math.inf:
            raise UsageError(f"peak of {dtype}: {peak:g} FLOP/s is none; give a positive number, as 989e12")
