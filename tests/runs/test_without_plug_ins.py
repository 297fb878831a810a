"""Training, loading and predicting need no plug-in: their folders may be deleted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import raygnn

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLUG_INS = ("serving", "loops/tasks/self_supervised", "inference/explain")

_PROGRAM = """
import sys
import raygnn
import raygnn.train
assert raygnn.__file__.startswith(sys.argv[1])
result = raygnn.train.fit(sys.argv[2])
assert result.metrics["test/accuracy"] > 0.5
data = "--data.synthetic={type: planted_partition, num_nodes: 300}"
assert len(raygnn.load(result.path, [data]).predict().to_pandas()) == 300
"""


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
        [sys.executable, "-c", _PROGRAM, str(tmp_path), str(path)],
        check=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
