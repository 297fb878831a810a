"""Exact evaluation: the same numbers for any number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raygnn.errors import FAILURES, DataError, RaygnnError
from raygnn.loops.task import EvalOutput, Task
from raygnn.metrics import ComparedMetric, ComparedScores, GatheredMetric, SumMetric, compare
from raygnn.metrics.diagnostics import Diagnostic
from raygnn.parallel import collectives
from raygnn.parallel.agreement import raise_if_any_failed, run_and_sync_errors

#: Looks at the outputs of an evaluation as they come.
Watch = Callable[[Iterator[EvalOutput], int], Iterator[EvalOutput]]


class EvaluationTable:
    """One row of sums per evaluation batch, plus the rows of metrics that need them all.

    A batch's row is written by the one rank that has it and is 0 elsewhere, so summing over the
    ranks only moves rows, without rounding. Columns are then summed in batch order on every
    rank: the result does not depend on how many ranks there were.

    Args:
        with_intervals: also find `intervals`, 95 % intervals by name, from the spread of batches.
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
        # Names of the sums beside the loss and widths of the metrics' states: a first batch tells.
        self._layout: tuple[list[str], list[int]] | None = None
        self._ids: list[Tensor] = []
        self._predictions: list[Tensor] = []
        self._targets: list[Tensor] = []

    def add(self, output: EvalOutput) -> None:
        """Takes one batch of this rank."""
        sums = [output.loss_sum, output.weight, *map(float, output.metrics.values())]
        states = [m.update(output.prediction, output.target).cpu() for m in self._sums]
        self._layout = list(output.metrics), [state.numel() for state in states]
        self._rows[output.index] = torch.cat([torch.tensor(sums, dtype=torch.float64), *states])
        if self._compared:
            self._scores.add(*self._compared[0].columns(output.prediction, output.target))
        if self._gathered:
            self._predictions.append(_own(output.prediction.float()))
            self._ids.append(_own(output.ids))
            self._targets.append(_own(output.target))

    def reduce(self) -> dict[str, float]:
        """Loss and metrics over all batches of all ranks. Collective: all ranks must call."""
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
                "the weights of its seeds add up to 0. Set class_weights of its classes.",
                id="metric-no-weight",
            )
        results = {
            name: s / weight for name, s in zip(["loss", *names], [loss_sum, *others], strict=True)
        }
        for metric, state in zip(self._sums, states, strict=True):
            results.update(metric.compute(state))
        if self._with_intervals:
            self.intervals = self._find_intervals(table, num_sums, widths)
        results.update(self._reduce_compared())
        results.update(self._reduce_gathered())
        return results

    def _find_intervals(
        self, table: Tensor, num_sums: int, widths: list[int]
    ) -> dict[str, tuple[float, float]]:
        found = batch_intervals(table[:, :2], lambda sums: {"loss": float(sums[0] / sums[1])})
        columns = table[:, num_sums:].split(widths, dim=1)
        for metric, of_metric in zip(self._sums, columns, strict=True):
            if not isinstance(metric, Diagnostic):
                found |= batch_intervals(of_metric, metric.compute)
        return found

    def _reduce_compared(self) -> dict[str, float]:
        columns = self._scores.columns(collectives.gather_rows, collectives.all_reduce_sum)
        return compare(self._compared, columns)

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


def _own(rows: Tensor) -> Tensor:
    return torch.empty_like(rows, device="cpu").copy_(rows)


def _joined(batches: list[Tensor]) -> Tensor:
    """All rows of this rank; none, in the shape of other ranks' rows, where it had no batch.

    Collective: all ranks must call.
    """
    # Not a slice without rows: pickled, it takes along the storage of the whole batch.
    own = (batches[0].dtype, batches[0].shape[1:]) if batches else None
    dtype, shape = next(form for form in collectives.gather_objects(own) if form is not None)
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

    Ranks take every world-size-th batch; nothing is communicated until all are done.
    Collective: all ranks must call.

    Args:
        limit: batches over all workers; None takes all.
        watch: is given this rank's outputs and the number of batches, and passes the outputs on.
        moment: when in training, for errors.
        intervals: is filled with 95 % intervals of metrics, by their names, where batches suffice.
    Returns:
        `<split>/loss` and `<split>/<metric>`; empty if the split has no loader.
    Raises:
        TrainingError: a rank failed; raised on all ranks, and it names the rank.
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
        found = {f"{split}/{name}": value for name, value in table.reduce().items()}
    except RaygnnError as error:  # of all rows together, so on every rank
        raise type(error)(f"In {where}: {error}") from error
    if intervals is not None:
        intervals |= {f"{split}/{name}": ends for name, ends in table.intervals.items()}
    return found


def evaluate_parts(
    task: Task,
    split: str,
    limit: int | None,
    metrics: Sequence[Any],
    watch: Watch | None = None,
    moment: str = "",
    intervals: dict[str, tuple[float, float]] | None = None,
) -> dict[str, float]:
    """Evaluates a task, or each of its parts with the metrics of that part; see `evaluate`.

    Collective: all ranks must call.

    Returns:
        Of parts, `<split>/<part>/<metric>`, and as `<split>/loss` the weighted sum of their losses.
    """
    if not task.parts:
        return evaluate(task, split, limit, metrics, watch, moment, intervals)
    found: dict[str, float] = {}
    training = task.model.training
    task.model.eval()  # a part's model may not hold what all parts share
    try:
        for name, part in task.parts.items():
            own = [each.metric for each in metrics if each.part == name]
            where = ", ".join(filter(None, [f"task {name}", moment]))
            of_part: dict[str, tuple[float, float]] | None = None if intervals is None else {}
            values = evaluate_parts(part, split, limit, own, watch, where, of_part)
            found |= _behind(name, values)
            if intervals is not None and of_part is not None:
                intervals |= _behind(name, of_part)
    finally:
        task.model.train(training)
    losses = [
        weight * found[f"{split}/{name}/loss"]
        for name, weight in task.weights.items()
        if weight and f"{split}/{name}/loss" in found
    ]
    return {f"{split}/loss": sum(losses[1:], losses[0]), **found} if losses else found


def _behind(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("/", f"/{part}/", 1): value for name, value in values.items()}


#: With fewer batches the spread between them says little.
MIN_BATCHES = 20
_NUM_DRAWS = 500
_TAIL = 0.025  # on either side of a 95 % interval
_SEED = 0


def batch_intervals(
    table: Tensor, compute: Callable[[Tensor], Mapping[str, float]]
) -> dict[str, tuple[float, float]]:
    """95 % intervals of what is computed from the column sums of a table of batches.

    Batches are drawn with replacement, whole: rows of a batch need not be independent, as the links
    of one anchor are not. Equal on all ranks. Source: the cluster bootstrap, Davison and Hinkley
    1997, section 3.8; percentiles.

    Args:
        table: float64 [num_batches, num_sums].
        compute: gives metrics by name from [num_sums].
    Returns:
        Lower and upper end by name; of none with fewer than `MIN_BATCHES` batches, and not of a
        metric that is NaN in a draw.
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
    found = {}
    for name, of_draws in values.items():
        column = torch.tensor(of_draws, dtype=torch.float64)
        if len(column) == _NUM_DRAWS and column.isfinite().all():
            low, high = column.quantile(column.new_tensor([_TAIL, 1 - _TAIL])).tolist()
            found[name] = (low, high)
    return found
