from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.hashing import string_buffers
from raygnn.data.id_map import BYTES, IDS, OFFSETS, IdMap, build_index

_INT64 = st.one_of(
    st.integers(-10, 10),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), -(2**63) + 1, 2**63 - 1, 2**63 - 2]),
)


def _expected(ids: list, skip: list[bool], wanted: list) -> tuple[list[int], list[bool]]:
    first: dict = {}
    duplicate = []
    for i, key in enumerate(ids):
        duplicate.append(not skip[i] and key in first)
        if not skip[i]:
            first.setdefault(key, i)
    return [first.get(key, -1) for key in wanted], duplicate


@settings(max_examples=60)
@given(st.data())
def test_integers_against_a_dict(data: st.DataObject) -> None:
    ids = data.draw(st.lists(_INT64, min_size=1, max_size=20))
    skip = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    wanted = ids + data.draw(st.lists(_INT64, max_size=10))
    found, duplicate = _expected(ids, skip, wanted)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / IDS, np.array(ids, np.int64))
        index, rows = build_index(Path(folder), np.array(skip), "int")
        assert rows.tolist() == duplicate
        assert IdMap.open(Path(folder), index).lookup(np.array(wanted)).tolist() == found


def test_ids_at_both_ends_of_int64_are_no_range(tmp_path: Path) -> None:
    ids = np.array([2**63 - 1, -(2**63)])
    np.save(tmp_path / IDS, ids)
    index, _ = build_index(tmp_path, np.zeros(2, bool), "int")
    assert index.kind == "hashed"
    assert IdMap.open(tmp_path, index).lookup(ids).tolist() == [0, 1]


@settings(max_examples=30)
@given(st.data())
def test_strings_against_a_dict(data: st.DataObject) -> None:
    text = st.text(max_size=4)
    ids = data.draw(st.lists(text, min_size=1, max_size=20))
    skip = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    wanted = ids + data.draw(st.lists(text, max_size=10))
    found, duplicate = _expected(ids, skip, wanted)
    with tempfile.TemporaryDirectory() as folder:
        offsets, data_bytes = string_buffers(pa.array(ids, pa.string()))
        np.save(Path(folder) / OFFSETS, offsets)
        np.save(Path(folder) / BYTES, data_bytes)
        index, rows = build_index(Path(folder), np.array(skip), "string")
        assert rows.tolist() == duplicate
        assert (
            IdMap.open(Path(folder), index).lookup(pa.array(wanted, pa.string())).tolist() == found
        )


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (range(100), "range"),
        (range(-7, 93), "range"),
        (range(99, -1, -1), "direct"),
        (range(0, 300, 3), "direct"),
        (range(0, 100_000, 1000), "hashed"),
    ],
)
def test_the_index_suits_the_ids(ids: range, kind: str, tmp_path: Path) -> None:
    np.save(tmp_path / IDS, np.array(ids))
    index, duplicate = build_index(tmp_path, np.zeros(len(ids), bool), "int")
    assert index.kind == kind
    assert not duplicate.any()
    ids_and_others = np.concatenate([np.array(ids), [-8, 10**9, 10**6 + 1]])
    found = IdMap.open(tmp_path, index).lookup(ids_and_others)
    assert found.tolist() == [*range(100), -1, -1, -1]


def test_lookup_of_arrow_columns(tmp_path: Path) -> None:
    np.save(tmp_path / IDS, np.array([4, 8]))
    index, _ = build_index(tmp_path, np.zeros(2, bool), "int")
    ids = IdMap.open(tmp_path, index)
    assert ids.lookup(pa.chunked_array([[8, None], [4, 5]])).tolist() == [1, -1, 0, -1]
    assert ids.lookup(pa.array([2**64 - 4, 8], pa.uint64())).tolist() == [-1, 1]
    assert ids.lookup(np.array([], np.int64)).tolist() == []
