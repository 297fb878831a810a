"""The configured losses as one additive loss of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from raygnn.config import Component, LoadedConfig, build
from raygnn.config.training_section import LossTerm
from raygnn.errors import ConfigError
from raygnn.losses import LinkLoss


class Objective:
    """Weighted sum of the terms under `losses`, or a task's default loss.

    Each term returns (sum over seeds, what to divide it by); all terms of one objective must
    divide by the same, so that their sum is exact over any cut into micro-batches.
    """

    def __init__(self, loaded: LoadedConfig, default: str, device: torch.device) -> None:
        terms = loaded.config.losses
        allowed = loaded.allow_modules
        if not terms:
            terms = [LossTerm(type=default)]
        self._terms = [
            (
                term.weight,
                term.on,
                build(Component(type=term.type, args=term.args), "loss", allowed).to(device),
            )
            for term in terms
        ]
        for term, (*_, loss) in zip(terms, self._terms, strict=True):
            if isinstance(loss, LinkLoss):
                raise ConfigError(
                    f"losses.type={term.type!r} is invalid: it is a loss of links. Set "
                    "cross_entropy, binary_cross_entropy or mse."
                )

    def __call__(self, outputs: Tensor | dict[str, Tensor], target: Tensor) -> tuple[Tensor, float]:
        """The loss summed over seeds, and the weight that divides it.

        Raises:
            ConfigError: `on` names an output that the model does not give, or two terms divide
                by different weights.
        """
        loss_sums, weights = [], []
        for factor, on, loss in self._terms:
            loss_sum, weight = loss(select_output(outputs, on), target)
            loss_sums.append(factor * loss_sum)
            weights.append(float(weight))
        if any(weight != weights[0] for weight in weights):
            raise ConfigError(
                f"losses={[type(loss).__name__ for *_, loss in self._terms]} is invalid: the "
                f"terms divide by different weights {weights}. Give class weights to all terms "
                "or to none."
            )
        return sum(loss_sums[1:], loss_sums[0]), weights[0]


def select_output(outputs: Any, on: str | None) -> Tensor:
    """The named output of a model that gives several, or the only one.

    Raises:
        ConfigError: the name is missing or unknown.
    """
    if not isinstance(outputs, dict):
        if on is None:
            return outputs
        raise ConfigError(f"losses.on={on!r} is invalid: the model gives one output. Leave it out.")
    if on in outputs:
        return outputs[on]
    raise ConfigError(
        f"losses.on={on!r} is invalid: the model gives {sorted(outputs)}. Set one of them."
    )
