"""Options of explanations. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from raygnn.errors import ConfigError


@dataclass(frozen=True)
class ExplainOptions:
    """Options of explanations.

    Attributes:
        num_edges, num_columns: size of the explanation in `score_kept`: that many of the
            most important edges and columns.
    Raises:
        ConfigError: a number is below 1.
    """

    num_edges: int = 10
    num_columns: int = 3

    def __post_init__(self) -> None:
        for name in ("num_edges", "num_columns"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name}={getattr(self, name)} is invalid. Set 1 or more. [explain-number]"
                )
