"""torchrun's processes join one group and train what Ray's workers, or plain ranks, train."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.linger import Linger
from tests.small_runs import assert_same_weights, run_rank, small_config
from tests.wait_until import wait_until


def _torchrun(config: dict, folder: Path) -> subprocess.Popen[str]:
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "raygnn.train", str(folder / "config.yaml"), "--allow-module", "tests"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_processes_of_torchrun(
    ranks, small_bundle_path: str, small_tables: str, tmp_path: Path
):
    """The first start is stopped by SIGTERM, the second goes on."""
    config = small_config(tmp_path / "torchrun", scaling__num_workers=0)
    config["data"] = {"uri": small_tables}
    marker = tmp_path / "marker"
    marker.touch()
    config["callbacks"] = [Linger.entry(marker)]
    stopped = _torchrun(config, tmp_path)
    wait_until(lambda: bool(marker.read_text()), stopped)
    stopped.send_signal(signal.SIGTERM)
    _, told = stopped.communicate(timeout=200)
    assert stopped.returncode != 0
    assert "PreemptedError:\nThe run was stopped by SIGTERM after step" in told
    marker.unlink()

    done = _torchrun(config, tmp_path)
    output, told = done.communicate(timeout=400)
    assert done.returncode == 0, told
    assert "global batch 32 = 16 x 2 workers x 1" in output
    assert "resumed from step-" in output
    plain = small_config(tmp_path / "plain", scaling__num_workers=2)
    ranks.run(run_rank, 2, plain, small_bundle_path)
    assert_same_weights(config, plain)
