"""How many cases a fuzzer runs: all in `make fuzz`, the first ones in `make test`."""

from __future__ import annotations

import os


def cases(full: int, short: int) -> range:
    """Numbers of the cases, each of which is the seed of its own."""
    return range(full if os.environ.get("RAYGNN_FUZZ") == "full" else short)
