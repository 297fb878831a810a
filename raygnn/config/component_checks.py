"""Checks what a config names, components and functions, without importing any of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from raygnn.config.documents import broken_scalar
from raygnn.config.redaction import redact
from raygnn.config.schema import Config
from raygnn.config.section import Component
from raygnn.config.slots import SLOTS, Slot
from raygnn.errors import KeyPath, Problem, RuleError, choose_from

#: Packages whose classes a config may name without being allowed to.
LIBRARY_ROOTS = ("torch", "torch_geometric", "torchmetrics", "raygnn")

#: Where in the libraries a class must be defined, and a path must lead. Elsewhere are classes whose
#: constructors run, unpickle or fetch what their arguments say: torch.package.PackageImporter,
#: torch.utils.benchmark.Timer, torchmetrics.multimodal.CLIPScore (trust_remote_code), and all of
#: torch_geometric.datasets, which unpickle the files of a folder. Whoever trusts one of these
#: packages and the files it reads allows it by name.
_REACHABLE = (
    "raygnn",
    "torch.nn",
    "torch.optim",
    "torch_geometric.nn",
    "torch_geometric.sampler",
    "torch_geometric.transforms",
    "torchmetrics.aggregation",
    "torchmetrics.classification",
    "torchmetrics.clustering",
    "torchmetrics.collections",
    "torchmetrics.metric",
    "torchmetrics.nominal",
    "torchmetrics.regression",
    "torchmetrics.retrieval",
    "torchmetrics.wrappers",
)

#: The exception therein: it evaluates its arguments as Python (type hints of a signature).
_UNREACHABLE = ("torch_geometric.nn.sequential",)


def allowed_root(path: str, allow_modules: Sequence[str]) -> str:
    """The package or module under which a path must stay; allowed modules go first.

    Raises:
        RuleError: it is no dotted path, or not under anything that is allowed.
    """
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise RuleError("it is no dotted path", "Set package.module.Name", id="component-path")
    for module in (*allow_modules, *LIBRARY_ROOTS):
        if path.startswith(f"{module}."):
            is_private = is_of_library(path) and any(part.startswith("_") for part in parts)
            if is_private or any(part.startswith("__") for part in parts):
                raise RuleError(
                    "private names cannot be reached", "Set a public name", id="component-private"
                )
            if module in LIBRARY_ROOTS and module not in allow_modules:
                check_reachable(path.rpartition(".")[0], is_alias=True)
            return module
    roots = [*LIBRARY_ROOTS, *allow_modules]
    raise RuleError(
        f"it is outside of what this job may import ({', '.join(roots)})",
        _allow(parts[0]),
        id="component-not-allowed",
    )


def is_of_library(path: str) -> bool:
    """Whether a dotted path begins in one of `LIBRARY_ROOTS`, allowed by name or not."""
    return path.partition(".")[0] in LIBRARY_ROOTS


def check_reachable(module: str, *, is_alias: bool = False) -> None:
    """Checks that a module of a library is within a config's reach.

    Args:
        is_alias: it is where a path finds the class, which may be above the module that defines it
            (torchmetrics.Accuracy).
    """
    is_reachable = any(
        is_within(module, package) or (is_alias and is_within(package, module))
        for package in _REACHABLE
    )
    if not is_reachable or any(is_within(module, package) for package in _UNREACHABLE):
        raise RuleError(
            f"classes of {module} are out of a config's reach, as they may unpickle files or run "
            "code",
            _allow(module),
            id="component-not-allowed",
        )


def _allow(module: str) -> str:
    return (
        f"Add --allow-module {module} to the command, or allow_modules=[{module!r}] in Python, "
        "if you trust it and the files that it reads"
    )


def is_within(module: Any, root: str) -> bool:
    return isinstance(module, str) and (module == root or module.startswith(f"{root}."))


#: The hooks of raygnn.loops.callbacks.Callback, which a config check does not import.
HOOKS = (
    "on_setup",
    "on_train_start",
    "on_train_end",
    "on_epoch_start",
    "on_epoch_end",
    "on_train_step_start",
    "before_zero_grad",
    "after_zero_grad",
    "on_train_batch_start",
    "on_train_batch_end",
    "before_sync_grad",
    "after_sync_grad",
    "before_clip_grad_norm",
    "after_clip_grad_norm",
    "before_optimizer_step",
    "after_optimizer_step",
    "on_train_step_end",
    "on_log",
    "on_validation_start",
    "on_validation_step_start",
    "on_validation_step_end",
    "on_validation_end",
    "on_test_end",
    "on_save_checkpoint",
    "on_checkpoint_written",
    "on_load_checkpoint",
    "on_exception",
    "on_shutdown",
)


def broken_components(config: Config, allow_modules: Sequence[str]) -> Iterator[Problem]:
    """What is wrong with the components and functions that a config names."""
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
            path = ("callbacks", index, hook)
            if hook not in HOOKS:
                yield Problem(
                    path,
                    "there is no such hook",
                    choose_from(hook, HOOKS, "Hooks"),
                    id="callback-hook-unknown",
                )
            yield from broken_function_rules(function, path, allow_modules)


def components_of(config: Config) -> Iterator[tuple[KeyPath, str, Component]]:
    """Every component: its place, its slot and itself."""
    yield ("task",), "task", config.task
    for name, entry in config.tasks.items():
        yield ("tasks", name), "task", entry
        for index, loss in enumerate(entry.losses):
            yield ("tasks", name, "losses", index), "loss", loss
        for index, metric in enumerate(entry.metrics):
            yield ("tasks", name, "metrics", index), "metric", metric
    yield ("model",), "model", config.model
    yield ("optimizer",), "optimizer", config.optimizer
    yield ("lr_scheduler",), "lr_scheduler", config.lr_scheduler
    for index, loss in enumerate(config.losses):
        yield ("losses", index), "loss", loss
    for index, metric in enumerate(config.metrics):
        yield ("metrics", index), "metric", metric
    for index, logger in enumerate(config.loggers):
        yield ("loggers", index), "logger", logger
    for index, callback in enumerate(config.callbacks):
        if isinstance(callback, Component):
            yield ("callbacks", index), "callback", callback
    if config.data.component is not None:
        yield ("data",), "dataset", config.data.component
    if config.sampling.component is not None:
        yield ("sampling",), "sampler", config.sampling.component


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
    return [problem_text(problem, component) for problem in problems]


def broken_component_rules(
    component: Component, slot: str, path: KeyPath, allow_modules: Sequence[str]
) -> Iterator[Problem]:
    """The problems of `check_component`, at the place of the component in the config."""
    spec = SLOTS[slot]
    if broken := broken_name(component.type, spec, allow_modules):
        yield broken.at((*path, "type"))
    for name in sorted(spec.injected & set(component.args)):
        yield SET_BY_RAYGNN.at((*path, "args", name))
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
            id="component-function",
        )
    elif broken := _broken_path(name, allow_modules):
        yield broken.at(path)


SET_BY_RAYGNN = Problem(
    (), "raygnn sets this argument itself", "Remove it", id="component-argument-set"
)


def broken_name(name: str, spec: Slot, allow_modules: Sequence[str]) -> Problem | None:
    if name in spec.names:
        return None
    if "." in name:
        return _broken_path(name, allow_modules)
    if not spec.names:
        return Problem(
            (),
            "there are no short names here",
            "Set a dotted path, as my_pkg.my_module.Name",
            id="component-unknown",
        )
    remedy = choose_from(name, sorted(spec.names)) + ", or a dotted path"
    rule = f"there is no {spec.path} component of this name"
    return Problem((), rule, remedy, id="component-unknown")


def _broken_nested_name(name: str, spec: Slot, allow_modules: Sequence[str]) -> Problem | None:
    return (
        broken_name(name, spec, allow_modules) if spec.nests else _broken_path(name, allow_modules)
    )


def _broken_path(path: str, allow_modules: Sequence[str]) -> Problem | None:
    try:
        allowed_root(path, allow_modules)
    except RuleError as error:
        return error.problem
    return None


def problem_text(problem: Problem, component: Component) -> str:
    """The message of a problem that a component has by itself."""
    value: Any = {"type": component.type, "args": component.args}
    for part in problem.path[1:]:
        value = value[part]
    return problem.at((), shown_value(value, *problem.path)).text()


def shown_value(value: Any, *path: object) -> str:
    return repr(redact(value, (), path))


TYPE_KEY, VALUE_TYPE_KEY, VALUE_KEY = "__type", "__value_type", "value"


def _to_bool(value: Any) -> bool:
    words = {"true": True, "false": False, "1": True, "0": False}
    text = str(value).lower()
    if text not in words:
        raise ValueError("it is neither true nor false")
    return words[text]


def _to_none(value: Any) -> None:
    if value not in (None, "null", "None", "~", ""):
        raise ValueError("it is not null")


_COERCIONS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": _to_bool,
    "null": _to_none,
    "None": _to_none,
}


def is_value_type(value: Any) -> bool:
    return isinstance(value, dict) and VALUE_TYPE_KEY in value


def coerce(value: dict[str, Any]) -> Any:
    """The value of `{__value_type: int, value: "1"}`.

    Raises:
        KeyError: no such type.
        ValueError: the value is none of that type.
        TypeError: the same, for a value that is a list or a mapping.
        OverflowError: the same, for an infinite number as int.
    """
    coerced = _COERCIONS[value[VALUE_TYPE_KEY]](value.get(VALUE_KEY))
    if broken := broken_scalar(coerced):
        raise ValueError(broken.rule)
    return coerced


def broken_nested_rules(
    value: Any, path: KeyPath, check_path: Callable[[str], Problem | None]
) -> Iterator[Problem]:
    """What is wrong with nested arguments, as far as it shows without importing anything.

    Args:
        check_path: says why a dotted path may not be imported.
    """
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from broken_nested_rules(item, (*path, index), check_path)
    elif is_value_type(value):
        yield from _broken_value_type(value, path)
    elif isinstance(value, dict):
        if TYPE_KEY in value:
            dotted_path = value[TYPE_KEY]
            broken = (
                check_path(dotted_path)
                if isinstance(dotted_path, str)
                else Problem(
                    (), "it must be a dotted path", "Set package.module.Name", id="component-path"
                )
            )
            if broken:
                yield broken.at((*path, TYPE_KEY))
        for key, inner in value.items():
            yield from broken_nested_rules(inner, (*path, key), check_path)


def _broken_value_type(value: dict[str, Any], path: KeyPath) -> Iterator[Problem]:
    kind = value[VALUE_TYPE_KEY]
    if set(value) != {VALUE_TYPE_KEY, VALUE_KEY}:
        rule = f"it needs exactly the keys {VALUE_TYPE_KEY} and {VALUE_KEY}"
        yield Problem(
            path, rule, 'Set it as {__value_type: str, value: "1"}', id="component-value-type"
        )
    elif not isinstance(kind, str) or kind not in _COERCIONS:
        remedy = choose_from(kind, list(_COERCIONS))
        yield Problem(
            (*path, VALUE_TYPE_KEY), "there is no such type", remedy, id="component-value-type"
        )
    else:
        try:
            coerce(value)
        except (ValueError, TypeError, OverflowError):
            yield Problem(
                (*path, VALUE_KEY),
                f"it cannot be read as {kind}",
                f"Set a {kind}",
                id="component-value",
            )
