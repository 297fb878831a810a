"""Command line of the server for coding agents: `raygnn mcp`, over the Model Context Protocol.

Each tool is a subcommand in a process of its own, so a tool does what its command does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import IO, Any

from raygnn import __version__
from raygnn.command_line import command, command_parser, exit_process
from raygnn.data.filesystem import exists, join, read_text
from raygnn.errors import ConfigError

_SUMMARY = """\
Serves the path from tables to predictions as tools of a coding agent, over standard input and
output. An agent starts it itself: register the command `raygnn mcp`. See AGENTS.md.
"""
_INSTRUCTIONS = (
    "raygnn trains graph neural networks on tables. draft describes tables as a graph, labels "
    "makes a training table from a question, train starts a run, status follows it, report gives "
    "its metrics beside simple models, predict writes predictions. Paths are relative to the "
    "folder in which the server was started. A failed tool says what to change."
)
_LAST_LINES = 40
_OF_EVENTS = ("time", "event", "text", "error")


class Tools:
    """The tools. Runs that `train` started continue when the server ends."""

    def __init__(self) -> None:
        self._started: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}

    def draft(self, tables: str, out: str | None = None, overwrite: bool = False) -> dict[str, Any]:
        """Describes a folder of CSV or Parquet files, or a database URL, as a graph.

        Writes graph.yaml and train.yaml into the folder (for a database, into `out`), and prints
        the references found and a command for labels. Review graph.yaml.
        """
        more = ["--overwrite"] if overwrite else []
        return _run("prepare", "draft", tables, *_option("--out", out), *more)

    def labels(
        self,
        tables: str,
        predict: str | list[str],
        entity: str,
        name: str,
        every: str | None = None,
        val: str | None = None,
        test: str | None = None,
        options: dict[str, str] | None = None,
        overwrite: bool = False,
    ) -> dict[str, Any]:
        """Makes a training table of (entity, time, label) from a question, and NAME.yaml to train.

        Args:
            predict: such as "count(orders) over 30d > 0"; grammar in docs/training-tables.md. A
                list is the outputs of one model. "users.plan" fills in a column, without times.
            entity: the node type of graph.yaml that the question is about.
            every: distance of the rows' times, such as 30d.
            val, test: dates at which the rows of validation and test begin.
            options: others of `raygnn prepare labels`, such as {"active": "90d", "horizons": "4"}.
        """
        questions = [predict] if isinstance(predict, str) else predict
        given = {"for": entity, "every": every, "val": val, "test": test, "name": name}
        chosen = [*(("predict", each) for each in questions), *(given | (options or {})).items()]
        arguments = [f"--{key}={value}" for key, value in chosen if value is not None]
        more = ["--overwrite"] if overwrite else []
        return _run("prepare", "labels", tables, *arguments, *more)

    def train(
        self, config: str, name: str, overrides: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Starts a run in the background, and returns its folder; `status` follows it.

        Args:
            config: path of a YAML file, such as that of `draft` or `labels`.
            name: the run's name. A run that was interrupted resumes under its name.
            overrides: values by dotted key of the config, such as {"optimizer.args.lr": 0.002}.
        """
        keys = {"run.name": name, **(overrides or {})}
        options = [f"--{key}={json.dumps(value)}" for key, value in keys.items()]
        printed = _run("train", config, *options, "--print-config")
        if printed["exit_status"]:
            return printed
        folder = join(_storage_path(printed["output"]), name)
        log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server
        process = subprocess.Popen(
            _command("train", config, *options),
            stdin=subprocess.DEVNULL,  # the server's is the agent's
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._started[folder] = process, log
        return {"run": folder}

    def status(self, run: str) -> dict[str, Any]:
        """The state of a run: running, finished or failed, its newest validations and lines."""
        found: dict[str, Any] = {}
        if run in self._started:
            process, log = self._started[run]
            found["exit_status"] = process.poll()
            printed = os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode()
            found["output"] = "\n".join(printed.splitlines()[-_LAST_LINES:])
        if exists(join(run, "run.json")):
            found["status"] = json.loads(read_text(join(run, "run.json")))["status"]
        if exists(join(run, "history.jsonl")):
            lines = read_text(join(run, "history.jsonl")).splitlines()
            found["validations"] = [json.loads(line) for line in lines[-3:]]
        if not found:
            return _refused(f"{run} is not a run: it has no run.json. Start one with train.")
        return found

    def report(self, run: str) -> dict[str, Any]:
        """The metrics of a finished run, those of simple models on the same rows, and a verdict."""
        if not exists(join(run, "metrics.json")):
            return _refused(f"{run} has no metrics.json: it has not finished. See status.")
        metrics: dict[str, Any] = json.loads(read_text(join(run, "metrics.json")))
        return {key: value for key, value in metrics.items() if len(json.dumps(value)) < 4_000}

    def predict(self, run: str, tables: str, out: str, rows: str | None = None) -> dict[str, Any]:
        """Predicts with the model of a run, and writes a CSV or Parquet file, or a folder.

        Args:
            tables: folder with graph.yaml, which may contain newer rows.
            out: path ending in .csv or .parquet, or a folder.
            rows: CSV file with columns id and time, for a model of a training table.
        """
        return _run("infer", run, "--data.uri", tables, *_option("--rows", rows), "--out", out)


def _refused(reason: str) -> dict[str, Any]:
    return {"exit_status": 2, "output": reason}


def _option(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "raygnn", *arguments]


def _run(*arguments: str) -> dict[str, Any]:
    """Runs a subcommand: the values of its last line, and its output, errors last."""
    done = subprocess.run(
        _command(*arguments, "--json"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    events = [json.loads(line) for line in lines if line.startswith('{"time": ')]
    result = events.pop() if events else {"exit_status": done.returncode}
    values = {key: value for key, value in result.items() if key not in _OF_EVENTS}
    texts = [event["text"] for event in events if event["text"]]
    return values | {"output": "\n".join([*texts, done.stderr.strip()]).strip()}


def _storage_path(config: str) -> str:
    from raygnn.documents import parse_yaml

    path: str = parse_yaml(config).value["run"]["storage_path"]
    return path


def build_server() -> Any:
    """The server with all tools. Raises a ConfigError if the package mcp is missing."""
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError as error:
        raise ConfigError(
            "`raygnn mcp` needs the package mcp. Run `pip install 'mcp>=2'`. [mcp-missing]"
        ) from error
    server = MCPServer("raygnn", instructions=_INSTRUCTIONS, version=__version__)
    tools = Tools()
    for name in ("draft", "labels", "train", "status", "report", "predict"):
        server.tool()(getattr(tools, name))
    return server


def build_parser() -> argparse.ArgumentParser:
    return command_parser("raygnn mcp", "\nraygnn mcp\n", description=_SUMMARY)


main = command(
    lambda _: build_server().run(), build_parser, interrupted="the agent starts it again"
)

if __name__ == "__main__":
    exit_process(main)
