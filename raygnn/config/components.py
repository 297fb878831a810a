"""Components: checked on the driver by their names, imported and built on the worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raygnn.config.component import Component
from raygnn.config.dotted_path import DottedPathError, allowed_root, import_dotted, is_of_library
from raygnn.config.nested_args import (
    TYPE_KEY,
    broken_nested_rules,
    coerce,
    is_value_type,
)
from raygnn.config.problems import KeyPath, Problem, choose_from
from raygnn.config.redaction import redact, redact_text
from raygnn.config.slots import NESTED, SLOTS, Slot
from raygnn.errors import ConfigError

__all__ = ["SLOTS", "Component", "Slot", "build", "check_component", "resolve"]

Target = type | Callable[..., Any]


def check_component(
    component: Component, slot: str, allow_modules: Sequence[str] = ()
) -> list[str]:
    """What is wrong with a component, as far as it shows without importing anything.

    Args:
        slot: a key of SLOTS.
        allow_modules: user modules that dotted paths may lead into.
    Returns:
        A text for each problem.
    """
    path: KeyPath = (SLOTS[slot].path,)
    problems = broken_component_rules(component, slot, path, allow_modules)
    return [_text(problem, component) for problem in problems]


def broken_component_rules(
    component: Component, slot: str, path: KeyPath, allow_modules: Sequence[str]
) -> Iterator[Problem]:
    """The problems of `check_component`, at the place of the component in the config."""
    spec = SLOTS[slot]
    if broken := _broken_name(component.type, spec, allow_modules):
        yield Problem((*path, "type"), *broken)
    for name in sorted(spec.injected & set(component.args)):
        yield Problem((*path, "args", name), *_INJECTED)
    yield from broken_nested_rules(
        component.args, (*path, "args"), lambda name: _broken_nested_name(name, spec, allow_modules)
    )


def broken_function_rules(
    name: str, path: KeyPath, allow_modules: Sequence[str]
) -> Iterator[Problem]:
    """What is wrong with the dotted path of a function, as far as it shows without importing."""
    if is_of_library(name):
        yield Problem(
            path,
            "a function is taken from user modules only",
            "Set a function of your own, and allow its module with --allow-module",
        )
    elif broken := _broken_path(name, allow_modules):
        yield Problem(path, *broken)


def resolve(component: Component | str, slot: str, allow_modules: Sequence[str] = ()) -> Target:
    """Imports the class (or function, where the slot takes one) that a component names.

    Raises:
        ConfigError: it may not be imported, is not there, or is not what the slot needs.
    """
    name = component if isinstance(component, str) else component.type
    spec = SLOTS[slot]
    try:
        if broken := _broken_name(name, spec, allow_modules):
            raise DottedPathError(*broken)
        return _import(spec.names.get(name, name), spec, allow_modules)
    except DottedPathError as error:
        leaf = (spec.path,) if spec.functions_only else (spec.path, "type")
        problem = Problem(leaf, error.rule, error.remedy)
        raise ConfigError(problem.text(repr(name))) from error


def build(
    component: Component, slot: str, allow_modules: Sequence[str] = (), **injected: Any
) -> Any:
    """Builds the object of a component.

    Args:
        slot: a key of SLOTS.
        injected: arguments from raygnn. A class given by a dotted path gets those of them that it
            has parameters for.
    Raises:
        ConfigError: the component cannot be imported, sets what raygnn injects, or its arguments
            are not those of its constructor.
    """
    target = resolve(component, slot, allow_modules)
    path: KeyPath = (SLOTS[slot].path, "args")
    nest = _Nest(SLOTS[slot], allow_modules, injected)
    args = {name: nest.expand(value, (*path, name)) for name, value in component.args.items()}
    if clash := sorted(set(args) & set(injected)):
        problems = [Problem((*path, name), *_INJECTED) for name in clash]
        raise ConfigError([_text(problem, component) for problem in problems])
    if component.type not in SLOTS[slot].names:
        injected = _accepted(target, injected)
    return _call(target, args, injected, path, component.type)


def check_arguments(
    component: Component, slot: str, allow_modules: Sequence[str], injected: Collection[str]
) -> None:
    """Checks the names of a component's arguments without building it.

    Args:
        injected: names of what raygnn may set.
    Raises:
        ConfigError: its constructor takes no such arguments, or needs others.
    """
    parameters = _parameters(resolve(component, slot, allow_modules))
    if parameters is not None:
        path = (SLOTS[slot].path, "args")
        _check_arguments(parameters, component.args, injected, path, component.type)


def parameters_of(target: Target) -> Collection[str]:
    """Names of the parameters of a class or function, as far as they can be known."""
    return _parameters(target) or ()


_INJECTED = ("raygnn sets this argument itself", "Remove it")


def _broken_name(name: str, spec: Slot, allow_modules: Sequence[str]) -> tuple[str, str] | None:
    if name in spec.names:
        return None
    if "." in name:
        return _broken_path(name, allow_modules)
    if not spec.names:
        return "there are no short names here", "Set a dotted path, as my_pkg.my_module.Name"
    remedy = choose_from(name, sorted(spec.names)) + ", or a dotted path"
    return f"there is no {spec.path} component of this name", remedy


def _broken_nested_name(
    name: str, spec: Slot, allow_modules: Sequence[str]
) -> tuple[str, str] | None:
    return (
        _broken_name(name, spec, allow_modules) if spec.nests else _broken_path(name, allow_modules)
    )


def _broken_path(path: str, allow_modules: Sequence[str]) -> tuple[str, str] | None:
    try:
        allowed_root(path, allow_modules)
    except DottedPathError as error:
        return error.rule, error.remedy
    return None


def _import(path: str, spec: Slot, allow_modules: Sequence[str]) -> Target:
    found = import_dotted(path, allow_modules, takes_functions=spec.takes_functions)
    if not isinstance(found, type):
        return found
    if spec.functions_only:
        raise DottedPathError("a function goes here, and this is a class", "Set a function")
    if spec.any_user_class and not is_of_library(path):
        return found
    # One by one: to import a base takes as long as its library, and raygnn's own come first.
    if not any(issubclass(found, _import_base(base)) for base in spec.bases):
        raise DottedPathError(
            f"{found.__name__} is no {' or '.join(spec.bases)}", "Set a subclass of it"
        )
    return found


def _import_base(path: str) -> type:
    base = import_dotted(path, (path.rpartition(".")[0],), takes_functions=False)
    assert isinstance(base, type)
    return base


@dataclass(frozen=True)
class _Nest:
    """Builds the objects inside of the arguments of one component.

    Attributes:
        slot: of the component.
        injected: what the component itself is given.
    """

    slot: Slot
    allow_modules: Sequence[str]
    injected: Mapping[str, Any]

    def expand(self, value: Any, path: KeyPath) -> Any:
        """The argument with its objects built."""
        if isinstance(value, list):
            return [self.expand(item, (*path, i)) for i, item in enumerate(value)]
        if is_value_type(value):
            return coerce(value)
        if not isinstance(value, Mapping):
            return value
        inner = {
            key: self.expand(item, (*path, key)) for key, item in value.items() if key != TYPE_KEY
        }
        return self._build(value[TYPE_KEY], inner, path) if TYPE_KEY in value else inner

    def _build(self, name: str, args: Mapping[str, Any], path: KeyPath) -> Any:
        injected: Mapping[str, Any] = {}
        try:
            if self._is_of_own_kind(name):
                target = _import(self.slot.names.get(name, name), self.slot, self.allow_modules)
                injected = _accepted(target, self.injected)
            else:
                target = _import(name, NESTED, self.allow_modules)
        except DottedPathError as error:
            problem = Problem((*path, TYPE_KEY), error.rule, error.remedy)
            raise ConfigError(problem.text(repr(name))) from error
        if clash := sorted(set(args) & set(injected)):
            raise ConfigError(
                [Problem((*path, n), *_INJECTED).text(_shown(args[n], n)) for n in clash]
            )
        return _call(target, args, injected, path, name)

    def _is_of_own_kind(self, name: str) -> bool:
        if not self.slot.nests or name in self.slot.names:
            return self.slot.nests
        found = import_dotted(name, self.allow_modules, takes_functions=True)
        bases = tuple(_import_base(base) for base in self.slot.bases)
        return isinstance(found, type) and issubclass(found, bases)


def _parameters(target: Target) -> dict[str, inspect.Parameter] | None:
    """Parameters by name; None where they cannot be known."""
    try:
        return dict(inspect.signature(target).parameters)
    except ValueError:  # a class written in C
        return None


def _accepted(target: Target, injected: Mapping[str, Any]) -> dict[str, Any]:
    """Those injected arguments that the target has a parameter for.

    A user's `**kwargs` takes all; that of a library is for its own options.
    """
    parameters = _parameters(target)
    if parameters is None:
        return dict(injected)
    is_users = not is_of_library(target.__module__)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and is_users
    return {name: value for name, value in injected.items() if takes_all or name in parameters}


def _call(
    target: Target,
    args: Mapping[str, Any],
    injected: Mapping[str, Any],
    path: KeyPath,
    name: str,
) -> Any:
    parameters = _parameters(target)
    if parameters is not None:
        _check_arguments(parameters, args, injected, path, name)
    if "." in name and not is_of_library(name):
        return target(**args, **injected)  # errors are the user's own, with their traceback
    try:
        return target(**args, **injected)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        shown = _shown(dict(args), *path)
        takes = ", ".join(_named(parameters, injected)) or "none by name"
        problem = Problem(
            path, f"{name} refuses them: {redact_text(str(error))}", f"{name} takes: {takes}"
        )
        raise ConfigError(problem.text(shown)) from error


def _check_arguments(
    parameters: Mapping[str, inspect.Parameter],
    args: Mapping[str, Any],
    injected: Collection[str],
    path: KeyPath,
    name: str,
) -> None:
    named = _named(parameters, injected)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    texts = []
    for unknown in [] if takes_any else [n for n in args if n not in named]:
        remedy = choose_from(unknown, named, f"{name} takes") if named else "Remove it"
        shown = _shown(args[unknown], unknown)
        problem = Problem((*path, unknown), f"{name} takes no such argument", remedy)
        texts.append(problem.text(shown))
    for needed in named:
        if parameters[needed].default is inspect.Parameter.empty and needed not in args:
            problem = Problem((*path, needed), f"{name} needs this argument", "Set it")
            texts.append(problem.text(None))
    if texts:
        raise ConfigError(texts)


def _named(
    parameters: Mapping[str, inspect.Parameter] | None, injected: Collection[str]
) -> list[str]:
    """Names of the arguments that a config may give."""
    return [
        name
        for name, p in (parameters or {}).items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and name not in injected
    ]


def _text(problem: Problem, component: Component) -> str:
    """The message of a problem that a component has by itself."""
    value: Any = {"type": component.type, "args": component.args}
    for part in problem.path[1:]:
        value = value[part]
    return problem.text(_shown(value, *problem.path))


def _shown(value: Any, *path: object) -> str:
    return repr(redact(value, (), path))
