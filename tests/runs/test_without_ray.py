"""Training in this process needs no Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.small_runs import small_config

pytestmark = pytest.mark.slow

_PROGRAM = """
import sys
sys.modules["ray"] = None  # as where it is not installed
import raygnn.train
result = raygnn.train.fit(sys.argv[1])
assert result.metrics == result.return_value
assert result.best_checkpoints[0][0].path.startswith(result.path)
assert len(result.metrics_dataframe) == 2
assert result.model is not None
"""


def test_fit_returns_its_result_where_ray_is_not_installed(
    small_tables: str, tmp_path: Path
) -> None:
    config = small_config(tmp_path, scaling__num_workers=0, data={"uri": small_tables})
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(config))
    subprocess.run([sys.executable, "-c", _PROGRAM, str(path)], check=True, timeout=300)
