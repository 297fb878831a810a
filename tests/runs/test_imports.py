"""What takes seconds to import, and what need not be installed, is imported where it is used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import raygnn
from tests.small_runs import small_config


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


_WITHOUT_RAY = """
import sys
sys.modules["ray"] = None  # as where it is not installed
import raygnn.train
result = raygnn.train.fit(sys.argv[1])
assert result.metrics == result.return_value
assert result.best_checkpoints[0][0].path.startswith(result.path)
assert len(result.metrics_dataframe) == 2
assert result.model is not None
"""


@pytest.mark.slow
def test_fit_returns_its_result_where_ray_is_not_installed(
    small_tables: str, tmp_path: Path
) -> None:
    config = small_config(tmp_path, scaling__num_workers=0, data={"uri": small_tables})
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(config))
    subprocess.run([sys.executable, "-c", _WITHOUT_RAY, str(path)], check=True, timeout=300)


ROOT = Path(__file__).parents[2]
PLUG_INS = ("serving", "loops/tasks/self_supervised", "inference/explain")

_WITHOUT_PLUG_INS = """
import sys
import raygnn
import raygnn.train
assert raygnn.__file__.startswith(sys.argv[1])
result = raygnn.train.fit(sys.argv[2])
assert result.metrics["test/accuracy"] > 0.5
data = "--data.synthetic={type: planted_partition, num_nodes: 300}"
assert len(raygnn.load(result.path, [data]).predict().to_pandas()) == 300
"""


@pytest.mark.slow
def test_the_quickstart_trains_without_their_folders(tmp_path: Path) -> None:
    source, copy = Path(raygnn.__file__).parent, tmp_path / "raygnn"
    shutil.copytree(source, copy)
    for folder in PLUG_INS:
        shutil.rmtree(copy / folder)
    config = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    config |= {
        "data": {"synthetic": {"type": "planted_partition", "num_nodes": 300}},
        "scaling": {"num_workers": 0},
        "run": {"name": "run", "storage_path": str(tmp_path / "runs")},
    }
    config["training"] = config.get("training", {}) | {"max_epochs": 2}
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(config))
    subprocess.run(
        [sys.executable, "-c", _WITHOUT_PLUG_INS, str(tmp_path), str(path)],
        check=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
