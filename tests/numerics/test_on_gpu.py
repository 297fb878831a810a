"""Whole runs on a CUDA device.

`tests/pretended_gpu` runs them on the device that torch only pretends to have.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import raygnn.train
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.errors import TrainingError
from raygnn.loops.engine import Engine
from raygnn.metrics import FullRanking, Links
from raygnn.models import GAT, GCN
from raygnn.models.exact import ExactOptions, InEdges, KeptBlocks, exact_inference
from raygnn.parallel.all_reduce import UnreadTotals
from raygnn.sampling.device_batches import Template
from raygnn.sampling.prefetch import DeviceCopies
from raygnn.sampling.sampled_sequence import SampledSequence
from tests.pretended_gpu.cases import CASES, Case, write_graphs
from tests.pretended_gpu.device import Record, watched
from tests.pretended_gpu.run_cases import check_close, run, watched_steps
from tests.small_runs import assert_same_weights, kill_at, small_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

#: One of each kind of model, batch and precision.
_KINDS = (
    *("GraphSAGE", "GAT", "Hetero nodes", "HGT links", "relations", "self-supervised grace"),
    *("several tasks", "sparse features", "GraphSAGE fp16-mixed", "GATv2 bf16-mixed", "clipping"),
)


@pytest.fixture(scope="session")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graphs of `CASES`, and one with a hub."""
    folder = tmp_path_factory.mktemp("graphs")
    write_graphs(folder)
    rng, num_nodes = np.random.default_rng(0), 5000
    y = rng.integers(0, 3, num_nodes)
    x = (np.eye(3)[y] + rng.normal(size=(num_nodes, 3))).astype(np.float32)
    source = rng.integers(0, num_nodes, 110_000)
    target = np.where(np.arange(len(source)) < 100_000, 0, rng.integers(0, num_nodes, len(source)))
    nodes, edges = node_rows(np.arange(num_nodes), {"x": x}, {"y": y}), edge_rows(source, target)
    write_tables(GraphTables({"n": nodes}, {("n", "to", "n"): edges}), str(folder / "hub"))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_run_comes_close_to_the_cpu(graphs: Path, tmp_path: Path, name: str):
    check_on_both(CASES[name], graphs, tmp_path)


@pytest.mark.parametrize("model", ["GraphSAGE", "GAT"])
def test_so_does_a_hub_with_all_of_its_edges(graphs: Path, tmp_path: Path, model: str):
    changes = {
        "model": {"type": model, "args": {"hidden_channels": 8}},
        "sampling__fanouts": [-1],
        "loader__batch_size": 1000,
        "metrics": [],
    }
    check_on_both(Case("hub", changes), graphs, tmp_path)


def check_on_both(case: Case, graphs: Path, folder: Path) -> None:
    """Checks that a case gives the numbers of the CPU, to its tolerance."""
    cpu, gpu = (run(case, folder / str(on), graphs, use_gpu=on) for on in (False, True))
    check_close(case, cpu, gpu)


@pytest.mark.parametrize("name", _KINDS)
def test_no_step_waits_but_to_read_its_totals(graphs: Path, tmp_path: Path, name: str):
    def under(mode: str, owner: Any, method: str) -> Any:
        original: Callable[..., Any] = getattr(owner, method)

        def call(*args: Any) -> Any:
            before = torch.cuda.get_sync_debug_mode()
            set_sync_debug_mode(mode)
            try:
                return original(*args)
            finally:
                set_sync_debug_mode(before)

        return patch.object(owner, method, call)

    with (
        under("error", Engine, "_step"),
        under("default", UnreadTotals, "read"),
        under("default", Engine, "_boundary"),
    ):
        run(CASES[name], tmp_path, graphs, use_gpu=True)


def set_sync_debug_mode(mode: str | int) -> None:
    """Sets what CUDA does if the host waits, without the warning that this is a prototype."""
    with warnings.catch_warnings(action="ignore"):
        torch.cuda.set_sync_debug_mode(mode)


def test_a_batch_of_the_full_ranking_takes_few_operators_and_one_wait():
    torch.manual_seed(0)
    num_anchors, num_targets = 1024, 50_000
    anchors, targets = (torch.randint(-9, 9, (n, 8)).float() for n in (num_anchors, num_targets))
    ends = torch.arange(num_anchors + 1)
    positives = Links(ends, torch.randint(0, num_targets, (num_anchors,)))
    known = Links(3 * ends, torch.randint(0, num_targets, (3 * num_anchors,)))

    def rank(device: str, chunk_size: int | None = None) -> torch.Tensor:
        ranking = FullRanking(num_targets, [20], chunk_size)
        rows = anchors.to(device), targets.to(device)
        with watched(record):
            return ranking.update(*rows, positives, known, lambda a, b: a @ b.T)

    record = Record()
    state = rank("cuda")
    assert record.num_operators <= 40
    assert sum(record.waits.values()) == 1, record.waits
    assert torch.equal(state, rank("cpu"))
    assert torch.equal(state, rank("cuda", chunk_size=num_anchors * 20_000))


@pytest.mark.parametrize("model", [GCN, GAT])
@pytest.mark.parametrize("chunk_size", [None, 400])
def test_exact_encoding_waits_once_a_chunk_and_then_never(model: Any, chunk_size: int | None):
    rng = np.random.default_rng(0)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 9, 300))])
    edges = InEdges(indptr=indptr, indices=rng.integers(0, 300, indptr[-1]).astype(np.int32))
    x = rng.normal(size=(300, 6)).astype(np.float32)
    encoder, kept = model(6, 4, 8).eval(), KeptBlocks()

    def encode(options: ExactOptions) -> tuple[torch.Tensor, Record]:
        record, of_graph = Record(), ({("n", "to", "n"): edges}, {"n": 300}, None)
        encoder.to(options.device)
        with watched(record):
            rows = exact_inference(encoder, lambda _, ids: x[ids], *of_graph, options)
        return rows["n"], record

    expected, _ = encode(ExactOptions())
    options = ExactOptions(device=torch.device("cuda"), chunk_size=chunk_size, kept=kept)
    first, record = encode(options)
    num_chunks = len(kept.chunks["n"])
    assert (num_chunks == 1) == (chunk_size is None)
    assert sum(record.waits.values()) == num_chunks, record.waits
    again, record = encode(options)
    assert not record.waits
    torch.testing.assert_close(first.cpu(), expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(first, again)


@pytest.fixture
def train(small_tables: str, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Trains on the device in a folder of its own; returns the config."""

    def train(name: str, **changes: Any) -> dict[str, Any]:
        on_device = {"scaling__num_workers": 0, "scaling__use_gpu": True}
        changes = {"data__uri": small_tables, **on_device, **changes}
        config = small_config(tmp_path / name, **changes)
        raygnn.train.fit(config, allow_modules=["tests"])
        return config

    return train


@pytest.mark.parametrize("model", ["GraphSAGE", "GAT", "Transformer"])
def test_a_second_run_has_the_same_bits(train, model: str):
    changes = {"model": {"type": model, "args": {"hidden_channels": 8, "dropout": 0.3}}}
    assert_same_weights(train("first", **changes), train("second", **changes))


@pytest.mark.skipif(torch.version.cuda is None, reason="needs CUDA's own graphs")
@pytest.mark.parametrize(
    "name",
    [
        *("GraphSAGE", "GAT", "Hetero nodes", "HGT nodes", "RGCN nodes", "loss retrieval"),
        *("HGT edges", "accumulation", "training rows", "temporal links"),
    ],
)
def test_recorded_steps_have_the_bits_of_computed_ones(graphs: Path, tmp_path: Path, name: str):
    replay, replayed = torch.cuda.CUDAGraph.replay, []

    def counted(self: torch.cuda.CUDAGraph) -> None:
        replayed.append(self)
        replay(self)

    case = CASES[name]
    args = {**case.changes["model"]["args"], "dropout": 0.3}
    steps = {"training__max_steps": 8, "training__validate_every": {"steps": 8}}
    changes = {**case.changes, **steps, "model": {**case.changes["model"], "args": args}}
    case = replace(case, changes=changes)
    with patch.object(torch.cuda.CUDAGraph, "replay", counted):
        recorded = run(case, tmp_path / "recorded", graphs, use_gpu=True)
    with patch("raygnn.loops.gradients.StepGraphs", _computed):
        computed = run(case, tmp_path / "computed", graphs, use_gpu=True)
    assert replayed
    assert numbers_of(recorded) == numbers_of(computed)


@pytest.mark.parametrize(
    "name",
    [
        *("GCN", "GINE", "Hetero nodes", "loss mse", "accumulation"),
        *("loss retrieval", "logQ", "HGT links", "relations", "HGT edges"),
        *("temporal", "training rows", "temporal links", "edges with their own neighborhoods"),
    ],
)
def test_batches_sampled_on_the_device_have_the_bits_of_the_host(
    graphs: Path, tmp_path: Path, name: str
):
    steps = {"training__max_epochs": 8, "training__max_steps": 8}
    case = replace(CASES[name], changes={**CASES[name].changes, **steps})
    sampled, batch_of, record = [], Template.batch, Record()

    def counted(self: Template, *args: Any) -> Any:
        sampled.append(self)
        return batch_of(self, *args)

    with contextlib.ExitStack() as stack:
        if torch.version.cuda is None:  # the pretended device has no graphs
            stack.enter_context(patch("raygnn.loops.engine.can_record", lambda *_: True))
            stack.enter_context(patch("raygnn.loops.gradients.StepGraphs", _computed))
        with patch.object(Template, "batch", counted), watched_steps(record):
            on_device = run(case, tmp_path / "device", graphs, use_gpu=True)
        with patch.object(SampledSequence, "sample_on_device", lambda self: "a test"):
            on_host = run(case, tmp_path / "host", graphs, use_gpu=True)
    assert len(sampled) >= 3
    assert numbers_of(on_device) == numbers_of(on_host)
    assert sum(record.waits.values()) <= 8, record.waits
    assert not record.mixes


def _computed(module: Any, device: Any, compute: Any, accumulates: bool = False) -> Any:
    """Stands in for `StepGraphs`, and computes each step."""
    return compute


def numbers_of(result: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in result.items() if "/loss" in name}


@pytest.mark.parametrize("device_features", [True, False])
def test_late_copies_of_eight_threads_change_no_bit(train, device_features: bool):
    begin = DeviceCopies.begin

    def late(self: DeviceCopies, batch: Any) -> Any:
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(20_000_000)  # cycles, some 10 ms
        return begin(self, batch)

    expected = train("expected", loader__num_threads=1)
    threads = {"loader__num_threads": 8, "loader__prefetch_batches": 8}
    with patch.object(DeviceCopies, "begin", late):
        found = train("late", data__device_features=device_features, **threads)
    assert_same_weights(found, expected)


def test_a_resumed_run_has_the_bits_of_a_straight_one(train, tmp_path: Path):
    changes = {"checkpoint__every": {"steps": 3}, "callbacks": kill_at(7)}
    straight = train("straight", **changes)
    marker = tmp_path / "killed" / "kill"
    marker.parent.mkdir()
    marker.touch()
    with pytest.raises(TrainingError, match="killed after step 7"):
        train("killed", **changes)
    marker.unlink()
    assert_same_weights(train("killed", **changes), straight)
