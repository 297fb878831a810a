"""The Slurm and PBS scripts: what they start, with the schedulers' commands in place of theirs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "cluster"
SLURM = {
    "SLURM_JOB_NODELIST": "gpu[01-02]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_ID": "77",
    "SLURM_CPUS_PER_TASK": "16",
    "SLURM_GPUS_ON_NODE": "2",
}


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder of commands: those that start processes tell what they were asked to start."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tells = 'echo "$(basename $0) $*"; echo "token ${RAY_AUTH_MODE:-} ${RAY_AUTH_TOKEN:-}"; '
    scripts = {
        "srun": tells + 'echo "threads ${OMP_NUM_THREADS:-}"',
        "mpiexec": tells,
        "scontrol": "echo gpu01; echo gpu02",
        "python": f'exec {sys.executable} "$@"',
    }
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def _run(script: str, commands: Path, arguments: list[str], variables: dict[str, str]) -> str:
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **variables, "PATH": path}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        ["bash", str(FOLDER / script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def _pbs(tmp_path: Path, **variables: str) -> dict[str, str]:
    nodes = tmp_path / "nodes"
    nodes.write_text("gpu01\ngpu02\n")
    pbs = {"PBS_NODEFILE": str(nodes), "PBS_O_WORKDIR": str(tmp_path), "PBS_JOBID": "77"}
    return {**pbs, "NCPUS": "16", **variables}


def test_slurm_with_torchrun(commands):
    arguments = ["train.yaml", "--seed", "1"]
    told = _run("slurm-torchrun.sbatch", commands, arguments, SLURM)
    assert told.splitlines()[0] == (
        "srun torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-id 77 "
        "--rdzv-endpoint gpu01:29500 -m raygnn.train train.yaml --seed 1 --scaling.num_workers 0"
    )
    assert "threads 8" in told


def test_slurm_with_ray(commands):
    told = _run("slurm-ray.sbatch", commands, ["train.yaml", "--scaling.num_workers", "4"], SLURM)
    assert told.splitlines()[0] == (
        "srun ray symmetric-run --address gpu01:6379 --min-nodes 2 --num-cpus 16 --num-gpus 2 "
        "-- python -m raygnn.train train.yaml --scaling.num_workers 4"
    )
    assert re.search(r"^token token [0-9a-f]{64}$", told, re.M)
    sweep = {**SLURM, "COMMAND": "raygnn.tune"}
    assert "-m raygnn.tune sweep.yaml" in _run("slurm-ray.sbatch", commands, ["sweep.yaml"], sweep)


def test_pbs_with_torchrun(commands, tmp_path):
    told = _run("pbs-torchrun.pbs", commands, [], _pbs(tmp_path, ARGUMENTS="train.yaml --seed 1"))
    assert told.splitlines()[0] == (
        "mpiexec -n 2 torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-id 77 "
        "--rdzv-endpoint gpu01:29500 -m raygnn.train train.yaml --seed 1 --scaling.num_workers 0"
    )


def test_pbs_with_ray(commands, tmp_path):
    told = _run("pbs-ray.pbs", commands, [], _pbs(tmp_path, ARGUMENTS="train.yaml"))
    assert told.splitlines()[0] == (
        "mpiexec -n 2 ray symmetric-run --address gpu01:6379 --min-nodes 2 --num-cpus 16 "
        "--num-gpus 2 -- python -m raygnn.train train.yaml"
    )
    assert re.search(r"^token token [0-9a-f]{64}$", told, re.M)


def test_symmetric_run_takes_these_options():
    ray = Path(sys.executable).with_name("ray")
    command = [str(ray), "symmetric-run", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for option in ("--address", "--min-nodes"):
        assert option in told
    assert "Most ray start command options are supported" in " ".join(told.split())
