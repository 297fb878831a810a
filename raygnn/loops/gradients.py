from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from raygnn.config import Config, LoadedConfig, resolve
from raygnn.console import say
from raygnn.errors import FAILURES, ConfigError, TrainingError
from raygnn.loops.callback_list import CallbackList
from raygnn.loops.optimization import Optimization
from raygnn.loops.process import seed_micro_batch
from raygnn.loops.step_graphs import StepGraphs
from raygnn.loops.task import JointLoss, StepOutput, Task
from raygnn.losses import Candidates
from raygnn.parallel import collectives
from raygnn.parallel.all_reduce import GradientReducer, LocalTotals
from raygnn.parallel.sharded_tables import node_ids
from raygnn.sampling.batch import Batch

#: Hooks that see the batch or the gradients of a pass before it has ended.
_WITHIN_PASS = (
    *("on_train_batch_start", "on_train_batch_end", "before_sync_grad", "after_sync_grad"),
    "before_clip_grad_norm",
)


class GradReduction:
    """The factor on a micro-batch's summed loss, and its share of the step's divisor.

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
        """Factor on this micro-batch's summed loss, and its addition to the divisor."""
        if self._kind == "sample_mean":
            return 1.0, output.weight
        own_mean = 1.0 / output.weight if self._is_mean and output.weight else 1.0
        if self._weigh is not None:
            weight = float(self._weigh(output))
            if not 0 <= weight < math.inf:
                raise ConfigError(
                    f"training.grad_reduction={self._kind!r} is invalid: it returned {weight}. "
                    "Return a finite weight of at least 0. [training-reduction-weight]"
                )
            return own_mean * weight, weight
        return own_mean, 1.0

    @property
    def divides(self) -> bool:
        return self._kind != "sum"


class Accumulation:
    """Runs each micro-batch separately: forward, backward, next.

    Attributes:
        wait_s: seconds that this rank has waited for batches.
    """

    def __init__(
        self,
        task: Task,
        config: Config,
        optimization: Optimization,
        reduction: GradReduction,
        device: torch.device,
        callbacks: CallbackList,
        reducer: GradientReducer,
    ) -> None:
        self._task = task
        self._config = config
        self._optimization = optimization
        self._reduction = reduction
        self._device = device
        self._callbacks = callbacks
        self._reducer = reducer
        self.wait_s = 0.0
        self._graphs: StepGraphs[tuple[StepOutput, float, Tensor | None]] | None = None
        self._accumulates = config.batch.num_micro_batches > 1
        is_listened_to = callbacks.listen(*_WITHIN_PASS)
        if task.pads and is_listened_to and collectives.rank() == 0:
            hooks = ", ".join(name for name in _WITHIN_PASS if callbacks.listen(name))
            say(f"training.cuda_graphs: steps are not recorded, because callbacks have {hooks}")
        elif task.pads and not is_listened_to:
            is_whole = not self._accumulates and collectives.world_size() == 1
            compute = self._whole_pass if is_whole else self._part_of_step
            self._graphs = StepGraphs(
                optimization.module, device, compute, accumulates=self._accumulates
            )

    def run(
        self, batches: Iterator[Batch], epoch: int, indices: Sequence[int], local: LocalTotals
    ) -> BaseException | None:
        """Leaves summed gradients in every `.grad`, and adds to `local`.

        Returns the error on this rank, which the engine reports to all ranks.
        """
        try:
            for batch in self._batches(batches, epoch, indices):
                if self._graphs is not None and batch.num_added_edges is not None:
                    output, divisor, local.norm = self._graphs(batch)
                    if self._accumulates:  # the next pass overwrites it
                        output = _copied(output)
                else:
                    output, divisor = self._pass(batch)
                self._count(batch, output, divisor, local)
        except FAILURES as error:  # flagged to all ranks, which then raise
            local.failed = True
            return error
        return None

    def _pass(self, batch: Batch) -> tuple[StepOutput, float]:
        with self._optimization.autocast():
            output = self._task.training_step(batch.computed())
        divisor = self._backward(output)
        return _without_gradient(output), divisor

    def _whole_pass(self, batch: Batch) -> tuple[StepOutput, float, Tensor]:
        """The only pass of a step: it also divides the gradients, and gives their norm."""
        output, divisor = self._pass(batch)
        if self._reduction.divides:
            self._reducer.scale(1.0 / divisor)
        return output, divisor, self._optimization.grad_norm().double()

    def _part_of_step(self, batch: Batch) -> tuple[StepOutput, float, None]:
        """A pass whose gradients are added to those of other passes or ranks."""
        return *self._pass(batch), None

    def _batches(
        self, batches: Iterator[Batch], epoch: int, indices: Sequence[int]
    ) -> Iterator[Batch]:
        """This rank's micro-batches on the device, with generators seeded for each.

        With sharded learned rows, all batches are sampled first and their rows fetched together.
        Collective then: all ranks must iterate, also without indices.
        """
        waiting: Iterator[Batch] = (self._next(batches) for _ in indices)
        if self._optimization.tables:
            waiting = iter(self._with_rows(waiting))
        for index, batch in zip(indices, waiting, strict=True):
            seed_micro_batch(self._config.seed, epoch, index)
            if self._graphs is None:
                batch = batch.to(self._device, non_blocking=True)
            self._callbacks.call("on_train_batch_start", batch)
            yield batch

    def _next(self, batches: Iterator[Batch]) -> Batch:
        began = time.monotonic()
        batch = next(batches)
        self.wait_s += time.monotonic() - began
        return batch

    def _with_rows(self, waiting: Iterator[Batch]) -> list[Batch]:
        fetched: list[Batch] = []
        failure: BaseException | None = None
        try:
            fetched = list(waiting)
        except FAILURES as error:  # the others wait for what this rank asks for
            failure = error
        self._optimization.tables.fetch([node_ids(batch) for batch in fetched])
        if failure is not None:
            raise failure
        return fetched

    def _backward(self, output: StepOutput) -> float:
        factor, divisor = self._reduction.factor_and_divisor(output)
        self._optimization.scaler.scale(output.loss_sum * factor).backward()
        return divisor

    def _count(self, batch: Batch, output: StepOutput, divisor: float, local: LocalTotals) -> None:
        local.add(
            weight=output.weight,
            divisor=divisor,
            loss_sum=output.loss_sum,
            num_samples=self._task.num_samples(batch),
            num_edges=batch.num_edges,
        )
        self._check_step_metrics(output)
        local.add_metrics(output.metrics)
        self._callbacks.call("on_train_batch_end", batch, output)

    def _check_step_metrics(self, output: StepOutput) -> None:
        declared = sorted(self._task.step_metrics)
        if sorted(output.metrics) != declared:
            raise TrainingError(
                f"task.type={self._config.task.type!r} is invalid: training_step gave "
                f"{sorted(output.metrics)}. Give all step_metrics {declared}. [task-step-metrics]"
            )


def _without_gradient(output: StepOutput) -> StepOutput:
    """The output with a loss in float64 that does not keep the pass."""
    return replace(output, loss_sum=output.loss_sum.detach().double())


def _copied(output: StepOutput) -> StepOutput:
    metrics = {n: x.clone() if isinstance(x, Tensor) else x for n, x in output.metrics.items()}
    return replace(output, loss_sum=output.loss_sum.clone(), metrics=metrics)


@dataclass
class _Encoded:
    batch: Batch
    rows: dict[str, Tensor]
    cut: dict[str, Tensor]
    offered: Candidates


class JointAccumulation(Accumulation):
    """Encodes all of the rank's micro-batches, then computes losses, then runs backward.

    Between encoder and loss, the candidates of all ranks are gathered; on the way back their
    gradients are summed. So a step needs the memory of one batch as large as all its micro-batches.
    A rank without a micro-batch contributes nothing, and one that failed reports it in the next
    collective, so no rank waits for it.

    Source: the cut between encoder and loss is that of GradCache, arXiv:2101.06983, section 3.
    """

    #: Types and shapes of candidates, from the first step that has any: the same on all ranks.
    _layout: Mapping[str, tuple[torch.dtype, torch.Size]] = MappingProxyType({})

    def run(
        self, batches: Iterator[Batch], epoch: int, indices: Sequence[int], local: LocalTotals
    ) -> BaseException | None:
        """Collective: all ranks must call, also without indices."""
        failure: BaseException | None = None
        encoded: list[_Encoded] = []
        try:
            encoded = [self._encode(batch) for batch in self._batches(batches, epoch, indices)]
        except FAILURES as error:  # reported to all ranks
            failure = error
        gathered = self._gather([each.offered for each in encoded], failed=failure is not None)
        if gathered is not None:
            try:
                self._take_losses(encoded, gathered.offered, local)
            except FAILURES as error:  # reported to all ranks
                failure = error
            gradient = _sum_gradient(gathered.offered.rows, failed=failure is not None)
            if gradient is not None:
                try:
                    self._go_back(encoded, gradient[gathered.own])
                except FAILURES as error:  # reported to all ranks by the engine
                    failure = error
        local.failed = failure is not None
        return failure

    def _encode(self, batch: Batch) -> _Encoded:
        joint = self._joint
        with self._optimization.autocast():
            rows = joint.encode(batch)
            cut = {name: x.detach().requires_grad_() for name, x in rows.items()}
            return _Encoded(batch, rows, cut, joint.offer(batch, cut))

    def _gather(self, local: list[Candidates], *, failed: bool) -> _Gathered | None:
        """The candidates of all ranks, as leaves; None if a rank failed. Collective."""
        mine = Candidates.joined(local).columns if local else {}
        num_own = len(mine["ids"]) if mine else 0
        answers = collectives.gather_numbers([failed, num_own])
        if any(has_failed for has_failed, _ in answers):
            return None
        if not self._layout:
            layout = {name: (x.dtype, x.shape[1:]) for name, x in mine.items()}
            self._layout = next(filter(None, collectives.gather_objects(layout)))
        gathered, device = {}, collectives.communication_device()
        for name, (dtype, shape) in self._layout.items():
            nothing = torch.zeros((0, *shape), dtype=dtype, device=device)
            gathered[name] = collectives.gather_rows(mine.get(name, nothing).detach())
        gathered["rows"].requires_grad_()
        first = sum(number for _, number in answers[: collectives.rank()])
        return _Gathered(Candidates(**gathered), slice(first, first + num_own))

    def _take_losses(
        self, encoded: list[_Encoded], offered: Candidates, local: LocalTotals
    ) -> None:
        joint = self._joint
        for each in encoded:
            with self._optimization.autocast():
                output = joint.loss_among(each.batch, each.cut, offered)
            divisor = self._backward(output)
            self._count(each.batch, _without_gradient(output), divisor, local)

    def _go_back(self, encoded: list[_Encoded], gradient: Tensor) -> None:
        parts = gradient.split([len(each.offered.ids) for each in encoded]) if encoded else ()
        for each, part in zip(encoded, parts, strict=True):
            each.offered.rows.backward(part)
            behind = [name for name, x in each.rows.items() if x.requires_grad]
            cuts = [each.cut[name] for name in behind]
            gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in cuts]
            torch.autograd.backward([each.rows[name] for name in behind], gradients)

    @property
    def _joint(self) -> JointLoss:
        joint = self._task.joint_loss
        assert joint is not None
        return joint


class _Gathered(NamedTuple):
    offered: Candidates
    own: slice


def _sum_gradient(rows: Tensor, *, failed: bool) -> Tensor | None:
    """Gradient of the gathered rows from all ranks' losses; None if one failed. Collective."""
    gradient = torch.zeros_like(rows) if rows.grad is None or failed else rows.grad
    if collectives.world_size() == 1:  # nothing to wait for
        return None if failed else gradient
    carried = torch.cat([gradient.flatten(), gradient.new_tensor([float(failed)])])
    carried = collectives.all_reduce_sum(carried)
    return None if carried[-1] > 0 else carried[:-1].view_as(rows)
