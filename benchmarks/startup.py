"""Time from the command to the first training step, on a graph of Cora's size.

    python benchmarks/startup.py

On Ray beside a Ray Train run that does nothing, without Ray beside the imports of torch and PyG. A
line of output is stamped when it arrives, which gives the breakdown. Every scale takes the same
graph; the reference scale repeats each run.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from harness import Row, parser, publish
from rmat_graph import RmatGraph

_FIRST_STEP = "first step"
_RUNS = {"smoke": 1, "reference": 3}
_CORA = RmatGraph(2708, 10556, num_features=1433, num_classes=7)
#: Marks in a run's output, in their order, and what lies before each; Ray's own is only on Ray.
MARKS = {
    "[raygnn] Ray ": "imports, config, ray.init",
    "[raygnn] graph ": "imports, config; on Ray the check of resources",
    "ingest:": "opening tables",
    "worker set up": "ingest, worker start, its imports, model",
    _FIRST_STEP: "first batch and step (kernels)",
}


def stamped(command: Sequence[str], environment: Mapping[str, str]) -> list[tuple[float, str]]:
    """Seconds since the start at which each line of output arrived, and the line.

    Raises:
        RuntimeError: the command failed.
    """
    began = time.perf_counter()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdout is not None
        lines = [(time.perf_counter() - began, line.rstrip()) for line in process.stdout]
    if process.returncode != 0:
        output = "\n".join(line for _, line in lines)
        raise RuntimeError(f"{' '.join(command)} failed:\n{output}")
    return lines


def when(lines: Sequence[tuple[float, str]], mark: str) -> float:
    """When a mark was first seen.

    Raises:
        RuntimeError: it was not.
    """
    for seconds, line in lines:
        if mark in line:
            return seconds
    output = "\n".join(line for _, line in lines)
    raise RuntimeError(f"{mark!r} is not in the output:\n{output}")


def busy(lines: Sequence[tuple[float, str]]) -> float | None:
    """Processor time of the process that made the first step, if it says so."""
    for _, line in lines:
        found = re.search(rf"{_FIRST_STEP}, ([0-9.]+) s of processors", line)
        if found is not None:
            return float(found[1])
    return None


def breakdown(lines: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Seconds of each phase up to the first step, those marks only that are in the output."""
    found: dict[str, float] = {}
    before = 0.0
    for mark, phase in MARKS.items():
        if any(mark in line for _, line in lines):
            at = when(lines, mark)
            found[phase] = max(at - before, 0.0)
            before = max(at, before)
    return found


def train_command(work: Path, num_workers: int) -> list[str]:
    """Trains two steps; without a bundle from an earlier run."""
    shutil.rmtree(work / "startup", ignore_errors=True)
    (work / "startup").mkdir(parents=True)
    config = {
        "data": {
            "uri": str(_CORA.tables(work).absolute()),
            "cache_dir": str((work / "startup" / "cache").absolute()),
        },
        "training": {"max_steps": 2, "num_val_batches": 1, "num_test_batches": 1},
        "early_stopping": None,
        "callbacks": [{"type": "first_step.SayFirstStep"}],
        "scaling": {"num_workers": num_workers, "cpus_per_worker": 1},
        "run": {"name": "run", "storage_path": str((work / "startup").absolute())},
    }
    path = work / "startup" / "train.yaml"
    path.write_text(yaml.safe_dump(config))
    return [sys.executable, "-m", "raygnn.train", str(path), "--allow-module", "first_step"]


def startup_rows(
    ours: Mapping[str, Sequence[float]],
    phases: Mapping[str, Mapping[str, float]],
    processors: Mapping[str, float | None],
) -> list[Row]:
    """The rows, from seconds of each run.

    Args:
        ours: of `raygnn on Ray`, `no-op TorchTrainer`, `raygnn without Ray` and `imports`.
        phases: breakdowns of raygnn's runs.
        processors: seconds of processor time up to the first step, where it is one process's.
    """
    median = {name: statistics.median(values) for name, values in ours.items()}
    rows = []
    for name, peer, limit in (
        ("raygnn on Ray", "no-op TorchTrainer", 6.0),
        ("raygnn without Ray", "imports of torch and PyG", 2.0),
    ):
        if name not in median:
            continue
        more = median[name] - median[peer]
        ratio = median[name] / median[peer]
        aim = f"<= {limit:g} s more than it"
        note = f"{more:+.1f} s"
        if (mine := processors.get(name)) is not None and (its := processors.get(peer)) is not None:
            note += f"; of processors {mine:.1f} s, peer {its:.1f} s"
        rows.append(Row(name, median[name], "s", ratio, peer, aim, note))
        rows += [Row(f"- {phase}", took, "s") for phase, took in phases[name].items()]
        rows.append(Row(peer, median[peer], "s"))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__)
    options.add_argument("--no-ray", action="store_true", help="only what runs without Ray")
    given = options.parse_args(argv)
    work = Path(given.work)
    here = Path(__file__).parent
    environment = {"PYTHONPATH": os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])}
    noop = [sys.executable, str(here / "noop_trainer.py")]
    say = f"print({_FIRST_STEP!r} + f', {{time.process_time():.2f}} s of processors')"
    imports = [sys.executable, "-c", f"import time, torch, torch_geometric; {say}"]
    runs = {"raygnn without Ray": 0}
    if not given.no_ray:
        runs["raygnn on Ray"] = 1
    peers = {"imports of torch and PyG": imports}
    if not given.no_ray:
        peers["no-op TorchTrainer"] = noop
    seconds: dict[str, list[float]] = {name: [] for name in [*runs, *peers]}
    phases: dict[str, dict[str, float]] = {}
    processors: dict[str, float | None] = {}
    for _ in range(_RUNS[given.scale]):
        for name, num_workers in runs.items():
            lines = stamped(train_command(work, num_workers), environment)
            seconds[name].append(when(lines, _FIRST_STEP))
            phases[name], processors[name] = breakdown(lines), busy(lines)
        for name, command in peers.items():
            lines = stamped(command, environment)
            seconds[name].append(when(lines, _FIRST_STEP))
            processors[name] = busy(lines)
    rows = startup_rows(seconds, phases, processors)
    publish("startup", given, rows, seconds=seconds, phases=phases)


if __name__ == "__main__":
    main()
