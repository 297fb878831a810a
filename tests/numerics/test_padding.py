"""Runs with padded training batches, as on a GPU, against runs without."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from raygnn.loops.step_graphs import StepGraphs
from raygnn.sampling.batch import Batch, DeviceCopy
from raygnn.sampling.blocks import with_counts
from raygnn.sampling.prefetch import copied_together
from raygnn.sampling.tensor_record import layout_of
from tests.pretended_gpu.cases import CASES, write_graphs
from tests.pretended_gpu.run_cases import check_close, run
from tests.tiers import slow

#: What depends on the sizes of a batch: one of each kind, and every encoder and reader of a batch.
_NAMES = [
    *("GraphSAGE", "GAT", "Hetero nodes", "RGCN nodes", "training rows", "loss retrieval"),
    *("Hetero edges", "accumulation"),
]
_MORE_NAMES = (
    *("GCN", "GIN", "MLP", "GATv2", "Transformer", "GINE", "GraphSAGE max"),
    *("GATv2 on edge features", "HGT nodes", "SimpleHGN nodes", "Hetero of GAT"),
    *("labor", "temporal", "loss mse", "float16 features", "bf16-true", "clipping"),
    *("loss direct_au", "HGT links"),
    *("HGT edges", "relations", "LightGCN", "decoder hadamard_mlp"),
)


class RepeatedSteps(StepGraphs[Any]):
    """Computes a recorded pass again where CUDA would start its kernels again."""

    num_repeated = 0

    def __init__(self, module: Any, device: torch.device, compute: Any, **args: Any) -> None:
        stream = SimpleNamespace(wait_stream=lambda other: None)
        with (
            patch("torch.cuda.Stream", lambda device: stream),
            patch("torch.cuda.graph_pool_handle", lambda: None),
        ):
            super().__init__(module, device, compute, **args)

    def __call__(self, batch: Batch) -> Any:
        copied, memory = copied_together(with_counts(batch), torch.device("cpu"))
        copy = DeviceCopy(memory, layout_of(copied))
        return super().__call__(replace(copied, copy=copy))

    def _compute_aside(self, batch: Batch) -> Any:
        return self._compute(batch)

    def _record(self, batch: Batch) -> Any:
        kept: list[Batch] = []
        compute = self._compute
        self._compute = lambda own: (kept.append(own), compute(own))[1]
        graph = SimpleNamespace()
        with (
            patch("torch.cuda.CUDAGraph", lambda: graph),
            patch("torch.cuda.graph", lambda *args: nullcontext()),
        ):
            recorded = super()._record(batch)
        self._compute = compute

        def replay() -> None:
            type(self).num_repeated += 1
            before = [parameter.grad for parameter, _ in recorded.gradients]
            for parameter, _ in recorded.gradients:
                parameter.grad = None
            output, _, norm = compute(kept[0])
            recorded.result[0].loss_sum.copy_(output.loss_sum)
            if norm is not None:
                recorded.result[2].copy_(norm)
            for (parameter, gradient), held in zip(recorded.gradients, before, strict=True):
                gradient.copy_(parameter.grad)
                parameter.grad = held

        graph.replay = replay
        return recorded


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    write_graphs(folder)
    return folder


@pytest.mark.parametrize("name", [*_NAMES, *slow(*_MORE_NAMES)])
def test_padded_and_repeated_steps_have_the_numbers_of_others(
    graphs: Path, tmp_path: Path, name: str
):
    expected = run(CASES[name], tmp_path / "plain", graphs, use_gpu=False)
    before = RepeatedSteps.num_repeated
    with (
        patch("raygnn.loops.engine.can_record", lambda *_: True),
        patch("raygnn.loops.gradients.StepGraphs", RepeatedSteps),
    ):
        found = run(CASES[name], tmp_path / "padded", graphs, use_gpu=False)
    assert RepeatedSteps.num_repeated > before
    check_close(CASES[name], expected, found)
