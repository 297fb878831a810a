"""A step whose micro-batches compete with each other's candidates, on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from raygnn.errors import FAILURES
from raygnn.loops.gradients.accumulation import Accumulation
from raygnn.loops.task import JointLoss
from raygnn.losses import Candidates
from raygnn.parallel import collectives
from raygnn.parallel.all_reduce import LocalTotals
from raygnn.sampling.batch import Batch


@dataclass
class _Encoded:
    """A micro-batch between encoder and loss: embeddings, cut off from the graph behind them."""

    batch: Batch
    rows: dict[str, Tensor]
    cut: dict[str, Tensor]
    offered: Candidates


class JointAccumulation(Accumulation):
    """Encodes all of the rank's micro-batches, then takes the losses, then goes back.

    Between encoders and losses the candidates of all ranks are gathered, and on the way back their
    gradients are summed. So the graphs of all micro-batches of a step are held together: memory is
    that of one batch as large as all of them. A rank without a micro-batch takes part with nothing,
    and one that failed says so in the next collective: no rank waits for one that does not come.

    Source: the cut between encoder and loss is that of GradCache, arXiv:2101.06983, section 3.
    """

    def run(
        self, batches: Iterator[Batch], epoch: int, indices: Sequence[int], local: LocalTotals
    ) -> BaseException | None:
        """See `Accumulation`. Collective: all ranks must call, one without indices too."""
        failure: BaseException | None = None
        encoded: list[_Encoded] = []
        try:
            encoded = [self._encode(batch) for _, batch in self._batches(batches, epoch, indices)]
        except FAILURES as error:  # reported to all ranks
            failure = error
        gathered = _gather([each.offered for each in encoded], failed=failure is not None)
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

    def _take_losses(
        self, encoded: list[_Encoded], offered: Candidates, local: LocalTotals
    ) -> None:
        """Leaves gradients at the cut, at the candidates, and at what is behind neither."""
        joint = self._joint
        for each in encoded:
            with self._optimization.autocast():
                output = joint.loss_among(each.batch, each.cut, offered)
            divisor = self._backward(output)
            self._count(each.batch, output, divisor, local)

    def _go_back(self, encoded: list[_Encoded], gradient: Tensor) -> None:
        """Adds the gradients of what this rank offered, then goes back through the encoders."""
        parts = gradient.split([len(each.offered.ids) for each in encoded]) if encoded else ()
        for each, part in zip(encoded, parts, strict=True):
            each.offered.rows.backward(part)
            behind = [name for name, x in each.rows.items() if x.requires_grad]
            torch.autograd.backward(
                [each.rows[name] for name in behind],
                [_gradient_of(each.cut[name]) for name in behind],
            )

    @property
    def _joint(self) -> JointLoss:
        joint = self._task.joint_loss
        assert joint is not None
        return joint


class _Gathered(NamedTuple):
    """The candidates of all ranks, in rank order, and which of them are this rank's."""

    offered: Candidates
    own: slice


def _gather(own: list[Candidates], *, failed: bool) -> _Gathered | None:
    """The candidates of all ranks, their rows with a gradient of their own.

    Collective: all ranks must call.

    Returns:
        None where a rank failed.
    """
    mine = Candidates.joined(own).columns if own else {}
    layout = {name: (x.dtype, x.shape[1:]) for name, x in mine.items()}
    num_own = len(mine["ids"]) if mine else 0
    answers = collectives.gather_objects((failed, num_own, layout))
    if any(has_failed for has_failed, *_ in answers):
        return None
    first = sum(number for _, number, _ in answers[: collectives.rank()])
    layout = next(found for *_, found in answers if found)
    gathered = {}
    for name, (dtype, shape) in layout.items():
        nothing = torch.zeros((0, *shape), dtype=dtype, device=collectives.communication_device())
        gathered[name] = collectives.gather_rows(mine.get(name, nothing).detach())
    gathered["rows"].requires_grad_()
    return _Gathered(Candidates(**gathered), slice(first, first + num_own))


def _sum_gradient(rows: Tensor, *, failed: bool) -> Tensor | None:
    """The gradient of the gathered rows from the losses of all ranks; None where one failed.

    Collective: all ranks must call.
    """
    gradient = torch.zeros_like(rows) if rows.grad is None or failed else rows.grad
    carried = torch.cat([gradient.flatten(), gradient.new_tensor([float(failed)])])
    carried = collectives.all_reduce_sum(carried)
    return None if carried[-1] > 0 else carried[:-1].view_as(rows)


def _gradient_of(cut: Tensor) -> Tensor:
    return torch.zeros_like(cut) if cut.grad is None else cut.grad
