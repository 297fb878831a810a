"""Command line and Python entry of sweeps: `python -m raygnn.tune CONFIG [overrides]`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from raygnn.command_line import (
    check_arguments,
    command,
    config_parser,
    exit_process,
    load_from_arguments,
)
from raygnn.console import show

if TYPE_CHECKING:
    from ray.tune import ResultGrid

_USAGE = """\
raygnn tune CONFIG [--section.key value ...]

Searches hyperparameters. The section `tune` of CONFIG, a training config, lists what varies: by
default the learning rate, width, dropout and hops. Every trial is a separate run with its own
workers. See docs/sweeps.md.
"""
_EXAMPLES = """
raygnn tune train.yaml --trials 4
raygnn tune sweep.yaml --tune.searcher optuna
raygnn report runs/sweep
"""


def sweep(
    config: str | PathLike[str] | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    data: Any = None,
    allow_modules: Sequence[str] = (),
) -> ResultGrid:
    """Runs a sweep, and returns Ray Tune's `ResultGrid`.

    Args:
        config: path or URI of a YAML file, or the config as a mapping. Its section `tune` may be
            missing.
        overrides: as on the command line, e.g. `["--tune.num_samples", "8"]`.
        data: `GraphTables`, or a PyG `Data` or `HeteroData`, instead of the config's `data`.
        allow_modules: modules whose classes the config may name, besides raygnn's and torch's.
    Returns:
        A `Result` per trial: run folder as `path`, metrics of the last validation, and `error` if
        it failed.
    Raises:
        ConfigError: the config is invalid; lists every problem.
        DataError: the tables are invalid.
        ResourceError: the cluster has no room for one trial.
        RunError: the folder belongs to another or a finished sweep.
        TrainingError: every trial failed.
        PreemptedError: SIGTERM or Ctrl-C stopped the sweep. Call again to resume.
    """
    from raygnn.runtime.sweep import run_sweep
    from raygnn.runtime.sweep_plan import load_sweep

    return run_sweep(load_sweep(config, overrides, allow_modules), data=data)


def _run(options: argparse.Namespace, remaining: Sequence[str]) -> None:
    if options.print_config:
        show(load_from_arguments(remaining, options.allow_modules, _USAGE).saved_yaml())
        return
    check_arguments(remaining, 1, "CONFIG comes first", _USAGE, id="command-config-missing")
    overrides = list(remaining[1:])
    if options.trials is not None:
        overrides.append(f"--tune.num_samples={options.trials}")
    sweep(remaining[0], overrides, allow_modules=options.allow_modules)


def build_parser() -> argparse.ArgumentParser:
    parser = config_parser("raygnn tune", _USAGE, _EXAMPLES)
    parser.add_argument("--trials", metavar="N", help="trials to run (tune.num_samples)")
    return parser


_INTERRUPTED = "the same command resumes the sweep, if it sets run.name"
main = command(_run, build_parser, interrupted=_INTERRUPTED)

if __name__ == "__main__":
    exit_process(main)
