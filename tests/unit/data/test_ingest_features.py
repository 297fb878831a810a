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
_FLAGS = np.array([0, 1, 1, 0])


def _ingest(folder: Path, columns: dict[str, Any], spec: dict[str, Any], **options: Any) -> Bundle:
    num_rows = len(next(iter(columns.values())))
    table = pa.table({"id": np.arange(num_rows), **columns})
    # Two shards with row groups of one row: every column is cut and joined again.
    path = write_graph(folder / "graph", cut(table, 2), node_spec=spec)
    return ingest(path, IngestOptions(**options), cache_dir=folder / "cache")


def _tensor(values: np.ndarray) -> pa.Array:
    return pa.FixedShapeTensorArray.from_numpy_ndarray(values)


_COLUMNS: dict[str, tuple[pa.Array, np.ndarray]] = {
    "list": (pa.array(list(_ROWS)), _ROWS),
    "large_list": (pa.array(list(_ROWS), pa.large_list(pa.float32())), _ROWS),
    "fixed_list": (pa.FixedSizeListArray.from_arrays(_FLAT, 3), _ROWS),
    "tensor": (_tensor(_ROWS), _ROWS),
    "tensor of rank 2": (_tensor(_ROWS.reshape(4, 3, 1)), _ROWS.reshape(4, 3, 1)),
    "binary": (pa.array([row.tobytes() for row in _ROWS], pa.binary(12)), _ROWS),
    "float64": (pa.array(list(_ROWS.astype("f8"))), _ROWS),
    **{
        dtype: (pa.array(_FLAGS.astype(dtype)), _FLAGS.astype(dtype))
        for dtype in ("int8", "uint8", "int32", "int64", "float16", "bool")
    },
}


@pytest.mark.parametrize("kind", _COLUMNS)
def test_columns_of_all_kinds_become_rows(kind: str, tmp_path: Path) -> None:
    column, expected = _COLUMNS[kind]
    _check(_ingest(tmp_path, {"x": column}, {"features": {"x": "x"}}), expected)


def _check(bundle: Bundle, expected: np.ndarray) -> None:
    x, info = bundle.column("n", "x"), bundle.columns("n")["x"]
    assert x.dtype == expected.dtype
    assert np.array_equal(x, expected)
    assert (info.role, info.dtype) == ("feature", expected.dtype.name)
    assert info.shape == expected.shape[1:]


def test_columns_are_concatenated(tmp_path: Path) -> None:
    columns = {"a": _ROWS[:, 0], "b": pa.array(list(_ROWS[:, 1:])), "c": np.arange(4, dtype="i1")}
    bundle = _ingest(tmp_path, columns, {"features": {"x": ["a", "b", "c"]}})
    _check(bundle, np.concatenate([_ROWS, np.arange(4, dtype="f4").reshape(4, 1)], axis=1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_feature_dtype_casts_floats_only(dtype: str, tmp_path: Path) -> None:
    columns = {"x": pa.array(list(_ROWS)), "k": np.arange(4)}
    spec = {"features": {"x": "x", "k": "k"}}
    bundle = _ingest(tmp_path, columns, spec, feature_dtype=dtype)
    _check(bundle, _ROWS.astype(dtype))
    assert bundle.column("n", "k").dtype == np.int64


def test_what_bfloat16_cannot_hold_is_told(tmp_path: Path) -> None:
    columns = {"x": pa.array([*_ROWS[:3], np.array([1.0, np.nan, 0.0], np.float32)])}
    with raises("table-not-finite", "bfloat16"):
        _ingest(tmp_path, columns, {"features": {"x": "x"}}, feature_dtype="bfloat16")


def test_binary_of_another_dtype(tmp_path: Path) -> None:
    column = pa.array([row.astype("<f2").tobytes() for row in _ROWS], pa.binary(6))
    spec = {"features": {"x": {"columns": "x", "dtype": "float16"}}}
    _check(_ingest(tmp_path, {"x": column}, spec), _ROWS.astype("f2"))


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


_NAMES = pa.array(["tv", "company", None, "politics"])
_LABELS: dict[str, tuple[Any, Any, list, int | None]] = {
    "int": (pa.array([2, None, 0, -1]), "y", [2, -1, 0, -1], 3),
    "bool": (pa.array([True, False, True, None]), "y", [1, 0, 1, -1], 2),
    "given": (pa.array([1, 0, 1], pa.uint8()), {"columns": "y", "num_classes": 5}, [1, 0, 1], 5),
    "float_class": (
        pa.array([1.0, None, np.nan, 3.0]),
        {"columns": "y", "kind": "class"},
        [1, -1, -1, 3],
        4,
    ),
    "two_floats": (pa.array([1.0, None, np.nan, 0.0]), "y", [1, -1, -1, 0], 2),
    "one_float": (pa.array([1.0, None, np.nan, 1.0]), "y", [1, np.nan, np.nan, 1], None),
    "regressed_floats": (
        pa.array([1.0, None, np.nan, 0.0]),
        {"columns": "y", "kind": "regression"},
        [1, np.nan, np.nan, 0],
        None,
    ),
    "multilabel": (
        pa.array([[1, 0], [0, 1], None, [-1, -1]]),
        "y",
        [[1, 0], [0, 1], [-1, -1], [-1, -1]],
        2,
    ),
    "multilabel of columns": (
        {"a": [1, 0, None, 1], "b": [0, 0, None, 1]},
        ["a", "b"],
        [[1, 0], [0, 0], [-1, -1], [1, 1]],
        2,
    ),
    "regression": (pa.array([0.5, -1.0, None, np.nan]), "y", [0.5, -1.0, np.nan, np.nan], None),
    "int_regression": (pa.array([1, 2]), {"columns": "y", "kind": "regression"}, [1.0, 2], None),
    "names": (_NAMES, "y", [2, 0, -1, 1], 3),
    "names in a dictionary": (_NAMES.dictionary_encode(), "y", [2, 0, -1, 1], 3),
}


@pytest.mark.parametrize("kind", _LABELS)
def test_labels(kind: str, tmp_path: Path) -> None:
    column, spec, expected, num_classes = _LABELS[kind]
    columns = column if isinstance(column, dict) else {"y": column}
    bundle = _ingest(tmp_path, columns, {"labels": {"y": spec}})
    assert np.array_equal(bundle.column("n", "y"), np.array(expected), equal_nan=True)
    info = bundle.columns("n")["y"]
    assert (info.role, info.num_classes) == ("label", num_classes)
    names = ("company", "politics", "tv") if kind.startswith("names") else None
    assert info.class_names == names


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
    ("kind", "stored", "microseconds"),
    [
        (pa.timestamp("s"), [3, -1, 2, 0], [3_000_000, -1_000_000, 2_000_000, 0]),
        (pa.timestamp("ms"), [3, -1, 2, 0], [3_000, -1_000, 2_000, 0]),
        (pa.timestamp("us", "UTC"), [3, -1, 2, 0], [3, -1, 2, 0]),
        (pa.timestamp("ns"), [1_999, 2_000, 0, 5_001], [1, 2, 0, 5]),
        (pa.date32(), [3, -1], [259_200_000_000, -86_400_000_000]),
    ],
    ids=str,
)
def test_times_of_all_precisions_are_whole_microseconds(
    kind: pa.DataType, stored: list[int], microseconds: list[int], tmp_path: Path
) -> None:
    storage = pa.int32() if kind == pa.date32() else pa.int64()
    bundle = _ingest(tmp_path, {"when": pa.array(stored, storage).cast(kind)}, {"time": "when"})
    assert np.asarray(bundle.column("n", "time")).tolist() == microseconds
    info = bundle.columns("n")["time"]
    assert (info.dtype, info.unit) == ("int64", "us")


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
