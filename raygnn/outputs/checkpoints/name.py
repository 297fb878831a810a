"""Names of checkpoints: which step they hold, and in which order they were written.

Light to import: the driver asks for a checkpoint without torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

#: Is written last: a checkpoint without it is not whole.
MANIFEST = "manifest.json"

#: Beside the checkpoints of a run: names the newest one.
LAST = "last.json"

_PATTERN = re.compile(r"step-(\d+)-(\d+)-([0-9a-f]+)-([0-9a-f]+)")


@dataclass(frozen=True)
class CheckpointName:
    """`step-<step>-<number>-<attempt>-<start>`.

    Attributes:
        step: optimizer steps done.
        number: counts the checkpoints of a run as they are written. It orders them, and not the
            step does: a run that went back to an earlier checkpoint writes lower steps later.
        attempt: names the start of the driver.
        start: names the start of the workers. One that was given up, and still writes, must not
            write under a name of its successor.
    """

    step: int
    number: int
    attempt: str
    start: str

    def __str__(self) -> str:
        return f"step-{self.step:010d}-{self.number:05d}-{self.attempt}-{self.start}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name that a text is; None for what raygnn did not write."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            return None
        step, number, attempt, start = match.groups()
        return cls(int(step), int(number), attempt, start)
