"""Command line and Python entry of training: `python -m raygnn.train CONFIG [overrides]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from raygnn.config import LoadedConfig, config_json_schema, load_config
from raygnn.data.filesystem import redact
from raygnn.data.storage_retry import is_storage_error
from raygnn.errors import ConfigError, RaygnnError

if TYPE_CHECKING:
    from ray.train import Result

_USAGE = """\
python -m raygnn.train CONFIG [--section.key value ...]

Trains the GNN that CONFIG describes (a YAML file, local or on any fsspec URI). Any key can be
set on the command line: --model.args.hidden_channels 64, --sampling.fanouts.0 5, --losses!
(deletes). See docs/config-reference.md, or --print-config, for all keys.
"""


def fit(
    config: str | PathLike[str] | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    data: Any = None,
    allow_modules: Sequence[str] = (),
) -> Result:
    """Trains, and returns Ray's `Result`.

    Args:
        config: path or URI of a YAML file, or the config as a mapping.
        overrides: as on the command line, e.g. `["--seed", "1"]`.
        data: a PyG `Data` or `HeteroData`, instead of the config's `data` source.
        allow_modules: own modules whose classes the config may name.
    Returns:
        `metrics` (final test metrics), `checkpoint`, `best_checkpoints`, `metrics_dataframe`
        (a row for every validation), `path`.
    Raises:
        ConfigError: the config is wrong; lists every problem.
        DataError: the tables are wrong.
        ResourceError: the cluster has no place for the workers.
        RunError: the run folder belongs to another or a finished run.
        TrainingError: training failed; names the rank.
        PreemptedError: SIGTERM or Ctrl-C stopped it; called again, the run goes on.
    """
    from raygnn.runtime.launch import launch
    from raygnn.runtime.result import build_result

    outcome = launch(load_config(config, overrides, allow_modules), data=data)
    return build_result(outcome.folder, outcome.metrics)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status.

    0, 1 (failed), 2 (wrong input), or 130 and 143: Ctrl-C or SIGTERM stopped the run, which goes
    on when it is started again.
    """
    options, rest = _parser().parse_known_args(argv)
    try:
        if options.print_schema:
            print(json.dumps(config_json_schema(), indent=2))
            return 0
        if not rest or rest[0].startswith("--"):
            raise ConfigError(f"CONFIG={rest[:1]} is invalid: the config comes first. {_USAGE}")
        loaded = load_config(rest[0], rest[1:], options.allow_module)
        if options.print_config:
            print(loaded.saved_yaml(), end="")
            return 0
        _train(loaded, dry_run=options.dry_run)
    except RaygnnError as error:
        print(f"{type(error).__name__}:\n{error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:  # before training, or a second time
        print("interrupted: started again, the run goes on from its checkpoint", file=sys.stderr)
        return 130
    except Exception as error:
        if not is_storage_error(error):
            raise
        print(f"storage failed: {type(error).__name__}: {redact(str(error))}", file=sys.stderr)
        return 1
    return 0


def _train(loaded: LoadedConfig, *, dry_run: bool) -> None:
    from raygnn.runtime.launch import launch

    launch(loaded, dry_run=dry_run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m raygnn.train", usage=_USAGE, allow_abbrev=False
    )
    parser.add_argument("--print-config", action="store_true", help="print all keys and stop")
    parser.add_argument("--print-schema", action="store_true", help="print the JSON Schema")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="one batch of training and validation, a checkpoint and its restore; keeps nothing",
    )
    parser.add_argument(
        "--allow-module",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module of yours whose classes the config may name; may be given several times",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
