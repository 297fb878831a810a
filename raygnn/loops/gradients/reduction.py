"""How the losses of a step's micro-batches combine into one gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

from raygnn.config import LoadedConfig, resolve
from raygnn.errors import ConfigError
from raygnn.loops.task import StepOutput


class GradReduction:
    """Gives each micro-batch a factor on its summed loss, and a share of the step's divisor.

    With S_b the loss summed over a micro-batch, W_b its weight, and L_b = S_b / W_b
    (`loss_reduction: mean`) or S_b (`sum`), a step's gradient is that of

        sample_mean     sum_b S_b / sum_b W_b
        batch_mean      sum_b L_b / number of micro-batches
        sum             sum_b L_b
        a function w    sum_b w(b) L_b / sum_b w(b)

    over the micro-batches of all ranks.
    """

    def __init__(self, loaded: LoadedConfig) -> None:
        training = loaded.config.training
        self._kind = training.combined_by
        self._is_mean = training.loss_reduction == "mean"
        self._weigh: Callable[[StepOutput], float] | None = None
        if "." in self._kind:
            self._weigh = resolve(self._kind, "grad_weight", loaded.allow_modules)

    def factor_and_divisor(self, output: StepOutput) -> tuple[float, float]:
        """The factor on this micro-batch's summed loss, and what it adds to the divisor.

        Raises:
            ConfigError: the user's function gave no weight.
        """
        if self._kind == "sample_mean":
            return 1.0, output.weight
        own_mean = 1.0 / output.weight if self._is_mean and output.weight else 1.0
        if self._weigh is not None:
            weight = float(self._weigh(output))
            if not 0 <= weight < math.inf:
                raise ConfigError(
                    f"training.grad_reduction={self._kind!r} is invalid: it gave the weight "
                    f"{weight}. Return a finite number of at least 0 for each micro-batch.",
                    id="training-reduction-weight",
                )
            return own_mean * weight, weight
        return own_mean, 1.0

    @property
    def divides(self) -> bool:
        """Whether the step's sum is divided by the added divisors."""
        return self._kind != "sum"
