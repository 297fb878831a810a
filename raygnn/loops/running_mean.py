"""Weighted means over a window of steps."""

from __future__ import annotations

import math

from raygnn.parallel.all_reduce import StepTotals


class RunningMean:
    """Sums loss, metrics and weights of steps, and gives their weighted means once."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weight = 0.0

    def add(self, totals: StepTotals, **means: float) -> None:
        """Takes one step.

        Args:
            means: further values of the step, as means; one that is not finite counts as 0.
        """
        weighted = {k: v * totals.weight for k, v in means.items() if math.isfinite(v)}
        for name, value in {"loss": totals.loss_sum, **totals.metrics, **weighted}.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._weight += totals.weight

    def take(self) -> dict[str, float]:
        """`train/<name>` means of the window, which starts anew."""
        if not self._weight:
            return {}
        means = {f"train/{name}": value / self._weight for name, value in self._sums.items()}
        self._sums, self._weight = {}, 0.0
        return means

    def state_dict(self) -> dict[str, object]:
        return {"sums": dict(self._sums), "weight": self._weight}

    def load_state_dict(self, state: dict) -> None:
        self._sums, self._weight = dict(state["sums"]), float(state["weight"])
