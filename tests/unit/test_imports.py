"""What takes seconds to import is imported where it is used, and not before."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("raygnn.train", {"torch", "torch_geometric", "numba", "pyarrow", "ray"}),
        ("raygnn.runtime.launch", {"torch", "torch_geometric", "ray"}),
        ("raygnn.runtime.ingest", {"ray", "torch"}),
        ("raygnn.loops.worker", {"ray", "torchmetrics", "matplotlib"}),
    ],
)
def test_heavy_packages_wait(module, heavy):
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())
