"""All-reduce of gradients by buckets during the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from raygnn.errors import TrainingError
from raygnn.parallel import collectives
from raygnn.parallel.all_reduce import (
    GradientReducer,
    LocalTotals,
    UnreadTotals,
    give_gradients,
    take_gradients,
)
from raygnn.parallel.sharded_tables import ShardedTables

#: As in torch's DistributedDataParallel: large enough to hide a collective's latency.
_BUCKET_BYTES = 25 << 20


@dataclass
class _Bucket:
    parameters: list[nn.Parameter] = field(default_factory=list)
    waits_for: set[int] = field(default_factory=set)
    arrive: Callable[[], Tensor] | None = None


class OverlappingReducer(GradientReducer):
    """Sums gradients bucket by bucket, while a backward pass computes the others.

    Buckets go once from the last parameter to the first, about the order in which a backward pass
    finishes gradients, and leave in this order on every rank. So no rank waits for a collective
    that another has not started, whatever parameters its batches use, and sums have the same order
    in each step and after a resume. Only a rank's last backward pass of a step overlaps; earlier
    gradients are added in place. Remaining buckets leave in `reduce`, also on a rank that failed or
    has no batch.

    Source: PyTorch Distributed, arXiv:2006.15704, section 3.2.
    """

    def __init__(
        self,
        module: nn.Module,
        metric_names: Sequence[str],
        device: torch.device,
        beside: Tensor | None = None,
        tables: ShardedTables | None = None,
    ) -> None:
        super().__init__(module, metric_names, device, beside, tables)
        self._buckets = self._cut_buckets()
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}
        self._is_last_pass = False
        self._num_left = 0
        self._start_step()
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def begin_last_backward(self) -> None:
        self._is_last_pass = True

    def reduce(self, local: LocalTotals) -> UnreadTotals:
        try:
            for bucket in self._buckets[self._num_left :]:
                self._send(bucket, failed=local.failed)
            return super().reduce(local)
        finally:
            self._start_step()

    def _sum_over_ranks(self, local: LocalTotals) -> Tensor:
        totals = self._row_of(local, self._dtype)
        beside = self._beside.to(totals)
        last = collectives.all_reduce_sum(torch.cat([beside, totals]))
        self._beside.copy_(last[: len(beside)])
        for bucket in self._buckets:
            assert bucket.arrive is not None
            give_gradients(bucket.parameters, bucket.arrive())
        return last[len(beside) :]

    def _cut_buckets(self) -> list[_Bucket]:
        limit = _BUCKET_BYTES // self._dtype.itemsize
        buckets: list[_Bucket] = []
        size = 0
        for parameter in reversed(self._parameters):
            if not buckets or size + parameter.numel() > limit:
                buckets.append(_Bucket())
                size = 0
            buckets[-1].parameters.append(parameter)
            size += parameter.numel()
        return buckets

    def _start_step(self) -> None:
        self._is_last_pass, self._num_left = False, 0
        for bucket in self._buckets:
            bucket.waits_for, bucket.arrive = {id(p) for p in bucket.parameters}, None

    def _on_gradient(self, parameter: Tensor) -> None:
        if not self._is_last_pass:
            return
        bucket = self._bucket_of[id(parameter)]
        if bucket.arrive is not None:
            raise TrainingError(
                "scaling.gradients='ddp' is invalid: a weight got gradients twice in one backward "
                "pass, after its sum was sent, for example with reentrant checkpoints. Set "
                "scaling.gradients to flat.",
                id="gradients-twice",
            )
        bucket.waits_for.discard(id(parameter))
        while self._num_left < len(self._buckets):
            bucket = self._buckets[self._num_left]
            if bucket.waits_for:
                break
            self._send(bucket, failed=False)

    def _send(self, bucket: _Bucket, *, failed: bool) -> None:
        size = sum(p.numel() for p in bucket.parameters)
        buffer = torch.empty(size, dtype=self._dtype, device=self._device)
        take_gradients(bucket.parameters, buffer, failed=failed)
        self._num_left += 1
        bucket.arrive = collectives.start_all_reduce_sum(buffer)
