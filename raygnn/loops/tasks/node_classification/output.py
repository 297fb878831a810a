"""What a model predicts of the nodes of one type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raygnn.data.bundle import Bundle
from raygnn.data.label_counts import LabelCounts
from raygnn.data.standardization import ColumnScale
from raygnn.errors import ConfigError, DataError
from raygnn.loops.model_spec import Output

_MAX_NAMED = 10


@dataclass(frozen=True)
class NodeOutput(Output):
    """What a model predicts of each node of one type.

    Attributes:
        problem: multi_class, multi_label or regression.
        num_outputs: classes, labels or regression targets.
        class_names: of classes that the tables give as strings; class i is class_names[i].
        scale: of regression targets that the model gives in standard deviations from their mean;
            None where it gives them as they are.
        label_counts: of the training nodes, by class or label; None of a regression, and in files
            of older versions.
    """

    key = "nodes"
    predictions = ("predictions", "probabilities")

    node_type: str
    label: str
    problem: str
    num_outputs: int
    class_names: tuple[str, ...] | None = None
    scale: ColumnScale | None = None
    label_counts: LabelCounts | None = None

    @property
    def shown_classes(self) -> list[str]:
        """The names of classes or labels; numbers where they have none."""
        names = self.class_names or ()
        return [*names, *map(str, range(len(names), self.num_outputs))]

    @property
    def ends(self) -> tuple[str, str]:
        """The node type, twice."""
        return self.node_type, self.node_type

    def check_predicts(self, what: str, node_types: Sequence[str]) -> None:
        """See `Output`."""
        others = [name for name in node_types if name != self.node_type]
        if others:
            raise ConfigError(
                f"--node-type={others[0]!r} is invalid: the model predicts {self.label!r} of "
                f"{self.node_type!r}. Set that type, or --what embeddings.",
                id="infer-node-type-other",
            )
        if what == "probabilities" and self.problem == "regression":
            raise ConfigError(
                f"--what='probabilities' is invalid: {self.label!r} is a number, not a class. Set "
                "predictions.",
                id="infer-what-regression",
            )

    def check_labels(self, bundle: Bundle) -> None:
        """See `Output`."""
        info = bundle.columns(self.node_type).get(self.label)
        if info is None or self.problem != "multi_class":
            return
        here = info.class_names
        if here is None and self.class_names is None:
            labels = bundle.column(self.node_type, self.label)
            assert isinstance(labels, np.ndarray)
            fits, here = labels.max(initial=-1) < self.num_outputs, ("numbers",)
        else:
            fits = here == self.class_names
        if not fits:
            names = self.class_names or [f"0 to {self.num_outputs - 1}"]
            raise DataError(
                f"label {self.label!r} of node type {self.node_type!r} is invalid: the graph has "
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
