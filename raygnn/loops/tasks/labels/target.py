"""What a task of labels learns: the label, its problem and its splits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.label_counts import BALANCED, LabelCounts
from raygnn.data.splits import Splits
from raygnn.data.standardization import ColumnScale
from raygnn.errors import ConfigError, Problem
from raygnn.loops.tasks.labels.output import LabelOutput
from raygnn.loops.tasks.target import TaskArguments, TaskTarget

if TYPE_CHECKING:
    from raygnn.config import Config, LoadedConfig

PROBLEMS = ("multi_class", "multi_label", "regression")
METRICS_OF_ORDER = ("auroc", "average_precision")
_ANY_NUMBER = 3  # of classes, where the graph is not read yet


class LabelArguments(TaskArguments):
    """`task.args` of tasks of labels; see `NodeClassification` for their meaning."""

    label: str | None = None
    problem: Literal["multi_class", "multi_label", "regression"] | None = None
    standardize_target: bool | None = None


@dataclass(frozen=True)
class LabelTarget(TaskTarget):
    """The answer to "predict what, of which nodes or edges".

    Attributes:
        rows: what has the labels: nodes or edges.
        output: what is predicted; the model's also has the scale of `trained_output`.
        labels: [num_rows] or [num_rows, num_labels].
        splits: rows of each split.
    """

    default_metrics = MappingProxyType(
        {
            "multi_class": ("accuracy", "f1_macro", *METRICS_OF_ORDER),
            "multi_label": ("f1_micro", "f1_macro", *METRICS_OF_ORDER),
            "regression": ("mae", "r2"),
        }
    )
    rows: ClassVar[str]

    arguments: LabelArguments
    output: LabelOutput
    labels: np.ndarray
    splits: Splits

    @classmethod
    def problems(cls, args: Mapping[str, Any]) -> list[tuple[str, int]]:
        """See `TaskTarget`."""
        chosen = args.get("problem")
        return [(problem, _ANY_NUMBER) for problem in PROBLEMS if chosen in (None, problem)]

    @classmethod
    def broken_rules(cls, config: Config) -> Iterator[Problem]:
        """See `TaskTarget`."""
        if not config.loader.balances_seeds:
            return
        if any(BALANCED in term.args.values() for term in config.losses):
            yield Problem(
                ("loader", "train", "balanced_seeds"),
                f"losses have {BALANCED} weights, which make up for the same imbalance again",
                "Set it to false, or remove these weights",
                id="loader-balanced-twice",
            )

    def trained_output(self, loaded: LoadedConfig) -> LabelOutput:
        """With how the targets of a regression are standardised, or the counts of labels.

        Raises:
            ConfigError: targets that are classes are to be standardised, a loss does not fit, or
                seeds are to be balanced that have no classes.
        """
        from raygnn.loops.tasks.labels.objective import LabelObjective

        asked, output = self.arguments.standardize_target, self.output
        if output.problem != "regression":
            if asked:
                raise ConfigError(
                    f"task.args.standardize_target=True is invalid: {output.label!r} is not a "
                    "number to be regressed, but a class. Leave it out.",
                    id="task-standardize-class",
                )
            output = replace(output, label_counts=self.label_counts())
            LabelObjective(loaded, output)  # checks weights of classes
        self._check_balanced_seeds(loaded.config)
        if output.problem != "regression":
            return output
        if asked is None:
            asked = LabelObjective(loaded, output).measures_distance
        scale = ColumnScale.of_rows(self.labels[self.splits.train]) if asked else None
        return replace(output, scale=scale)

    @property
    def words(self) -> str:
        """What is predicted; of two classes with names, which is rarer."""
        if self.output.problem != "multi_class":
            return self.output.words
        return replace(self.output, label_counts=self.label_counts()).words

    def label_counts(self) -> LabelCounts:
        """Training rows of each class, or with each label."""
        output, labels = self.output, self.labels[self.splits.train]
        if output.problem == "multi_class":
            return LabelCounts.of_classes(labels, output.num_outputs)
        return LabelCounts.of_labels(labels, output.num_outputs)

    def _check_balanced_seeds(self, config: Config) -> None:
        if config.loader.balances_seeds and self.output.problem != "multi_class":
            raise ConfigError(
                f"loader.train.balanced_seeds=True is invalid: {self.output.label!r} is not a "
                f"class of each of the {self.rows}, but {self.output.problem}. Set it to false.",
                id="loader-balanced-classes",
            )


def choose_label(available: Collection[str], asked: str | None, of: str) -> str:
    """The label column that is asked for, or the only one.

    Args:
        available: at least one.
        of: what has the labels, for messages.
    Raises:
        ConfigError: there is no such label, or several and none is named.
    """
    if asked is None and len(available) == 1:
        return next(iter(available))
    if asked is None or asked not in available:
        raise ConfigError(
            f"task.args.label={asked!r} is invalid: {of} has the labels "
            f"{', '.join(available)}. Set one of them.",
            id="labels-unknown",
        )
    return asked


def label_shape(
    labels: np.ndarray, info: ColumnInfo, problem: str | None
) -> dict[str, str | int | tuple[str, ...] | None]:
    """The fields of `LabelOutput` that follow from a label's column.

    Args:
        problem: as it is asked for; None goes by the type of the labels.
    """
    found = problem or _problem_of(labels)
    return {
        "problem": found,
        "num_outputs": _num_outputs(labels, found, info.num_classes),
        "class_names": info.class_names,
    }


def _problem_of(labels: np.ndarray) -> str:
    if labels.ndim == 2 and labels.shape[1] > 1:
        return "regression" if labels.dtype.kind == "f" else "multi_label"
    return "regression" if labels.dtype.kind == "f" else "multi_class"


def _num_outputs(labels: np.ndarray, problem: str, num_classes: int | None) -> int:
    if problem == "multi_class":
        found = int(labels.max(initial=-1)) + 1 if num_classes is None else num_classes
        return max(found, 2)
    return labels.shape[1] if labels.ndim == 2 else 1
