"""Command line and Python entry of training: `python -m raygnn.train CONFIG [overrides]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from raygnn.command_line import command, config_parser, exit_process, load_from_arguments
from raygnn.config import load_config
from raygnn.config_schema import config_json_schema
from raygnn.console import give_result, show
from raygnn.errors import ConfigError, RaygnnError

if TYPE_CHECKING:
    from raygnn.runtime.result import RunResult

_USAGE = """\
raygnn train CONFIG [--section.key value ...]

Trains the model that CONFIG describes: a YAML file, local or at any fsspec URI. Options set keys of
the config: --model.args.hidden_channels 64, --sampling.fanouts.0 5. --losses! deletes a key.
docs/config-reference.md and --print-config list all keys.
"""
_EXAMPLES = """
raygnn train train.yaml --model.args.hidden_channels 64
raygnn train train.yaml --dry-run
raygnn train train.yaml --json > train.jsonl
raygnn train --print-schema > schema.json
raygnn train --export runs/papers --out models/papers
"""
_SET_IN_DATA = (
    "The graph was passed as data, so set what the message looks for in graph.yaml there. PyG's "
    "attributes: x and edge_attr are features, y labels, train_mask, val_mask and test_mask the "
    "split, time and edge_time times, edge_weight weights."
)


def fit(
    config: str | PathLike[str] | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    data: Any = None,
    model: Any = None,
    allow_modules: Sequence[str] = (),
) -> RunResult:
    """Trains a model.

    Args:
        config: path or URI of a YAML file, or the config as a mapping.
        overrides: options as on the command line, such as `["--seed", "1"]`.
        data: `GraphTables`, or PyG `Data` or `HeteroData`, instead of the config's `data`.
        model: a `torch.nn.Module` with its initial weights, or a class to build with `model.args`,
            instead of the config's `model.type`.
        allow_modules: modules whose classes the config may name, besides raygnn's and torch's.
    Returns:
        `metrics` (final test metrics), `checkpoint`, `best_checkpoints`, `metrics_dataframe`
        (a row for every validation), `path` (the run's folder), and `model`: the trained model,
        as `raygnn.load` loads it.
    Raises:
        ConfigError: the config is invalid; lists every problem.
        DataError: the tables are invalid.
        ResourceError: the cluster has no room for the workers.
        RunError: the run's folder belongs to another or a finished run.
        TrainingError: training failed; names the rank.
        PreemptedError: SIGTERM or Ctrl-C stopped the run. Call again to resume.
    """
    from raygnn.runtime.launch import launch
    from raygnn.runtime.result import build_result

    try:
        outcome = launch(load_config(config, overrides, allow_modules, model), data=data)
    except RaygnnError as error:
        if data is not None and "graph.yaml" in str(error):
            error.add_note(_SET_IN_DATA)
        raise
    load_model = partial(_load_model, outcome.folder.uri, tuple(allow_modules), model)
    return build_result(outcome.folder, outcome.metrics, load_model)


def _load_model(folder: str, allow_modules: Sequence[str], model: Any) -> Any:
    from raygnn.trained_model import load

    return load(folder, allow_modules=allow_modules, module=model)


def _run(options: argparse.Namespace, remaining: Sequence[str]) -> None:
    if options.print_schema:
        show(json.dumps(config_json_schema(), indent=2) + "\n")
        return
    if (options.export is None) != (options.out is None):
        raise ConfigError(
            f"--export={options.export!r} with --out={options.out!r} is invalid: each needs the "
            "other. Set --export RUN_OR_CHECKPOINT --out FOLDER. [command-export-out]"
        )
    if options.export is not None:
        from raygnn.outputs.model_export import export_checkpoint

        print(export_checkpoint(options.export, options.out))
        give_result(run=options.out)
        return
    loaded = load_from_arguments(remaining, options.allow_modules, _USAGE)
    if options.print_config:
        show(loaded.saved_yaml())
        return
    from raygnn.runtime.launch import launch

    outcome = launch(loaded, dry_run=options.dry_run)
    if not options.dry_run:
        give_result(run=outcome.folder.uri, metrics=outcome.metrics)


def build_parser() -> argparse.ArgumentParser:
    parser = config_parser("raygnn train", _USAGE, _EXAMPLES)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="run four steps, a validation and a test, restore a checkpoint, and estimate time and "
        "memory of the whole run; keep nothing",
    )
    instead = parser.add_argument_group("print or export, and stop")
    instead.add_argument("--print-schema", action="store_true", help="print the JSON Schema")
    instead.add_argument(
        "--export",
        metavar="RUN_OR_CHECKPOINT",
        help="write the model of a run (its best weights) or of a checkpoint to --out, and stop",
    )
    instead.add_argument("--out", metavar="FOLDER", help="folder for --export, any fsspec URI")
    return parser


_INTERRUPTED = "the same command resumes from the last checkpoint, if there is one"
main = command(_run, build_parser, interrupted=_INTERRUPTED)

if __name__ == "__main__":
    exit_process(main)
