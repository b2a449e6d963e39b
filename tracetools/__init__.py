"""tracetools: where the time and the FLOPs of a PyTorch training job went."""

__version__ = "0.1.0"
