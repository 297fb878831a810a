"""What importing raygnn sets for OpenMP, before torch reads it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRINTS = (
    "import os, sys; import raygnn; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_threads_wait_briefly_unless_the_user_says_how(given, expected):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    env = {name: value for name, value in os.environ.items() if name not in names} | given
    done = subprocess.run(
        [sys.executable, "-c", PRINTS], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", expected]
