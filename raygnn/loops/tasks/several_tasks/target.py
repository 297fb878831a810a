"""What several tasks learn: the target of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from raygnn.config.cross_rules import INPUTS_OF_ENCODER
from raygnn.config.section import MISSING, dotted, parse_path, value_at
from raygnn.errors import ConfigError, DataError
from raygnn.loops.tasks.several_tasks.output import SeveralOutput
from raygnn.loops.tasks.target import TaskArguments, TaskTarget, target_class

if TYPE_CHECKING:
    from raygnn.config import Config, LoadedConfig
    from raygnn.config.section import KeyPath
    from raygnn.config.tasks_section import TaskEntry
    from raygnn.data.bundle import Bundle


@dataclass(frozen=True)
class SeveralArguments(TaskArguments):
    """`task.args` of several tasks: what the encoder reads."""

    task = "several_tasks"


#: A key in a message, as `task.args.label`.
_KEY = re.compile(
    r"(?<![\w.])(?:(?:task|data|sampling|loader)\.\w+|(?:losses|metrics)(?=\.\w|=))(?:\.\w+)*"
)


def _path_in_tasks(path: KeyPath, name: str, entry: TaskEntry) -> KeyPath:
    """Where the user sets a key of the config of one of several tasks."""
    section, keys = path[0], path[1:]
    if section == "task" and not INPUTS_OF_ENCODER & set(keys[1:2]):
        return ("tasks", name, *keys)
    if section in ("losses", "metrics"):
        return ("tasks", name, *path)
    if path[:2] == ("data", "splits") and entry.splits is not None:
        return ("tasks", name, *keys)
    if path == ("loader", "train", "balanced_seeds"):
        keys = ("balanced_seeds",)
    own = entry.model_dump(include={"sampling", "loader"}, exclude_none=True)
    if value_at(own, (section, *keys[:1])) is not MISSING:
        return ("tasks", name, section, *keys)
    return path


def _text_in_tasks(text: str, name: str, entry: TaskEntry) -> str:
    """A message about the config of one of several tasks, with the keys that the user sets."""
    text = _KEY.sub(lambda key: dotted(_path_in_tasks(parse_path(key[0]), name, entry)), text)
    return text if text.startswith(f"tasks.{name}.") else f"tasks.{name}: {text}"


@contextmanager
def naming_task(config: Config, name: str) -> Iterator[None]:
    """While it lasts, errors of config and data say which of `tasks` they are of."""
    try:
        yield
    except (ConfigError, DataError) as error:
        texts = error.problems if isinstance(error, ConfigError) else (str(error),)
        named: Any = [_text_in_tasks(text, name, config.tasks[name]) for text in texts]
        raise type(error)(named if isinstance(error, ConfigError) else named[0]) from error


@dataclass(frozen=True)
class SeveralTarget(TaskTarget):
    """The targets of several tasks.

    Attributes:
        targets: by name of the task.
    """

    Arguments = SeveralArguments
    output_class = SeveralOutput
    default_metrics = MappingProxyType({})

    arguments: SeveralArguments
    output: SeveralOutput
    targets: Mapping[str, TaskTarget]

    @classmethod
    def broken_texts(cls, config: Config) -> list[tuple[KeyPath, str]]:
        """Those of each task."""
        found: list[tuple[KeyPath, str]] = []
        for name, of_task in config.task_configs.items():
            kind = target_class(of_task.task.type)
            texts = [] if kind is None else kind.broken_texts(of_task)
            entry = config.tasks[name]
            found += [
                (_path_in_tasks(path, name, entry), _text_in_tasks(text, name, entry))
                for path, text in texts
            ]
        return found

    @classmethod
    def find(cls, bundle: Bundle, config: Config, arguments: SeveralArguments) -> SeveralTarget:
        """See `TaskTarget`."""
        targets = {}
        for name, of_task in config.task_configs.items():
            kind = target_class(of_task.task.type)
            assert kind is not None
            with naming_task(config, name):
                own = kind.Arguments.of(of_task.task.args)
                targets[name] = kind.find(bundle, of_task, own)
        output = SeveralOutput({name: target.output for name, target in targets.items()})
        return cls(arguments, output, targets)

    def trained_output(self, loaded: LoadedConfig) -> SeveralOutput:
        """See `TaskTarget`."""
        outputs = {}
        for name, of_task in loaded.config.task_configs.items():
            with naming_task(loaded.config, name):
                own = replace(loaded, config=of_task)
                outputs[name] = self.targets[name].trained_output(own)
        return SeveralOutput(outputs)

    def summary(self, bundle: Bundle) -> Iterator[str]:
        """The lines of each task, after its name."""
        for name, target in self.targets.items():
            yield from (f"{name}: {line}" for line in target.summary(bundle))
