"""torchrun's processes join one group and train what Ray's workers, or plain ranks, train."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from tests.small_runs import run_rank, small_bundle, small_config, trained_weights


@pytest.mark.slow
def test_two_processes_of_torchrun(ranks, tmp_path: Path):
    bundle = small_bundle(tmp_path)
    config = small_config(tmp_path / "torchrun", scaling__num_workers=0)
    config["data"] = {"uri": str(tmp_path / "tables")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "raygnn.train", str(tmp_path / "config.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "global batch 32 = 16 x 2 worker(s) x 1" in done.stdout
    plain = small_config(tmp_path / "plain", scaling__num_workers=2)
    ranks.run(run_rank, 2, plain, str(bundle.path))
    expected = trained_weights(plain)
    for name, tensor in trained_weights(config).items():
        assert torch.equal(tensor, expected[name]), name
