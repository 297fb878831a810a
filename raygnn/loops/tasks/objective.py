"""The configured losses of a task as one loss of a batch."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from raygnn.config import Component, LoadedConfig, build, resolve
from raygnn.config.components import parameters_of
from raygnn.config.registry import SLOTS
from raygnn.config.training_section import LossTerm
from raygnn.errors import ConfigError
from raygnn.loops.task import StepOutput
from raygnn.losses import LinkLoss, Loss
from raygnn.losses.seed_losses import DISTANCES, entries, with_outputs_of

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
#: Positional arguments of raygnn's losses, under any name.
_POSITIONAL: tuple[tuple[type, tuple[str, ...]], ...] = (
    (Loss, ("prediction", "target")),
    (LinkLoss, ("scores",)),
)
#: The task's input for a parameter of a loss of torch.
_INPUTS_OF_TORCH = {"input": "prediction", "log_input": "prediction"}
#: Losses of torch whose target has a class per seed; others compare element by element.
_OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss, nn.MultiLabelMarginLoss)


@dataclass(frozen=True)
class BoundTerm:
    """A loss or a regularizer, and its inputs by position or parameter name.

    Attributes:
        on: the model output used as `prediction`; None for the only one.
        loss: returns (sum, divisor), or a scalar mean over the batch.
    """

    name: str
    weight: float
    on: str | None
    loss: Callable[..., Any]
    positional: tuple[str, ...]
    keywords: Mapping[str, str]

    @property
    def needs(self) -> frozenset[str]:
        return frozenset((*self.positional, *self.keywords.values()))

    def __call__(self, inputs: Mapping[str, Any]) -> tuple[Tensor, float | None]:
        """The sum over the batch and its weight, or a mean and None.

        Raises:
            ConfigError: `on` is not an output, or the result is neither of the two.
            DataError: prediction and target of a torch loss differ in shape.
        """
        result = self.loss(
            *(self._input(name, inputs) for name in self.positional),
            **{key: self._input(name, inputs) for key, name in self.keywords.items()},
        )
        is_pair = isinstance(result, tuple) and len(result) == 2
        value, weight = result if is_pair else (result, None)
        if not isinstance(value, Tensor) or value.dim():
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ConfigError(
                f"losses.type={self.name!r} is invalid: it returned {got}. Return the mean over "
                "the batch as a scalar, or a pair of sum and divisor. [loss-result]"
            )
        return value, None if weight is None else float(weight)

    def _input(self, name: str, inputs: Mapping[str, Any]) -> Any:
        if name == "prediction":
            return select_output(inputs[name], self.on)
        if name == "target" and "prediction" in self.needs:
            prediction = self._input("prediction", inputs)
            compares_elements = _is_of_torch(self.loss) and not isinstance(self.loss, _OF_CLASSES)
            if compares_elements:
                return entries(self.name, prediction, inputs[name])
            return with_outputs_of(prediction, inputs[name])
        return inputs[name]


def bind_term(
    term: LossTerm,
    name: str,
    loaded: LoadedConfig,
    provided: Collection[str],
    device: torch.device,
    known: Mapping[str, Any],
) -> BoundTerm:
    """Builds a term and determines its inputs.

    Args:
        provided: names of the task's inputs.
        known: arguments for constructors with these parameters.
    Raises:
        ConfigError: it takes an unknown input, or its reduction cannot be exact.
    """
    component = Component(type=term.type, args=term.args)
    target = resolve(component, "loss", loaded.allow_modules)
    if isinstance(target, type):
        injected = {key: known[key] for key in known if key in parameters_of(target)}
        loss = build(component, "loss", loaded.allow_modules, **injected).to(device)
        _check_reduction(loss)
    else:
        loss = partial(target, **term.args)
    positional: tuple[str, ...] = next(
        (names for base, names in _POSITIONAL if isinstance(loss, base)), ()
    )
    keywords = {} if positional else _keywords(term, loss, provided)
    if isinstance(loss, Loss) and "weight" in signature_of(loss) and "weight" in provided:
        positional = (*positional, "weight")
    bound = BoundTerm(name, term.weight, term.on, loss, positional, keywords)
    if "weight" in provided and "target" in bound.needs and "weight" not in bound.needs:
        rule, remedy = "it reads no weights of rows", "Choose one that takes a parameter `weight`"
        raise ConfigError.invalid("losses.type", term.type, rule, remedy, id="loss-row-weights")
    if missing := sorted(bound.needs - set(provided)):
        raise ConfigError(
            f"losses.type={term.type!r} is invalid: this task gives no {', '.join(missing)}, but "
            f"{', '.join(sorted(provided))}. Set {', '.join(_fitting(provided))}, or "
            f"losses.inputs: {{{missing[0]}: {sorted(provided)[0]}}}. [loss-inputs-missing]"
        )
    if term.on is not None and "prediction" not in bound.needs:
        raise ConfigError(
            f"losses.on={term.on!r} is invalid: {term.type} reads none. Remove it. [loss-on-unused]"
        )
    return bound


def select_output(outputs: Any, on: str | None) -> Tensor:
    """The named output of a model, or the only one. Raises a ConfigError for other names."""
    if not isinstance(outputs, dict):
        if on is None:
            return outputs
        raise ConfigError(
            f"losses.on={on!r} is invalid: the model has one output. Leave it out. [loss-on-unused]"
        )
    if on in outputs:
        return outputs[on]
    raise ConfigError(
        f"losses.on={on!r} is invalid: there are {sorted(outputs)}. Set one. [loss-on-unknown]"
    )


def _keywords(term: LossTerm, loss: Any, provided: Collection[str]) -> dict[str, str]:
    arguments = term.args if isinstance(loss, partial) else {}
    parameters = {
        name: parameter
        for name, parameter in signature_of(loss).items()
        if parameter.kind in _NAMED and name not in arguments
    }
    for name in term.inputs:
        if name not in parameters:
            raise ConfigError(
                f"losses.inputs.{name}={term.inputs[name]!r} is invalid: {term.type} has no such "
                f"parameter. Set any of: {', '.join(parameters)}. [loss-input-unknown]"
            )
    usual = _INPUTS_OF_TORCH if _is_of_torch(loss) else {}
    chosen = {name: term.inputs.get(name, usual.get(name, name)) for name in parameters}
    return {
        name: value
        for name, value in chosen.items()
        if name in term.inputs
        or value in provided
        or parameters[name].default is inspect.Parameter.empty
    }


def signature_of(loss: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters


def _check_reduction(loss: nn.Module) -> None:
    if not _is_of_torch(loss):
        return
    reduction, weight = getattr(loss, "reduction", "mean"), getattr(loss, "weight", None)
    if reduction != "mean":
        raise ConfigError(
            f"losses.args.reduction={reduction!r} is invalid: batches' means are summed, each "
            "times its seeds. Set mean, and training.loss_reduction for a sum. [loss-reduction]"
        )
    if weight is not None:
        raise ConfigError(
            "losses.args.weight is invalid: a mean by class weights cannot be computed exactly "
            "from the means of batches. Set cross_entropy with class_weights. [loss-reduction]"
        )
    # Classes are counted from 0: torch's own choice, -100, leaves out none.
    if (ignored := getattr(loss, "ignore_index", -100)) >= 0:
        raise ConfigError(
            f"losses.args.ignore_index={ignored} is invalid: batches cannot be summed without a "
            "class. Set cross_entropy with class_weights. [loss-reduction]"
        )


def _is_of_torch(loss: Any) -> bool:
    return type(loss).__module__.startswith("torch.nn.")


def _fitting(provided: Collection[str]) -> list[str]:
    fitting = []
    for short in SLOTS["loss"].names:
        loss: Any = resolve(short, "loss")
        names = next((n for base, n in _POSITIONAL if issubclass(loss, base)), None)
        if names is None:
            names = tuple(signature_of(loss.forward))[1:]
        if set(names) <= set(provided):
            fitting.append(short)
    return fitting


class Objective:
    """Weighted sum of the terms under `losses`, or a task's default loss.

    A term is called with named inputs of the task. It returns its sum over the batch and the
    divisor, which must be the same for all terms, so that their sum is exact for any division into
    micro-batches. Or it returns a mean, or a value that does not depend on the batch: that is
    weighted by the batch, so it is exact too.

    Args:
        default: short name of the default loss.
        provided: names of the inputs of each call.
        known: arguments about labels, for constructors with these parameters.
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
        return [term.loss for term in self._terms]

    @property
    def measures_distance(self) -> bool:
        terms = [term for term in self._terms if "target" in term.needs]
        return all(isinstance(term.loss, DISTANCES) for term in terms)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(term.needs for term in self._terms))

    @property
    def step_metrics(self) -> tuple[str, ...]:
        """Logged names of the terms, without their weights; none for a single term."""
        return tuple(f"loss/{term.name}" for term in self._terms) if len(self._terms) > 1 else ()

    def __call__(self, num_seeds: float, **inputs: Any) -> StepOutput:
        """The loss of one batch: its sum, the divisor, and the sum of each term.

        Args:
            num_seeds: seeds or links of the batch, or their weight; the divisor if no term returns
                one.
            inputs: all of `needs`.
        """
        results = [term(inputs) for term in self._terms]
        weights = [weight for _, weight in results if weight is not None] or [float(num_seeds)]
        if any(weight != weights[0] for weight in weights):
            raise ConfigError(
                f"losses={[term.name for term in self._terms]} is invalid: their weights differ: "
                f"{weights}. Give class weights to all terms or none. [loss-weights-differ]"
            )
        sums = [value if weight is not None else value * weights[0] for value, weight in results]
        weighted = [term.weight * value for term, value in zip(self._terms, sums, strict=True)]
        values = [each.detach() for each in sums] if self.step_metrics else []
        return StepOutput(
            sum(weighted[1:], weighted[0]),
            weights[0],
            dict(zip(self.step_metrics, values, strict=True)),
        )


def term_names(terms: Sequence[LossTerm]) -> list[str]:
    """Logged name of each term: type, output, and a number if these repeat."""
    plain = [".".join(filter(None, (term.type.rpartition(".")[2], term.on))) for term in terms]
    seen: Counter[str] = Counter()
    names = []
    for name in plain:
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


#: Inputs that loss terms may request: the model's output (that of `on`) and all outputs, the
#: labels, embeddings [num_seeds, channels] (of edges: of both ends), the module, and the batch.
#: Rows with weights also provide `weight`, [num_seeds].
_INPUTS_OF_LABELS = frozenset({"prediction", "outputs", "target", "embeddings", "model", "batch"})


def label_objective(
    loaded: LoadedConfig, output: Any, device: torch.device | None = None
) -> Objective:
    """The losses of a label task; by default the usual loss of the problem. `output`: a
    `LabelOutput` with label counts for class weights.
    """
    inputs = _INPUTS_OF_LABELS | ({"weight"} if output.weighs_rows else set())
    if loaded.config.evaluates_by_layers:
        inputs = inputs - {"batch"}
    known = {"label_counts": output.label_counts, "class_names": output.class_names}
    return Objective(loaded, output.default_loss, inputs, device or torch.device("cpu"), known)
