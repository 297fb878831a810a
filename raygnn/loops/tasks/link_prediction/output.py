"""What a model of links gives: embeddings, and scores of the relations that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from raygnn.data.edge_types import EdgeType, edge_type_name, parse_edge_type
from raygnn.errors import ConfigError
from raygnn.loops.model_spec import Output


@dataclass(frozen=True)
class LinkOutput(Output):
    """The links that a model's embeddings are made for.

    Attributes:
        edge_types: of each relation that is learnt, in the decoder's order, all between the same
            two node types.
        labels: the links are label edges, not message edges.
    """

    key = "links"

    edge_types: tuple[EdgeType, ...]
    labels: bool = False

    @property
    def ends(self) -> tuple[str, str]:
        """Node types of the links' anchors and targets."""
        anchor, _, target = self.edge_types[0]
        return anchor, target

    @property
    def links(self) -> tuple[EdgeType, ...]:
        """See `Output`."""
        return self.edge_types

    def check_predicts(self, what: str, node_types: Sequence[str]) -> None:
        """See `Output`."""
        raise ConfigError(
            f"--what={what!r} is invalid: the model is of links, not of labels. Set embeddings, or "
            "--top-k with --anchors.",
            id="infer-what-links",
        )

    def to_content(self) -> Mapping[str, Any]:
        """Edge types are written by name."""
        return {"edge_types": [edge_type_name(t) for t in self.edge_types], "labels": self.labels}

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> Self:
        """See `Output`."""
        edge_types = [parse_edge_type(name) for name in content["edge_types"]]
        return super().of_content({**content, "edge_types": edge_types})
