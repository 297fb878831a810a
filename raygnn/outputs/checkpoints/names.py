"""Names of checkpoints, and which are kept. Light to import: the driver looks for a checkpoint
without torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

#: Written last; without it a checkpoint is incomplete.
MANIFEST = "manifest.json"

#: File with the name of the newest checkpoint.
LAST = "last.json"

_PATTERN = re.compile(r"step-(\d+)-(\d+)-([0-9a-f]+)-([0-9a-f]+)")


@dataclass(frozen=True)
class CheckpointName:
    """`step-<step>-<number>-<attempt>-<start>`.

    Attributes:
        number: counts a run's checkpoints in the order of writing, which steps do not: a run that
            went back to an earlier checkpoint writes lower steps later.
        attempt: identifies the start of the driver.
        start: identifies the start of the workers. An abandoned one that still writes must not use
            a name of its successor.
    """

    step: int
    number: int
    attempt: str
    start: str

    def __str__(self) -> str:
        return f"step-{self.step:010d}-{self.number:05d}-{self.attempt}-{self.start}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None if raygnn did not write the name."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            return None
        step, number, attempt, start = match.groups()
        return cls(int(step), int(number), attempt, start)


@dataclass(frozen=True)
class Retention:
    """Retention of a run's checkpoints.

    Attributes:
        policy: all | best | last | none.
        last, best: numbers of newest checkpoints to keep under `best` and `last`, and of best ones
            under `best`.
        mode: whether a lower or a higher score is better: min | max.
    """

    policy: str = "best"
    last: int = 1
    best: int = 1
    mode: str = "min"

    def obsolete(
        self, names: Sequence[str], scores: Mapping[str, float], needed: Collection[str]
    ) -> list[str]:
        """Names of checkpoints to delete, oldest first.

        Args:
            scores: monitored values of those written at a validation.
            needed: names of pointers, which are always kept.
        """
        if self.policy == "all":
            return []
        retained = {*needed, *names[max(len(names) - self.last, 0) :]}
        if self.policy == "best":
            sign = 1.0 if self.mode == "min" else -1.0
            # A stable sort: of equal ones the first is the best, as early stopping has it.
            ranked = sorted((n for n in names if n in scores), key=lambda n: sign * scores[n])
            retained.update(ranked[: self.best])
        return [name for name in names if name not in retained]
