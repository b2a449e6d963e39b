"""By whose rules FLOPs are counted, for those who compare. In: a name. Out: a `Convention`.

All count a multiply and an add as two and products alone, and all count what ran, not what a formula of the model's
sizes says; they differ in attention. torchtitan's and Megatron-LM's own figures come from such formulas: see
docs/flops.md for what stays between them and these.
"""

from __future__ import annotations

from typing import Final

from tracetools.results import Convention

CONVENTIONS: Final = {
    each.name: each
    for each in (
        Convention("torchtitan", causal="full", scores_again=False),
        Convention("megatron", causal="half", scores_again=False),
        Convention("flopcounter", causal="full", scores_again=True),
    )
}
