"""`python -m tracetools` is the command `tracetools`."""

from __future__ import annotations

from tracetools.cli import main

if __name__ == "__main__":
    main()
