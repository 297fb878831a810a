"""Checks every component of a config by its names; nothing is imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raygnn.config.component import Component
from raygnn.config.components import broken_component_rules, broken_function_rules
from raygnn.config.problems import KeyPath, Problem, choose_from
from raygnn.config.schema import Config

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
                yield Problem(path, "there is no such hook", choose_from(hook, HOOKS, "Hooks"))
            yield from broken_function_rules(function, path, allow_modules)


def components_of(config: Config) -> Iterator[tuple[KeyPath, str, Component]]:
    """Every component: its place, its slot and itself."""
    yield ("task",), "task", config.task
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
