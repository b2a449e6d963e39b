"""FLOPs of ops from their recorded shapes, by one registry, op → formula; `register` adds to it."""

from tracetools.flops import attention, convolutions, functions, products
from tracetools.flops.call import OpCall, Uncountable, elements
from tracetools.flops.formulas import Bound, Flops, register, unregister

__all__ = [
    "Bound",
    "Flops",
    "OpCall",
    "Uncountable",
    "attention",
    "convolutions",
    "elements",
    "functions",
    "products",
    "register",
    "unregister",
]
