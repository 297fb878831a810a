"""What a model predicts of the nodes of one type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raygnn.data.standardization import ColumnScale
from raygnn.errors import ConfigError
from raygnn.loops.model_spec import Output


@dataclass(frozen=True)
class NodeOutput(Output):
    """What a model predicts of each node of one type.

    Attributes:
        problem: multi_class, multi_label or regression.
        num_outputs: classes, labels or regression targets.
        class_names: of classes that the tables give as strings; class i is class_names[i].
        scale: of regression targets that the model gives in standard deviations from their mean;
            None where it gives them as they are.
    """

    key = "nodes"
    predictions = ("predictions", "probabilities")

    node_type: str
    label: str
    problem: str
    num_outputs: int
    class_names: tuple[str, ...] | None = None
    scale: ColumnScale | None = None

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

    def manifest(self) -> Mapping[str, Any]:
        """The label, and the names of its classes."""
        names = None if self.class_names is None else list(self.class_names)
        return {"label": self.label, "classes": names}
