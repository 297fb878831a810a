"""Components: imported and built on the worker."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raygnn.config.arguments import arguments_of, validated_arguments
from raygnn.config.component_checks import (
    LIBRARY_ROOTS,
    SET_BY_RAYGNN,
    TYPE_KEY,
    allowed_root,
    broken_name,
    check_reachable,
    coerce,
    is_of_library,
    is_value_type,
    is_within,
    shown_value,
)
from raygnn.config.redaction import redact_text
from raygnn.config.section import Component
from raygnn.config.slots import NESTED, SLOTS, Slot
from raygnn.errors import ConfigError, KeyPath, Problem, RuleError, choose_from, dotted, parse_path

Target = type | Callable[..., Any]


def resolve(component: Component | str, slot: str, allow_modules: Sequence[str] = ()) -> Target:
    """Imports the class (or function, where the slot takes one) that a component names.

    Raises:
        ConfigError: it may not be imported, is not there, or is not what the slot needs.
    """
    name = component if isinstance(component, str) else component.type
    spec = SLOTS[slot]
    try:
        if broken := broken_name(name, spec, allow_modules):
            raise RuleError(broken.rule, broken.remedy, id=broken.id)
        return _import(spec.names.get(name, name), spec, allow_modules)
    except RuleError as error:
        leaf = spec.path if spec.functions_only else f"{spec.path}.type"
        raise ConfigError(error.problem.at(parse_path(leaf), repr(name))) from error


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
    path = (*parse_path(SLOTS[slot].path), "args")
    nest = _Nest(SLOTS[slot], allow_modules, injected)
    args = {name: nest.expand(value, (*path, name)) for name, value in component.args.items()}
    if clash := sorted(set(args) & set(injected)):
        raise ConfigError([_set_by_raygnn(args, name, path) for name in clash])
    if component.type not in SLOTS[slot].names:
        injected = _accepted(target, injected)
    return _call(target, args, injected, path, component.type, slot)


def check_arguments(
    component: Component, slot: str, allow_modules: Sequence[str], injected: Collection[str]
) -> None:
    """Checks the names of a component's arguments without building it.

    Args:
        injected: names of what raygnn may set.
    Raises:
        ConfigError: its constructor takes no such arguments, or needs others.
    """
    target = resolve(component, slot, allow_modules)
    path = (*parse_path(SLOTS[slot].path), "args")
    _check_arguments(target, component.args, injected, path, component.type, slot)


def parameters_of(target: Target) -> Collection[str]:
    """Names of the parameters of a class or function, as far as they can be known."""
    return _parameters(target) or ()


def _import(path: str, spec: Slot, allow_modules: Sequence[str]) -> Target:
    found = import_dotted(path, allow_modules, takes_functions=spec.takes_functions)
    if not isinstance(found, type):
        return found
    if spec.functions_only:
        raise RuleError(
            "a function goes here, and this is a class", "Set a function", id="component-kind"
        )
    if spec.any_user_class and not is_of_library(path):
        return found
    # One by one: to import a base takes as long as its library, and raygnn's own come first.
    if not any(issubclass(found, _import_base(base)) for base in spec.bases):
        raise RuleError(
            f"{found.__name__} is no {' or '.join(spec.bases)}",
            "Set a subclass of it",
            id="component-kind",
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
        except RuleError as error:
            raise ConfigError(error.problem.at((*path, TYPE_KEY), repr(name))) from error
        if clash := sorted(set(args) & set(injected)):
            raise ConfigError([_set_by_raygnn(args, name, path) for name in clash])
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
    slot: str = "",
) -> Any:
    parameters = _parameters(target)
    _check_arguments(target, args, injected, path, name, slot)
    if "." in name and not is_of_library(name):
        return target(**args, **injected)  # errors are the user's own, with their traceback
    try:
        return target(**args, **injected)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        takes = ", ".join(_named(parameters, injected)) or "none by name"
        problem = Problem(
            path,
            f"{name} refuses them: {redact_text(str(error))}",
            f"{name} takes: {takes}",
            "component-refuses-arguments",
            shown_value(dict(args), *path),
        )
        raise ConfigError(problem) from error


def _set_by_raygnn(args: Mapping[str, Any], name: str, path: KeyPath) -> Problem:
    return SET_BY_RAYGNN.at((*path, name), shown_value(args[name], name))


def _check_arguments(
    target: Target,
    args: Mapping[str, Any],
    injected: Collection[str],
    path: KeyPath,
    name: str,
    slot: str,
) -> None:
    if is_within(target.__module__, "raygnn"):
        kind = arguments_of(target, frozenset(injected).difference(args))
        validated_arguments(kind, args, name, dotted(path), slot)
        return
    parameters = _parameters(target)
    if parameters is None:
        return
    named = _named(parameters, injected)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    problems = []
    for unknown in [] if takes_any else [n for n in args if n not in named]:
        remedy = choose_from(unknown, named, f"{name} takes") if named else "Remove it"
        shown = shown_value(args[unknown], unknown)
        rule = f"{name} takes no such argument"
        place = (*path, unknown)
        problems.append(Problem(place, rule, remedy, "component-argument-unknown", shown))
    for needed in named:
        if parameters[needed].default is inspect.Parameter.empty and needed not in args:
            rule = f"{name} needs this argument"
            place = (*path, needed)
            problems.append(Problem(place, rule, "Set it", id="component-argument-missing"))
    if problems:
        raise ConfigError(problems)


def _named(
    parameters: Mapping[str, inspect.Parameter] | None, injected: Collection[str]
) -> list[str]:
    """Names of the arguments that a config may give."""
    return [
        name
        for name, p in (parameters or {}).items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and name not in injected
    ]


def import_dotted(
    path: str, allow_modules: Sequence[str], *, takes_functions: bool
) -> type | Callable[..., Any]:
    """Imports a class that is defined under the allowed root of its path.

    Args:
        takes_functions: a function is fine too, if it is defined in an allowed user module.
    Raises:
        RuleError: there is no such thing, or it is defined elsewhere or is no class.
    """
    root = allowed_root(path, allow_modules)
    module, rest = _import_module(path, root)
    found: Any = module
    for name in rest:
        if not _is_ours(found, root):
            break
        try:
            found = getattr(found, name)
        except AttributeError:
            raise _no_such_name(found, name) from None
    is_function = isinstance(found, types.FunctionType)
    is_class = isinstance(found, type) and _is_ours(found, root)
    if not is_class and not is_function:
        raise RuleError(
            f"it is no class defined in {root}",
            "Set the path where a class is defined",
            id="component-kind",
        )
    is_restricted = root in LIBRARY_ROOTS and root not in allow_modules
    if is_class and is_restricted:
        check_reachable(found.__module__)
    if is_function:
        if is_restricted or not takes_functions:
            what = "a function" if is_restricted else "a function, and a class goes here"
            raise RuleError(f"it is {what}", "Set a class", id="component-kind")
        if not is_within(found.__module__, root):
            raise RuleError(
                f"the function is defined in {found.__module__}, not in {root}",
                "Set the path where it is defined, and allow that module",
                id="component-not-allowed",
            )
    return found


def _is_ours(found: Any, root: str) -> bool:
    """Whether it is a module or a class of the allowed root: nothing else is looked into."""
    if isinstance(found, types.ModuleType):
        return is_within(found.__name__, root) or root.startswith(f"{found.__name__}.")
    return isinstance(found, type) and is_within(found.__module__, root)


def _import_module(path: str, root: str) -> tuple[types.ModuleType, list[str]]:
    """Imports the longest part of a path that is a module; gives the names that are left."""
    parts = path.split(".")
    for length in range(len(parts) - 1, root.count("."), -1):
        name = ".".join(parts[:length])
        try:
            return _import_module_by_name(name, root), parts[length:]
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if missing != name and not name.startswith(f"{missing}."):
                is_own = missing.partition(".")[0] == root.partition(".")[0]
                raise RuleError(
                    f"importing {name} failed: {error}",
                    "Correct the import" if is_own else f"Install {missing} on every node",
                    id="component-import",
                ) from error
    raise RuleError(
        f"there is no module {root}",
        "Start the job in the folder that has it, or install it on every node",
        id="component-module-missing",
    )


def _import_module_by_name(name: str, root: str) -> types.ModuleType:
    """Imports a module; a user's may lie in the current directory, wherever sys.path leads."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        here, top = os.getcwd(), root.partition(".")[0]
        if root in LIBRARY_ROOTS or error.name != top or {"", here} & set(sys.path):
            raise
        sys.path.append(here)  # last, so that it only adds names
        importlib.invalidate_caches()
        return importlib.import_module(name)


def _no_such_name(found: Any, name: str) -> RuleError:
    where = getattr(found, "__name__", str(found))
    names = sorted(n for n, value in vars(found).items() if isinstance(value, type))
    public = [n for n in names if not n.startswith("_")]
    shown = public if len(public) <= 40 else []
    remedy = choose_from(name, shown, f"Classes of {where}") if shown else f"Look into {where}"
    if not shown and (hint := choose_from(name, public).partition("Set one of")[0]):
        remedy = hint.rstrip("? ")
    return RuleError(f"{where} has no {name}", remedy, id="component-missing")
