"""Loads and validates a config, reports all problems together, and prepares its saved form."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from raygnn import redaction
from raygnn.config.components import broken_components
from raygnn.config.interpolation import Interpolated, interpolate
from raygnn.config.schema import DEFAULT_COMPONENTS, Config, drop_removed_keys
from raygnn.config.section import MISSING, is_below, leaves, set_value, value_at
from raygnn.config.source import Source, apply_overrides, read_source
from raygnn.config.validation import validate
from raygnn.documents import dump_yaml
from raygnn.errors import ConfigError, KeyPath, Problem, dotted, shown


@dataclass(frozen=True)
class LoadedConfig:
    """A validated config, and what travels with it to the workers.

    Attributes:
        allow_modules: user modules that dotted paths may name.
        saved: the config to save with the run: with defaults, overrides and resolved `${a.b}`, with
            `${env:X}` as written, without secrets.
        environment: environment variables read by `${env:X}`.
        folder: start of the config's relative paths, because workers run in other folders.
    """

    config: Config = field(repr=False)  # holds secrets
    allow_modules: tuple[str, ...]
    saved: dict[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: str = ""
    _messages: Messages | None = field(default=None, repr=False, compare=False)  # holds secrets

    def check_arguments(self, left_out: Collection[str] = ()) -> None:
        """Checks the arguments of raygnn's and libraries' components, and monitors.

        Takes seconds if torch is not imported yet, so `load_config` leaves it to later steps,
        unless it reports other problems too.

        Args:
            left_out: top-level keys to skip.
        Raises:
            ConfigError: with all problems.
        """
        assert self._messages is not None
        problems = _broken_arguments(self.config, self.allow_modules, [(key,) for key in left_out])
        if texts := self._messages.texts(problems):
            raise ConfigError(texts)

    def with_values(self, sections: Mapping[str, Mapping[str, Any]]) -> LoadedConfig:
        """Sets keys of sections, also in the saved config."""
        update, saved = {}, dict(self.saved)
        for name, values in sections.items():
            section = getattr(self.config, name).model_copy(update=dict(values))
            update[name], written = section, section.model_dump(mode="json", include={*values})
            saved[name] = saved[name] | written
        return replace(self, config=self.config.model_copy(update=update), saved=saved)

    def saved_yaml(self) -> str:
        return dump_yaml(self.saved)

    def fingerprint(self) -> str:
        """sha256 of what defines the training result: equal for a run that continues elsewhere.

        Excludes names, folders, logging, machines and limits, but includes the global batch size.
        """
        text = json.dumps(_defining(self.config), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def differences(self, other: LoadedConfig) -> dict[str, tuple[Any, Any]]:
        """Differences that change the result, by path: the other config's value and this one's."""
        theirs, ours = (dict(leaves(_defining(each.config))) for each in (other, self))
        return {
            dotted(path): (
                _shown(path, other.saved, theirs.get(path)),
                _shown(path, self.saved, ours.get(path)),
            )
            for path in dict.fromkeys((*theirs, *ours))
            if theirs.get(path, MISSING) != ours.get(path, MISSING)
        }

    def limits(self) -> dict[str, float | None]:
        values = self.config.model_dump(mode="json")
        limits = {dotted(path): value_at(values, path) for path in LIMITS}
        return {name: None if value is MISSING else value for name, value in limits.items()}


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any] | BaseModel | Source,
    overrides: Sequence[str] = (),
    allow_modules: Sequence[str] = (),
    model: Any = None,
) -> LoadedConfig:
    """Loads a config, applies overrides, resolves references and checks everything.

    Also loads what earlier commits saved: see `REMOVED_KEYS`.

    Imports nothing of the user's: `build` resolves dotted paths on the worker.

    Args:
        source: a path, any fsspec URI, YAML text, a mapping, or a `Source`.
        overrides: as on the command line: `["--seed", "1", "--run.name=cora"]`, with
            `--allow-module`.
        allow_modules: user modules that dotted paths may name.
        model: a `torch.nn.Module` or such a class, instead of `model.type`.
    Raises:
        ConfigError: with all problems.
    """
    overrides, also_allowed = _without_allowed(overrides)
    if model is not None:
        overrides += ["--model.type", _name_of(model)]
    allow_modules = (allow_modules,) if isinstance(allow_modules, str) else allow_modules
    modules = _checked_modules([*allow_modules, *also_allowed])
    read = deepcopy(source) if isinstance(source, Source) else read_source(source)
    defaults = deepcopy(_defaults())
    misfits = [*apply_overrides(read, overrides, defaults), *drop_removed_keys(read.value)]
    beside = _defaults_beside(read.value, defaults)
    resolved = interpolate(read.value, beside, os.environ)
    redaction.remember_environment(resolved.environment)
    messages = Messages(read, resolved)
    early = [*misfits, *resolved.problems]
    broken = [str(problem.path[0]) for problem in early if problem.path]
    config, broken_keys, found = validate(resolved.value, read.texts | resolved.texts, broken)
    # A key whose value is unknown is not checked further.
    later = [p for p in found if not any(is_below(p.path, e.path) for e in early)]
    if model is not None:
        config.model.give(model)
    components = list(broken_components(config, modules))
    if problems := [*read.problems, *early, *later, *components]:
        known = [*((key,) for key in broken_keys), *(problem.path for problem in components)]
        arguments = _broken_arguments(config, modules, known)
        raise ConfigError(messages.texts([*problems, *arguments]))
    saved = savable(config, resolved, read.secrets)
    environment = dict(resolved.environment)
    return LoadedConfig(config, modules, saved, environment, _current_folder(), messages)


def _broken_arguments(*args: Any) -> Iterable[Problem | str]:
    checks = import_module("raygnn.loops.component_checks")  # by name: it imports this package
    found: Iterable[Problem | str] = checks.broken_arguments(*args)
    return found


def _name_of(model: Any) -> str:
    """The dotted path of a module's class. Raises a ConfigError for other objects."""
    kind = model if isinstance(model, type) else type(model)
    if not any(f"{c.__module__}.{c.__name__}" == _MODULE for c in kind.__mro__):
        raise ConfigError.invalid(
            "model", model, f"it is not a {_MODULE}", "Pass one, or its class", id="model-given"
        )
    return f"{kind.__module__}.{kind.__qualname__}"


#: By name, since this package does not import torch.
_MODULE = "torch.nn.modules.module.Module"


@cache
def _defaults() -> dict[str, Any]:
    return Config().model_dump(mode="json")


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted; paths that are not relative still lead somewhere
        return ""


def _defaults_beside(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults that references may read: a user's own component has none of ours."""
    fitting = dict(defaults)
    for key in DEFAULT_COMPONENTS:
        section = raw.get(key)
        if isinstance(section, str) or (isinstance(section, Mapping) and "type" in section):
            del fitting[key]
    return fitting


def _without_allowed(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides, and separately the modules of `--allow-module`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--allow-module", action="append", default=[], nargs="?")
    options, remaining = parser.parse_known_args(list(overrides))
    return remaining, options.allow_module


def _checked_modules(modules: Sequence[str]) -> tuple[str, ...]:
    for module in modules:
        if not isinstance(module, str) or not all(p.isidentifier() for p in module.split(".")):
            raise ConfigError(
                f"--allow-module={module!r} is invalid: it is not a module name. Write it like "
                "my_pkg or my_pkg.models. [command-allow-module]"
            )
    return tuple(modules)


_ENVIRONMENT = "${env:"


class Messages:
    """The origin of each key of a config, for messages."""

    def __init__(self, source: Source, resolved: Interpolated) -> None:
        self._source, self._resolved = source, resolved

    def texts(self, problems: Iterable[Problem | str]) -> list[str]:
        return list(dict.fromkeys(self._text(problem) for problem in problems))

    def _text(self, problem: Problem | str) -> str:
        if isinstance(problem, str):
            return self._without_secrets(problem)
        problem = self._of_environment(problem)
        value = value_at(self._resolved.shown, problem.path)
        if value is MISSING and problem.path[-1:] == ("type",):
            bare_name = value_at(self._resolved.shown, problem.path[:-1])
            value = bare_name if isinstance(bare_name, str) else value
        if value is not MISSING:
            text = shown(redaction.redact(value, self._source.secrets, problem.path))
            problem = replace(problem, shown=text)
        origin = self._source.origin(problem.path)
        if problem.line is not None:
            origin = self._source.at_line(problem.line)
        return self._without_secrets(problem.text(origin, "config"))

    def _without_secrets(self, text: str) -> str:
        return redaction.without_environment(redaction.redact_text(text, self._source.secrets))

    def _of_environment(self, problem: Problem) -> Problem:
        """Without what an environment variable contains: the value, and names of unknown keys."""
        parents = (problem.path[:i] for i in range(len(problem.path)))
        above = (value_at(self._resolved.shown, path) for path in parents)
        text = next((v for v in above if isinstance(v, str) and _ENVIRONMENT in v), None)
        if text is None:
            return problem
        path = problem.path
        if "unknown" in (problem.id or "") and path[-1] != "type":
            path = (*path[:-1], redaction.REDACTED)
        return replace(problem, path=path, shown=shown(text))


#: Keys that end a run: a finished one trains on when its own is raised.
LIMITS: tuple[KeyPath, ...] = (
    *(("training", name) for name in ("max_epochs", "max_steps", "max_samples", "max_time_s")),
    ("early_stopping", "patience"),
)

#: Keys that change neither batches nor weights, so that a run may resume with other values.
_NOT_OF_THE_RESULT: tuple[KeyPath, ...] = (
    *((name,) for name in ("run", "job_name", "scaling", "loggers", "profiler")),
    *(("data", name) for name in ("cache_dir", "cache_bytes", "allow_outside")),
    ("training", "log_every"),
    *LIMITS,  # a longer run begins as a shorter one
    ("training", "accumulate_grad_batches"),  # follows from the global batch size
    *(("checkpoint", name) for name in ("resume", "policy", "every", "keep")),
)


def savable(config: Config, resolved: Interpolated, secrets: Collection[str]) -> dict[str, Any]:
    """The complete config with defaults, environment variables by name and without secrets."""
    saved = config.model_dump(mode="json")
    _restore(saved, resolved.shown, resolved.value)
    redacted: dict[str, Any] = redaction.redact(saved, secrets)
    return redacted


def _shown(path: KeyPath, saved: Mapping[str, Any], resolved: Any) -> Any:
    """A value as saved; values that follow from other keys are saved as null."""
    value = value_at(saved, path)
    return resolved if value is MISSING or value is None else value


def _defining(config: Config) -> dict[str, Any]:
    defining: dict[str, Any] = redaction.redact(config.model_dump(mode="json"))
    for path in _NOT_OF_THE_RESULT:
        parent = value_at(defining, path[:-1])
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
    splits = ("train", "val", "test")
    defining["loader"] = {s: {"batch_size": config.loader_plan(s).batch_size} for s in splits}
    defining["training"]["global_batch_size"] = config.batch.global_batch_size
    return defining


def _restore(saved: Any, shown: Any, value: Any, path: KeyPath = ()) -> None:
    """Restores `${env:X}` and `$${` where the validated config has their values."""
    if isinstance(shown, dict):
        for key, inner in shown.items():
            _restore(saved, inner, value_at(value, (key,)), (*path, key))
    elif isinstance(shown, list):
        for index, inner in enumerate(shown):
            _restore(saved, inner, value_at(value, (index,)), (*path, index))
    elif isinstance(shown, str) and shown != value:
        place = value_at(saved, path)
        is_bare_name = isinstance(place, dict) and isinstance(value, str)
        set_value(saved, (*path, "type") if is_bare_name else path, shown)
