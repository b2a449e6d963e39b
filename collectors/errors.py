"""What a collector complains of. Raised before a script starts; later, a recording never stops a training."""

from __future__ import annotations


class CollectError(Exception):
    """The recording cannot begin as asked; the message names the thing, the fact and the way out."""
