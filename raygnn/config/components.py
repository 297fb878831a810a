"""Components: rules that are checked without imports, and building."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pydantic import TypeAdapter

from raygnn.config.arguments import argument_problems, section_of
from raygnn.config.imports import allowed_root, import_dotted, is_of_library, is_within
from raygnn.config.registry import NESTED, SLOTS, Slot
from raygnn.config.schema import Config
from raygnn.config.section import Component, Section
from raygnn.documents import broken_scalar
from raygnn.errors import ConfigError, KeyPath, Problem, RuleError, choose_from, dotted, parse_path
from raygnn.redaction import redact, redact_text


def broken_components(config: Config, allow_modules: Sequence[str]) -> Iterator[Problem]:
    for path, slot, component in components_of(config):
        yield from broken_component_rules(component, slot, path, allow_modules)
    functions: list[tuple[KeyPath, str | None]] = [
        (("init_env",), config.init_env),
        (("loop",), config.loop),
        (("training", "grad_reduction"), config.training.grad_reduction),
    ]
    for path, name in functions:
        if name is not None and "." in name:
            yield from broken_function_rules(name, path, allow_modules)
    for index, callback in enumerate(config.callbacks):
        if isinstance(callback, Component):
            continue
        for hook, function in callback.items():
            yield from broken_function_rules(function, ("callbacks", index, hook), allow_modules)


def broken_component_rules(
    component: Component, slot: str, path: KeyPath, allow_modules: Sequence[str]
) -> Iterator[Problem]:
    spec = SLOTS[slot]
    if component.given is not None:
        if component.args and not isinstance(component.given, type):
            rule, remedy = "the object has its arguments already", "Remove them, or pass its class"
            yield Problem((*path, "args"), rule, remedy, id="component-given-args")
    else:
        yield from _broken_name(component.type, spec, allow_modules, (*path, "type"))
    for name in sorted(spec.injected & set(component.args)):
        yield SET_BY_RAYGNN.at((*path, "args", name))
    nested = spec if spec.nests else NESTED
    yield from _broken_nested(component.args, nested, allow_modules, (*path, "args"))


def broken_function_rules(
    name: str, path: KeyPath, allow_modules: Sequence[str]
) -> Iterator[Problem]:
    if is_of_library(name):
        rule, remedy = "a function must be your own", "Allow its module with --allow-module"
        yield Problem(path, rule, remedy, id="component-function")
    else:
        yield from _broken_name(name, NESTED, allow_modules, path)


SET_BY_RAYGNN = Problem(
    (), "raygnn sets this argument itself", "Remove it", id="component-argument-set"
)


def _check_name(name: str, spec: Slot, allow_modules: Sequence[str]) -> None:
    """Raises a RuleError unless a name may lead to a component, as far as imports do not matter."""
    if name in spec.names:
        return
    if "." in name or spec is NESTED:
        allowed_root(name, allow_modules)
        return
    rule, remedy = "this key has no short names", "Set a dotted path, such as my_pkg.my_module.Name"
    if spec.names:
        rule = f"unknown {spec.path} component"
        remedy = choose_from(name, sorted(spec.names)) + ", or a dotted path"
    raise RuleError(rule, remedy, id="component-unknown")


def _broken_name(
    name: str, spec: Slot, allow_modules: Sequence[str], path: KeyPath
) -> Iterator[Problem]:
    try:
        _check_name(name, spec, allow_modules)
    except RuleError as error:
        yield error.problem.at(path)


def _shown(value: Any, *path: object) -> str:
    return repr(redact(value, (), path))


TYPE_KEY, VALUE_TYPE_KEY, VALUE_KEY = "__type", "__value_type", "value"


def _to_none(value: Any) -> None:
    if value not in (None, "null", "None", "~", ""):
        raise ValueError("it is not null")


_COERCIONS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": TypeAdapter(bool).validate_python,
    "null": _to_none,
    "None": _to_none,
}


def _is_value_type(value: Any) -> bool:
    return isinstance(value, dict) and VALUE_TYPE_KEY in value


def _coerce(value: dict[str, Any]) -> Any:
    """The value of `{__value_type: int, value: "1"}`. Raises a RuleError."""
    kind = value[VALUE_TYPE_KEY]
    if set(value) != {VALUE_TYPE_KEY, VALUE_KEY}:
        rule = f"it needs exactly the keys {VALUE_TYPE_KEY} and {VALUE_KEY}"
        raise RuleError(rule, 'Set {__value_type: str, value: "1"}', id="component-value-type")
    if not isinstance(kind, str) or kind not in _COERCIONS:
        remedy = choose_from(kind, list(_COERCIONS))
        problem = Problem((VALUE_TYPE_KEY,), "unknown type", remedy, id="component-value-type")
        raise RuleError.of([problem])
    try:
        coerced = _COERCIONS[kind](value[VALUE_KEY])
        is_valid = broken_scalar(coerced) is None
    except (ValueError, TypeError, OverflowError):
        is_valid = False
    if not is_valid:
        rule = f"it cannot be read as {kind}"
        raise RuleError.of([Problem((VALUE_KEY,), rule, f"Set a {kind}", id="component-value")])
    return coerced


def _broken_nested(
    value: Any, spec: Slot, allow_modules: Sequence[str], path: KeyPath
) -> Iterator[Problem]:
    """Problems of nested arguments that are visible without imports."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _broken_nested(item, spec, allow_modules, (*path, index))
    elif _is_value_type(value):
        try:
            _coerce(value)
        except RuleError as error:
            yield error.problem.at(path)
    elif isinstance(value, dict):
        named = value.get(TYPE_KEY)
        if isinstance(named, str):
            yield from _broken_name(named, spec, allow_modules, (*path, TYPE_KEY))
        elif TYPE_KEY in value:
            rule, remedy = "it must be a dotted path", "Set package.module.Name"
            yield Problem((*path, TYPE_KEY), rule, remedy, id="component-path")
        for key, inner in value.items():
            yield from _broken_nested(inner, spec, allow_modules, (*path, key))


Target = type | Callable[..., Any]


def resolve(component: Component | str, slot: str, allow_modules: Sequence[str] = ()) -> Target:
    """Imports the class (or function, if the slot takes one) that a component names.

    Raises a ConfigError if it is not allowed, does not exist, or does not fit the slot.
    """
    if isinstance(component, Component) and (given := component.given) is not None:
        return given if isinstance(given, type) else type(given)
    name = component if isinstance(component, str) else component.type
    spec = SLOTS[slot]
    try:
        _check_name(name, spec, allow_modules)
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
        injected: arguments from raygnn. A class with a dotted path gets those that it has
            parameters for.
    Raises:
        ConfigError: the component cannot be imported, sets an injected argument, or its arguments
            do not fit its constructor.
    """
    if component.given is not None and not isinstance(component.given, type):
        return deepcopy(component.given)
    target = resolve(component, slot, allow_modules)
    path = (*parse_path(SLOTS[slot].path), "args")
    nest = _Nest(SLOTS[slot], allow_modules, injected)
    args = {name: nest.expand(value, (*path, name)) for name, value in component.args.items()}
    if component.type not in SLOTS[slot].names:
        injected = _accepted(target, injected)
    return _call(target, args, injected, path, component.type, slot)


def check_arguments(
    component: Component, slot: str, allow_modules: Sequence[str], injected: Collection[str]
) -> None:
    """Checks the names of a component's arguments without building it.

    Args:
        injected: names of arguments that raygnn may set.
    Raises:
        ConfigError: its constructor lacks such arguments, or needs others.
    """
    target = resolve(component, slot, allow_modules)
    path = (*parse_path(SLOTS[slot].path), "args")
    # The types of objects are known once they are built.
    with_objects = {name for name, value in component.args.items() if _holds_object(value)}
    objects = with_objects.intersection(parameters_of(target))
    nest = _Nest(SLOTS[slot], allow_modules, {})
    values = {
        name: value if name in with_objects else nest.expand(value, (*path, name))
        for name, value in component.args.items()
        if name not in objects
    }
    _check_arguments(target, values, {*injected, *objects}, path, component.type, slot)


def _holds_object(value: Any) -> bool:
    if isinstance(value, dict):
        return TYPE_KEY in value or any(map(_holds_object, value.values()))
    return isinstance(value, list) and any(map(_holds_object, value))


def parameters_of(target: Target) -> Collection[str]:
    """Names of the arguments of a class or function, as far as they are known."""
    if is_within(target.__module__, "raygnn"):
        return section_of(target).model_fields
    return _parameters(target) or ()


def _import(path: str, spec: Slot, allow_modules: Sequence[str]) -> Target:
    component = import_dotted(path, allow_modules, takes_functions=spec.takes_functions)
    if not isinstance(component, type):
        return component
    if spec.functions_only:
        raise RuleError(
            "it is a class, but a function is required", "Set a function", id="component-kind"
        )
    if spec.any_user_class and not is_of_library(path):
        return component
    # One by one, raygnn's first, because importing a base imports its library.
    if not any(issubclass(component, _import_base(base)) for base in spec.bases):
        rule = f"{component.__name__} is not a {' or '.join(spec.bases)}"
        raise RuleError(rule, "Set a subclass of it", id="component-kind")
    return component


def _import_base(path: str) -> type:
    base = import_dotted(path, (path.rpartition(".")[0],), takes_functions=False)
    assert isinstance(base, type)
    return base


@dataclass(frozen=True)
class _Nest:
    """Builds the objects inside of a component's arguments.

    Attributes:
        slot: of the component.
        injected: arguments of the component itself.
    """

    slot: Slot
    allow_modules: Sequence[str]
    injected: Mapping[str, Any]

    def expand(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, list):
            return [self.expand(item, (*path, i)) for i, item in enumerate(value)]
        if _is_value_type(value):
            return _coerce(value)
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
        return _call(target, args, injected, path, name)

    def _is_of_own_kind(self, name: str) -> bool:
        if not self.slot.nests or name in self.slot.names:
            return self.slot.nests
        component = import_dotted(name, self.allow_modules, takes_functions=True)
        bases = tuple(_import_base(base) for base in self.slot.bases)
        return isinstance(component, type) and issubclass(component, bases)


def _parameters(target: Target) -> dict[str, inspect.Parameter] | None:
    try:
        return dict(inspect.signature(target).parameters)
    except ValueError:  # a class written in C
        return None


def _accepted(target: Target, injected: Mapping[str, Any]) -> dict[str, Any]:
    """Injected arguments that the target names. The `**kwargs` of a class stand for its `Options`,
    and of a user's class also for the arguments that its bases name.
    """
    parameters = _parameters(target)
    if parameters is None:
        return dict(injected)
    names = set(parameters)
    bases = target.__mro__ if isinstance(target, type) else ()
    if _takes_any(parameters) and hasattr(target, "Options"):
        names.update(target.Options.model_fields)
    if not is_of_library(target.__module__) and _takes_any(parameters):
        for base in bases[1:]:
            init = vars(base).get("__init__")
            if not isinstance(init, FunctionType):
                continue
            of_base = inspect.signature(init).parameters
            names.update(of_base)
            if not _takes_any(of_base):
                break
    return {name: value for name, value in injected.items() if name in names}


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _call(
    target: Target,
    args: Mapping[str, Any],
    injected: Mapping[str, Any],
    path: KeyPath,
    name: str,
    slot: str = "",
) -> Any:
    if clash := sorted(set(args) & set(injected)):
        raise ConfigError([SET_BY_RAYGNN.at((*path, n), _shown(args[n], n)) for n in clash])
    _check_arguments(target, args, injected, path, name, slot)
    if "." in name and not is_of_library(name):
        return target(**args, **injected)  # errors are the user's own, with their traceback
    try:
        return target(**args, **injected)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        takes = ", ".join(_named(_parameters(target), injected)) or "none by name"
        rule, remedy = f"{name} refuses them: {redact_text(str(error))}", f"{name} takes: {takes}"
        given = _shown(dict(args), *path)
        raise ConfigError(
            Problem(path, rule, remedy, "component-refuses-arguments", given)
        ) from error


def _check_arguments(
    target: Target,
    args: Mapping[str, Any],
    injected: Collection[str],
    path: KeyPath,
    name: str,
    slot: str,
) -> None:
    if is_within(target.__module__, "raygnn"):
        kind = section_of(target)
        if problems := argument_problems(kind, args, name, dotted(path), slot, injected):
            raise ConfigError(problems)
        return
    parameters = _parameters(target)
    if parameters is None:
        return
    named = _named(parameters, injected)
    takes_any = _takes_any(parameters)
    problems = []
    for unknown in [] if takes_any else [n for n in args if n not in named]:
        remedy = choose_from(unknown, named, f"{name} takes") if named else "Remove it"
        shown = _shown(args[unknown], unknown)
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
    return [
        name
        for name, p in (parameters or {}).items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and name not in injected
    ]


def components_of(config: Config) -> Iterator[tuple[KeyPath, str, Component]]:
    yield ("task",), "task", config.task
    for name, entry in config.tasks.items():
        yield ("tasks", name), "task", entry
        yield from _listed(("tasks", name), entry, "loss", "metric")
    for slot in ("model", "optimizer", "lr_scheduler"):
        yield (slot,), slot, getattr(config, slot)
    yield from _listed((), config, "loss", "metric", "logger", "callback")
    if config.data.component is not None:
        yield ("data",), "dataset", config.data.component


def _listed(
    path: KeyPath, section: Section, *slots: str
) -> Iterator[tuple[KeyPath, str, Component]]:
    for slot in slots:
        key = SLOTS[slot].path
        for index, component in enumerate(getattr(section, key)):
            if isinstance(component, Component):  # not a map of hooks
                yield (*path, key, index), slot, component
