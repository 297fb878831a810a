"""Labels as targets: label, problem, splits, and predictions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from raygnn.config import Config, LoadedConfig
from raygnn.console import count
from raygnn.data.arrays import row_blocks, thinned
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.splits import Splits
from raygnn.data.standardization import ColumnScale, LabelCounts
from raygnn.device_memory import copied
from raygnn.errors import ConfigError, DataError
from raygnn.loops.blend import TREES, Blend
from raygnn.loops.model_spec import Output
from raygnn.loops.ranges import Ranges
from raygnn.loops.tasks.objective import label_objective
from raygnn.loops.tasks.target import TaskArguments, TaskTarget
from raygnn.losses.seed_losses import in_units

_MAX_NAMED = 10
_LOSS_OF = {
    "multi_class": "cross_entropy",
    "multi_label": "binary_cross_entropy",
    "regression": "mse",
}
_CLAMP = (0.02, 0.98)  # quantiles of the training targets


@dataclass(frozen=True)
class LabelOutput(Output):
    """Prediction for each node or edge of one type.

    Attributes:
        num_outputs: number of classes, labels or regression targets.
        class_names: of text classes.
        scale: of standardized regression targets; None otherwise.
        clamp: minimum and maximum of predicted numbers, by target; None without clamping.
        is_mostly_zero: more than half of the training labels of a number are 0.
        label_counts: training rows by class or label; None for regression and probes.
        blend: what predicts beside the encoder with its head; None if these predict alone.
        ranges: of a predicted number; None without validation rows.
        weighs_rows: training rows have weights.
        refitted: what was fitted again with the validation rows: `LightGBM` or `model`.
    """

    predictions = ("predictions", "probabilities")

    label: str = field(kw_only=True)
    problem: str = field(kw_only=True)
    num_outputs: int = field(kw_only=True)
    class_names: tuple[str, ...] | None = field(default=None, kw_only=True)
    scale: ColumnScale | None = field(default=None, kw_only=True)
    clamp: tuple[tuple[float, ...], tuple[float, ...]] | None = field(default=None, kw_only=True)
    is_mostly_zero: bool = field(default=False, kw_only=True)
    label_counts: LabelCounts | None = field(default=None, kw_only=True)
    blend: Blend | None = field(default=None, kw_only=True)
    ranges: Ranges | None = field(default=None, kw_only=True)
    weighs_rows: bool = field(default=False, kw_only=True)
    refitted: str | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def of(self) -> str: ...

    @property
    def is_number(self) -> bool:
        """Whether a single number is predicted."""
        return self.problem == "regression" and self.num_outputs == 1

    @property
    def is_binary(self) -> bool:
        return self.problem == "multi_class" and self.num_outputs == 2

    @property
    def has_trees(self) -> bool:
        return self.blend is not None and TREES in self.blend.shares

    @abstractmethod
    def label_in(self, bundle: Bundle) -> tuple[ColumnInfo, np.ndarray] | None:
        """The label's column in a graph, and its values; None if missing."""

    @property
    def default_loss(self) -> str:
        return _LOSS_OF[self.problem]

    def in_units(self, outputs: Tensor) -> Tensor:
        """Logits or targets [num_rows, num_outputs] as predictions in the label's unit, clamped."""
        targets = outputs if self.scale is None else in_units(outputs, self.scale)
        if self.clamp is None:
            return targets
        least, greatest = copied(torch.tensor(self.clamp, dtype=targets.dtype), targets.device)
        return targets.clamp(least, greatest)

    @property
    def words(self) -> str:
        """The kind of prediction in messages: 5 classes, 3 labels, 1 value."""
        if self.problem == "multi_class":
            is_named = self.num_outputs == 2 and self.class_names and self.label_counts
            rarer = f" ({self.shown_classes[self.positive_class]!r} is rarer)" if is_named else ""
            return f"{self.num_outputs:,} classes{rarer}"
        return count(self.num_outputs, "label" if self.problem == "multi_label" else "value")

    @property
    def positive_class(self) -> int:
        """The class of two that figures such as average precision describe.

        1 for numbers; for names, whose order means nothing, the rarer one in training.
        """
        if self.class_names is None or self.num_outputs != 2 or self.label_counts is None:
            return 1
        first, second = self.label_counts.counts
        return int(first >= second)

    @property
    def shown_classes(self) -> list[str]:
        names = self.class_names or ()
        return [*names, *map(str, range(len(names), self.num_outputs))]

    def check_predicts(self, what: str, node_types: Sequence[str]) -> None:
        super().check_predicts(what, node_types)
        if what == "probabilities" and self.problem == "regression":
            raise ConfigError(
                f"what='probabilities': {self.label!r} is a number. Leave it out. "
                "[infer-what-regression]"
            )

    def check_labels(self, bundle: Bundle) -> None:
        label = self.label_in(bundle)
        if label is None or self.problem != "multi_class":
            return
        info, labels = label
        here = info.class_names
        if here is None and self.class_names is None:
            fits, here = labels.max(initial=-1) < self.num_outputs, ("numbers",)
        else:
            fits = here == self.class_names
        if not fits:
            names = self.class_names or [f"0 to {self.num_outputs - 1}"]
            raise DataError(
                f"label {self.label!r} of {self.of} is invalid: its classes are "
                f"{_few(here or ['numbers'])}. Give all of training: {_few(names)}. "
                "[model-classes-differ]"
            )

    def manifest(self) -> Mapping[str, Any]:
        names = None if self.class_names is None else list(self.class_names)
        return {"label": self.label, "classes": names}


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(map(str, names[:_MAX_NAMED])) + more


PROBLEMS = ("multi_class", "multi_label", "regression")
_BLENDED_LOSSES = ("cross_entropy", "binary_cross_entropy", "mse", "mae", "huber")
METRICS_OF_ORDER = ("auroc", "average_precision")
_ANY_NUMBER = 3  # stands for the number of classes before the graph is read


class LabelArguments(TaskArguments):
    """Arguments of all tasks with labels.

    Attributes:
        label: label column. Default: the only one.
        problem: multi_class (cross-entropy), multi_label (binary cross-entropy) or regression
            (squared error; Huber's loss for a training table, unless most labels are 0). Default:
            by the labels (integers, several columns, or floats).
        standardize_target: learn a regression target in standard deviations from the training mean.
            Losses use this scale; metrics and predictions use the target's own unit. Default: with
            mse, mae, huber, and MSELoss, L1Loss, SmoothL1Loss and HuberLoss of torch.nn.
        clamp: keep predictions of a regression between the 2nd and the 98th percentile of the
            training targets.
        blend: after training, let validation choose what predicts: the GNN, LightGBM on columns of
            each node and its history, a simpler guess, or a weighted sum of these, if it lowers the
            loss by a standard error. Default: with the default losses, mse or mae. false: the GNN
            alone.
    """

    label: str | None = None
    problem: Literal["multi_class", "multi_label", "regression"] | None = None
    standardize_target: bool | None = None
    clamp: bool = False
    blend: bool | None = None


@dataclass(frozen=True)
class LabelTarget(TaskTarget):
    """The label to predict, and the rows that have it.

    Attributes:
        rows: `nodes` or `edges`.
        labels: [num_rows] or [num_rows, num_labels].
        splits: rows of each split.
        weights: float64 [num_rows], as by `summable`; None if all rows count the same.
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
    weights: np.ndarray | None = field(default=None, kw_only=True)

    def weights_of(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.weights is None else self.weights[rows]

    @property
    def counted_rows(self) -> np.ndarray:
        """Training rows that figures of labels come from: every n-th, if there are many."""
        return thinned(self.splits.train)

    @property
    def batch_columns(self) -> dict[str, np.ndarray]:
        """Labels and weights by their names in a batch."""
        weights = {} if self.weights is None else {"weight": self.weights.astype(np.float32)}
        return {"y": self.labels, **weights}

    @classmethod
    def problems(cls, args: Mapping[str, Any]) -> list[tuple[str, int]]:
        chosen = args.get("problem")
        return [(problem, _ANY_NUMBER) for problem in PROBLEMS if chosen in (None, problem)]

    def trained_output(self, loaded: LoadedConfig) -> LabelOutput:
        """Completes the output with the scale of a regression, or with label counts.

        Raises a ConfigError if classes cannot be standardized, or a loss does not fit.
        """
        configured = self.arguments.standardize_target
        output = replace(self.output, weighs_rows=self.weights is not None)
        if self.arguments.blend and (reason := self.why_no_blend(loaded.config)):
            raise ConfigError.invalid(
                "task.args.blend", True, reason, "Leave it out", id="task-blend"
            )
        if output.problem != "regression":
            if configured or self.arguments.clamp:
                key = f"task.args.{'standardize_target' if configured else 'clamp'}"
                rule = f"{output.label!r} is not a number to be regressed, but a class"
                raise ConfigError.invalid(
                    key,
                    True,
                    rule,
                    "Leave it out",
                    id="task-standardize-class" if configured else "task-clamp-class",
                )
            output = replace(output, label_counts=self.label_counts())
            label_objective(loaded, output)  # checks weights of classes
        if output.problem != "regression":
            return output
        train = self.labels[self.counted_rows]
        is_mostly_zero = bool(np.any((train == 0).mean(axis=0) > 1 / 2)) if len(train) else False
        output = replace(output, is_mostly_zero=is_mostly_zero)
        if configured is None:
            configured = label_objective(loaded, output).measures_distance
        scale = self.train_scale if configured else None
        clamp = None
        if self.arguments.clamp:
            ends = np.quantile(train.reshape(len(train), -1), _CLAMP, axis=0)
            clamp = tuple(ends[0].tolist()), tuple(ends[1].tolist())
        return replace(output, scale=scale, clamp=clamp)

    @property
    def train_scale(self) -> ColumnScale:
        """Mean and standard deviation of the training labels."""
        train = self.counted_rows
        return ColumnScale.of_rows(self.labels[train], self.weights_of(train))

    def why_no_blend(self, config: Config) -> str | None:
        """Why validation cannot choose what predicts; None if it can."""
        losses = config.losses
        if not len(self.splits.val):
            return f"there are no validation {self.rows} to choose by"
        if losses[1:] or any(term.type not in _BLENDED_LOSSES or term.args for term in losses):
            return "only the default losses, mse and mae, without arguments, choose what predicts"
        return None

    @property
    def sizes(self) -> str:
        """Rows of each split, for the summary."""
        splits = self.splits
        return f"train {len(splits.train):,}, val {len(splits.val):,}, test {len(splits.test):,}"

    @property
    def words(self) -> str:
        if self.output.problem != "multi_class":
            return self.output.words
        return replace(self.output, label_counts=self.label_counts()).words

    @property
    def learned(self) -> LabelOutput:
        """The prediction that `labels` belong to."""
        return self.output

    def label_counts(self) -> LabelCounts:
        output, train = self.learned, self.splits.train
        is_class = output.problem == "multi_class"
        count = LabelCounts.of_classes if is_class else LabelCounts.of_labels
        blocks = (train[some] for some in row_blocks(len(train)))
        counted = [count(self.labels[rows], output.num_outputs) for rows in blocks]
        return LabelCounts.sum_of(counted, output.num_outputs)


def names_of(columns: Mapping[str, ColumnInfo], role: str) -> list[str]:
    """Names of the columns with a role, such as `label`."""
    return [name for name, info in columns.items() if info.role == role]


def choose_label(available: Collection[str], configured: str | None, of: str) -> str:
    """The requested label column, or the only one. Raises a ConfigError naming the owner `of`."""
    if configured is None and len(available) == 1:
        return next(iter(available))
    if configured is None or configured not in available:
        raise ConfigError(
            f"task.args.label={configured!r} is invalid: {of} has the labels "
            f"{', '.join(available)}. Set one of them. [labels-unknown]"
        )
    return configured


def label_shape(labels: np.ndarray, info: ColumnInfo, problem: str | None) -> dict[str, Any]:
    """Fields of `LabelOutput` from a label's column. `problem` of None follows the labels' type."""
    num_outputs = labels.shape[1] if labels.ndim == 2 else 1
    if problem is None:
        problem = "multi_label" if num_outputs > 1 else "multi_class"
        problem = "regression" if labels.dtype.kind == "f" else problem
    if problem == "multi_class":
        known = info.num_classes
        num_outputs = max(2, int(labels.max(initial=-1)) + 1 if known is None else known)
    return {"problem": problem, "num_outputs": num_outputs, "class_names": info.class_names}


def is_timed(has_times: Mapping[str, bool], name: str | None) -> bool:
    """Whether a table has times, by default any."""
    return any(has_times.values()) if name is None else has_times.get(name, False)
