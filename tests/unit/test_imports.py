"""No imports go in circles, and what takes seconds to import is imported where it is used."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter

import grimp
import pytest


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("raygnn.train", {"torch", "torch_geometric", "numba", "pyarrow", "ray"}),
        ("raygnn.runtime.launch", {"torch", "torch_geometric", "ray"}),
        ("raygnn.runtime.ingest", {"ray", "torch"}),
    ],
)
def test_heavy_packages_wait(module, heavy):
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())


def test_a_worker_starts_without_them_and_pygs_datasets_come_when_used():
    code = """if True:
        import sys
        import raygnn.worker
        assert not {"ray", "torchmetrics", "matplotlib", "pandas"} & set(sys.modules)
        import torch_geometric
        print(torch_geometric.datasets.KarateClub()[0].num_nodes)
        from torch_geometric import datasets
        from torch_geometric.datasets import KarateClub
        assert datasets.KarateClub is KarateClub is torch_geometric.datasets.KarateClub
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["34"]


def test_no_imports_go_in_circles():
    """Not even those that only a type checker follows, which import-linter leaves out."""
    graph = grimp.build_graph("raygnn", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported).prepare()
