"""Exact evaluation: equal metrics for any number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raygnn.device_memory import copied, read_together
from raygnn.errors import FAILURES, DataError, RaygnnError
from raygnn.loops.task import EvalOutput, Task
from raygnn.metrics import ComparedMetric, ComparedScores, GatheredMetric, SumMetric, compare
from raygnn.metrics.diagnostics import Diagnostic
from raygnn.parallel import collectives
from raygnn.parallel.agreement import raise_if_any_failed, run_and_sync_errors

#: Looks at the outputs of an evaluation as they come.
Watch = Callable[[Iterator[EvalOutput], int], Iterator[EvalOutput]]


#: Predictions that stay on a device until they are read.
_HELD_BYTES = 1 << 28


class EvaluationTable:
    """One row of sums per evaluation batch, plus gathered rows for metrics that need them.

    Rows and predictions stay on their device, and are read together at the end, or whenever there
    are `_HELD_BYTES` of predictions: a read waits for the device.

    The one rank that has a batch writes its row; other ranks have 0. So summing over ranks does not
    round. Columns are then summed in batch order on every rank, and the result does not depend on
    the number of ranks. `with_intervals`: also finds `intervals`, by metric.
    """

    def __init__(
        self, num_batches: int, metrics: Sequence[Any], with_intervals: bool = False
    ) -> None:
        self._num_batches, self._with_intervals = num_batches, with_intervals
        self.intervals: dict[str, tuple[float, float]] = {}
        self._sums = [m for m in metrics if isinstance(m, SumMetric)]
        self._gathered = [m for m in metrics if isinstance(m, GatheredMetric)]
        self._compared = [m for m in metrics if isinstance(m, ComparedMetric)]
        # All of them read the same columns.
        self._scores = ComparedScores(self._compared[0].num_columns if self._compared else 0)
        self._rows: dict[int, Tensor] = {}
        self._held: list[list[Tensor]] = []  # ids, predictions, ... of batches on a device
        self._num_held_bytes = 0
        # The first batch determines the names of further sums and the widths of metric states.
        self._layout: tuple[list[str], list[int]] | None = None
        self._ids: list[Tensor] = []
        self._predictions: list[Tensor] = []
        self._targets: list[Tensor] = []

    def add(self, output: EvalOutput) -> None:
        sums = [output.loss_sum, output.weight, *output.metrics.values()]
        rows = (output.prediction, output.target, output.row_weights)
        states = [m.state(*rows) for m in self._sums]
        self._layout = list(output.metrics), [state.numel() for state in states]
        device = output.prediction.device
        row = [_numbers(sums, device), *(copied(state, device) for state in states)]
        self._rows[output.index] = torch.cat(row)
        if not (self._compared or self._gathered):
            return
        parts = [output.ids, *(part for part in rows if part is not None)]
        if device.type == "cpu":
            self._add_rows(*parts)
            return
        # Copies: these may be parts of the batch.
        self._held.append([part.clone() for part in parts])
        self._num_held_bytes += sum(part.nbytes for part in parts)
        if self._num_held_bytes >= _HELD_BYTES:
            self._read()

    def _read(self) -> None:
        """Brings everything to the host, with one wait for the device."""
        held, self._held, self._num_held_bytes = self._held, [], 0
        read = iter(read_together([*(x for parts in held for x in parts), *self._rows.values()]))
        for parts in held:
            self._add_rows(*(next(read) for _ in parts))
        self._rows = dict(zip(self._rows, read, strict=True))

    def _add_rows(
        self, ids: Tensor, prediction: Tensor, target: Tensor, weight: Tensor | None = None
    ) -> None:
        ids, target = ids.cpu(), target.cpu()
        if self._compared:
            self._scores.add(*self._compared[0].columns(prediction, target), weight)
        if self._gathered:
            self._predictions.append(_own(prediction.float()))
            self._ids.append(_own(ids))
            self._targets.append(_own(target))

    def reduce(self) -> dict[str, float]:
        """Loss and metrics over all batches of all ranks. Collective: all ranks must call."""
        self._read()
        known = [layout for layout in collectives.gather_objects(self._layout) if layout]
        if not known:
            return {}
        names, widths = known[0]
        num_sums = 2 + len(names)
        table = torch.zeros((self._num_batches, num_sums + sum(widths)), dtype=torch.float64)
        for index, row in self._rows.items():
            table[index] = row
        table = collectives.all_reduce_sum(table)
        sums, *states = table.sum(0).split([num_sums, *widths])
        loss_sum, weight, *others = sums.tolist()
        if not weight:
            raise DataError(
                "the weights of its seeds add up to 0. Set class_weights. [metric-no-weight]"
            )
        results = {
            name: s / weight for name, s in zip(["loss", *names], [loss_sum, *others], strict=True)
        }
        for metric, state in zip(self._sums, states, strict=True):
            results.update(metric.compute(state))
        if self._with_intervals:
            self.intervals = self._find_intervals(table, num_sums, widths)
        columns = self._scores.columns(collectives.gather_rows, collectives.all_reduce_sum)
        results.update(compare(self._compared, columns))
        results.update(self._reduce_gathered())
        return results

    def _find_intervals(
        self, table: Tensor, num_sums: int, widths: list[int]
    ) -> dict[str, tuple[float, float]]:
        intervals = batch_intervals(table[:, :2], lambda sums: {"loss": float(sums[0] / sums[1])})
        columns = table[:, num_sums:].split(widths, dim=1)
        for metric, of_metric in zip(self._sums, columns, strict=True):
            if not isinstance(metric, Diagnostic):
                intervals |= batch_intervals(of_metric, metric.compute)
        return intervals

    def _reduce_gathered(self) -> dict[str, float]:
        results: dict[str, float] = {}
        if not self._gathered:
            return results
        ids, order = collectives.gather_rows(_joined(self._ids)).sort(stable=True)
        scores = collectives.gather_rows(_joined(self._predictions))
        targets = collectives.gather_rows(_joined(self._targets))
        for metric in self._gathered:
            results.update(metric.compute_rows(ids, scores[order], targets[order]))
        return results


def _numbers(values: Sequence[Tensor | float], device: torch.device) -> Tensor:
    """float64 [num_values] on a device, without a wait for it."""
    known = [0.0 if isinstance(value, Tensor) else value for value in values]
    row = copied(torch.tensor(known, dtype=torch.float64), device)
    for i, value in enumerate(values):
        if isinstance(value, Tensor):
            row[i] = value
    return row


def _own(rows: Tensor) -> Tensor:
    return torch.empty_like(rows, device="cpu").copy_(rows)


def _joined(batches: list[Tensor]) -> Tensor:
    """All rows of this rank; no rows, in the shape of other ranks' rows, if it had no batch.
    Collective.
    """
    # An empty slice would be pickled with the storage of the whole batch.
    layout = (batches[0].dtype, batches[0].shape[1:]) if batches else None
    dtype, shape = next(form for form in collectives.gather_objects(layout) if form is not None)
    return torch.cat([torch.empty((0, *shape), dtype=dtype), *batches])


def evaluate(
    task: Task,
    split: str,
    limit: int | None,
    metrics: Sequence[Any],
    watch: Watch | None = None,
    moment: str = "",
    intervals: dict[str, tuple[float, float]] | None = None,
) -> dict[str, float]:
    """Evaluates a split on its fixed batches.

    Rank r of w takes every w-th batch. Ranks communicate only after their last batch. Collective:
    all ranks must call.

    Args:
        limit: number of batches over all workers.
        watch: receives this rank's outputs and the number of batches, and yields the outputs.
        moment: position in training, for errors.
        intervals: filled with 95 % intervals by metric, if there are enough batches.
    Returns:
        `<split>/loss` and `<split>/<metric>`; empty if the split has no loader.
    Raises:
        TrainingError: a rank failed; raised on all ranks, and names the rank.
    """
    loader = run_and_sync_errors(lambda: task.loader(split), f"loading the {split} split")
    if loader is None:
        return {}
    num_batches = loader.num_batches if limit is None else min(limit, loader.num_batches)
    table = EvaluationTable(num_batches, metrics, intervals is not None)
    failure: BaseException | None = None
    training = task.model.training
    task.model.eval()
    try:
        with torch.no_grad():
            task.prepare_evaluation(split)
            outputs = task.evaluate(split, num_batches)
            for output in outputs if watch is None else watch(outputs, num_batches):
                table.add(output)
    except FAILURES as error:  # reported to all ranks, then raised below
        failure = error
    finally:
        task.model.train(training)
    where = f"evaluation of the {split} split" + (f", {moment}" if moment else "")
    raise_if_any_failed(failure, where)
    try:
        results = {f"{split}/{name}": value for name, value in table.reduce().items()}
    except RaygnnError as error:  # raised by all ranks, since it concerns all rows together
        raise type(error)(f"In {where}: {error}") from error
    if intervals is not None:
        intervals |= {f"{split}/{name}": ends for name, ends in table.intervals.items()}
    return results


def evaluate_parts(
    task: Task,
    split: str,
    limit: int | None,
    metrics: Sequence[Any],
    watch: Watch | None = None,
    moment: str = "",
    intervals: dict[str, tuple[float, float]] | None = None,
) -> dict[str, float]:
    """Evaluates a task, or each of its parts with its own metrics; see `evaluate`.

    Collective: all ranks must call. Returns, for parts, `<split>/<part>/<metric>`, and as
    `<split>/loss` the weighted sum of their losses.
    """
    if not task.parts:
        return evaluate(task, split, limit, metrics, watch, moment, intervals)
    results: dict[str, float] = {}
    training = task.model.training
    task.model.eval()  # a part's model may not hold what all parts share
    try:
        for name, part in task.parts.items():
            part_metrics = [each.metric for each in metrics if each.part == name]
            where = ", ".join(filter(None, [f"task {name}", moment]))
            own = None if intervals is None else dict[str, tuple[float, float]]()
            values = evaluate_parts(part, split, limit, part_metrics, watch, where, own)
            results |= _behind(name, values)
            if intervals is not None:
                intervals |= _behind(name, own or {})
    finally:
        task.model.train(training)
    losses = [
        weight * results[f"{split}/{name}/loss"]
        for name, weight in task.weights.items()
        if weight and f"{split}/{name}/loss" in results
    ]
    return {f"{split}/loss": sum(losses[1:], losses[0]), **results} if losses else results


def _behind(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("/", f"/{part}/", 1): value for name, value in values.items()}


#: Least number of batches whose spread is an estimate.
MIN_BATCHES = 20
_NUM_DRAWS = 500
_TAIL = 0.025  # on either side of a 95 % interval
_SEED = 0


def batch_intervals(
    table: Tensor, compute: Callable[[Tensor], Mapping[str, float]]
) -> dict[str, tuple[float, float]]:
    """95 % intervals of metrics that are computed from the column sums of a table of batches.

    Whole batches are drawn with replacement, because rows of a batch (such as links of one anchor)
    may be dependent. Equal on all ranks.

    Source: cluster bootstrap, Davison and Hinkley 1997, section 3.8; percentiles.

    Args:
        table: float64 [num_batches, num_sums].
        compute: metrics by name from [num_sums].
    Returns:
        Lower and upper end by name. Empty with fewer than `MIN_BATCHES` batches; without metrics
        that are NaN in a draw.
    """
    num_batches = len(table)
    if num_batches < MIN_BATCHES:
        return {}
    generator = torch.Generator().manual_seed(_SEED)
    drawn = torch.randint(num_batches, (_NUM_DRAWS, num_batches), generator=generator)
    counts = torch.zeros(_NUM_DRAWS, num_batches, dtype=torch.float64)
    counts.scatter_add_(1, drawn, torch.ones_like(counts))
    values: dict[str, list[float]] = {}
    for sums in counts @ table:
        for name, value in compute(sums).items():
            values.setdefault(name, []).append(value)
    intervals = {}
    for name, of_draws in values.items():
        column = torch.tensor(of_draws, dtype=torch.float64)
        if len(column) == _NUM_DRAWS and column.isfinite().all():
            low, high = column.quantile(column.new_tensor([_TAIL, 1 - _TAIL])).tolist()
            intervals[name] = (low, high)
    return intervals
