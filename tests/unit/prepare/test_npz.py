"""The sparse npz layout: what is read, what is dropped, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.tables.clean_up import largest_component, normalize_rows, undirected_edges
from raygnn.data.tables.columns import SparseRows, sparse_rows
from raygnn.data.tables.graph_tables import GraphTables
from raygnn.prepare.npz import npz_tables
from tests.errors import raises

EDGE = ("node", "to", "node")


def csr(prefix: str, dense: np.ndarray) -> dict[str, np.ndarray]:
    rows = sparse_rows(dense.astype(np.float32))
    values = dense[np.nonzero(dense)].astype(np.float32)
    return {
        f"{prefix}_data": values,
        f"{prefix}_indices": rows.indices,
        f"{prefix}_indptr": rows.indptr,
        f"{prefix}_shape": np.array(dense.shape),
    }


ADJACENCY = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 0]])
FEATURES = np.array([[1, 0, 3], [0, 0, 0], [2, 2, 0], [0, 1, 1]])
PLAIN = {**csr("adj", ADJACENCY), **csr("attr", FEATURES), "labels": np.array([0, 1, 0, 1])}

# nodes 1, 3 and 4 are connected (3 only by an edge to 4), 0 and 2 stand alone
ISLANDS = np.zeros((5, 5), int)
ISLANDS[1, 4] = ISLANDS[3, 4] = ISLANDS[2, 2] = 1
FIVE_FEATURES = np.vstack([FEATURES, [[9, 9, 9]]])
ISLAND_GRAPH = {**csr("adj", ISLANDS), **csr("attr", FIVE_FEATURES), "labels": np.arange(5, 10)}


def save(folder: Path, arrays: dict[str, Any]) -> str:
    path = folder / "graph.npz"
    np.savez(path, **arrays)
    return str(path)


def pairs(tables: GraphTables) -> list[tuple[int, int]]:
    table = tables.edges[EDGE].table
    return list(
        zip(*(table.column(name).to_pylist() for name in ("source", "target")), strict=True)
    )


def features(tables: GraphTables) -> np.ndarray:
    column = tables.nodes["node"].table.column("x").combine_chunks()
    return np.frombuffer(column.buffers()[1], np.float32).reshape(len(column), -1)


def test_edges_are_made_undirected_by_default(tmp_path: Path) -> None:
    tables = npz_tables(save(tmp_path, PLAIN))
    assert pairs(tables) == [(0, 1), (0, 3), (1, 0), (1, 2), (2, 1), (3, 0)]
    assert tables.notes[0] == (
        "made undirected: 5 entries became 6 directed edges (1 self-loops and 0 repeated entries "
        "dropped, 2 missing reverse directions added)"
    )
    assert np.array_equal(features(tables), FEATURES)
    assert tables.nodes["node"].table.column("y").to_pylist() == [0, 1, 0, 1]


def test_directed_keeps_the_entries(tmp_path: Path) -> None:
    tables = npz_tables(save(tmp_path, PLAIN), directed=True)
    assert pairs(tables) == [(0, 1), (1, 2), (2, 1), (2, 2), (3, 0)]
    assert "edges are not changed, because of --directed" in tables.notes


def test_weights_that_say_something_are_kept(tmp_path: Path) -> None:
    tables = npz_tables(save(tmp_path, csr("adj", ADJACENCY * [[2], [3], [4], [5]])))
    edges = tables.edges[EDGE]
    assert edges.weight == "weight"
    # 1-2 is given in both directions with weights of their own; 0-1 and 3-0 in one
    assert edges.table.column("weight").to_pylist() == [2, 5, 2, 3, 4, 5]
    assert npz_tables(save(tmp_path, PLAIN)).edges[EDGE].weight is None


@given(edges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=25))
@settings(max_examples=50)
def test_undirected_edges_are_the_simple_graph(edges: list[tuple[int, int]]) -> None:
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    made = undirected_edges(source, target, 7)
    expected = {(a, b) for a, b in edges if a != b} | {(b, a) for a, b in edges if a != b}
    found = list(zip(made.source.tolist(), made.target.tolist(), strict=True))
    assert found == sorted(expected)
    for (a, b), entry in zip(found, made.entry.tolist(), strict=True):
        assert edges[entry] == ((a, b) if (a, b) in edges else (b, a))


def test_masks_are_the_split(tmp_path: Path) -> None:
    masks = {
        "train_mask": np.array([1, 0, 0, 0], bool),
        "val_mask": np.array([0, 1, 0, 0], bool),
        "test_mask": np.array([0, 0, 1, 0], bool),
    }
    path = save(tmp_path, {**PLAIN, **masks})
    node = npz_tables(path).nodes["node"]
    assert node.split == "split"
    assert node.table.column("split").to_pylist() == ["train", "val", "test", None]


def test_without_masks_no_split_is_written_and_said_so(tmp_path: Path) -> None:
    tables = npz_tables(save(tmp_path, PLAIN))
    assert tables.nodes["node"].split is None
    assert "Set data.splits in the config" in tables.notes[-1]


def test_features_may_be_dense_or_missing(tmp_path: Path) -> None:
    adjacency = csr("adj", ADJACENCY)
    dense = npz_tables(save(tmp_path, {**adjacency, "attr_matrix": FEATURES.astype(np.float32)}))
    assert np.array_equal(features(dense), FEATURES)
    bare = npz_tables(save(tmp_path, adjacency)).nodes["node"]
    assert bare.table.column_names == ["id"]


def test_features_are_normalized_on_demand(tmp_path: Path) -> None:
    tables = npz_tables(save(tmp_path, PLAIN), normalize=True)
    expected = FEATURES / np.maximum(FEATURES.sum(axis=1, keepdims=True), 1)
    assert np.allclose(features(tables), expected)
    dense = normalize_rows(FEATURES.astype(np.float32))
    assert isinstance(dense, np.ndarray)
    assert np.allclose(dense, expected)
    binary = normalize_rows(SparseRows(np.array([0, 2, 2]), np.array([1, 4]), None, 5))
    assert isinstance(binary, SparseRows)
    assert binary.to_dense().tolist() == [[0, 0.5, 0, 0, 0.5], [0] * 5]


@pytest.mark.parametrize("key", ["adj_data", "adj_indices", "adj_indptr", "adj_shape", "attr_data"])
def test_a_missing_array_is_named(tmp_path: Path, key: str) -> None:
    path = save(tmp_path, {name: array for name, array in PLAIN.items() if name != key})
    with raises("prepare-npz-array-missing", "graph.npz", key):
        npz_tables(path)


@pytest.mark.parametrize("key", ["labels", "adj_data", "train_mask"])
def test_an_object_array_is_named_and_not_unpickled(tmp_path: Path, key: str) -> None:
    path = save(tmp_path, {**PLAIN, key: np.array([object, None], dtype=object)})
    with raises("prepare-npz-pickled", key):
        npz_tables(path)


def test_object_arrays_that_are_not_needed_are_not_read(tmp_path: Path) -> None:
    names = np.array(["a", None, 3, 4], dtype=object)
    assert npz_tables(save(tmp_path, {**PLAIN, "node_names": names})).nodes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adj_shape": np.array([4, 5])}, ("prepare-npz-square", "4, 5")),
        ({"adj_shape": np.array([4])}, ("prepare-npz-csr", "adj_shape", 4)),
        ({"adj_shape": np.array([3, 3])}, ("prepare-npz-csr", "3, 3", 5)),
        ({"adj_indices": np.array([0, 1, 2, 3, 4])}, ("prepare-npz-csr",)),
        ({"adj_indices": np.array([0, 1, 2, 3, -1])}, ("prepare-npz-csr",)),
        ({"adj_indptr": np.array([0, 2, 1, 3, 5])}, ("prepare-npz-csr",)),
        ({"adj_data": np.ones(4)}, ("prepare-npz-csr", 4)),
        ({"adj_data": np.ones((5, 1))}, ("prepare-npz-array", "adj_data", "5, 1", 1)),
        ({"adj_data": np.array(["a"] * 5)}, ("prepare-npz-array", "adj_data", "<U1")),
        ({"attr_matrix": np.ones(4)}, ("prepare-npz-array", "attr_matrix", 2)),
        ({"attr_matrix": np.ones((3, 2))}, ("prepare-npz-rows", 3, 4)),
        (csr("attr", FEATURES[:3]), ("prepare-npz-rows", 3, 4)),
        ({"labels": np.zeros(3)}, ("prepare-npz-rows", 3, 4)),
        ({"labels": np.array(list("abcd"))}, ("prepare-npz-array", "labels", "<U1")),
        ({"train_mask": np.ones(3, bool)}, ("prepare-mask-shape", "train_mask", 3)),
    ],
)
def test_malformed_arrays_are_refused(
    tmp_path: Path, changes: dict[str, np.ndarray], message: str
) -> None:
    path = save(tmp_path, {**PLAIN, **changes})
    with raises(*message):
        npz_tables(path)


def test_files_that_are_no_npz_are_refused(tmp_path: Path) -> None:
    with raises("prepare-file-missing", "missing.npz"):
        npz_tables(str(tmp_path / "missing.npz"))
    np.save(tmp_path / "one.npy", np.ones(2))
    with raises("prepare-npz-layout"):
        npz_tables(str(tmp_path / "one.npy"))
    for content in (b"", b"PK\x03\x04 and then nothing", b"hello"):
        (tmp_path / "bad.npz").write_bytes(content)
        with raises("prepare-npz-unreadable", "bad.npz"):
            npz_tables(str(tmp_path / "bad.npz"))


@pytest.mark.parametrize("dense", [False, True])
def test_tables_of_the_largest_component_keep_their_numbers(tmp_path: Path, dense: bool) -> None:
    arrays = dict(ISLAND_GRAPH)
    if dense:
        arrays = {name: arrays[name] for name in arrays if not name.startswith("attr")}
        arrays["attr_matrix"] = FIVE_FEATURES.astype(np.float32)
    tables = npz_tables(save(tmp_path, arrays), is_largest_component=True)
    nodes = tables.nodes["node"].table
    assert nodes.column("id").to_pylist() == [1, 3, 4]
    assert nodes.column("y").to_pylist() == [6, 8, 9]
    whole = npz_tables(save(tmp_path, arrays)).nodes["node"].table
    for name in nodes.column_names:
        assert nodes.column(name).to_pylist() == whole.column(name).take([1, 3, 4]).to_pylist()
    assert pairs(tables) == [(1, 4), (3, 4), (4, 1), (4, 3)]
    assert (
        "largest connected component: 3 of 5 nodes kept, 0 edges left out with the others"
        in tables.notes
    )


def test_masks_follow_the_component(tmp_path: Path) -> None:
    masks = {
        "train_mask": np.array([1, 1, 0, 0, 0]),
        "val_mask": np.array([0, 0, 1, 1, 0]),
        "test_mask": np.array([0, 0, 0, 0, 1]),
    }
    path = save(tmp_path, {**ISLAND_GRAPH, **masks})
    column = npz_tables(path, is_largest_component=True).nodes["node"].table.column("split")
    assert column.to_pylist() == ["train", "val", "test"]
    path = save(tmp_path, {**ISLAND_GRAPH, **masks, "val_mask": np.array([1, 0])})
    with raises("prepare-mask-shape", "val_mask", 2, 5):
        npz_tables(path, is_largest_component=True)


PAIRS = {
    "edges": np.array([[0, 1], [1, 2], [3, 3]]),
    "node_features": FEATURES.astype(np.float32),
    "node_labels": np.array([0, 1, 0, 1]),
    "train_masks": np.array([[1, 0, 0, 0], [0, 1, 0, 0]], bool),
    "val_masks": np.array([[0, 1, 0, 0], [1, 0, 0, 0]], bool),
    "test_masks": np.array([[0, 0, 1, 1], [0, 0, 1, 1]], bool),
}


@pytest.mark.parametrize(
    ("index", "split"), [(None, ["train", "val"]), (0, ["train", "val"]), (1, ["val", "train"])]
)
def test_edges_as_pairs_with_several_splits(tmp_path: Path, index, split) -> None:
    tables = npz_tables(save(tmp_path, PAIRS), split_index=index)
    assert pairs(tables) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    nodes = tables.nodes["node"].table
    assert nodes.column("split").to_pylist() == [*split, "test", "test"]
    assert nodes.column("y").to_pylist() == [0, 1, 0, 1]
    assert any("split 0 of 2" in note for note in tables.notes) == (index is None)


@pytest.mark.parametrize("name", ["valid", "val"])
def test_a_split_file_lists_the_nodes_of_each_split(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "split.npz", **{"train": [3, 1], name: [0], "test": np.zeros(0, int)})
    tables = npz_tables(save(tmp_path, PLAIN), split_file=str(tmp_path / "split.npz"))
    assert tables.nodes["node"].table.column("split").to_pylist() == ["val", "train", None, "train"]


def _in_splits(*nodes: list[int]) -> dict[str, Any]:
    return {"split": dict(zip(("train", "valid", "test"), nodes, strict=True))}


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        (PAIRS, {"split_index": 2}, ("prepare-split-index", 2)),
        (PAIRS, {"split_index": -1}, ("prepare-split-index", -1)),
        (PLAIN, {"split_index": 0}, ("prepare-split-index", "train_masks")),
        ({**PAIRS, "edges": np.array([[0, 4]])}, {}, ("prepare-npz-edges-outside", 1, "[0]")),
        ({**PAIRS, "edges": np.array([0, 4])}, {}, ("prepare-npz-array", "edges")),
        ({"edges": PAIRS["edges"]}, {}, ("prepare-npz-edges",)),
        (PLAIN, {"split": {"train": [0], "valid": [1]}}, ("prepare-npz-array-missing", "test")),
        (PLAIN, _in_splits([0], [4], [1]), ("prepare-npz-split", "valid")),
        (PLAIN, _in_splits([0], [0], [1]), ("prepare-masks-overlap", 1, "val_mask")),
    ],
)
def test_wrong_splits_and_edges_are_refused(tmp_path: Path, arrays, options, message) -> None:
    if "split" in options:
        np.savez(tmp_path / "split.npz", **options["split"])
        options = {"split_file": str(tmp_path / "split.npz")}
    with raises(*message):
        npz_tables(save(tmp_path, arrays), **options)


SIZE = 9
EDGES = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=12)


@settings(max_examples=80)
@given(EDGES)
def test_component_is_the_largest_reachable_set(edges: list[tuple[int, int]]) -> None:
    reach = np.eye(SIZE, dtype=bool)
    for a, b in edges:
        reach[a, b] = reach[b, a] = True
    for _ in range(SIZE):
        reach = (reach.astype(int) @ reach.astype(int)) > 0
    largest = max(range(SIZE), key=lambda node: (reach[node].sum(), -node))
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    found = largest_component(source, target, SIZE)
    assert found.tolist() == np.flatnonzero(reach[largest]).tolist()
