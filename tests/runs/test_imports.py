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
    ],
)
def test_heavy_packages_wait(module, heavy):
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())


def test_the_package_itself_is_light_and_loads_what_it_offers_when_used():
    """So a worker and a loaded model start, and PyG's data sets come when they are used."""
    code = """if True:
        import sys
        import raygnn
        assert not {"torch", "numba", "pyarrow", "ray", "numpy"} & set(sys.modules)
        assert set(dir(raygnn)) == set(raygnn.__all__) == {"load", "TrainedModel", "__version__"}
        import raygnn.worker
        assert not {"ray", "torchmetrics", "matplotlib", "pandas"} & set(sys.modules)
        assert raygnn.load.__module__ == raygnn.TrainedModel.__module__ == "raygnn.trained_model"
        assert "ray" not in sys.modules
        assert not hasattr(raygnn, "no_such_name")
        import raygnn.train
        assert "train" in dir(raygnn)
        import torch_geometric
        print(torch_geometric.datasets.KarateClub()[0].num_nodes)
        from torch_geometric import datasets
        from torch_geometric.datasets import KarateClub
        assert datasets.KarateClub is KarateClub is torch_geometric.datasets.KarateClub
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["34"]


def test_loading_is_light() -> None:
    code = (
        "import time, sys; start = time.process_time(); from raygnn.config import load_config; "
        "load_config('seed: 1'); spent = time.process_time() - start; "
        "heavy = {'torch', 'ray', 'numba', 'pyarrow', 'numpy', 'torch_geometric'}; "
        "print(sorted(heavy & set(sys.modules)), spent)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, _, spent = done.stdout.strip().rpartition(" ")
    assert heavy == "[]"
    assert float(spent) < 2  # seconds of a processor; 0.15 on an idle machine
