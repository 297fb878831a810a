"""PyG graphs: everything that training reads is written, and no file is unpickled."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch_geometric.data import Data, Dataset, HeteroData

from raygnn.data.tables.graph_tables import GraphTables, write_tables
from raygnn.data.tables.pyg import load_pyg, tables_from_pyg
from tests.errors import raises

EDGE = ("node", "to", "node")


def small_data(**attributes: Any) -> Data:
    return Data(
        x=torch.arange(8, dtype=torch.float32).reshape(4, 2),
        edge_index=torch.tensor([[0, 1, 3], [1, 2, 0]]),
        **attributes,
    )


def node(tables: GraphTables, name: str = "node") -> pa.Table:
    return tables.nodes[name].table


def edge(tables: GraphTables, edge_type: tuple[str, str, str] = EDGE) -> pa.Table:
    return tables.edges[edge_type].table


def binary_rows(column: pa.ChunkedArray, dtype: type[np.generic] = np.float32) -> np.ndarray:
    flat = np.frombuffer(column.combine_chunks().buffers()[1], dtype)
    return flat.reshape(len(column), -1)


def test_data_with_everything() -> None:
    data = small_data(
        y=torch.tensor([0, 1, -1, 1]),
        train_mask=torch.tensor([True, False, False, False]),
        test_mask=torch.tensor([False, True, False, False]),
        edge_attr=torch.ones(3, 2),
        edge_weight=torch.tensor([[1.0], [2.0], [3.0]]),
        time=torch.tensor([5, 6, 7, 8]),
        edge_time=torch.tensor([1, 2, 3]),
        pos=torch.zeros(4, 3),
        name="a graph",
    )
    tables = tables_from_pyg(data)
    rows = tables.nodes["node"]
    assert (rows.id, rows.time, rows.split) == ("id", "time", "split")
    assert node(tables).column("id").to_pylist() == [0, 1, 2, 3]
    assert binary_rows(node(tables).column("x")).tolist() == data.x.tolist()
    assert node(tables).column("y").to_pylist() == [0, 1, -1, 1]
    assert node(tables).column("split").to_pylist() == ["train", "test", None, None]
    assert node(tables).column("time").to_pylist() == [5, 6, 7, 8]
    assert edge(tables).column("source").to_pylist() == [0, 1, 3]
    assert edge(tables).column("target").to_pylist() == [1, 2, 0]
    assert edge(tables).column("weight").to_pylist() == [1, 2, 3]
    assert edge(tables).column("time").to_pylist() == [1, 2, 3]
    assert tables.edges[EDGE].features == {"edge_attr": "edge_attr"}
    assert "attributes not written: name, pos" in tables.notes


def test_original_ids_and_times_of_edges() -> None:
    data = small_data(n_id=torch.tensor([40, 30, 20, 10]), time=torch.tensor([7, 8, 9]))
    tables = tables_from_pyg(data)
    assert node(tables).column("id").to_pylist() == [40, 30, 20, 10]
    assert edge(tables).column("source").to_pylist() == [40, 30, 10]
    assert edge(tables).column("time").to_pylist() == [7, 8, 9]
    assert tables.nodes["node"].time is None


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (torch.float32, np.float32),
        (torch.float16, np.float16),
        (torch.float64, np.float64),
        (torch.bool, np.uint8),
        (torch.int64, np.int64),
        (torch.bfloat16, np.float32),
    ],
)
def test_feature_types(dtype: torch.dtype, stored: type[np.generic]) -> None:
    x = torch.tensor([[0, 1], [1, 1]]).to(dtype)
    tables = tables_from_pyg(Data(x=x, edge_index=torch.zeros(2, 0, dtype=torch.long)))
    assert binary_rows(node(tables).column("x"), stored).tolist() == [[0, 1], [1, 1]]


def test_sparse_features() -> None:
    x = torch.zeros(3, 40)
    x[1, 5] = 1
    data = Data(x=x.to_sparse_coo(), edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=3)
    assert node(tables_from_pyg(data)).column("x_indices").to_pylist() == [[], [5], []]


@pytest.mark.parametrize(
    ("y", "labels", "kind"),
    [
        (torch.tensor([[2], [0]]), [2, 0], pa.int64()),
        (torch.tensor([True, False]), [1, 0], pa.uint8()),
        (torch.tensor([0.5, 1.5]), [0.5, 1.5], pa.float32()),
        (torch.tensor([[0.0, 1.0], [1.0, 1.0]]), [[0, 1], [1, 1]], pa.list_(pa.uint8(), 2)),
        (torch.tensor([[0.5, 1.0], [1, 2]]), [[0.5, 1], [1, 2]], pa.list_(pa.float32(), 2)),
    ],
)
def test_label_types(y: torch.Tensor, labels: list[object], kind: pa.DataType) -> None:
    tables = tables_from_pyg(Data(y=y, edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=2))
    assert node(tables).column("y").to_pylist() == labels
    assert node(tables).column("y").type == kind


def test_adjacency_instead_of_edge_index() -> None:
    index, value = torch.tensor([[1, 2, 0], [0, 1, 3]]), torch.tensor([2.0, 3.0, 4.0])

    def data(value: torch.Tensor) -> Data:
        adj_t = torch.sparse_coo_tensor(index, value, (4, 4), check_invariants=True)
        return Data(x=torch.ones(4, 1), adj_t=adj_t)

    tables = tables_from_pyg(data(value))
    found = [edge(tables).column(name).to_pylist() for name in ("source", "target", "weight")]
    assert found == [[3, 0, 1], [0, 1, 2], [4, 2, 3]]
    assert tables_from_pyg(data(value**0)).edges[EDGE].weight is None


def test_a_foreign_sparse_tensor() -> None:
    class SparseTensor:
        def coo(self) -> tuple[torch.Tensor, torch.Tensor, None]:
            return torch.tensor([1]), torch.tensor([0]), None

    data = Data(x=torch.ones(2, 1))
    data.adj_t = SparseTensor()
    assert edge(tables_from_pyg(data)).to_pydict() == {"source": [0], "target": [1]}


def hetero_data() -> HeteroData:
    data = HeteroData()
    data["user"].x = torch.ones(3, 2)
    data["user"].y = torch.tensor([0, 1, 0])
    data["user"].n_id = torch.tensor([7, 8, 9])
    data["item"].num_nodes = 2
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 2], [1, 0]])
    data["item", "rev_buys", "user"].edge_index = torch.tensor([[1, 0], [0, 2]])
    return data


def test_hetero_data() -> None:
    tables = tables_from_pyg(hetero_data())
    assert list(tables.nodes) == ["user", "item"]
    assert node(tables, "item").to_pydict() == {"id": [0, 1]}
    buys = edge(tables, ("user", "buys", "item")).to_pydict()
    assert buys == {"source": [7, 9], "target": [1, 0]}
    assert edge(tables, ("item", "rev_buys", "user")).num_rows == 2
    assert len([note for note in tables.notes if "no split written" in note]) == 1


def test_normalized_features() -> None:
    x = binary_rows(node(tables_from_pyg(small_data(), normalize=True)).column("x"))
    assert np.allclose(x.sum(axis=1), 1)


def test_features_without_columns_are_left_out() -> None:
    data = Data(x=torch.ones(2, 0), edge_index=torch.zeros(2, 0, dtype=torch.long))
    assert node(tables_from_pyg(data)).column_names == ["id"]


class Several(Dataset):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def len(self) -> int:
        return self.count

    def get(self, idx: int) -> Data:
        return small_data()


def test_a_dataset_of_one_graph_is_that_graph() -> None:
    assert node(tables_from_pyg(Several(1))).num_rows == 4
    with raises("prepare-pyg-several", 3):
        tables_from_pyg(Several(3))


NO_EDGES, TWO_ROWS = torch.zeros(2, 0, dtype=torch.long), torch.ones(2, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": 1}, ("prepare-pyg-kind", "dict")),
        (Data(x=TWO_ROWS), ("prepare-pyg-edges-missing", "data")),
        (Data(edge_index=torch.tensor([[0], [5]])), ("prepare-pyg-num-nodes", "data")),
        (small_data(y=torch.ones(3)), ("prepare-pyg-rows", "data.y", 3, 4)),
        (small_data(y=torch.ones(4, 1, 1)), ("prepare-pyg-rows", "data.y", "4, 1, 1")),
        (small_data(n_id=torch.ones(4, 2)), ("prepare-pyg-rows", "data.n_id")),
        (small_data(edge_attr=torch.ones(2)), ("prepare-pyg-rows", "data.edge_attr", 2, 3)),
        (small_data(train_mask=torch.ones(4, 2)), ("prepare-mask-shape", "train_mask", "4, 2")),
        (Data(x=TWO_ROWS.cfloat(), edge_index=NO_EDGES), ("prepare-pyg-rows", "x", "complex64")),
        (Data(x=TWO_ROWS, edge_index=NO_EDGES.T), ("prepare-pyg-edges-shape", "0, 2")),
        (Data(x=TWO_ROWS, edge_index=NO_EDGES.float()), ("prepare-pyg-edges-shape", "float32")),
        (
            Data(x=TWO_ROWS, edge_index=torch.tensor([[0, 1], [2, -1]])),
            ("prepare-pyg-edges-outside", 1, 2, "2, -1", "0, 1"),
        ),
    ],
)
def test_what_does_not_fit_is_named(data: Any, message: str) -> None:
    with raises(*message):
        tables_from_pyg(data)


def test_hetero_problems_name_the_type() -> None:
    data = hetero_data()
    data["user"].y = torch.ones(2)
    with raises("prepare-pyg-rows", "data['user'].y"):
        tables_from_pyg(data)


@pytest.mark.parametrize("data", [small_data(y=torch.tensor([0, 1, 0, 1])), hetero_data()])
def test_saved_graphs_load(tmp_path: Path, data: Data | HeteroData) -> None:
    torch.save(data, tmp_path / "graph.pt")
    loaded = tables_from_pyg(load_pyg(str(tmp_path / "graph.pt")))
    expected = tables_from_pyg(data)
    assert list(loaded.nodes) == list(expected.nodes)
    for name, rows in loaded.nodes.items():
        assert rows.table.equals(expected.nodes[name].table)
    for edge_type, rows in loaded.edges.items():
        assert rows.table.equals(expected.edges[edge_type].table)
    write_tables(loaded, str(tmp_path / "out"))


class Dangerous:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/raygnn-was-unpickled",)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    torch.save(small_data(extra=Dangerous()), tmp_path / "graph.pt")
    with raises("prepare-pyg-pickled", "mkdir"):
        load_pyg(str(tmp_path / "graph.pt"))
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Dangerous()))
    with raises("prepare-pyg-unreadable", "plain.pt"):
        load_pyg(str(tmp_path / "plain.pt"))
    assert not Path("/tmp/raygnn-was-unpickled").exists()


def test_files_that_hold_no_graph(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "dict.pt")
    with raises("prepare-pyg-kind", "dict.pt", "dict"):
        load_pyg(str(tmp_path / "dict.pt"))
    whole = (tmp_path / "dict.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[:200] + whole[260:])
    with raises("prepare-pyg-pickled", "cut.pt"):
        load_pyg(str(tmp_path / "cut.pt"))
    with raises("prepare-file-missing", "gone.pt"):
        load_pyg(str(tmp_path / "gone.pt"))
