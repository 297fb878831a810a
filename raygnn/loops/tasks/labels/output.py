"""What a model predicts that has learned a label."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raygnn.console import count
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.label_counts import LabelCounts
from raygnn.data.standardization import ColumnScale
from raygnn.errors import ConfigError, DataError
from raygnn.loops.model_spec import Output

_MAX_NAMED = 10


@dataclass(frozen=True)
class LabelOutput(Output):
    """What a model predicts of each node or edge of one type.

    Attributes:
        problem: multi_class, multi_label or regression.
        num_outputs: classes, labels or regression targets.
        class_names: of classes that the tables give as strings; class i is class_names[i].
        scale: of regression targets that the model gives in standard deviations from their mean;
            None where it gives them as they are.
        label_counts: of the training rows, by class or label; None of a regression, and in files
            of older versions.
    """

    predictions = ("predictions", "probabilities")

    label: str = field(kw_only=True)
    problem: str = field(kw_only=True)
    num_outputs: int = field(kw_only=True)
    class_names: tuple[str, ...] | None = field(default=None, kw_only=True)
    scale: ColumnScale | None = field(default=None, kw_only=True)
    label_counts: LabelCounts | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def of(self) -> str:
        """What is predicted, for messages: `node type 'user'`."""

    @abstractmethod
    def label_in(self, bundle: Bundle) -> tuple[ColumnInfo, np.ndarray] | None:
        """The label's column in a graph, and its values; None where the graph has none."""

    @property
    def words(self) -> str:
        """What is predicted: 5 classes, 3 labels, 1 value."""
        if self.problem == "multi_class":
            is_named = self.num_outputs == 2 and self.class_names and self.label_counts
            rarer = f" ({self.shown_classes[self.positive_class]!r} is rarer)" if is_named else ""
            return f"{self.num_outputs:,} classes{rarer}"
        return count(self.num_outputs, "label" if self.problem == "multi_label" else "value")

    @property
    def positive_class(self) -> int:
        """The one of two classes that figures such as average precision are of.

        Of numbers 1, as everywhere; of names, whose order says nothing, the one that is rarer in
        training.
        """
        if self.class_names is None or self.num_outputs != 2 or self.label_counts is None:
            return 1
        first, second = self.label_counts.counts
        return int(first >= second)

    @property
    def shown_classes(self) -> list[str]:
        """The names of classes or labels; numbers where they have none."""
        names = self.class_names or ()
        return [*names, *map(str, range(len(names), self.num_outputs))]

    def check_problem(self, what: str) -> None:
        """Checks that a table may be made of the label.

        Raises:
            ConfigError: a number has no probabilities.
        """
        if what == "probabilities" and self.problem == "regression":
            raise ConfigError(
                f"--what='probabilities' is invalid: {self.label!r} is a number, not a class. Set "
                "predictions.",
                id="infer-what-regression",
            )

    def check_labels(self, bundle: Bundle) -> None:
        """See `Output`."""
        found = self.label_in(bundle)
        if found is None or self.problem != "multi_class":
            return
        info, labels = found
        here = info.class_names
        if here is None and self.class_names is None:
            fits, here = labels.max(initial=-1) < self.num_outputs, ("numbers",)
        else:
            fits = here == self.class_names
        if not fits:
            names = self.class_names or [f"0 to {self.num_outputs - 1}"]
            raise DataError(
                f"label {self.label!r} of {self.of} is invalid: the graph has "
                f"the classes {_few(here or ['numbers'])}, and the model {_few(names)}. Give the "
                "labels the names or numbers of training, each class at least once.",
                id="model-classes-differ",
            )

    def manifest(self) -> Mapping[str, Any]:
        """The label, and the names of its classes."""
        names = None if self.class_names is None else list(self.class_names)
        return {"label": self.label, "classes": names}


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(map(str, names[:_MAX_NAMED])) + more
