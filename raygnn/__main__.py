"""The command `raygnn`, also `python -m raygnn`: hands over to a subcommand's module."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from raygnn import __version__
from raygnn.errors import ConfigError

#: Subcommands: what each does. `raygnn train ARGS` is `python -m raygnn.train ARGS`.
COMMANDS = {
    "train": "train, validate and test a model",
    "tune": "search hyperparameters",
    "report": "compare runs or sweep trials on one page",
    "infer": "write predictions, embeddings or nearest neighbors",
    "explain": "show which neighbors and columns matter for a prediction",
    "serve": "serve predictions, embeddings, scores and neighbors over HTTP",
    "prepare": "describe, convert or generate tables; make training tables",
    "partition": "split a graph into parts for several machines",
    "presample": "sample the neighborhoods of a training run in advance",
    "doctor": "check this machine, a cluster, a folder or bucket",
    "completion": "print the shell completion for bash or zsh",
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
    """Runs a subcommand and returns its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    command, rest = (given[0], given[1:]) if given else ("--help", [])
    if command in ("--help", "-h", "help"):
        lines = "\n".join(f"  {name:<12}{what}" for name, what in COMMANDS.items())
        print(HELP.format(commands=lines), end="")
        return 0
    if command in ("version", "--version"):
        print(__version__)
        return 0
    if command not in COMMANDS:
        error = ConfigError(
            f"COMMAND={command!r} is invalid: unknown command. Set one of: {', '.join(COMMANDS)}.",
            id="command-unknown",
        )
        print(f"{type(error).__name__}:\n{error}", file=sys.stderr)
        return error.exit_status
    status: int = import_module(f"raygnn.{command}").main(rest)
    return status


def run() -> NoReturn:
    """The entry point of the console script: as each module ends its own process."""
    from raygnn.command_line import exit_process

    exit_process(main)


if __name__ == "__main__":
    run()
