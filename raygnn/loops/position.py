"""Position of a run, periods that are due, and means since the last report."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from raygnn.config import Period
from raygnn.config.training_section import Training
from raygnn.parallel.all_reduce import StepTotals


@dataclass(frozen=True)
class Position:
    """Progress of training. All counts are global, over all workers.

    Attributes:
        batch_in_epoch: finished micro-batches of the current epoch.
    """

    step: int = 0
    batches: int = 0
    samples: int = 0
    epoch: int = 0
    batch_in_epoch: int = 0

    def advance(self, *, num_batches: int, num_samples: int, epoch_batches: int) -> Position:
        in_epoch = self.batch_in_epoch + num_batches
        finished = in_epoch >= epoch_batches
        return replace(
            self,
            step=self.step + 1,
            batches=self.batches + num_batches,
            samples=self.samples + num_samples,
            epoch=self.epoch + int(finished),
            batch_in_epoch=0 if finished else in_epoch,
        )

    @property
    def current_epoch(self) -> int:
        """The epoch of the last step, counted from 1; 1 before the first step."""
        return max(1, self.epoch + (self.batch_in_epoch > 0))

    def state_dict(self) -> dict[str, int]:
        return asdict(self)


def is_due(period: Period | None, before: Position, after: Position) -> bool:
    """Whether the step from `before` to `after` crosses a mark of a period."""
    if period is None:
        return False
    marks = (
        (period.steps, before.step, after.step),
        (period.batches, before.batches, after.batches),
        (period.epochs, before.epoch, after.epoch),
        (period.samples, before.samples, after.samples),
    )
    return any(every is not None and then // every < now // every for every, then, now in marks)


def limit_reached(limits: Training, now: Position, *, out_of_time: bool) -> str | None:
    """The first reached limit of `training`, as `training.max_steps=100`."""
    for key, done in (("steps", now.step), ("epochs", now.epoch), ("samples", now.samples)):
        most = getattr(limits, f"max_{key}")
        if most is not None and done >= most:
            return f"training.max_{key}={most}"
    return f"training.max_time_s={limits.max_time_s}" if out_of_time else None


class RunningMean:
    """Sums loss, metrics and weights of steps into weighted means."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weight = 0.0

    def add(self, totals: StepTotals, **means: float) -> None:
        """Adds one step. `means`: further values of the step; NaN and infinity count as 0."""
        weighted = {k: v * totals.weight for k, v in means.items() if math.isfinite(v)}
        for name, value in {"loss": totals.loss_sum, **totals.metrics, **weighted}.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._weight += totals.weight

    def take(self) -> dict[str, float]:
        """Returns the window's means as `train/<name>`, and starts a new window."""
        if not self._weight:
            return {}
        means = {f"train/{name}": value / self._weight for name, value in self._sums.items()}
        self._sums, self._weight = {}, 0.0
        return means

    def state_dict(self) -> dict[str, object]:
        return {"sums": dict(self._sums), "weight": self._weight}

    def load_state_dict(self, state: dict) -> None:
        self._sums, self._weight = dict(state["sums"]), float(state["weight"])
