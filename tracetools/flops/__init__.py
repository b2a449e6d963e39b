"""FLOPs of ops from their recorded shapes: one registry, op → formula. In: `OpCall`. Out: `Flops`."""

from tracetools.flops import attention, convolutions, products
from tracetools.flops.call import OpCall, Uncountable
from tracetools.flops.formulas import Bound, Flops

__all__ = ["Bound", "Flops", "OpCall", "Uncountable", "attention", "convolutions", "products"]
