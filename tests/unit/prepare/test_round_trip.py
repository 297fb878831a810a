"""From a source through tables and ingest to a bundle: the same graph at both ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch_geometric.data import Data, HeteroData

from raygnn.config.data_section import HashSplit
from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.splits import make_splits
from raygnn.data.tables.graph_tables import GraphTables, write_tables
from raygnn.data.tables.pyg import tables_from_pyg
from raygnn.prepare.synthetic import GENERATORS, synthetic_tables
from tests.generated import SMALL

EDGE = ("node", "to", "node")


def bundle_of(tables: GraphTables, folder: Path, num_shards: int = 1) -> Bundle:
    uri = write_tables(tables, str(folder / "graph"), num_shards)
    return ingest(uri, cache_dir=folder / "cache")


def dense(bundle: Bundle, type_: str | tuple[str, str, str], name: str) -> np.ndarray:
    column = bundle.column(type_, name)
    if not isinstance(column, SparseColumn):
        return column
    rows = np.zeros((len(column.indptr) - 1, column.dim), np.float32)
    row_of = np.repeat(np.arange(len(rows)), np.diff(column.indptr))
    rows[row_of, column.indices] = 1 if column.values is None else column.values
    return rows


def edges_of(bundle: Bundle, edge_type: tuple[str, str, str]) -> list[tuple[int, int]]:
    """(source, target) pairs in the order of the bundle, as dense ids."""
    csc = bundle.csc(edge_type)
    target = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
    return list(zip(csc.indices.tolist(), target.tolist(), strict=True))


@st.composite
def graphs(draw: st.DrawFn) -> Data:
    num_nodes, num_edges = draw(st.integers(1, 12)), draw(st.integers(0, 25))
    num_features = draw(st.sampled_from([1, 3, 40]))
    dtype = draw(st.sampled_from([np.float32, np.float16]))
    sparsity = draw(st.sampled_from([0, 60]))
    cells = draw(
        hnp.arrays(np.int64, (num_nodes, num_features), elements=st.integers(-sparsity, 9))
    )
    x = np.maximum(cells, 0).astype(dtype) / 4
    ends = draw(hnp.arrays(np.int64, (2, num_edges), elements=st.integers(0, num_nodes - 1)))
    y = draw(hnp.arrays(np.int64, num_nodes, elements=st.integers(-1, 4)))
    codes = draw(hnp.arrays(np.int64, num_nodes, elements=st.integers(0, 3)))
    return Data(
        x=torch.from_numpy(x),
        edge_index=torch.from_numpy(ends),
        edge_attr=torch.arange(num_edges, dtype=torch.float32).reshape(-1, 1),
        y=torch.from_numpy(y),
        **{
            f"{name}_mask": torch.from_numpy(codes == i + 1)
            for i, name in enumerate(("train", "val", "test"))
        },
    )


@given(data=graphs(), num_shards=st.integers(1, 4))
@settings(max_examples=20)
def test_any_data_comes_back(
    tmp_path_factory: pytest.TempPathFactory, data: Data, num_shards: int
) -> None:
    bundle = bundle_of(tables_from_pyg(data), tmp_path_factory.mktemp("graph"), num_shards)
    assert bundle.ids("node").to_pylist() == list(range(data.num_nodes))
    x = dense(bundle, "node", "x")
    assert x.dtype == data.x.numpy().dtype
    assert np.array_equal(x, data.x.numpy())
    assert np.array_equal(bundle.column("node", "y"), data.y.numpy())
    split = bundle.declared_split("node")
    for code, mask in enumerate((data.train_mask, data.val_mask, data.test_mask), start=1):
        assert split is not None
        assert np.array_equal(split == code, mask.numpy())
    if data.num_edges == 0:
        assert bundle.edge_types == []
        return
    # edge_attr numbers the input edges: it names, at each place, the edge that has come there
    entry = dense(bundle, EDGE, "edge_attr").reshape(-1).astype(np.int64)
    assert sorted(entry.tolist()) == list(range(data.num_edges))
    source, target = data.edge_index.numpy()[:, entry]
    assert edges_of(bundle, EDGE) == list(zip(source.tolist(), target.tolist(), strict=True))


def test_hetero_data_comes_back(tmp_path: Path) -> None:
    data = HeteroData()
    data["user"].n_id = torch.tensor([70, 10, 30])
    data["user"].x = torch.tensor([[7.0], [1.0], [3.0]])
    data["user"].y = torch.tensor([[0, 1], [1, 1], [0, 0]])
    data["item"].x = torch.eye(2)
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 2], [1, 0]])
    data["user", "buys", "item"].time = torch.tensor([5, 4])
    data["user", "likes", "item"].edge_index = torch.tensor([[1], [1]])
    data["user", "likes", "item"].edge_weight = torch.tensor([0.5])
    bundle = bundle_of(tables_from_pyg(data), tmp_path, num_shards=2)
    assert bundle.ids("user").to_pylist() == [70, 10, 30]
    assert bundle.column("user", "y").tolist() == [[0, 1], [1, 1], [0, 0]]
    assert edges_of(bundle, ("user", "buys", "item")) == [(2, 0), (0, 1)]
    assert bundle.column(("user", "buys", "item"), "time").tolist() == [4, 5]
    assert bundle.column(("user", "likes", "item"), "weight").tolist() == [0.5]


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("remote", [False, True])
def test_generated_graphs_come_back(tmp_path: Path, name: str, remote: bool) -> None:
    tables = synthetic_tables(name, **SMALL[name])
    uri = f"memory://round-trip/{name}" if remote else str(tmp_path / "graph")
    write_tables(tables, uri, num_shards=3)
    bundle = ingest(uri, cache_dir=tmp_path / "cache")
    for node_type, node in tables.nodes.items():
        assert bundle.ids(node_type).to_pylist() == node.table.column(node.id).to_pylist()
    for edge_type, rows in tables.edges.items():
        pairs = zip(*(rows.table.column(i).to_pylist() for i in ("source", "target")), strict=True)
        source_ids, target_ids = (bundle.ids(end).to_pylist() for end in edge_type[::2])
        read = [(source_ids[s], target_ids[t]) for s, t in edges_of(bundle, edge_type)]
        assert sorted(read) == sorted(pairs)


def test_a_split_written_is_the_split_of_the_same_rule_in_the_config(tmp_path: Path) -> None:
    tables = synthetic_tables("planted_partition", num_nodes=60, num_classes=3, seed=7)
    rule = HashSplit(type="hash", fractions=[0.6, 0.2, 0.2], seed=7)
    bundle = bundle_of(tables, tmp_path)
    written = make_splits(bundle, "node", None, "y", 0)
    made = make_splits(bundle, "node", rule, "y", 0)
    for name in ("train", "val", "test"):
        assert len(getattr(written, name))
        assert np.array_equal(getattr(written, name), getattr(made, name))
