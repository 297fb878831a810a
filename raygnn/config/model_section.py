"""The section about the model, with what comes before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from raygnn.config.section import Component, PositiveWhole, Section
from raygnn.errors import Problem


class Interaction(Section):
    """Crosses the features of each node before the encoder (DCN-v2)."""

    num_layers: PositiveWhole = Field(
        default=2, description="Cross layers; n of them give products of up to n + 1 features."
    )
    rank: PositiveWhole | None = Field(
        default=None,
        description="Rank of the matrix of a cross layer; null is a full one, of the square of the "
        "features' width.",
    )
    deep: list[PositiveWhole] = Field(
        default_factory=list,
        description="Widths of a perceptron's layers, behind or beside the cross layers.",
    )
    structure: Literal["stacked", "parallel"] = Field(
        default="stacked",
        description="Whether the perceptron reads what the cross layers give, or the features; the "
        "encoder then reads what both give.",
    )

    def broken_rules(self) -> Iterable[Problem]:
        if self.structure == "parallel" and not self.deep:
            yield Problem(
                ("structure",),
                "there is nothing beside the cross layers",
                "Set model.interaction.deep to the widths of a perceptron, or remove it",
                id="model-interaction-deep",
            )


class Model(Component):
    """The encoder, and what its input passes."""

    interaction: Interaction | None = Field(
        default=None,
        description="Cross layers between the features of each node type and the encoder; `{}` "
        "sets two. Null leaves features as they are.",
    )
