"""Every kind of column that a feature, label, split, weight or time may come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from tests.errors import raises
from tests.graph_writer import cut, write_graph

_ROWS = np.arange(12, dtype=np.float32).reshape(4, 3) / 4
_FLAT = pa.array(_ROWS.reshape(-1))


def _ingest(folder: Path, columns: dict[str, Any], spec: dict[str, Any], **options: Any) -> Bundle:
    table = pa.table({"id": np.arange(4), **columns})
    # Two shards with row groups of one row: every column is cut and joined again.
    path = write_graph(folder / "graph", cut(table, 2), node_spec=spec)
    return ingest(path, IngestOptions(**options), cache_dir=folder / "cache")


def _tensor(values: np.ndarray) -> pa.Array:
    return pa.FixedShapeTensorArray.from_numpy_ndarray(values)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(list(_ROWS)),
        pa.array(list(_ROWS), pa.large_list(pa.float32())),
        pa.FixedSizeListArray.from_arrays(_FLAT, 3),
        _tensor(_ROWS),
        pa.array([row.tobytes() for row in _ROWS], pa.binary(12)),
        pa.array(list(_ROWS.astype("f8"))),
    ],
    ids=["list", "large_list", "fixed_list", "tensor", "binary", "float64"],
)
def test_rows_of_three_floats(column: pa.Array, tmp_path: Path) -> None:
    bundle = _ingest(tmp_path, {"x": column}, {"features": {"x": "x"}})
    x = bundle.column("n", "x")
    assert x.dtype == np.float32
    assert np.array_equal(x, _ROWS)
    info = bundle.columns("n")["x"]
    assert (info.role, info.dtype, info.shape) == ("feature", "float32", (3,))


def test_columns_are_concatenated(tmp_path: Path) -> None:
    columns = {"a": _ROWS[:, 0], "b": pa.array(list(_ROWS[:, 1:])), "c": np.arange(4, dtype="i1")}
    bundle = _ingest(tmp_path, columns, {"features": {"x": ["a", "b", "c"]}})
    expected = np.concatenate([_ROWS, np.arange(4).reshape(4, 1)], axis=1)
    assert np.array_equal(bundle.column("n", "x"), expected)


def test_tensors_keep_their_shape(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    bundle = _ingest(tmp_path, {"x": _tensor(values)}, {"features": {"x": "x"}})
    assert np.array_equal(bundle.column("n", "x"), values)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "bool"])
def test_element_types_are_kept(dtype: str, tmp_path: Path) -> None:
    values = np.array([0, 1, 1, 0]).astype(dtype)
    bundle = _ingest(tmp_path, {"x": pa.array(values)}, {"features": {"x": "x"}})
    x = bundle.column("n", "x")
    assert x.dtype == np.dtype(dtype)
    assert np.array_equal(x, values)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_feature_dtype_casts_floats_only(dtype: str, tmp_path: Path) -> None:
    columns = {"x": pa.array(list(_ROWS)), "k": np.arange(4)}
    spec = {"features": {"x": "x", "k": "k"}}
    bundle = _ingest(tmp_path, columns, spec, feature_dtype=dtype)
    x = bundle.column("n", "x")
    assert x.dtype == np.dtype(dtype)
    assert np.array_equal(x, _ROWS.astype(dtype))
    assert bundle.column("n", "k").dtype == np.int64


def test_what_bfloat16_cannot_hold_is_told(tmp_path: Path) -> None:
    columns = {"x": pa.array([*_ROWS[:3], np.array([1.0, np.nan, 0.0], np.float32)])}
    with raises("table-not-finite", "bfloat16"):
        _ingest(tmp_path, columns, {"features": {"x": "x"}}, feature_dtype="bfloat16")


def test_binary_of_another_dtype(tmp_path: Path) -> None:
    column = pa.array([row.astype("<f2").tobytes() for row in _ROWS], pa.binary(6))
    spec = {"features": {"x": {"columns": "x", "dtype": "float16"}}}
    bundle = _ingest(tmp_path, {"x": column}, spec)
    assert np.array_equal(bundle.column("n", "x"), _ROWS.astype("f2"))


def test_sparse_rows(tmp_path: Path) -> None:
    columns = {
        "i": pa.array([[0, 4], [], [2], [1, 2, 3]]),
        "v": pa.array([[0.5, 1.5], [], [2.0], [1.0, 2.0, 3.0]]),
    }
    spec = {
        "features": {
            "x": {"indices": "i", "values": "v", "dim": 5},
            "ones": {"indices": "i", "dim": 5},
        }
    }
    bundle = _ingest(tmp_path, columns, spec)
    x, ones = bundle.column("n", "x"), bundle.column("n", "ones")
    assert isinstance(x, SparseColumn)
    assert isinstance(ones, SparseColumn)
    assert x.indptr.tolist() == [0, 2, 2, 3, 6]
    assert x.indices.tolist() == [0, 4, 2, 1, 2, 3]
    assert x.values is not None
    assert x.values.tolist() == [0.5, 1.5, 2.0, 1.0, 2.0, 3.0]
    assert ones.values is None
    assert bundle.columns("n")["x"].sparse
    assert bundle.columns("n")["x"].shape == (5,)


def test_sparse_rows_may_all_be_empty(tmp_path: Path) -> None:
    """A small table without any entry has lists of the type null."""
    columns = {"i": pa.array([[], [], [], []]), "v": pa.array([[], [], [], []])}
    spec = {"features": {"x": {"indices": "i", "values": "v", "dim": 5}}}
    x = _ingest(tmp_path, columns, spec).column("n", "x")
    assert isinstance(x, SparseColumn)
    assert x.indptr.tolist() == [0, 0, 0, 0, 0]
    assert len(x.indices) == 0


@pytest.mark.parametrize(
    ("column", "spec", "expected", "num_classes"),
    [
        (pa.array([2, None, 0, -1]), "y", [2, -1, 0, -1], 3),
        (pa.array([True, False, True, None]), "y", [1, 0, 1, -1], 2),
        (pa.array([1, 0, 1, 1], pa.uint8()), {"columns": "y", "num_classes": 5}, [1, 0, 1, 1], 5),
        (pa.array([1.0, None, np.nan, 3.0]), {"columns": "y", "kind": "class"}, [1, -1, -1, 3], 4),
        (pa.array([1.0, None, np.nan, 0.0]), "y", [1, -1, -1, 0], 2),
        (pa.array([1.0, None, np.nan, 1.0]), "y", [1, np.nan, np.nan, 1], None),
        (
            pa.array([1.0, None, np.nan, 0.0]),
            {"columns": "y", "kind": "regression"},
            [1, np.nan, np.nan, 0],
            None,
        ),
        (pa.array([[1, 0], [0, 1], None, [-1, -1]]), "y", [[1, 0], [0, 1], [-1, -1], [-1, -1]], 2),
        (pa.array([0.5, -1.0, None, np.nan]), "y", [0.5, -1.0, np.nan, np.nan], None),
        (pa.array([1, 2, 3, 4]), {"columns": "y", "kind": "regression"}, [1.0, 2, 3, 4], None),
    ],
    ids=[
        *("int", "bool", "given", "float_class", "two_floats", "one_float", "regressed_floats"),
        *("multilabel", "regression", "int_regression"),
    ],
)
def test_labels(
    column: pa.Array, spec: Any, expected: list, num_classes: int | None, tmp_path: Path
) -> None:
    bundle = _ingest(tmp_path, {"y": column}, {"labels": {"y": spec}})
    assert np.array_equal(bundle.column("n", "y"), np.array(expected), equal_nan=True)
    info = bundle.columns("n")["y"]
    assert info.role == "label"
    assert info.num_classes == num_classes


def test_multilabel_of_several_columns(tmp_path: Path) -> None:
    columns = {"a": [1, 0, None, 1], "b": [0, 0, None, 1]}
    bundle = _ingest(tmp_path, columns, {"labels": {"y": ["a", "b"]}})
    assert np.asarray(bundle.column("n", "y")).tolist() == [[1, 0], [0, 0], [-1, -1], [1, 1]]


@pytest.mark.parametrize("dictionary", [False, True])
def test_string_classes_are_sorted_by_name(dictionary: bool, tmp_path: Path) -> None:
    column = pa.array(["tv", "company", None, "politics"])
    column = column.dictionary_encode() if dictionary else column
    bundle = _ingest(tmp_path, {"y": column}, {"labels": {"y": "y"}})
    assert np.asarray(bundle.column("n", "y")).tolist() == [2, 0, -1, 1]
    assert bundle.columns("n")["y"].class_names == ("company", "politics", "tv")
    assert bundle.columns("n")["y"].num_classes == 3


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["train", "VAL", None, "test"]),
        pa.array(["train", "valid", "none", "test"]).dictionary_encode(),
        pa.array(["train", "validation", "", "test"]),
        pa.array([1, 2, 0, 3], pa.int8()),
        pa.array([1, 2, None, 3]),
    ],
)
def test_split_columns(column: pa.Array, tmp_path: Path) -> None:
    bundle = _ingest(tmp_path, {"p": column}, {"split": "p"})
    split = bundle.declared_split("n")
    assert split is not None
    assert split.dtype == np.uint8
    assert split.tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize(
    ("kind", "microseconds"),
    [
        (pa.timestamp("s"), 1_000_000),
        (pa.timestamp("ms"), 1_000),
        (pa.timestamp("us", "UTC"), 1),
        (pa.date32(), 86_400_000_000),
    ],
)
def test_times_of_all_precisions_are_microseconds(
    kind: pa.DataType, microseconds: int, tmp_path: Path
) -> None:
    storage = pa.int32() if kind == pa.date32() else pa.int64()
    column = pa.array([3, -1, 2, 0], storage).cast(kind)
    bundle = _ingest(tmp_path, {"when": column}, {"time": "when"})
    assert np.asarray(bundle.column("n", "time")).tolist() == [
        count * microseconds for count in (3, -1, 2, 0)
    ]
    info = bundle.columns("n")["time"]
    assert (info.dtype, info.unit) == ("int64", "us")


def test_nanoseconds_are_cut_off(tmp_path: Path) -> None:
    column = pa.array([1_999, 2_000, 0, 5_001], pa.timestamp("ns"))
    bundle = _ingest(tmp_path, {"when": column}, {"time": "when"})
    assert np.asarray(bundle.column("n", "time")).tolist() == [1, 2, 0, 5]


@pytest.mark.parametrize(
    "kind", [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
def test_ids_of_any_integer_type(kind: str, tmp_path: Path) -> None:
    ids = np.array([100, 3, 7, 1]).astype(kind)
    bundle = _ingest(tmp_path, {"id": ids}, {})
    assert bundle.ids("n").to_pylist() == [100, 3, 7, 1]
    assert bundle.id_map("n").lookup(pa.array([1, 100, 2, None])).tolist() == [3, 0, -1, -1]


def test_dictionary_encoded_string_ids(tmp_path: Path) -> None:
    ids = pa.array(["b", "a", "", "zz"]).dictionary_encode()
    bundle = _ingest(tmp_path, {"id": ids}, {})
    assert bundle.ids("n").to_pylist() == ["b", "a", "", "zz"]
    assert bundle.id_map("n").lookup(np.array(["zz", "b", "c"])).tolist() == [3, 0, -1]
