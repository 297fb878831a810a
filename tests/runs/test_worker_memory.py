"""What a run is said to take of a node, and that it is refused where a node has less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raygnn.train
from raygnn.config import load_config
from raygnn.data.partition.record import part_folder
from raygnn.outputs import worker_memory
from raygnn.outputs.worker_memory import Needs, check_needs, needs_of, say_needs
from raygnn.runtime.data_checks import find_spec
from raygnn.runtime.launch import open_graph
from tests.errors import raises
from tests.partitioned_runs import parts_config, planted_parts
from tests.small_runs import small_config

WIDTH = 16


def _config(folder: Path, **changes: Any) -> dict[str, Any]:
    settings = {
        "data": {
            "synthetic": {"type": "noise", "num_targets": 50},
            "cache_dir": str(folder / "cache"),
            "splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2]},
        },
        "task": {"type": "link_prediction", "args": {"edge_type": "node__links_*"}},
        "model": {"type": "LightGCN", "args": {"out_channels": WIDTH}},
        "metrics": [],
        "scaling__num_workers": 0,
    }
    return small_config(folder, **{**settings, **changes})


@pytest.mark.parametrize(
    ("changes", "copies"),
    [
        ({}, 5),  # rows, gradients, two numbers of Adam, the best rows
        ({"optimizer": {"type": "SGD", "args": {"lr": 0.1}}}, 3),
        (
            {
                "optimizer": {"type": "Adagrad", "args": {}},
                "model": {
                    "type": "LightGCN",
                    "args": {"out_channels": WIDTH, "sparse_embeddings": True},
                },
            },
            3,
        ),
        ({"scaling": {"num_workers": 2, "shard": "optimizer"}}, 4),
        ({"scaling": {"num_workers": 2, "shard": "full"}}, 4),
    ],
)
def test_learned_rows_count_as_often_as_a_worker_holds_them(
    tmp_path: Path, changes: dict[str, Any], copies: int
) -> None:
    loaded = load_config(_config(tmp_path, **changes))
    bundle = open_graph(loaded, None)
    spec = find_spec(loaded, bundle)
    num_rows = sum(bundle.num_nodes(name) for name in bundle.node_types)
    found = needs_of(loaded.config, bundle, spec)
    assert found == Needs(bundle.num_bytes, copies * num_rows * WIDTH * 4, 0)


def test_parts_above_a_gigabyte_have_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    say_needs(Needs(graph=25_300_000_000, learned=1_200_000_000, cached=10))
    line = "graph: 25.3GB, mapped from disk; learned rows: 1.2GB of memory per worker"
    assert capsys.readouterr().out == f"[raygnn] {line}\n"
    say_needs(Needs(graph=10, learned=10, cached=10))
    assert capsys.readouterr().out == ""


def test_a_run_is_refused_where_there_is_less_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_memory, "memory_bytes", lambda: 10_000)
    with raises("run-memory", "has 10kB", "scaling.shard"):
        raygnn.train.fit(_config(tmp_path, run__name="refused"))


def test_workers_of_a_node_share_its_memory() -> None:
    # What is mapped need not fit.
    each = Needs(graph=10**12, learned=500, cached=10**12)
    check_needs(each, 2, memory=1000)
    with raises("run-memory", "3 workers", "1.5kB", "has 1kB"):
        check_needs(each, 3, memory=1000)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_node_of_a_cluster_maps_one_part(tmp_path: Path, num_workers: int) -> None:
    folder = planted_parts(tmp_path / "graph", 3)
    loaded = load_config(parts_config(tmp_path, folder, scaling__num_workers=num_workers))
    outline = open_graph(loaded, None)
    sizes = [
        sum(file.stat().st_size for file in part_folder(folder, part).rglob("*.npy"))
        for part in range(3)
    ]
    found = needs_of(loaded.config, outline, None)
    assert found.graph - outline.num_bytes == (max(sizes) if num_workers else sum(sizes))
    assert found.cached == (sum(sizes) - min(sizes) if num_workers else 0)
