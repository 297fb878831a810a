"""Loading a config: everything is checked, and all problems are told at once."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel

from raygnn.config import tree
from raygnn.config.component_checks import broken_components
from raygnn.config.dependent_defaults import DEFAULT_COMPONENTS
from raygnn.config.documents import dump_yaml
from raygnn.config.interpolation import Interpolated, interpolate
from raygnn.config.messages import Messages
from raygnn.config.overrides import Overridden, apply_overrides
from raygnn.config.problems import Problem
from raygnn.config.saving import limits_of, result_differences, result_fingerprint, savable
from raygnn.config.schema import Config
from raygnn.config.source import Source, read_source
from raygnn.config.trial_builds import broken_arguments
from raygnn.config.validation import Validated, validate
from raygnn.errors import ConfigError


@dataclass(frozen=True)
class LoadedConfig:
    """A checked config, and what belongs to it on its way to the workers.

    Attributes:
        allow_modules: user modules that dotted paths may lead into.
        saved: the config to write with the run: all defaults, overrides and `${a.b}` resolved,
            `${env:X}` as written, no secrets.
        environment: the environment variables that `${env:X}` has read.
        folder: where relative paths of the config start: workers run in other folders.
    """

    config: Config = field(repr=False)  # holds secrets
    allow_modules: tuple[str, ...]
    saved: dict[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: str = ""
    _messages: Messages | None = field(default=None, repr=False, compare=False)  # holds secrets

    def check_arguments(self, left_out: Collection[str] = ()) -> None:
        """Checks the arguments of components of raygnn and of libraries, and monitors.

        It takes seconds where torch is not imported yet, so `load_config` leaves it to whoever
        goes on with the config, unless it has other mistakes to report too.

        Args:
            left_out: top-level keys that are not looked at.
        Raises:
            ConfigError: with all problems.
        """
        assert self._messages is not None
        found = broken_arguments(self.config, self.allow_modules, [(key,) for key in left_out])
        texts = [self._messages.placed(path, text) for path, text in found]
        if texts:
            raise ConfigError(texts)

    def saved_yaml(self) -> str:
        """`saved` as YAML, which loads to an equal config where nothing was secret."""
        return dump_yaml(self.saved)

    def fingerprint(self) -> str:
        """sha256 of what defines the training result: equal for a run that goes on elsewhere.

        Names, places, logging, machines and limits do not count, but the global batch size does.
        """
        return result_fingerprint(self.config)

    def differences(self, other: LoadedConfig) -> dict[str, tuple[Any, Any]]:
        """By dotted path, where another config defines another result: its value, and this one's.

        They are as saved: environment variables by name, and no secrets.
        """
        return result_differences(other.config, other.saved, self.config, self.saved)

    def limits(self) -> dict[str, float | None]:
        """What ends the run, by dotted path; null where there is no such limit."""
        return limits_of(self.config)


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any] | BaseModel | Source,
    overrides: Sequence[str] = (),
    allow_modules: Sequence[str] = (),
    *,
    trains: bool = True,
) -> LoadedConfig:
    """Loads a config, applies overrides, resolves references and checks everything.

    Nothing of the user's is imported: dotted paths are resolved by `build` on the worker.

    Args:
        source: a path, any fsspec URI, YAML text, a mapping, or what was read of one of these.
        overrides: as on the command line: `["--seed", "1", "--run.name=cora"]`.
        allow_modules: user modules that dotted paths may lead into.
        trains: whether the config is to train with, not for inference alone.
    Raises:
        ConfigError: with all problems.
    """
    modules = _checked_modules(allow_modules)
    read = source if isinstance(source, Source) else read_source(source)
    defaults = Config().model_dump(mode="json")
    overridden = apply_overrides(read.value, overrides, defaults)
    beside = _defaults_beside(overridden.value, defaults)
    resolved = interpolate(overridden.value, beside, os.environ)
    messages = Messages(read, overridden, resolved)
    checked = _check(read.problems, overridden, resolved, trains=trains)
    components = list(broken_components(checked.config, modules))
    if problems := [*checked.problems, *components]:
        known = [*((key,) for key in checked.broken), *(problem.path for problem in components)]
        arguments = broken_arguments(checked.config, modules, known)
        texts = [messages.placed(path, text) for path, text in arguments]
        raise ConfigError([*messages.texts(problems), *texts])
    saved = savable(checked.config, resolved, read.secrets)
    environment = dict(resolved.environment)
    return LoadedConfig(checked.config, modules, saved, environment, _current_folder(), messages)


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted; paths that are not relative still lead somewhere
        return ""


def _check(
    read: Sequence[Problem], overridden: Overridden, resolved: Interpolated, *, trains: bool
) -> Validated:
    """The config, as far as it is valid, and the problems of all stages."""
    early = [*overridden.problems, *resolved.problems]
    texts = {**overridden.texts, **resolved.texts}
    broken = [str(p.path[0]) for p in early if p.path]
    checked = validate(resolved.value, texts, broken, trains=trains)
    problems = [
        *read,
        *early,
        *(problem for problem in checked.problems if not _follows_from(early, problem)),
    ]
    return replace(checked, problems=problems)


def _follows_from(early: Sequence[Problem], problem: Problem) -> bool:
    """Whether a problem is about a place whose value could not be found out."""
    return any(tree.is_below(problem.path, known.path) for known in early)


def _defaults_beside(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults that a reference may lead to: a component of the user's own has none of ours."""
    fitting = dict(defaults)
    for key in DEFAULT_COMPONENTS:
        given = raw.get(key)
        if isinstance(given, str) or (isinstance(given, Mapping) and "type" in given):
            del fitting[key]
    return fitting


def _checked_modules(allow_modules: Sequence[str]) -> tuple[str, ...]:
    modules = (allow_modules,) if isinstance(allow_modules, str) else tuple(allow_modules)
    for module in modules:
        if not isinstance(module, str) or not all(p.isidentifier() for p in module.split(".")):
            raise ConfigError(
                f"--allow-module={module!r} is invalid: it is no name of a module. Set it as in "
                "my_pkg or my_pkg.models."
            )
    return modules
