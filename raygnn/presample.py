"""Command line and Python entry of presampling: `python -m raygnn.presample CONFIG --out URI`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from raygnn.command_line import command, config_parser, exit_process, load_from_arguments
from raygnn.config import load_config
from raygnn.console import give_result, show
from raygnn.errors import ConfigError

if TYPE_CHECKING:
    from raygnn.sampling.sample_record import SampleRecord

_USAGE = """\
raygnn presample CONFIG --out URI [--epochs N] [--section.key value ...]

Samples the neighborhoods of all training and evaluation batches of CONFIG, and writes them as
Parquet files. A run reads them with data.mode: presampled and data.samples: URI. After an
interruption, the same command resumes. See docs/presampling.md.
"""
_EXAMPLES = """
raygnn presample train.yaml --out samples
raygnn presample train.yaml --out s3://bucket/samples --epochs 20
raygnn train train.yaml --data.mode presampled --data.samples samples
"""


def presample(
    config: str | PathLike[str] | Mapping[str, Any],
    out: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    num_epochs: int | None = None,
    data: Any = None,
    allow_modules: Sequence[str] = (),
) -> SampleRecord:
    """Samples the neighborhoods of a training in advance.

    Args:
        config: path or URI of the training's YAML file, or the config as a mapping.
        out: folder or URI to write; the training's `data.samples`.
        overrides: as on the command line.
        num_epochs: default: the config's, but at most 10, or for small epochs as many as give 2,000
            batches.
        data: `GraphTables`, or a PyG `Data` or `HeteroData`, instead of the config's `data`.
        allow_modules: modules whose classes the config may name, besides raygnn's and torch's.
    Returns:
        A description of the written samples.
    Raises:
        ConfigError: the config is invalid, or its training cannot be presampled.
        DataError: the tables are invalid, or the folder has samples of another graph or config.
        ResourceError: the samples do not fit on the disk.
    """
    from raygnn.runtime import presample as runtime

    loaded = load_config(config, [*overrides, *_mode(str(out))], allow_modules)
    return runtime.presample(loaded, num_epochs, data)


def _mode(out: str) -> list[str]:
    return ["--data.mode", "presampled", "--data.samples", out]


def _run(options: argparse.Namespace, remaining: Sequence[str]) -> None:
    if options.out is None or (options.epochs is not None and options.epochs < 1):
        raise ConfigError(
            f"--out={options.out!r} with --epochs={options.epochs!r} is invalid: it names a "
            f"folder, and epochs are 1 or more. {_USAGE} [presample-options]"
        )
    loaded = load_from_arguments([*remaining, *_mode(options.out)], options.allow_modules, _USAGE)
    if options.print_config:
        show(loaded.saved_yaml())
        return
    from raygnn.runtime.presample import presample as write

    write(loaded, options.epochs)
    give_result(out=options.out)


def build_parser() -> argparse.ArgumentParser:
    parser = config_parser("raygnn presample", _USAGE, _EXAMPLES)
    parser.add_argument("--out", metavar="URI", help="folder to fill, any fsspec URI")
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="training epochs to sample (default: those of the config, at most 10, or more if "
        "these have fewer than 2,000 batches)",
    )
    return parser


_INTERRUPTED = "the same command resumes with the files that are left"
main = command(_run, build_parser, interrupted=_INTERRUPTED)

if __name__ == "__main__":
    exit_process(main)
