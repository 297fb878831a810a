"""Sums of a step over all ranks, in one flat all-reduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from raygnn.device_memory import copied
from raygnn.parallel import collectives
from raygnn.parallel.sharded_tables import ShardedTables

_NUM_FIXED = 8  # weight, divisor, loss sum, samples, edges, and the three flags


@dataclass(frozen=True)
class StepTotals:
    """Sums of a step over all ranks and micro-batches.

    Attributes:
        stop: rank 0's time limit is over.
        interrupted: a rank was asked to stop.
        ask_host: it is time to ask the host for notices.
    """

    weight: float
    divisor: float
    loss_sum: float
    metrics: dict[str, float]
    num_samples: int
    num_edges: int
    stop: bool
    interrupted: bool
    ask_host: bool
    failed_ranks: tuple[int, ...]


@dataclass(frozen=True)
class UnreadTotals:
    """The totals of a step on their device. Reading them waits for it.

    Attributes:
        row: [num_totals], in the order of `GradientReducer`; of one rank, a list of numbers and
            scalars.
        divisor: divisor of the step's gradients.
    """

    row: Tensor | list[Tensor | float]
    divisor: Tensor | float
    _metric_names: tuple[str, ...]

    @property
    def factor(self) -> Tensor | float:
        if isinstance(self.divisor, Tensor):
            divisor = self.divisor.double()
            return divisor.masked_fill(divisor == 0, 1).reciprocal()
        return 1.0 / self.divisor if self.divisor else 1.0

    def read(self, *also: Tensor) -> tuple[StepTotals, list[float]]:
        """Reads the totals and further numbers with one wait."""
        if isinstance(self.row, Tensor):
            row = torch.cat([self.row.double(), *(x.double().reshape(1) for x in also)]).tolist()
        else:
            row = _numbers([*self.row, *also])
        num_totals = len(row) - len(also)
        return self._describe(row[:num_totals]), row[num_totals:]

    def _describe(self, totals: list[float]) -> StepTotals:
        weight, divisor, loss_sum, num_samples, num_edges, *flags = totals[:_NUM_FIXED]
        stop, interrupted, ask_host = (flag > 0 for flag in flags)
        metrics = dict(zip(self._metric_names, totals[_NUM_FIXED:], strict=False))
        failed = totals[_NUM_FIXED + len(self._metric_names) :]
        return StepTotals(
            weight=weight,
            divisor=divisor,
            loss_sum=loss_sum,
            metrics=metrics,
            num_samples=round(num_samples),
            num_edges=round(num_edges),
            stop=stop,
            interrupted=interrupted,
            ask_host=ask_host,
            failed_ranks=tuple(rank for rank, flag in enumerate(failed) if flag > 0),
        )


def _numbers(values: Sequence[Tensor | float]) -> list[float]:
    """Reads the scalars among numbers with one wait."""
    scalars = [value for value in values if isinstance(value, Tensor)]
    # Each call of torch lets sampler threads run, so needless calls are avoided.
    precise = [x if x.dtype == torch.float64 else x.double() for x in scalars]
    read = iter(torch.stack(precise).tolist() if precise else ())
    return [next(read) if isinstance(value, Tensor) else value for value in values]


@dataclass
class LocalTotals:
    """This rank's sums of a step. They stay on the device until its end: reading waits.

    Attributes:
        norm: of the gradients, if the pass has divided them and computed it.
    """

    weight: float = 0.0
    divisor: float = 0.0
    loss_sum: Tensor | float = 0.0
    num_samples: int = 0
    num_edges: int = 0
    stop: bool = False
    interrupted: bool = False
    ask_host: bool = False
    failed: bool = False
    norm: Tensor | None = None
    metrics: dict[str, Tensor | float] = field(default_factory=dict)

    def add(
        self,
        *,
        weight: float,
        loss_sum: Tensor | float,
        num_samples: int,
        divisor: float = 0.0,
        num_edges: int = 0,
    ) -> None:
        self.weight += weight
        self.divisor += divisor
        is_first = isinstance(self.loss_sum, float) and self.loss_sum == 0
        self.loss_sum = loss_sum if is_first else self.loss_sum + loss_sum
        self.num_samples += num_samples
        self.num_edges += num_edges

    def add_metrics(self, metrics: Mapping[str, Tensor | float]) -> None:
        for name, value in metrics.items():
            precise = value.double() if isinstance(value, Tensor) else value
            self.metrics[name] = self.metrics.get(name, 0.0) + precise


class GradientReducer:
    """Sums gradients and step totals over all ranks in one collective of fixed layout.

    Sparse gradients of embedding tables travel separately, by row.

    Parameters without a gradient on a rank count as 0 there, so ranks may have different numbers of
    seeds, or none. The layout never changes, hence neither does the order of summation: a resumed
    run repeats an uninterrupted one bit for bit. Totals have the gradients' precision, at least
    float32: counts are exact up to 2^24 per step.

    Args:
        beside: further sums of this rank; `reduce` replaces them by those of all ranks.
        tables: sharded tables of the module, whose gradients go to the owners of rows.
    """

    def __init__(
        self,
        module: nn.Module,
        metric_names: Sequence[str],
        device: torch.device,
        beside: Tensor | None = None,
        tables: ShardedTables | None = None,
    ) -> None:
        self._tables = ShardedTables(module) if tables is None else tables
        shared = list(self._tables.weights.values())
        self._sparse = SparseGradients(module, but=shared)
        of_rows = {id(parameter) for parameter in [*shared, *self._sparse.parameters]}
        self._parameters = [
            p for p in module.parameters() if p.requires_grad and id(p) not in of_rows
        ]
        self._metric_names = tuple(metric_names)
        world_size = collectives.world_size()
        num_totals = _NUM_FIXED + len(self._metric_names) + world_size
        wide = any(p.dtype == torch.float64 for p in self._parameters)
        self._dtype = torch.float64 if wide else torch.float32
        self._device = device
        self._beside = torch.zeros(0) if beside is None else beside
        self._sizes = [*(p.numel() for p in self._parameters), self._beside.numel(), num_totals]

    def reduce(self, local: LocalTotals) -> UnreadTotals:
        """Leaves the sum over all ranks in every `.grad`, and returns the summed totals.

        Collective: all ranks must call, once per step.
        """
        self._tables.reduce(zero=local.failed)
        self._sparse.reduce(zero=local.failed)
        if collectives.world_size() > 1:
            row = self._sum_over_ranks(local)
            return UnreadTotals(row, row[1], self._metric_names)
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return UnreadTotals(self._totals_of(local), local.divisor, self._metric_names)

    def scale(self, factor: Tensor | float) -> None:
        self._sparse.scale(factor)
        weights = [*self._tables.weights.values(), *self._parameters]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)

    def _sum_over_ranks(self, local: LocalTotals) -> Tensor:
        buffer = collectives.all_reduce_sum(self._pack(local))
        beside, last = buffer.split(self._sizes)[-2:]
        self._beside.copy_(beside)
        give_gradients(self._parameters, buffer[: -len(beside) - len(last)])
        return last

    def _pack(self, local: LocalTotals) -> Tensor:
        buffer = torch.empty(sum(self._sizes), dtype=self._dtype, device=self._device)
        beside, last = buffer.split(self._sizes)[-2:]
        take_gradients(self._parameters, buffer[: -len(beside) - len(last)], failed=local.failed)
        beside.copy_(self._beside)
        last.copy_(self._row_of(local, self._dtype))
        return buffer

    def _totals_of(self, local: LocalTotals) -> list[Tensor | float]:
        failed = [0.0] * collectives.world_size()
        failed[collectives.rank()] = float(local.failed)
        sums: list[Tensor | float] = [0.0] * 3
        if not local.failed:
            sums = [local.weight, local.divisor, local.loss_sum]
        flags = [float(local.stop), float(local.interrupted), float(local.ask_host)]
        counts = [float(local.num_samples), float(local.num_edges), *flags]
        metrics = [local.metrics.get(name, 0.0) for name in self._metric_names]
        return [*sums, *counts, *metrics, *failed]

    def _row_of(self, local: LocalTotals, dtype: torch.dtype) -> Tensor:
        totals = self._totals_of(local)
        known = [0.0 if isinstance(total, Tensor) else total for total in totals]
        row = copied(torch.tensor(known, dtype=dtype), self._device)
        for i, total in enumerate(totals):
            if isinstance(total, Tensor):
                row[i] = total
        return row


def take_gradients(parameters: Sequence[nn.Parameter], buffer: Tensor, *, failed: bool) -> None:
    """Moves gradients into a buffer. Those of a `failed` rank count as 0."""
    parts = buffer.split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        if parameter.grad is None or failed:
            part.zero_()
        else:
            part.copy_(parameter.grad.reshape(-1))
        parameter.grad = None


def give_gradients(parameters: Sequence[nn.Parameter], buffer: Tensor) -> None:
    parts = buffer.split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view(parameter.shape).to(parameter.dtype)


class SparseGradients:
    """The sparse gradients of a module, except `but`, and their sum over ranks."""

    def __init__(self, module: nn.Module, but: Sequence[nn.Parameter] = ()) -> None:
        others = {id(parameter) for parameter in but}
        tables = [m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        weights = [t.weight for t in tables if t.sparse and t.weight.requires_grad]
        self.parameters = [weight for weight in weights if id(weight) not in others]

    def reduce(self, *, zero: bool) -> None:
        """Leaves the coalesced sum over all ranks in each `.grad`. No gradient counts as no rows.

        Collective: all ranks must call. `zero`: this rank adds nothing.
        """
        for parameter in self.parameters:
            if collectives.world_size() == 1 and parameter.grad is not None and not zero:
                parameter.grad = parameter.grad.coalesce()
                continue
            rows, values = _rows_of(parameter, zero=zero)
            rows, values = collectives.gather_rows(rows), collectives.gather_rows(values)
            grad = torch.sparse_coo_tensor(rows.unsqueeze(0), values, parameter.shape)
            parameter.grad = grad.coalesce()

    def scale(self, factor: Tensor | float) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad._values().mul_(factor)


def gradient_values(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    grad = parameter.grad
    return grad.coalesce().values() if grad.is_sparse else grad


def _rows_of(parameter: Tensor, *, zero: bool) -> tuple[Tensor, Tensor]:
    if parameter.grad is None or zero:
        rows = torch.empty(0, dtype=torch.int64, device=parameter.device)
        return rows, parameter.new_empty(0, *parameter.shape[1:])
    grad = parameter.grad.coalesce()
    return grad.indices()[0], grad.values()
