"""Checks the arguments of components before there is a graph, by building them as far as possible.

Unlike the other checks of a config, these import raygnn's components and libraries.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from raygnn.config import Config
from raygnn.config.components import build, check_arguments, components_of, resolve
from raygnn.config.imports import LIBRARY_ROOTS
from raygnn.config.registry import GENERATORS, SLOTS
from raygnn.config.section import Component, is_below
from raygnn.errors import ConfigError, KeyPath, Problem, choose_from, dotted, parse_path, shown
from raygnn.loops.callbacks import HOOKS
from raygnn.loops.tasks.target import TaskTarget, target_class, target_classes

#: By slot, arguments that raygnn takes from the graph or the task, so that a config may lack them.
_FOUND_LATER: dict[str, tuple[str, ...]] = {
    "model": (
        *("in_channels", "out_channels", "num_layers", "edge_types", "num_nodes"),
        *("edge_dim", "edge_dims"),
    ),
    "decoder": ("in_channels", "num_relations"),
    "method": ("setting",),
    "logger": ("logs_uri", "run_name"),
}


def broken_arguments(
    config: Config, allow_modules: Sequence[str], left_out: Sequence[KeyPath]
) -> Iterator[Problem | str]:
    """Problems in the arguments of components.

    A user's own components are left to the workers, which may have other modules. `left_out`: paths
    to skip, at or below which something is known to be wrong.
    """
    for path, slot, component in components_of(config):
        is_left_out = any(is_below(place, path) or is_below(path, place) for place in left_out)
        if is_left_out or not _is_known(component, slot, allow_modules):
            continue
        of_task = config.task_configs[str(path[1])] if path[0] == "tasks" else config
        try:
            _build(slot, component, of_task, allow_modules)
        except ConfigError as error:
            for record in error.records:
                yield _placed(record, parse_path(SLOTS[slot].path), path)
    if ("callbacks",) not in left_out:
        yield from _unknown_hooks(config)
    sections = {place[0] for place in left_out}
    synthetic = config.data.synthetic
    if synthetic is not None and "data" not in sections:
        yield from import_module(GENERATORS).synthetic_problems(synthetic.type, **synthetic.args)
    if config.task.type in SLOTS["task"].names and not sections & {"task", "tasks"}:
        problems = _targets(config)[0].problems_with(config)
        yield from (problem for problem in problems if problem.path[0] not in sections)
    if not sections & {"task", "tasks", "metrics", "callbacks"}:
        yield from _unknown_monitors(config, allow_modules, sections)


def _unknown_hooks(config: Config) -> Iterator[Problem]:
    for index, callback in enumerate(config.callbacks):
        names = () if isinstance(callback, Component) else callback
        for hook in (name for name in names if name not in HOOKS):
            remedy = choose_from(hook, HOOKS, "Hooks")
            path = ("callbacks", index, hook)
            yield Problem(path, "unknown hook", remedy, id="callback-hook-unknown")


def _is_known(component: Component, slot: str, allow_modules: Sequence[str]) -> bool:
    if component.given is not None:
        return False
    is_library = component.type.partition(".")[0] in LIBRARY_ROOTS
    if component.type not in SLOTS[slot].names and not is_library:
        return False
    try:
        resolve(component, slot, allow_modules)
    except ConfigError:
        return component.type in SLOTS[slot].names  # a library may not be installed here
    return True


def _build(slot: str, component: Component, config: Config, allow_modules: Sequence[str]) -> None:
    if slot == "metric":
        _build_metric(component, config, allow_modules)
    elif slot == "optimizer":
        _check_sparse_rows(component, _optimizer(component, allow_modules), config)
    elif slot == "lr_scheduler":
        plain = Component(type="SGD", args={"lr": 0.1, "momentum": 0.9})  # some turn momentum
        build(component, slot, allow_modules, optimizer=_optimizer(plain, allow_modules))
    elif slot == "loss":
        if isinstance(resolve(component, slot, allow_modules), type):
            build(Component(type=component.type, args=component.args), slot, allow_modules)
    elif slot in ("model", "task", "logger"):
        check_arguments(component, slot, allow_modules, _FOUND_LATER.get(slot, ()))
        for inner in component.args.keys() & {"decoder", "method"} if slot == "task" else ():
            nested = Component.model_validate(component.args[inner])
            check_arguments(nested, inner, allow_modules, _FOUND_LATER[inner])


def _optimizer(component: Component, allow_modules: Sequence[str]) -> Any:
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    return build(component, "optimizer", allow_modules, params=[weight])


def _check_sparse_rows(component: Component, optimizer: Any, config: Config) -> None:
    """Raises a ConfigError if the optimizer refuses the sparse gradients of learned rows."""
    of_raygnn = config.model.type in SLOTS["model"].names
    if not of_raygnn or config.model.args.get("sparse_embeddings") is not True:
        return
    (weight,) = optimizer.param_groups[0]["params"]
    weight.grad = torch.eye(2).to_sparse(1)  # rows, as of an embedding
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns about its own code
            optimizer.step()
    except RuntimeError as error:
        problem = Problem(
            ("optimizer",),
            "model.args.sparse_embeddings is true, and this optimizer takes no sparse gradients "
            f"({str(error).rstrip('.')})",
            "Set optimizer.type to Adagrad or SGD without weight_decay, or to "
            "SparseAdam if the model has only learned rows; or remove sparse_embeddings",
            "optimizer-dense",
            shown({"type": component.type, "args": component.args}),
        )
        raise ConfigError(problem) from error


def _targets(config: Config) -> list[type[TaskTarget]]:
    """The target of the task, or those that a user's own task may be like."""
    target = target_class(config.task.type)
    return target_classes() if target is None else [target]


def _problems(config: Config) -> list[tuple[str, int]]:
    return [problem for target in _targets(config) for problem in target.problems(config.task.args)]


def _build_metric(component: Component, config: Config, allow_modules: Sequence[str]) -> Any:
    error: ConfigError | None = None
    for problem, num_outputs in _problems(config):
        try:
            return build(
                component, "metric", allow_modules, num_outputs=num_outputs, problem=problem
            )
        except ConfigError as raised:
            error = raised
    if error is not None:
        raise error
    return None


def _unknown_monitors(
    config: Config, allow_modules: Sequence[str], left_out: Collection[str | int]
) -> Iterator[Problem]:
    known = _logged_names(config, allow_modules)
    if known is None:
        return
    places: list[tuple[str, str, str | None]] = [
        ("early_stopping", "monitor", getattr(config.early_stopping, "monitor", None)),
        ("checkpoint", "monitor", config.checkpoint.monitor),
        ("lr_scheduler", "monitor", config.lr_scheduler.monitor),
        ("tune", "metric", getattr(config.tune, "metric", None)),
    ]
    names = tuple(_own_metrics(config))
    for section, key, monitor in places:
        if monitor is None or section in left_out or not monitor.startswith("val/"):
            continue
        name = monitor.removeprefix("val/")
        # `loss`, a metric, or a term of one as `loss/mse`.
        is_logged = any(name == other or name.startswith(f"{other}/") for other in known)
        if is_logged or name.startswith(names):
            continue
        choices = [f"val/{choice}" for choice in known]
        remedy = choose_from(monitor, choices)
        rule = "no metric of this task has the name"
        yield Problem((section, key), rule, remedy, "monitor-unknown", repr(monitor))


def _own_metrics(config: Config) -> Iterator[str]:
    """Prefixes of the metric names that tasks log in addition to the chosen metrics."""
    for name, of_task in config.task_configs.items():
        yield from (f"{name}/{prefix}" for prefix in _own_metrics(of_task))
    for target in _targets(config):
        yield from target.own_metrics


def _logged_names(config: Config, allow_modules: Sequence[str]) -> list[str] | None:
    """Names that validation may log; null if the user's own code may log more."""
    if config.callbacks or config.task.type not in SLOTS["task"].names:
        return None
    if config.tasks:
        logged = ["loss"]
        for task, of_task in config.task_configs.items():
            task_names = _logged_names(of_task, allow_modules)
            if task_names is None:
                return None
            logged += [f"{task}/{name}" for name in task_names]
        return logged
    chosen = list(config.metrics)
    if not chosen:
        (target,) = _targets(config)
        kinds = [kind for kind, _ in _problems(config)]
        names = dict.fromkeys(name for kind in kinds for name in target.default_metrics[kind])
        chosen = [Component(type=name) for name in names]
    known = ["loss"]
    for metric in chosen:
        if not _is_known(metric, "metric", allow_modules):
            return None
        try:
            built = _build_metric(metric, config, allow_modules)
        except ConfigError:
            return None  # it is reported by itself
        metric_name = getattr(built, "name", None)
        if metric_name is None:
            return None  # metrics of torchmetrics are named by their results
        ks = getattr(built, "ks", None)
        known += [metric_name] if ks is None else [f"{metric_name}@{k}" for k in ks]
    return known


def _placed(record: Problem | str, slot_path: KeyPath, path: KeyPath) -> Problem | str:
    """A problem of `build` at the key of its component: `losses.args` as `losses.0.args`."""
    if isinstance(record, str):
        return f"{dotted(path)}: {record}"
    below = record.path[len(slot_path) :] if is_below(record.path, slot_path) else ()
    return replace(record, path=(*path, *below))
