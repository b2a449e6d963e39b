"""Sections as CSV files. In: an analysis. Out: one text per section, a row per line, units in the column names."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, get_type_hints

import msgspec

from tracetools.report.names import cell
from tracetools.results import (
    Analysis,
    AnnotationTime,
    GpuTime,
    ModuleTime,
    OpTime,
    RankFlops,
    StepFlops,
    StepTime,
    UncountedOp,
)

_SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "modules": ModuleTime,
    "ops": OpTime,
    "annotations": AnnotationTime,
    "steps": StepTime,
    "gpu": GpuTime,
    "flops.by_rank": RankFlops,
    "flops.by_step": StepFlops,
    "flops.uncounted": UncountedOp,
}


def render(analysis: Analysis) -> dict[str, str]:
    """File name → content. Nested figures are joined by an underscore: `forward_cpu_ns`; an absent one is empty."""
    return {
        f"{section.replace('.', '_')}.csv": _table(row_type, attrgetter(section)(analysis))
        for section, row_type in _SECTIONS.items()
    }


def _table(row_type: type[msgspec.Struct], rows: tuple[msgspec.Struct, ...]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_headers(row_type))
    writer.writerows([_cell(value) for value in _values(row)] for row in rows)
    return text.getvalue()


def _headers(row_type: type[msgspec.Struct], prefix: str = "") -> list[str]:
    types = get_type_hints(row_type)
    headers = []
    for field in msgspec.structs.fields(row_type):
        inner = types[field.name]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            headers += _headers(inner, f"{prefix}{field.encode_name}_")
        else:
            headers.append(f"{prefix}{field.encode_name}")
    return headers


def _values(row: msgspec.Struct) -> Iterator[object]:
    for name in row.__struct_fields__:
        value = getattr(row, name)
        if isinstance(value, msgspec.Struct):
            yield from _values(value)
        else:
            yield value


def _cell(value: object) -> object:
    if value is None:
        return ""
    return cell(value) if isinstance(value, str) else value
