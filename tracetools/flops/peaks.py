"""What devices can do at most. In: the exact name of a device. Out: `Peak` rows, dense products, FLOP/s.

Only names that stand for one product are listed: "NVIDIA H100" alone may be one of three. Where sources differ (B300)
nothing is listed. An unknown device has no peak, and nothing is guessed: `--peak` gives one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from tracetools.errors import UsageError
from tracetools.flops.kernels import Precision
from tracetools.results import Peak

_TITAN: Final = "torchtitan, tools/utils.py"
_SHEET: Final = "vendor's data sheet, dense"
_GIVEN: Final = "--peak"
_TERA: Final = 1e12


def _table() -> dict[str, dict[str, tuple[float, str]]]:
    """Device → element type → FLOP/s and source."""
    chips: list[tuple[tuple[str, ...], float, str, Mapping[str, float]]] = [
        (
            ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB", "Tesla V100-SXM3-32GB"),
            0,
            _SHEET,
            {"fp16": 125, "fp32": 15.7},
        ),
        (
            tuple(
                f"{maker}{model}"
                for maker in ("NVIDIA ", "")
                for model in ("A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIE-40GB", "A100 80GB PCIe", "A100-PCIE-80GB")
            ),
            312,
            _TITAN,
            {"tf32": 156, "fp32": 19.5, "int8": 624},
        ),
        (("NVIDIA RTX A6000",), 154.85, _TITAN, {"tf32": 77.4, "fp32": 38.7}),
        (("NVIDIA L40S",), 362, _TITAN, {"fp8": 733, "tf32": 183, "fp32": 91.6}),
        (("NVIDIA H100 80GB HBM3",), 989, _TITAN, {"fp8": 1979, "int8": 1979, "tf32": 495, "fp32": 67}),
        (("NVIDIA H100 PCIe",), 756, _TITAN, {"fp8": 1513, "int8": 1513, "tf32": 378, "fp32": 51}),
        (("NVIDIA H100 NVL",), 835, _TITAN, {"fp8": 1671, "int8": 1671, "tf32": 418, "fp32": 60}),
        (("NVIDIA H200",), 989, _TITAN, {"fp8": 1979, "int8": 1979, "tf32": 495, "fp32": 67}),
        (("NVIDIA H20",), 148, _TITAN, {"fp8": 296, "tf32": 74, "fp32": 44}),
        (("NVIDIA B200",), 2250, _TITAN, {"fp8": 4500, "tf32": 1130, "fp32": 75}),
        (("NVIDIA GB200",), 2500, _TITAN, {"fp8": 5000, "tf32": 1250, "fp32": 80}),
        (("AMD Instinct MI250X",), 191.5, _TITAN, {"fp32": 47.9}),
        (("AMD Instinct MI300X", "AMD Instinct MI325X"), 1300, _TITAN, {"fp8": 2610, "tf32": 650, "fp32": 163}),
        (("AMD Instinct MI355X",), 2500, _TITAN, {"fp8": 5000, "fp32": 157}),
    ]
    table: dict[str, dict[str, tuple[float, str]]] = {}
    for names, half, source, others in chips:
        row = {dtype: (tera * _TERA, _SHEET) for dtype, tera in others.items()}
        if half:
            row |= {"bf16": (half * _TERA, source), "fp16": (half * _TERA, source)}
        table |= dict.fromkeys(names, row)
    return table


_TABLE: Final = _table()
_SUFFIX: Final = {"": 1.0, "G": 1e9, "T": 1e12, "P": 1e15}
_GIVEN_FORM: Final = re.compile(r"(\w+)=(\d+(?:\.\d+)?(?:e\+?\d{1,2})?)([GTP]?)", re.ASCII)


def peaks_of(device: str | None, given: Mapping[str, float]) -> dict[str, Peak]:
    """Peaks of a device by element type; what was given goes before what is listed.

    >>> peaks_of("NVIDIA H200", {})["bf16"].flop_per_s
    989000000000000.0
    """
    name = device or "device not named"
    listed = _TABLE.get(device or "", {})
    found = {dtype: Peak(name, dtype, value, source) for dtype, (value, source) in listed.items()}
    return found | {dtype: Peak(name, dtype, value, _GIVEN) for dtype, value in given.items()}


def parse_peaks(texts: Sequence[str]) -> dict[str, float]:
    """Peaks as the command line gives them.

    >>> parse_peaks(["bf16=989T", "fp8=1.979e15"])
    {'bf16': 989000000000000.0, 'fp8': 1979000000000000.0}

    Raises: UsageError.
    """
    found = {}
    for text in texts:
        match = _GIVEN_FORM.fullmatch(text)
        if match is None or match[1] not in {*Precision} or not float(match[2]):
            types = ", ".join(Precision)
            raise UsageError(f"--peak {text}: not a peak; write an element type ({types}) and FLOP/s, as bf16=989T")
        found[match[1]] = float(match[2]) * _SUFFIX[match[3]]
    return found
