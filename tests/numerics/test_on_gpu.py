"""Whole runs on a CUDA device. They have not run yet: no machine with one was at hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import raygnn.train
from tests.small_runs import small_bundle, small_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed", "bf16-true"])
def test_a_run_on_the_device_comes_close_to_the_cpu(tmp_path: Path, precision: str):
    small_bundle(tmp_path)
    losses = {}
    for use_gpu in (False, True):
        config = small_config(
            tmp_path / str(use_gpu),
            scaling__num_workers=0,
            scaling__use_gpu=use_gpu,
            training__precision=precision if use_gpu else "fp32",
            model__args={"hidden_channels": 8},
        )
        config["data"] = {"uri": str(tmp_path / "tables")}
        losses[use_gpu] = raygnn.train.fit(config).metrics["test/loss"]
    assert math.isfinite(losses[True])
    assert losses[True] == pytest.approx(losses[False], rel=1e-3 if precision == "fp32" else 0.05)
