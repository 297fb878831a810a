"""A worker over NCCL. It has not run yet: no machine with one was at hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import raygnn.train
from tests.small_runs import small_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_a_worker_over_nccl(small_tables: str, tmp_path: Path):
    config = small_config(tmp_path / "runs", scaling__num_workers=1, scaling__use_gpu=True)
    config["data"] = {"uri": small_tables}
    assert math.isfinite(raygnn.train.fit(config).metrics["test/loss"])
