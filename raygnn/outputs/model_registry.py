"""Registered models: versions in a folder, and aliases that name one of them.

A version is a folder with the files of a trained model, named by their fingerprint, and sealed by
`version.json`. An alias is a small file with its history, replaced as a whole. Nothing else is
trusted: names of versions are checked, files are compared with the seal, nothing is unpickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from raygnn.console import say
from raygnn.data.checksums import Checksum, Seal, checksum
from raygnn.data.file_lock import locked
from raygnn.data.filesystem import (
    absolute,
    exists,
    files_below,
    folder_names,
    generation,
    join,
    read_bytes,
    redact,
    write_bytes,
    write_if_unchanged,
)
from raygnn.errors import ConfigError, RunError
from raygnn.loops.model_spec import MODEL_FILE, SPEC_FILE, TREES_FILE
from raygnn.outputs import mlflow_registry

#: Folder of models that are named without a path. Default: `models`.
FOLDER_VARIABLE = "RAYGNN_MODELS"
CHAMPION = "champion"
_RECORD, _ALIAS_SUFFIX = "version.json", ".alias.json"
_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"[0-9a-f]{16}")
_OF_MODEL = (MODEL_FILE, SPEC_FILE, TREES_FILE)
#: For reports, retraining and monitoring; `config.yaml` is in both folders.
_OF_RUN = ("config.yaml", "run.json", "metrics.json", "history.jsonl")


@dataclass(frozen=True)
class Version:
    """The content of `version.json`. `source`: folder of the run; `added`: ISO 8601."""

    source: str
    added: str
    file_sizes: dict[str, int]
    checksums: dict[str, Checksum]


@dataclass(frozen=True)
class Change:
    """A change of an alias. A rollback takes the last change back that is in effect."""

    version: str
    time: str
    action: Literal["set", "rollback"]


@dataclass(frozen=True)
class _History:
    changes: tuple[Change, ...] = ()

    @property
    def in_effect(self) -> list[str]:
        """Versions from the first to the current one."""
        versions: list[str] = []
        for change in self.changes:
            if change.action == "rollback":
                versions.pop()
            else:
                versions.append(change.version)
        return versions


def models_folder() -> str:
    return os.environ.get(FOLDER_VARIABLE) or "models"


def split_name(name: str) -> tuple[str, str | None] | None:
    """Folder of a registered model, and alias, from `NAME` or `NAME@ALIAS`; None for other texts.

    A name without a slash is in the folder of `$RAYGNN_MODELS`, by default `models`.
    """
    folder, at, alias = name.rpartition("@") if "@" in name.rpartition("/")[2] else (name, "", "")
    last = folder.rstrip("/").rpartition("/")[2]
    if not _NAME.fullmatch(last) or (at and not _ALIAS.fullmatch(alias)):
        return None
    if "/" not in folder:
        folder = join(models_folder(), folder)
    return absolute(folder), alias or None


def named_model(name: str) -> tuple[RegisteredModel, str | None]:
    """The registered model of `NAME` or `NAME@ALIAS`, and the alias. Raises a ConfigError."""
    found = split_name(name)
    if found is None:
        rule = "it is not a name of letters, digits, ., _ and -, perhaps with @ALIAS"
        raise ConfigError.invalid("NAME", name, rule, "Choose another one", id="registry-name")
    return RegisteredModel(found[0]), found[1]


def find_alias(model: str) -> tuple[RegisteredModel, str] | None:
    """The registered model and the alias of `NAME@ALIAS`; None for the folder of a model, or one
    of MLflow's registry.
    """
    is_other = model.startswith(mlflow_registry.PREFIX) or "@" not in model
    name = None if is_other or exists(join(model, "config.yaml")) else split_name(model)
    return None if name is None or name[1] is None else (RegisteredModel(name[0]), name[1])


def resolved(model: str) -> str:
    """The folder of a model, which may be given as `NAME@ALIAS`, or as one of MLflow's registry.
    Raises a RunError or DataError if the alias is unknown, or its version is damaged.
    """
    if model.startswith(mlflow_registry.PREFIX):
        return mlflow_registry.downloaded(model)
    found = find_alias(model)
    return model if found is None else found[0].version_uri(found[0].current(found[1]))


class RegisteredModel:
    """Versions and aliases of one model in a folder, local or at any fsspec URI."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def add(self, run: str, model_uri: str, version: str) -> None:
        """Copies the model of a finished run. Adding it again changes nothing.

        Args:
            model_uri, version: `uri` and `fingerprint` of its `SavedModel`.
        """
        folder = join(self.uri, version)
        if exists(join(folder, _RECORD)):
            self.version_uri(version)
            return
        sources = {name: join(model_uri, name) for name in _OF_MODEL}
        sources |= {name: join(run, name) for name in _OF_RUN}
        contents = {n: read_bytes(uri) for n, uri in sources.items() if exists(uri)}
        for name, content in contents.items():
            write_bytes(join(folder, name), content)
        sizes = {name: len(content) for name, content in contents.items()}
        sums = {name: checksum(content) for name, content in contents.items()}
        _VERSION_SEAL.write(folder, _RECORD, Version(absolute(run), _now(), sizes, sums))

    def version_uri(self, version: str) -> str:
        """The folder of a version, compared with its seal."""
        folder = join(self.uri, version)
        _VERSION_SEAL.check(folder, self.read_version(version), completely=True)
        return folder

    def read_version(self, version: str) -> Version:
        folder = join(self.uri, version)
        if not _VERSION.fullmatch(version) or not exists(join(folder, _RECORD)):
            raise RunError(
                f"VERSION={version!r} is invalid: unknown version of {redact(self.uri)}. Set one "
                f"of: {', '.join(self.versions()) or 'none yet'}. [registry-version]"
            )
        return _VERSION_SEAL.read(folder, _RECORD, Version)

    def versions(self) -> list[str]:
        """Complete versions, from the oldest to the newest."""
        names = [name for name in folder_names(self.uri) if _VERSION.fullmatch(name)]
        complete = [name for name in names if exists(join(self.uri, name, _RECORD))]
        return sorted(complete, key=lambda name: self.read_version(name).added)

    def aliases(self) -> dict[str, str]:
        """The version of each alias."""
        files = sorted(name for name in files_below(self.uri) if name.endswith(_ALIAS_SUFFIX))
        names = [name.removesuffix(_ALIAS_SUFFIX) for name in files]
        return {name: self.current(name) for name in names if _ALIAS.fullmatch(name)}

    def history(self, alias: str) -> tuple[Change, ...]:
        """The changes of an alias, the first one first; none for an unknown alias."""
        return self._history(alias).changes

    def current(self, alias: str) -> str:
        versions = self._history(alias).in_effect
        if not versions:
            raise RunError(
                f"{redact(self.uri)}@{alias} is invalid: unknown alias. Set it with `raygnn models "
                "add NAME RUN --alias ALIAS`. [registry-alias]"
            )
        return versions[-1]

    def set_alias(self, alias: str, version: str) -> None:
        """Lets an alias name a version, which is compared with its seal first."""
        if not _ALIAS.fullmatch(alias):
            raise RunError(
                f"ALIAS={alias!r} is invalid: it needs letters, digits, _ and -, a letter first. "
                "Choose another one. [registry-alias-name]"
            )
        self.version_uri(version)

        def with_version(history: _History) -> Change | None:
            is_there = history.in_effect[-1:] == [version]
            return None if is_there else Change(version, _now(), "set")

        self._change(alias, with_version)

    def rollback(self, alias: str) -> str:
        """Lets an alias name the version before its last change, and returns this version."""

        def back(history: _History) -> Change:
            if len(history.in_effect) < 2:
                raise RunError(
                    f"{redact(self.uri)}@{alias} is at its first version. [registry-rollback]"
                )
            version = history.in_effect[-2]
            self.version_uri(version)
            return Change(version, _now(), "rollback")

        self._change(alias, back)
        return self.current(alias)

    def _history(self, alias: str) -> _History:
        name = f"{alias}{_ALIAS_SUFFIX}"
        if not _ALIAS.fullmatch(alias) or not exists(join(self.uri, name)):
            return _History()
        history = _ALIAS_SEAL.read(self.uri, name, _History)
        with suppress(IndexError):
            if all(_VERSION.fullmatch(change.version) for change in history.changes):
                history.in_effect  # noqa: B018, its rollbacks fit
                return history
        raise _ALIAS_SEAL.damage(self.uri, f"{name} has no valid history")

    def _change(self, alias: str, change: Callable[[_History], Change | None]) -> None:
        """Appends to the history of an alias; of two writers, the later one sees the earlier."""
        uri = join(self.uri, f"{alias}{_ALIAS_SUFFIX}")
        with locked(join(self.uri, ".lock"), say):
            while True:
                seen, history = generation(uri), self._history(alias)
                new = change(history)
                if new is None:
                    return
                content = _ALIAS_SEAL.dump(_History((*history.changes, new)))
                with suppress(FileExistsError):  # another writer was faster
                    write_if_unchanged(uri, content.encode(), seen)
                    return


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


_VERSION_SEAL = Seal(
    "raygnn/model-version",
    1,
    damaged="registry-damaged",
    outdated="registry-outdated",
    remedy="Add the model of its run again, under another name, or roll the alias back",
)
_ALIAS_SEAL = replace(_VERSION_SEAL, format="raygnn/model-alias")
