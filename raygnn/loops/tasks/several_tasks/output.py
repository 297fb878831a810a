"""What a model of several tasks gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from raygnn.data.bundle import Bundle
from raygnn.errors import ConfigError
from raygnn.loops.model_spec import ModelSpec, Output, read_output


@dataclass(frozen=True)
class SeveralOutput(Output):
    """What each of several tasks gives, by name; inference chooses one of them."""

    key = "tasks"

    tasks: Mapping[str, Output]

    @property
    def ends(self) -> tuple[str, ...]:
        """Those of all tasks."""
        return tuple(end for output in self.tasks.values() for end in output.ends)

    @property
    def own_columns(self) -> tuple[str, ...]:
        """Those of all tasks."""
        every = (name for output in self.tasks.values() for name in output.own_columns)
        return tuple(dict.fromkeys(every))

    def check_labels(self, bundle: Bundle) -> None:
        """See `Output`."""
        for output in self.tasks.values():
            output.check_labels(bundle)

    def to_content(self) -> Mapping[str, Any]:
        """By name of the task, its record under its own key."""
        return {name: {each.key: each.to_content()} for name, each in self.tasks.items()}

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> Self:
        """See `Output`."""
        from raygnn.loops.tasks.target import output_classes

        outputs = [kind for kind in output_classes() if kind is not cls]
        return cls({name: read_output(record, outputs) for name, record in content.items()})


def choose_task(spec: ModelSpec, task: str | None) -> str | None:
    """The task of a model that inference asks for; None of a model with one task.

    Raises:
        ConfigError: there is no such task, or there are several and none is named.
    """
    output = spec.output
    if not isinstance(output, SeveralOutput):
        if task is None:
            return None
        raise ConfigError(
            f"--task={task!r} is invalid: the model has one task, without a name. Leave it out.",
            id="infer-task-single",
        )
    if task in output.tasks:
        return task
    names = ", ".join(output.tasks)
    if task is None:
        raise ConfigError(
            "--task is missing: the model has several tasks. Set it (task=NAME in Python) to one "
            f"of: {names}.",
            id="infer-task",
        )
    raise ConfigError(
        f"--task={task!r} is invalid: the model has no such task. Set one of: {names}.",
        id="infer-task",
    )
