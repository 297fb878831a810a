"""The command `raygnn`, also `python -m raygnn`: a table of subcommands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from raygnn import __version__
from raygnn.console import give_result
from raygnn.errors import ConfigError
from raygnn.json_output import with_json

#: Subcommands: what each does. `raygnn train ARGS` is `python -m raygnn.train ARGS`.
COMMANDS = {
    "train": "train, validate and test a model",
    "tune": "search hyperparameters",
    "report": "compare runs or sweep trials on one page",
    "infer": "write predictions, embeddings or nearest neighbors",
    "explain": "show which neighbors and columns matter for a prediction",
    "serve": "serve predictions, embeddings, scores and neighbors over HTTP",
    "events": "append new nodes and edges to a log that servers follow",
    "replay": "compute recorded answers of a server again, and compare them",
    "models": "register trained models, set aliases that servers follow, roll back",
    "retrain": "train on the newest tables, and promote the model if it is better",
    "monitor": "compare recorded answers with labels and with training",
    "prepare": "describe, convert or generate tables; make training tables",
    "partition": "split a graph into parts for several machines",
    "presample": "sample the neighborhoods of a training run in advance",
    "schema": "print the JSON Schema of a config or of graph.yaml",
    "mcp": "serve the path from tables to predictions to a coding agent",
    "doctor": "check this machine, a cluster, a folder or bucket",
    "version": "print the version",
}
HELP = """\
usage: raygnn COMMAND [options]

{commands}

examples:
  raygnn doctor gs://bucket/runs
  raygnn prepare draft my_tables
  raygnn train train.yaml --model.args.hidden_channels 64
  raygnn train --print-schema
  raygnn infer runs/papers --data.uri graph --out out/predictions
  raygnn explain runs/papers --graph graph --nodes 17,23 --out out/why
  raygnn serve runs/papers --graph graph
  raygnn tune sweep.yaml
  raygnn report runs/sage runs/gat --out compared.html

`raygnn COMMAND --help` lists the options of a command. In Python: raygnn.train.fit, raygnn.load.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand, which ends its process, and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command, options = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("--help", "-h", "help"):
        lines = "\n".join(f"  {name:<12}{what}" for name, what in COMMANDS.items())
        print(HELP.format(commands=lines), end="")
        return 0
    if command in ("version", "--version"):
        return _print_version(options)
    if command not in COMMANDS:
        error = ConfigError(
            f"COMMAND={command!r} is invalid. Set one of: {', '.join(COMMANDS)}. [command-unknown]"
        )
        print(f"{type(error).__name__}:\n{error}", file=sys.stderr)
        return error.exit_status
    return int(command_module(command).main(options))


@with_json
def _print_version(argv: Sequence[str] | None = None) -> int:
    print(__version__)
    give_result(version=__version__)
    return 0


def command_module(command: str) -> ModuleType:
    return import_module(_MODULES.get(command, f"raygnn.{command}"))


#: Commands whose modules have other names.
_MODULES = {"models": "raygnn.registry", "prepare": "raygnn.prepare.__main__"}


def run() -> NoReturn:
    from raygnn.command_line import exit_process

    exit_process(main)


if __name__ == "__main__":
    run()
