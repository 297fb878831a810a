"""Command line of registered models: `raygnn models add NAME RUN`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from raygnn.command_line import command, command_parser, exit_process
from raygnn.console import give_result, say, show
from raygnn.data.filesystem import absolute, folder_names, join, redact
from raygnn.outputs import mlflow_registry, model_registry
from raygnn.outputs.saved_model import SavedModel

_DESCRIPTION = """\
Keeps versions of trained models, and aliases that name one of them. NAME@ALIAS stands for a model
in every command; a server follows it. NAME is a folder or URI, or a name in the folder of
RAYGNN_MODELS (default: models). See docs/retraining.md.
"""
_EXAMPLES = """
raygnn models add orders runs/orders --alias champion
raygnn models list orders
raygnn models alias orders@champion 6f1c2d3e4b5a6978
raygnn models rollback orders@champion
"""


def add(name: str, run: str, alias: str | None = None) -> str:
    """Adds the model of a finished run, and returns its version.

    Args:
        name: of the registered model, a folder or URI; or `models:/NAME` of MLflow's registry.
        run: folder or URI of the run, or of an exported model.
        alias: is set to the version.
    Raises:
        ConfigError: the name is invalid.
        RunError, DataError: there is no model, or its files are damaged.
    """
    run = model_registry.resolved(run)
    saved = SavedModel.open(run)
    if name.startswith(mlflow_registry.PREFIX):
        with tempfile.TemporaryDirectory() as folder:
            model_registry.RegisteredModel(folder).add(absolute(run), saved.uri, saved.fingerprint)
            return mlflow_registry.added(name, join(folder, saved.fingerprint), alias)
    model, _ = model_registry.named_model(name)
    model.add(absolute(run), saved.uri, saved.fingerprint)
    if alias is not None:
        model.set_alias(alias, saved.fingerprint)
    return saved.fingerprint


def set_alias(name: str, version: str) -> str:
    """Lets an alias, `NAME@ALIAS`, name a version, and returns the version.

    Args:
        version: its name or the beginning of it, or another alias as `@ALIAS`.
    Raises:
        ConfigError: a name is invalid.
        RunError, DataError: the version is unknown or damaged.
    """
    model, alias = _named_alias(name)
    if version.startswith("@"):
        version = model.current(version[1:])
    fitting = [each for each in model.versions() if each.startswith(version)]
    chosen = fitting[0] if len(fitting) == 1 else version
    model.set_alias(alias, chosen)
    return chosen


def rollback(name: str) -> str:
    """Lets an alias, `NAME@ALIAS`, name the version before its last change, and returns it.

    Raises:
        ConfigError: the name is invalid.
        RunError, DataError: there is no earlier version, or it is damaged.
    """
    model, alias = _named_alias(name)
    return model.rollback(alias)


def _named_alias(name: str) -> tuple[model_registry.RegisteredModel, str]:
    model, alias = model_registry.named_model(name)
    return model, alias or model_registry.CHAMPION


def _run(options: argparse.Namespace) -> None:
    if options.action == "list":
        names = [options.name] if options.name else folder_names(model_registry.models_folder())
        records = [_record(name) for name in names]
        for record in records:
            show("".join(f"{line}\n" for line in _described(record)))
        give_result(models=records)
        return
    if options.action == "add":
        version = add(options.name, options.run, options.alias)
    elif options.action == "alias":
        version = set_alias(options.name, options.version)
    else:
        version = rollback(options.name)
    say(f"{redact(options.name)}: version {version}")
    give_result(version=version)


def _record(name: str) -> dict[str, Any]:
    """Versions and aliases of a model, and when they changed."""
    model, _ = model_registry.named_model(name)
    versions = [asdict(model.read_version(each)) for each in model.versions()]
    return {
        "uri": redact(model.uri),
        "versions": [
            {"version": each, "added": record["added"], "source": record["source"]}
            for each, record in zip(model.versions(), versions, strict=True)
        ],
        "aliases": [
            {
                "alias": alias,
                "version": version,
                "history": [asdict(change) for change in model.history(alias)],
            }
            for alias, version in model.aliases().items()
        ],
    }


def _described(record: Mapping[str, Any]) -> list[str]:
    lines, aliases = [record["uri"]], record["aliases"]
    for each in record["versions"]:
        names = [f"@{a['alias']}" for a in aliases if a["version"] == each["version"]]
        words = " ".join([each["source"], *names])
        lines.append(f"  {each['version']}  {each['added'][:19]}  {words}")
    for alias in aliases:
        changes = (f"{c['time'][:19]} {c['action']} {c['version']}" for c in alias["history"])
        lines.append(f"  @{alias['alias']}: {', '.join(changes)}")
    return lines


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn models", _EXAMPLES, description=_DESCRIPTION)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    command = actions.add_parser("add", help="copy the model of a run into the folder")
    command.add_argument("name", metavar="NAME", help="or models:/NAME of MLflow's registry")
    command.add_argument("run", metavar="RUN", help="folder or URI of a run or an exported model")
    command.add_argument("--alias", metavar="ALIAS", help="set this alias to the new version")
    command = actions.add_parser("list", help="print versions, aliases and their history")
    command.add_argument("name", metavar="NAME", nargs="?")
    command = actions.add_parser("alias", help="set an alias to a version")
    command.add_argument("name", metavar="NAME@ALIAS")
    command.add_argument("version", metavar="VERSION", help="a version, or @ALIAS")
    command = actions.add_parser("rollback", help="set an alias to the version before")
    command.add_argument("name", metavar="NAME@ALIAS")
    return parser


main = command(_run, build_parser, interrupted="repeat the command")

if __name__ == "__main__":
    exit_process(main)
