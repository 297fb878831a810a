"""What a model predicts of the edges of one type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, edge_type_name, parse_edge_type
from raygnn.data.links.split import find_label_edges
from raygnn.loops.tasks.labels.output import LabelOutput


@dataclass(frozen=True)
class EdgeOutput(LabelOutput):
    """What a model predicts of each edge of one type.

    Attributes:
        label_edges: the labels are those of label edges, not of message edges.
        inputs: feature columns of the edges that the head reads beside both ends.
    """

    key = "edges"

    edge_type: EdgeType
    label_edges: bool = False
    inputs: tuple[str, ...] = ()

    @property
    def of(self) -> str:
        """See `LabelOutput`."""
        what = "label edges" if self.label_edges else "edge type"
        return f"{what} {edge_type_name(self.edge_type)!r}"

    @property
    def ends(self) -> tuple[str, str]:
        """Node types of source and target."""
        source, _, target = self.edge_type
        return source, target

    @property
    def predicted_edges(self) -> EdgeType | None:
        """See `Output`."""
        return self.edge_type

    @property
    def own_columns(self) -> tuple[str, ...]:
        """See `Output`."""
        return self.inputs

    def check_predicts(self, what: str, node_types: Sequence[str]) -> None:
        """See `Output`."""
        super().check_predicts(what, node_types)
        self.check_problem(what)

    def label_in(self, bundle: Bundle) -> tuple[ColumnInfo, np.ndarray] | None:
        """See `LabelOutput`."""
        if self.label_edges:
            edges = find_label_edges(bundle, self.edge_type, "positive")
            if edges is None or self.label not in edges.columns:
                return None
            return edges.columns[self.label], bundle.label_column(edges, self.label)
        info = bundle.columns(self.edge_type).get(self.label)
        if info is None:
            return None
        labels = bundle.column(self.edge_type, self.label)
        assert isinstance(labels, np.ndarray)
        return info, labels

    def to_content(self) -> Mapping[str, Any]:
        """The edge type is written by name."""
        return {**super().to_content(), "edge_type": edge_type_name(self.edge_type)}

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> Self:
        """See `Output`."""
        edge_type = parse_edge_type(content["edge_type"])
        return super().of_content({**content, "edge_type": edge_type})
