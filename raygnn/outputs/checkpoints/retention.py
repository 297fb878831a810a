"""Which checkpoints stay: a policy that only decides. The store deletes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """What stays of a run's checkpoints.

    Attributes:
        policy: all | best | last | none.
        last: how many of the newest stay under `best` and `last`.
        best: how many of the best stay under `best`.
        mode: whether a lower or a higher score is better: min | max.
    """

    policy: str = "best"
    last: int = 1
    best: int = 1
    mode: str = "min"

    @property
    def keeps_best(self) -> bool:
        """Whether the best checkpoint stays, so that a pointer may name it."""
        return self.policy in ("all", "best")

    def obsolete(
        self, names: Sequence[str], scores: Mapping[str, float], needed: Collection[str]
    ) -> list[str]:
        """Of the checkpoints' names, oldest first, those that nothing needs any more.

        Args:
            scores: the monitored value of those that were written at a validation.
            needed: names that pointers hold; they stay in any case.
        """
        if self.policy == "all":
            return []
        kept = {*needed, *names[max(len(names) - self.last, 0) :]}
        if self.policy == "best":
            sign = 1.0 if self.mode == "min" else -1.0
            # A stable sort: of equal ones the first is the best, as early stopping has it.
            ranked = sorted((n for n in names if n in scores), key=lambda n: sign * scores[n])
            kept.update(ranked[: self.best])
        return [name for name in names if name not in kept]
