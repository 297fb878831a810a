"""How long threads of OpenMP, which torch computes with on a CPU, stay awake while they wait."""

from __future__ import annotations

import os

_SPIN_COUNT = 1_000  # some microseconds: as long as the next operator takes to come


def wait_briefly() -> None:
    """Lets threads that wait for others sleep after some microseconds, not milliseconds.

    By default GNU's OpenMP turns in a loop, which takes the core from the very thread that is
    waited for, where other processes want it too. It reads the environment once, when torch is
    imported. What the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPIN_COUNT))
