"""The errors a user can meet. In: nothing. Out: one small tree, caught once by the command line.

TracetoolsError
├── UsageError          the request makes no sense (unknown rank, bad pattern, rank named twice)
├── NothingReadable     no input gave a single event
└── UnreadableTrace     one file cannot be used; the others go on
"""

from __future__ import annotations


class TracetoolsError(Exception):
    """Base of every error that is the input's or the caller's; the message says the way out."""

    exit_code = 2


class UsageError(TracetoolsError):
    """The request cannot be carried out as it was put."""


class NothingReadable(TracetoolsError):
    """No input file held a trace that could be read."""


class UnreadableTrace(TracetoolsError):
    """One file is not a trace, or is damaged beyond use."""
