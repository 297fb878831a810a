"""The configured losses as one additive loss of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from raygnn.config import LoadedConfig
from raygnn.config.training_section import LossTerm
from raygnn.errors import ConfigError
from raygnn.loops.task import StepOutput
from raygnn.loops.tasks.loss_term import bind_term
from raygnn.losses.seed_losses import DISTANCES


class Objective:
    """Weighted sum of the terms under `losses`, or a task's default loss.

    A term is called with named inputs of the task. It returns its sum over the batch and what
    divides it; all terms of one objective must divide by the same, so that their sum is exact over
    any cut into micro-batches. Or it returns a mean over the batch, or a value that does not depend
    on it: that counts with the weight of the batch, so it is exact too.

    Args:
        default: short name of the loss without any under `losses`.
        provided: names of the inputs that each call gives.
        known: of the labels; constructors of losses get those that they have parameters for.
    Raises:
        ConfigError: a term takes other inputs.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        default: str,
        provided: Collection[str],
        device: torch.device,
        known: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        configured = loaded.config.losses or [LossTerm(type=default)]
        names = term_names(configured)
        self._terms = [
            bind_term(term, name, loaded, provided, device, known)
            for term, name in zip(configured, names, strict=True)
        ]

    @property
    def losses(self) -> list[Any]:
        """The modules or functions of the terms."""
        return [term.loss for term in self._terms]

    @property
    def measures_distance(self) -> bool:
        """Whether all terms that take the target are distances of the prediction from it."""
        terms = [term for term in self._terms if "target" in term.needs]
        return all(isinstance(term.loss, DISTANCES) for term in terms)

    @property
    def needs(self) -> frozenset[str]:
        """Names of the inputs that any term takes."""
        return frozenset().union(*(term.needs for term in self._terms))

    @property
    def step_metrics(self) -> tuple[str, ...]:
        """Names under which terms are logged, without their weights; none for a single term."""
        return tuple(f"loss/{term.name}" for term in self._terms) if len(self._terms) > 1 else ()

    def __call__(self, num_seeds: int, **inputs: Any) -> StepOutput:
        """The loss of one batch: summed, what divides the sum, and the sum of each term.

        Args:
            num_seeds: seeds or links of the batch; the weight where no term gives one.
            inputs: all of `needs`.
        Raises:
            ConfigError: `on` names an output that the model does not give, or two terms divide
                by different weights.
        """
        results = [term(inputs) for term in self._terms]
        weights = [weight for _, weight in results if weight is not None] or [float(num_seeds)]
        if any(weight != weights[0] for weight in weights):
            raise ConfigError(
                f"losses={[term.name for term in self._terms]} is invalid: the terms divide by "
                f"different weights {weights}. Give class weights to all terms or to none.",
                id="loss-weights-differ",
            )
        sums = [value if weight is not None else value * weights[0] for value, weight in results]
        weighted = [term.weight * value for term, value in zip(self._terms, sums, strict=True)]
        values = torch.stack([s.detach() for s in sums]).tolist() if self.step_metrics else []
        return StepOutput(
            sum(weighted[1:], weighted[0]),
            weights[0],
            dict(zip(self.step_metrics, values, strict=True)),
        )


def term_names(terms: Sequence[LossTerm]) -> list[str]:
    """A name of each term for logs: type, output, and a number where these repeat."""
    plain = [".".join(filter(None, (term.type.rpartition(".")[2], term.on))) for term in terms]
    seen: Counter[str] = Counter()
    names = []
    for name in plain:
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names
