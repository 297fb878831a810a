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
        ("raygnn.loops.worker", {"ray", "torchmetrics", "matplotlib", "pandas"}),
    ],
)
def test_heavy_packages_wait(module, heavy):
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize(
    "use",
    [
        "import torch_geometric; print(torch_geometric.datasets.KarateClub()[0].num_nodes)",
        "from torch_geometric.datasets import KarateClub; print(KarateClub()[0].num_nodes)",
        "from torch_geometric import datasets; print(datasets.KarateClub()[0].num_nodes)",
    ],
)
def test_pygs_datasets_are_there_when_they_are_used(use):
    code = f"import raygnn.sampling, sys; assert 'pandas' not in sys.modules; {use}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["34"]
