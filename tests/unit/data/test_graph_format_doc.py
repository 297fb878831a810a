"""The example of docs/graph-format.md is ingested as it stands there."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from raygnn.data.bundle import SparseColumn
from raygnn.data.ingest.build_bundle import ingest
from tests.graph_writer import write_shards

_DOC = Path(__file__).parents[3] / "docs" / "graph-format.md"


def test_the_example_is_ingested(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", _DOC.read_text(), re.DOTALL)
    (tmp_path / "graph.yaml").write_text(example)
    users = pa.table(
        {
            "user_id": ["ann", "bob", "cy"],
            "age": [30, 40, 50],
            "embedding": pa.array([[0.5, 1.5], [2.5, 3.5], [4.5, 5.5]], pa.list_(pa.float32())),
            "tag_ids": [[7, 999], [], [0]],
            "tag_weights": [[0.5, 1.0], [], [2.0]],
            "segment": ["new", None, "loyal"],
            "split": ["train", None, "test"],
            "joined": pa.array([datetime(2024, 1, day) for day in (1, 2, 3)], pa.timestamp("s")),
        }
    )
    write_shards(tmp_path / "nodes" / "user", [users.slice(0, 2), users.slice(2)])
    follows = pa.table({"src": ["ann", "bob"], "dst": ["bob", "cy"]})
    write_shards(tmp_path / "edges" / "follows", [follows])
    (tmp_path / "nodes" / "item.csv").write_text("sku,price,stock\n1,9.5,3\n2,8,0\n")
    bought = "user_id,sku,amount,day\nann,2,1,20\ncy,2,2,10\nann,1,3,5\n"
    (tmp_path / "edges" / "bought.csv").write_text(bought)

    bundle = ingest(tmp_path, cache_dir=tmp_path / "cache")

    assert bundle.ids("user").to_pylist() == ["ann", "bob", "cy"]
    assert np.asarray(bundle.column("user", "x")).tolist() == [
        [30, 0.5, 1.5],
        [40, 2.5, 3.5],
        [50, 4.5, 5.5],
    ]
    tags = bundle.column("user", "tags")
    assert isinstance(tags, SparseColumn)
    assert tags.indices.tolist() == [7, 999, 0]
    assert np.asarray(bundle.column("user", "y")).tolist() == [1, -1, 0]
    assert bundle.columns("user")["y"].class_names == ("loyal", "new")
    assert np.asarray(bundle.column("item", "x")).tolist() == [[9.5, 3], [8, 0]]
    assert bundle.num_edges(("user", "follows", "user")) == 4
    bought_type = ("user", "bought", "item")
    assert bundle.csc(bought_type).indptr.tolist() == [0, 1, 3]
    # Ordered by day within a row.
    assert bundle.csc(bought_type).indices.tolist() == [0, 2, 0]
    assert np.asarray(bundle.column(bought_type, "weight")).tolist() == [3, 2, 1]
