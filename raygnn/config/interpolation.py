"""`${a.b}` is another key's value, `${env:X}` an environment variable's; `$${` is a literal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raygnn.config.section import MISSING, value_at
from raygnn.documents import Limits, broken_scalar, parse_scalar
from raygnn.errors import KeyPath, Problem, RuleError, did_you_mean, parse_path

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[^{}]*)\}|(?P<open>\$\{)")
_ENV = "env:"


@dataclass
class Interpolated:
    """A tree without references.

    Attributes:
        shown: with `${env:X}` as written, for error texts and saved configs.
        texts: texts of values that consist of one environment variable, by path.
    """

    value: Any = None
    shown: Any = None
    texts: dict[KeyPath, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def interpolate(
    raw: Mapping[str, Any], defaults: Mapping[str, Any], environ: Mapping[str, str]
) -> Interpolated:
    """Resolves all references of a config.

    A string that is a single reference has the value's type; environment variables are parsed as a
    YAML scalar, list or mapping. Within a longer string, references are text. `defaults`: values of
    keys that the config does not set.
    """
    result = Interpolated()
    result.value = _Resolver(raw, defaults, environ, result).resolve()
    result.shown = _Resolver(raw, defaults, environ, Interpolated(), keep_env=True).resolve()
    return result


@dataclass
class _Resolver:
    raw: Mapping[str, Any]
    defaults: Mapping[str, Any]
    environ: Mapping[str, str]
    result: Interpolated
    keep_env: bool = False
    limits: Limits = field(default_factory=Limits)

    def resolve(self) -> dict[str, Any]:
        resolved = {}
        for key, value in self.raw.items():
            try:
                resolved[key] = self.walk(value, (key,), ())
            except RuleError as error:
                self._report((), replace(error.problem, path=(key,), line=None))
                return {}
        return resolved

    def walk(self, value: Any, path: KeyPath, trail: tuple[str, ...]) -> Any:
        self.limits.check(value, max(len(path), len(trail)))
        if isinstance(value, Mapping):
            return {key: self.walk(inner, (*path, key), trail) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.walk(inner, (*path, i), trail) for i, inner in enumerate(value)]
        if isinstance(value, str) and "${" in value:
            return self._text(value, path, trail)
        return value

    def _text(self, text: str, path: KeyPath, trail: tuple[str, ...]) -> Any:
        reference = _REFERENCE.fullmatch(text)
        if reference and reference["name"] is not None:
            value = self._reference(reference["name"], path, trail)
            return text if value is MISSING else value
        parts, end = [], 0
        for match in _REFERENCE.finditer(text):
            parts.append(text[end : match.start()])
            end = match.end()
            if match["open"]:
                rule, remedy = "a ${ is not closed", "Close it, or write $${"
                self._report(trail, Problem(path, rule, remedy, id="config-reference"))
                return text
            if match["name"] is None:
                parts.append("$${" if self.keep_env else "${")
                continue
            value = self._reference(match["name"], path, trail, as_text=True)
            if value is MISSING:
                return text
            if isinstance(value, dict | list):
                rule, remedy = f"{match[0]} is not a single value", "Let the reference stand alone"
                self._report(trail, Problem(path, rule, remedy, id="config-reference"))
                return text
            parts.append(_as_text(value))
            self.limits.check(parts[-1], len(path))
        return "".join(parts) + text[end:]

    def _reference(
        self, name: str, path: KeyPath, trail: tuple[str, ...], *, as_text: bool = False
    ) -> Any:
        if name.startswith(_ENV):
            if self.keep_env:
                return f"${{{name}}}"
            return self._environment(name.removeprefix(_ENV), path, trail, as_text=as_text)
        if name in trail:
            circle = " -> ".join((*trail[trail.index(name) :], name))
            rule, remedy = f"references form a cycle: {circle}", "Set one to a value"
            self._report((), Problem(path, rule, remedy, id="config-reference-circle"))
            return MISSING
        target = parse_path(name)
        value = self._lookup(target)
        if value is MISSING:
            siblings = self._lookup(target[:-1])
            names = list(siblings) if isinstance(siblings, Mapping) else []
            rule = f"there is no value at {name or 'an empty name'}"
            remedy = f"{did_you_mean(target[-1], names)}Name a key of this config, or ${{env:NAME}}"
            self._report(trail, Problem(path, rule, remedy, id="config-reference-missing"))
            return MISSING
        return self.walk(value, path, (*trail, name))

    def _lookup(self, target: KeyPath) -> Any:
        for length in range(len(target) + 1):
            value = value_at(self.raw, target[:length])
            if value is MISSING:
                parent = value_at(self.raw, target[: length - 1])
                if isinstance(parent, Mapping):
                    return value_at(self.defaults, target)
                return MISSING
        if isinstance(value, Mapping) and not target:
            return {**self.defaults, **value}
        return value

    def _environment(
        self, name: str, path: KeyPath, trail: tuple[str, ...], *, as_text: bool
    ) -> Any:
        if name not in self.environ:
            rule, remedy = f"the environment variable {name} is not set", f"Export {name}"
            self._report(trail, Problem(path, rule, remedy, id="config-environment-missing"))
            return MISSING
        text = self.environ[name]
        if broken := broken_scalar(text):
            rule = f"in the environment variable {name}, {broken.rule}"
            self._report(trail, Problem(path, rule, broken.remedy, broken.id))
            return MISSING
        self.result.environment[name] = text
        if as_text:
            return text
        self.result.texts[path] = text
        try:
            value = parse_scalar(text)
        except RuleError:
            return text
        is_nested = isinstance(value, dict | list)
        return text if is_nested and not text.lstrip().startswith(("[", "{")) else value

    def _report(self, trail: tuple[str, ...], problem: Problem) -> None:
        if not trail:
            self.result.problems.append(problem)


def _as_text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
