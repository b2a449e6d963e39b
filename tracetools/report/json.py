"""The document that scripts read. In: an analysis. Out: `analysis.json`, in the names and units of `results`."""

from __future__ import annotations

import msgspec

from tracetools.results import Analysis


def render(analysis: Analysis) -> bytes:
    """Indented UTF-8 with a line end; the same analysis gives the same bytes.

    A file name that is no UTF-8 reaches Python as lone surrogates, which no JSON may hold: they become U+FFFD.
    """
    try:
        document = msgspec.json.encode(analysis)
    except UnicodeEncodeError:
        document = msgspec.json.encode(_without_surrogates(msgspec.to_builtins(analysis)))
    return msgspec.json.format(document, indent=1) + b"\n"


def _without_surrogates(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return value
