from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from raygnn.config import Config, LoadedConfig
from raygnn.config.cross_rules import INPUTS_OF_ENCODER
from raygnn.config.section import MISSING, value_at
from raygnn.config.sections import TaskEntry
from raygnn.data.bundle import Bundle
from raygnn.data.fit_rows import FitRows
from raygnn.errors import ConfigError, DataError, KeyPath, Problem, dotted, parse_path
from raygnn.loops.model_spec import ModelSpec, Output, read_output
from raygnn.loops.tasks.node_classification.target import NodeTarget, slow_training
from raygnn.loops.tasks.target import DeclaredTimes, TaskArguments, TaskTarget, target_class


@dataclass(frozen=True)
class SeveralOutput(Output):
    """Output of each of several tasks, by name. Inference chooses one."""

    key = "tasks"

    tasks: Mapping[str, Output]

    @property
    def ends(self) -> tuple[str, ...]:
        return tuple(end for output in self.tasks.values() for end in output.ends)

    @property
    def own_columns(self) -> tuple[str, ...]:
        every = (name for output in self.tasks.values() for name in output.own_columns)
        return tuple(dict.fromkeys(every))

    def check_labels(self, bundle: Bundle) -> None:
        for output in self.tasks.values():
            output.check_labels(bundle)

    def to_content(self) -> Mapping[str, Any]:
        return {name: {each.key: each.to_content()} for name, each in self.tasks.items()}

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> Self:
        from raygnn.loops.tasks.target import output_classes

        outputs = [kind for kind in output_classes() if kind is not cls]
        return cls({name: read_output(record, outputs) for name, record in content.items()})


def choose_task(spec: ModelSpec, task: str | None) -> str | None:
    """The requested task of several; None for one task. Raises a ConfigError for other names."""
    output = spec.output
    if not isinstance(output, SeveralOutput):
        if task is None:
            return None
        raise ConfigError(
            f"task={task!r} is invalid: the model has one task. Leave it out. [infer-task-single]"
        )
    if task is None:
        raise ConfigError(f"task is missing. Set one of: {', '.join(output.tasks)}. [infer-task]")
    ConfigError.check_choice("task", task, output.tasks, "unknown task", id="infer-task")
    return task


class SeveralArguments(TaskArguments):
    task = "several_tasks"


#: A key in a message, as `task.args.label`.
_KEY = re.compile(
    r"(?<![\w.])(?:(?:task|data|sampling|loader)\.\w+|(?:losses|metrics)(?=\.\w|=))(?:\.\w+)*"
)


def _path_in_tasks(path: KeyPath, name: str, entry: TaskEntry) -> KeyPath:
    section, keys = path[0], path[1:]
    if section == "task" and not INPUTS_OF_ENCODER & set(keys[1:2]):
        return ("tasks", name, *keys)
    if section in ("losses", "metrics"):
        return ("tasks", name, *path)
    if path[:2] == ("data", "splits") and entry.splits is not None:
        return ("tasks", name, *keys)
    sections = entry.model_dump(include={"sampling", "loader"}, exclude_none=True)
    if value_at(sections, (section, *keys[:1])) is not MISSING:
        return ("tasks", name, section, *keys)
    return path


def _text_in_tasks(text: str, name: str, entry: TaskEntry) -> str:
    return _KEY.sub(lambda key: dotted(_path_in_tasks(parse_path(key[0]), name, entry)), text)


def _problem_in_tasks(problem: Problem, name: str, entry: TaskEntry) -> Problem:
    path = _path_in_tasks(problem.path, name, entry)
    rule, remedy = (_text_in_tasks(text, name, entry) for text in (problem.rule, problem.remedy))
    rule = rule if path[:2] == ("tasks", name) else f"with tasks.{name}, {rule}"
    return replace(problem, path=path, rule=rule, remedy=remedy)


@contextmanager
def naming_task(config: Config, name: str) -> Iterator[None]:
    """Names the task of `tasks` in config and data errors of a block."""
    entry = config.tasks[name]

    def named(text: str) -> str:
        text = _text_in_tasks(text, name, entry)
        return text if text.startswith(f"tasks.{name}.") else f"tasks.{name}: {text}"

    try:
        yield
    except ConfigError as error:
        raise ConfigError([named(text) for text in error.problems]) from error
    except DataError as error:
        raise DataError(named(str(error))) from error


@dataclass(frozen=True)
class SeveralTarget(TaskTarget):
    Arguments = SeveralArguments
    output_class = SeveralOutput
    default_metrics = MappingProxyType({})

    arguments: SeveralArguments
    output: SeveralOutput
    targets: Mapping[str, TaskTarget]

    @classmethod
    def learns_times(cls, config: Config, times: DeclaredTimes) -> bool:
        times = times._replace(edges={})  # other tasks may have no times
        return any(kind.learns_times(of_task, times) for kind, of_task in _kinds(config))

    @classmethod
    def defaults(cls, config: Config, times: DeclaredTimes) -> dict[str, dict[str, Any]]:
        found = super().defaults(config, times)
        learns_nodes = all(kind is NodeTarget for kind, _ in _kinds(config))
        return found | slow_training(config) if found and learns_nodes else found

    @classmethod
    def problems_with(cls, config: Config) -> list[Problem]:
        return [
            _problem_in_tasks(problem, name, config.tasks[name])
            for name, of_task in config.task_configs.items()
            if (kind := target_class(of_task.task.type)) is not None
            for problem in kind.problems_with(of_task)
        ]

    @classmethod
    def find(cls, bundle: Bundle, config: Config, arguments: SeveralArguments) -> SeveralTarget:
        targets = {}
        for name, of_task in config.task_configs.items():
            kind = target_class(of_task.task.type)
            assert kind is not None
            with naming_task(config, name):
                settings = kind.Arguments.of(of_task.task.args)
                targets[name] = kind.find(bundle, of_task, settings)
        output = SeveralOutput({name: target.output for name, target in targets.items()})
        target = cls(arguments, output, targets)
        for name, entry in config.tasks.items():
            if entry.args.get("past_labels") is True and not target.num_past_columns:
                raise ConfigError(
                    f"tasks.{name}.args.past_labels=True is invalid: not all tasks learn such "
                    "labels of these entities. Remove it, or train it alone. [tasks-past-labels]"
                )
        return target

    def trained_output(self, loaded: LoadedConfig) -> SeveralOutput:
        outputs = {}
        for name, of_task in loaded.config.task_configs.items():
            with naming_task(loaded.config, name):
                task_config = replace(loaded, config=of_task)
                outputs[name] = self.targets[name].trained_output(task_config)
        return SeveralOutput(outputs)

    def fit_rows(self, bundle: Bundle, config: Config) -> FitRows:
        return FitRows.earliest(
            [
                self.targets[name].fit_rows(bundle, of_task)
                for name, of_task in config.task_configs.items()
            ]
        )

    def reads_times(self) -> bool:
        """Whether all tasks learn rows of training tables."""
        return all(
            target.output.predicted_edges is None and target.reads_times()
            for target in self.targets.values()
        )

    def training_times(self, bundle: Bundle, config: Config) -> np.ndarray | None:
        times = [
            self.targets[name].training_times(bundle, of_task)
            for name, of_task in config.task_configs.items()
        ]
        known = [each for each in times if each is not None]
        return np.concatenate(known) if len(known) == len(times) else None

    @property
    def num_past_columns(self) -> int:
        """Past labels that each task reads; 0 if tasks differ in number or entities."""
        columns = {(t.output.ends, t.num_past_columns) for t in self.targets.values()}
        return columns.pop()[1] if len(columns) == 1 else 0

    def summary(self, bundle: Bundle) -> Iterator[str]:
        for name, target in self.targets.items():
            yield from (f"{name}: {line}" for line in target.summary(bundle))


def _kinds(config: Config) -> list[tuple[type[TaskTarget], Config]]:
    found = ((target_class(of_task.task.type), of_task) for of_task in config.single_tasks)
    return [(kind, of_task) for kind, of_task in found if kind is not None]
