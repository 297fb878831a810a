"""What a model predicts of the nodes of one type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import ColumnInfo
from raygnn.errors import ConfigError
from raygnn.loops.tasks.labels.output import LabelOutput


@dataclass(frozen=True)
class NodeOutput(LabelOutput):
    """What a model predicts of each node of one type."""

    key = "nodes"

    node_type: str

    @property
    def of(self) -> str:
        """See `LabelOutput`."""
        return f"node type {self.node_type!r}"

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
        self.check_problem(what)

    def label_in(self, bundle: Bundle) -> tuple[ColumnInfo, np.ndarray] | None:
        """See `LabelOutput`."""
        info = bundle.columns(self.node_type).get(self.label)
        if info is None:
            return None
        labels = bundle.column(self.node_type, self.label)
        assert isinstance(labels, np.ndarray)
        return info, labels
