"""Periods: one type wherever something happens every so often."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from raygnn.config.problems import Problem
from raygnn.config.section import PositiveWhole, Section


class Period(Section):
    """`{steps: 20}`, `{epochs: 1}` or several of them: due when any is."""

    steps: PositiveWhole | None = Field(default=None, description="Optimizer steps.")
    batches: PositiveWhole | None = Field(
        default=None, description="Micro-batches, over all workers."
    )
    epochs: PositiveWhole | None = Field(
        default=None, description="Passes over the training seeds."
    )
    samples: PositiveWhole | None = Field(
        default=None, description="Training seeds, over all workers."
    )

    def broken_rules(self) -> Iterable[Problem]:
        if (self.steps, self.batches, self.epochs, self.samples) == (None,) * 4:
            yield Problem((), "a period needs a unit", "Set it as in {epochs: 1} or {steps: 20}")
