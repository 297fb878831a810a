"""The benchmarks of speed and memory: each runs on a tiny graph, and says what it has measured."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from raygnn.data.edge_types import edge_type_name

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = importlib.import_module("harness")
    tiny = module.Scale("smoke", 400, 4000, 8, 3, 8, 32, (4, 3, 2), 1)
    monkeypatch.setitem(module.SCALES, "smoke", tiny)
    return module


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, so that graphs are made once."""
    return tmp_path_factory.mktemp("benchmarks")


def rows_of(work: Path, name: str) -> dict[str, dict[str, Any]]:
    record = json.loads((work / f"{name}-smoke.json").read_text())
    return {row["what"]: row for row in record["rows"]}


def test_a_table_has_a_line_for_each_row_and_the_ratio_in_words(harness):
    rows = [
        harness.Row("fast", 1234.5, "ms", 0.5, "slow", "<= 1", "a note"),
        harness.Row("slow", 0.25, "s"),
    ]
    lines = harness.table(rows).splitlines()
    assert lines[0].split("|")[1].strip() == "what"
    assert "1,234 ms" in lines[2]
    assert "0.50 x slow" in lines[2]
    assert "0.25 s" in lines[3]
    assert len({len(line) for line in lines}) == 1


def test_interleaved_runs_take_turns_and_drop_the_first_round(harness):
    calls = []

    def own_count() -> float:
        calls.append("own")
        return 7.0

    cases = {"own": own_count, "timed": lambda: calls.append("timed")}
    seconds = harness.interleaved(cases, 2)
    assert calls == ["own", "timed"] * 3
    assert seconds["own"] == [7.0, 7.0]
    assert len(seconds["timed"]) == 2


@pytest.mark.parametrize("is_hetero", [False, True])
def test_rmat_graphs_have_the_edges_they_promise(work, is_hetero):
    rmat_graph = importlib.import_module("rmat_graph")
    graph = rmat_graph.RmatGraph(300, 3000, 4, 3, columns=("weight", "time"), is_hetero=is_hetero)
    bundle = graph.bundle(work)
    assert sum(bundle.num_edges(edge_type) for edge_type in bundle.edge_types) == 3000
    assert sum(bundle.num_nodes(node_type) for node_type in bundle.node_types) == 300
    for edge_type in bundle.edge_types:
        assert set(bundle.columns(edge_type)) == {"weight", "time"}, edge_type_name(edge_type)
        in_degrees = np.diff(bundle.csc(edge_type).indptr)
        assert in_degrees.max() > 3 * in_degrees.mean()  # there are hubs


def test_rmat_edges_drawn_in_pieces_are_those_drawn_at_once():
    from raygnn.data.synthetic.rmat_kernel import draw_rmat_edges

    whole = draw_rmat_edges(1000, 500, 0.57, 0.19, 0.19, 3)
    pieces = [draw_rmat_edges(1000, 250, 0.57, 0.19, 0.19, 3, first) for first in (0, 250)]
    for end in (0, 1):
        assert np.array_equal(whole[end], np.concatenate([piece[end] for piece in pieces]))


def test_sampling(harness, work):
    importlib.import_module("sampling").main(["--work", str(work)])
    rows = rows_of(work, "sampling")
    ours = rows["sample, uniform, 1 thread"]
    assert ours["value"] > 0
    assert rows["sample, weighted"]["ratio"] == pytest.approx(
        rows["sample, weighted"]["value"] / ours["value"]
    )
    assert {"sample, temporal", "sample, hetero", "gather of features"} <= set(rows)


def test_sampling_takes_the_stated_peer_at_reference_scale_only(harness):
    sampling = importlib.import_module("sampling")
    names = ("uniform", "weighted", "temporal", "hetero", "link", "link, links excluded")
    seconds = {
        **dict.fromkeys(names, 0.01),
        "threads 1": 0.02,
        "threads 2": 0.01,
        "threads 1, cpu": 0.01,
        "threads 2, cpu": 0.011,
    }
    rows = {row.what: row for row in sampling.sampling_rows(harness.REFERENCE, seconds, 1e5)}
    assert rows["sample, uniform, 1 thread"].value == pytest.approx(10.0)
    assert rows["torch-sparse"].ratio == pytest.approx(49.0)
    assert rows["pyg-lib"].ratio == pytest.approx(4.9)
    assert rows["sample, thread pool of 2"].ratio == pytest.approx(2.0)
    measured = sampling.sampling_rows(harness.SMOKE, {**seconds, "torch-sparse": 0.5}, 1e5)
    assert "measured" in next(row.note for row in measured if row.what == "torch-sparse")
    assert "pyg-lib" not in [row.what for row in sampling.sampling_rows(harness.SMOKE, seconds, 1)]


def test_training(harness, work):
    training = importlib.import_module("training")
    training.main(["--work", str(work), "--steps-only", "--threads", "1"])
    rows = rows_of(work, "training")
    cached = rows["step, cached"]["value"]
    assert rows["step, live"]["ratio"] == pytest.approx(rows["step, live"]["value"] / cached)
    assert rows["PyG's layers, cached"]["ratio"] > 0
    single, double, *of_peer = training.engine_rows(1000, (5000.0, 4500.0), (500.0, 900.0))
    assert single.note == "200.0 ms a step"
    assert double.ratio == pytest.approx(0.9)
    assert [row.ratio for row in of_peer] == pytest.approx([10, 5])
    assert len(training.engine_rows(1000, (5000.0, 4500.0))) == 2


def test_memory(harness, work):
    memory = importlib.import_module("memory")
    rows = memory.memory_rows(10**9, {1: 1.4e9, 2: 1.8e9}, {1: 2.8e9})
    assert [row.what for row in rows[1:]] == [
        "raygnn, 1 workers",
        "PyG, 1 workers",
        "raygnn, 2 workers",
    ]
    assert rows[1].ratio == pytest.approx(1.4e9 / 1.7e9)
    assert rows[2].ratio == pytest.approx(2.0)
    assert "400 MB a worker" in rows[3].note


def test_a_worker_of_the_memory_benchmark_trains_and_counts_its_own_pages(harness, work):
    worker = importlib.import_module("memory_worker")
    rmat_graph = importlib.import_module("rmat_graph")
    scale = harness.SCALES["smoke"]
    bundle = rmat_graph.RmatGraph(400, 4000, 8, 3, columns=("weight",)).bundle(work)
    for train in (worker.train_raygnn, worker.train_pyg):
        assert train(scale, bundle) is not None
    assert worker.proportional_bytes() > 10**7


def test_startup():
    startup = importlib.import_module("startup")
    lines = [
        (0.5, "Ray says something of its own, and of a graph "),
        (1.0, "[raygnn] graph x"),
        (1.5, "[raygnn] ingest: y"),
        (2.5, "worker set up"),
        (4.0, "first step"),
    ]
    phases = startup.breakdown(lines)
    assert list(phases.values()) == [1.0, 0.5, 1.0, 1.5]
    with pytest.raises(RuntimeError, match="'no line' is not in the output"):
        startup.when(lines, "no line")
    with pytest.raises(RuntimeError, match="failed"):
        startup.stamped(["false"], {})
    seconds = {"raygnn without Ray": [4.0], "imports of torch and PyG": [3.0]}
    assert startup.busy(lines) is None
    assert startup.busy([(1.0, "(pid) first step, 2.50 s of processors")]) == 2.5
    processors = {"raygnn without Ray": 2.5, "imports of torch and PyG": 2.0}
    rows = startup.startup_rows(seconds, {"raygnn without Ray": phases}, processors)
    assert rows[0].note == "+1.0 s; of processors 2.5 s, peer 2.0 s"
    assert len(rows) == 6


def test_scaling(harness, work):
    scaling = importlib.import_module("scaling")
    scale = harness.SCALES["smoke"]
    found = [scaling.measure(size, scale, work, keeps_tables=False) for size in (2000, 8000)]
    rows = scaling.scaling_rows(found)
    assert rows[0].what == "2,000 edges: ingest"
    assert all(row.value > 0 for row in rows)
    assert "<path" in scaling.plot(found)
    assert not (work / "tables" / scaling.graph_of(2000).name).exists()


def test_ingest(harness, work):
    module = importlib.import_module("ingest")
    scale = harness.SCALES["smoke"]
    for kind, write in (("strings", module.write_edges), ("binary", module.write_features)):
        amount = write(work / kind, kind, scale)
        found = module._ingest(work / kind, work / kind)
        rate, peak, again = module.rows_of(kind, amount, found, peer_s=1.0)
        assert rate.ratio == pytest.approx(1.0 / found.seconds)
        assert peak.value > 0
        assert again.value > 0
    module.sort_in_memory(work / "strings")
    module.read_only(work / "binary")
