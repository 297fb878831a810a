"""The complete config: sections, dependent defaults, and the config of each of several tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ValidationInfo, model_validator

from raygnn.config.cross_rules import broken_cross_rules
from raygnn.config.loader_section import overridden_fanouts
from raygnn.config.section import MISSING, Component, Section, value_at
from raygnn.config.sections import SEVERAL_TASKS, Sections, TaskEntry
from raygnn.errors import KeyPath, Problem, RuleError

#: Validation context in which the rules between sections are left to the caller.
EACH_SECTION_ALONE = "each section alone"


class Config(Sections):
    """Everything that defines a training job."""

    @property
    def task_configs(self) -> dict[str, Config]:
        """Config of a run of each task alone, by name. Empty for a run with one task.

        Its encoder has its own width and a head, because all tasks share one. Monitored metrics
        have the names of that run.
        """
        return {name: _alone(self, name, entry) for name, entry in self.tasks.items()}

    @property
    def single_tasks(self) -> list[Config]:
        return [*self.task_configs.values()] or [self]

    @model_validator(mode="after")
    def _check_between_sections(self, info: ValidationInfo) -> Self:
        if info.context != EACH_SECTION_ALONE and (problems := list(broken_cross_rules(self))):
            raise RuleError.of(problems)
        return self

    @model_validator(mode="before")
    @classmethod
    def _fill_dependent_defaults(cls, value: Any) -> Any:
        return fill_dependent_defaults(value) if isinstance(value, dict) else value


def _alone(config: Config, name: str, entry: TaskEntry) -> Config:
    def monitored(section: Any) -> Any:
        if section is None or section.monitor is None:
            return section
        name_alone = section.monitor.replace(f"/{name}/", "/", 1)
        return section.model_copy(update={"monitor": name_alone})

    def differing(section: Section) -> dict[str, Any]:
        return {key: value for key, value in section if value is not None}

    loader, training = differing(entry.loader), config.training
    if "batch_size" in loader:  # an explicit size is not derived
        alone = {"global_batch_size": None, "accumulate_grad_batches": None}
        training = training.model_copy(update=alone)
    sampling = differing(entry.sampling)
    if "fanouts" in sampling:
        sampling["fanouts"] = overridden_fanouts(config.sampling.fanouts, sampling["fanouts"])
    data, model = config.data, config.model
    if entry.splits is not None:
        data = data.model_copy(update={"splits": entry.splits})
    args = {**model.args, "out_channels": config.embedding_width}
    return config.model_copy(
        update={
            "task": Component(type=entry.type, args={**config.task.args, **entry.args}),
            "tasks": {},
            "data": data,
            "sampling": config.sampling.model_copy(update=sampling),
            "loader": config.loader.model_copy(update=loader),
            "model": model.model_copy(update={"args": args}),
            "losses": entry.losses,
            "metrics": entry.metrics,
            "training": training,
            "early_stopping": monitored(config.early_stopping),
            "checkpoint": monitored(config.checkpoint),
        }
    )


_WITHOUT_REPLACEMENT = "Remove it: neighbors are drawn without replacement"
_CLASS_WEIGHTS = "Set losses to [{type: cross_entropy, args: {class_weights: balanced}}]"
#: Keys that earlier commits saved with every config: the value that changed nothing, and what does
#: today what other values did.
REMOVED_KEYS: Mapping[KeyPath, tuple[Any, str]] = {
    ("sampling", "direction"): (
        "in",
        "Set data.reverse_edges: true, and fanouts of 0 for the edge types that carry no messages",
    ),
    ("sampling", "replace"): (False, _WITHOUT_REPLACEMENT),
    ("sampling", "args"): ({}, "raygnn's own sampler takes no arguments"),
    ("scaling", "gradients"): ("flat", "Remove it: one all-reduce sums the gradients of a step"),
    ("data", "refresh"): (False, "Run raygnn prepare snapshot before the training"),
    ("checkpoint", "keep_last_n"): (1, "Set checkpoint.keep"),
    ("checkpoint", "async_upload"): (False, "Remove it, and save less often"),
    ("loader", "train", "balanced_seeds"): (False, _CLASS_WEIGHTS),
    ("tune", "scheduler", "brackets"): (1, "Remove it"),
    ("tune", "scheduler", "min_samples_required"): (3, "Remove it"),
    ("model", "interaction", "deep"): ([], "Remove it: the encoder follows the cross layers"),
    ("model", "interaction", "structure"): ("stacked", "Remove it"),
}


def drop_removed_keys(value: Mapping[str, Any]) -> list[Problem]:
    """Drops removed keys with the value that changed nothing. Returns a problem for each other."""
    problems, keys = [], dict(REMOVED_KEYS)
    tasks = value.get("tasks")
    for name in tasks if isinstance(tasks, Mapping) else ():
        keys["tasks", name, "loader", "balanced_seeds"] = (None, _CLASS_WEIGHTS)
        keys["tasks", name, "sampling", "replace"] = (None, _WITHOUT_REPLACEMENT)
    for path, (default, remedy) in keys.items():
        removed = value_at(value, path)
        if removed is MISSING:
            continue
        if removed == default:
            del value_at(value, path[:-1])[path[-1]]
        else:
            problems.append(Problem(path, "this key was removed", remedy, id="config-key-removed"))
    return problems


#: Components whose type may be left out: args given without a type join the default's.
DEFAULT_COMPONENTS: Mapping[str, Component] = {
    name: Sections.model_fields[name].default
    for name in ("task", "model", "optimizer", "lr_scheduler")
}


def fill_dependent_defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config with the defaults that depend on given keys."""
    filled = dict(raw)
    if filled.get("tasks") and "task" not in filled:
        filled["task"] = {"type": SEVERAL_TASKS}
    elif filled.get("tasks") and isinstance(filled["task"], dict):
        filled["task"] = {"type": SEVERAL_TASKS, **filled["task"]}
    for key in filled.keys() & DEFAULT_COMPONENTS.keys():
        filled[key] = _fill_component(filled[key], DEFAULT_COMPONENTS[key])
    _let_batch_size_follow(filled)
    return filled


def _fill_component(component: Any, default: Component) -> Any:
    if isinstance(component, str):
        return {"type": component, "args": {}}
    if not isinstance(component, dict) or "type" in component:
        return component
    args = component.get("args", {})
    if not isinstance(args, dict):
        return {**component, "type": default.type}
    return {**component, "type": default.type, "args": {**default.args, **args}}


def _let_batch_size_follow(filled: dict[str, Any]) -> None:
    training, loader = filled.get("training"), filled.get("loader", {})
    if not isinstance(training, dict) or not isinstance(loader, dict) or "batch_size" in loader:
        return
    if training.get("global_batch_size") and training.get("accumulate_grad_batches"):
        filled["loader"] = {**loader, "batch_size": None}
