"""Splits of nodes, and the rules of `raygnn prepare` that write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.config import load_config
from raygnn.config.data_section import HashSplit, PerClassSplit, TemporalSplit
from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.splits import Splits, hash_split, make_splits, per_class_split
from raygnn.data.tables.clean_up import mask_codes
from raygnn.data.tables.columns import split_column
from raygnn.loops.tasks.node_classification.target import NodeTarget, NodeTargetArguments
from tests.errors import raises
from tests.graph_writer import cut, write_graph

_SPEC = {"labels": {"y": "y"}, "time": "when"}


def _bundle(folder: Path, table: pa.Table, spec: dict[str, Any] = _SPEC) -> Bundle:
    return ingest(write_graph(folder, cut(table, 2), node_spec=spec), cache_dir=folder / "cache")


def _table(num_nodes: int, **columns: Any) -> pa.Table:
    ids = np.arange(num_nodes) * 3
    return pa.table({"id": ids, "y": ids % 4, "when": np.arange(num_nodes), **columns})


def _original(bundle: Bundle, splits: Splits) -> list[set]:
    ids = bundle.ids("n")
    return [set(ids.take(pa.array(part)).to_pylist()) for part in vars(splits).values()]


_HASH = HashSplit(type="hash", fractions=[0.6, 0.2, 0.2])
_NEARLY_ALL = HashSplit(type="hash", fractions=[0.999, 0.001, 0])
_PER_CLASS = PerClassSplit(type="per_class", train=5, val=4)


@pytest.mark.parametrize(("declared", "expected"), [(None, 4), (7, 7)])
def test_a_model_has_the_classes_that_the_manifest_declares(tmp_path, declared, expected) -> None:
    label = {"columns": "y"} if declared is None else {"columns": "y", "num_classes": declared}
    spec = {"labels": {"y": label}, "features": {"x": "when"}}
    bundle = _bundle(tmp_path, _table(60), spec)
    config = load_config({"data": {"splits": {"type": "hash"}}}).config
    assert NodeTarget.find(bundle, config, NodeTargetArguments()).output.num_outputs == expected


def test_hash_split_stays_when_the_graph_grows(tmp_path: Path) -> None:
    table = _table(500)
    small = _bundle(tmp_path / "small", table)
    order = np.random.default_rng(0).permutation(800)
    large = _bundle(tmp_path / "large", _table(800).take(pa.array(order)))
    parts = _original(small, make_splits(small, "n", _HASH, "y", 7))
    grown = _original(large, make_splits(large, "n", _HASH, "y", 7))
    assert all(part <= more for part, more in zip(parts, grown, strict=True))
    assert [len(part) / 500 for part in parts] == pytest.approx([0.6, 0.2, 0.2], abs=0.06)
    assert sum(len(part) for part in parts) == 500


def test_ids_ascend_and_seeds_differ(tmp_path: Path) -> None:
    bundle = _bundle(tmp_path, _table(100))
    splits = make_splits(bundle, "n", _HASH, None, 1)
    assert all(np.all(np.diff(part) > 0) for part in vars(splits).values())
    assert all(part.dtype == np.int64 for part in vars(splits).values())
    own_seed = _HASH.model_copy(update={"seed": 1})
    assert np.array_equal(make_splits(bundle, "n", own_seed, None, 5).train, splits.train)
    assert not np.array_equal(make_splits(bundle, "n", _HASH, None, 5).train, splits.train)


def test_per_class_counts(tmp_path: Path) -> None:
    bundle = _bundle(tmp_path, _table(100))
    labels = np.asarray(bundle.column("n", "y"))
    splits = make_splits(bundle, "n", _PER_CLASS, "y", 0)
    assert np.bincount(labels[splits.train]).tolist() == [5] * 4
    assert np.bincount(labels[splits.val]).tolist() == [4] * 4
    assert len(splits.test) == 100 - 4 * 9


def test_temporal_quantiles_and_ties(tmp_path: Path) -> None:
    bundle = _bundle(tmp_path, _table(10, when=np.array([9, 1, 2, 3, 4, 5, 6, 7, 7, 0])))
    rule = TemporalSplit(type="temporal", quantiles=[0.5, 0.8])
    splits = make_splits(bundle, "n", rule, "y", 0)
    # Sorted times 0 1 2 3 4 | 5 6 | 7 7 9: the bound at 80 % is the second 7; ties stay together.
    assert splits.train.tolist() == [1, 2, 3, 4, 9]
    assert splits.val.tolist() == [5, 6]
    assert splits.test.tolist() == [0, 7, 8]


@pytest.mark.parametrize(
    ("column", "bounds", "expected"),
    [
        (pa.array([0, 1, 2, 3]), [1, 3], [[0], [1, 2], [3]]),
        (pa.array([0.0, 1.5, 2, 3]), [1.5, 2.5], [[0], [1, 2], [3]]),
        (
            pa.array([0, 1, 2, 3], pa.int32()).cast(pa.date32()),
            ["1970-01-01T12:00:00", "1970-01-03"],
            [[0], [1], [2, 3]],
        ),
        (
            pa.array([-1, 1_000_000, 2_000_000, 5_000_000], pa.timestamp("us")),
            ["1970-01-01", "1970-01-01T01:00:02+01:00"],
            [[0], [1], [2, 3]],
        ),
        (pa.array([0, 1, 10**9, 3 * 10**9], pa.timestamp("ns")),
         ["1970-01-01T00:00:01", "1970-01-01T00:00:02"], [[0, 1], [2], [3]]),
    ],
)  # fmt: skip
def test_temporal_timestamps(
    column: pa.Array, bounds: list, expected: list[list[int]], tmp_path: Path
) -> None:
    bundle = _bundle(tmp_path, _table(4, when=column))
    rule = TemporalSplit(type="temporal", timestamps=bounds)
    splits = make_splits(bundle, "n", rule, None, 0)
    assert [part.tolist() for part in vars(splits).values()] == expected


@pytest.mark.parametrize(
    "rule",
    [
        None,
        _HASH,
        TemporalSplit(type="temporal", timestamps=[200, 450]),
        TemporalSplit(type="temporal", quantiles=[0.5, 0.8]),
    ],
)
def test_splits_of_many_rows_are_files(
    rule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", "val", "test", None]
    labels = [None if i % 7 == 0 else i % 4 for i in range(600)]
    table = _table(600, y=labels, p=[words[i % 4] for i in range(600)])
    bundle = _bundle(tmp_path, table, {**_SPEC, "split": "p"})
    in_memory = make_splits(bundle, "n", rule, "y", 0)
    monkeypatch.setattr("raygnn.data.splits.MANY_ROWS", 599)
    monkeypatch.setattr("raygnn.data.arrays._BLOCK_ROWS", 64)
    stored = [make_splits(bundle, "n", rule, "y", seed) for seed in (0, 0, 1)]
    for split, rows in vars(stored[0]).items():
        assert rows.dtype == np.int64
        assert rows.tolist() == getattr(stored[1], split).tolist()
        expected = getattr(in_memory, split)
        if rule is not None and rule.type == "temporal" and rule.quantiles:
            # the quantiles of every second time
            assert abs(len(rows) - len(expected)) <= 2
        else:
            assert rows.tolist() == expected.tolist()
    files = list((bundle.path / "splits").glob("*/train.npy"))
    assert len(files) == 2  # by seed
    late = TemporalSplit(type="temporal", timestamps=[700, 800])
    with raises("split-empty", "val", "test", 514, 600):
        make_splits(bundle, "n", late, "y", 0)


def test_declared_column_and_unlabelled_nodes(tmp_path: Path) -> None:
    table = _table(6, y=[0, -1, 1, None, 1, 0], p=["train", "train", "val", "test", None, "train"])
    bundle = _bundle(tmp_path, table, {"labels": {"y": "y"}, "split": "p"})
    splits = make_splits(bundle, "n", None, "y", 0)
    assert [part.tolist() for part in vars(splits).values()] == [[0, 5], [2], []]
    splits = make_splits(bundle, "n", None, None, 0)
    assert [part.tolist() for part in vars(splits).values()] == [[0, 1, 5], [2], [3]]


@pytest.mark.parametrize(
    ("labels", "unlabelled"),
    [
        (pa.array([0.5, None, -1.0, float("nan")] * 20), {1, 3}),
        (pa.array([[1, 0], None, [0, 0], [-1, -1]] * 20), {1, 3}),
        (pa.array(["a", None, "b", None] * 20), {1, 3}),
    ],
)
def test_what_counts_as_unlabelled(labels: pa.Array, unlabelled: set, tmp_path: Path) -> None:
    bundle = _bundle(tmp_path, _table(80, y=labels))
    splits = make_splits(bundle, "n", _HASH, "y", 0)
    found = np.concatenate(list(vars(splits).values()))
    assert {int(node) % 4 for node in found} == {0, 1, 2, 3} - unlabelled
    assert len(found) == 40


@pytest.mark.parametrize(
    ("rule", "label", "columns", "spec", "match"),
    [
        (None, "y", {}, _SPEC, ("split-missing", "n")),
        (None, "y", {"p": ["val"] * 40}, {**_SPEC, "split": "p"}, ("split-empty", "train", 40)),
        (_HASH, "y", {"y": [-1] * 40}, _SPEC, ("split-empty", 0, 40)),
        (_HASH, "time", {}, _SPEC, ("labels-unknown", "time", "n")),
        (_NEARLY_ALL, "y", {}, _SPEC, ("split-empty", "val")),
        (_PER_CLASS, "y", {"y": [0] * 39 + [1]}, _SPEC, ("split-per-class-short", 1)),
        (_PER_CLASS, "y", {"y": [0.5] * 40}, _SPEC, ("split-no-classes", "y", "n")),
        (_PER_CLASS, None, {}, _SPEC, ("split-no-classes", "None", "n")),
        (TemporalSplit(type="temporal", quantiles=[0.5, 0.8]), "y", {}, {"labels": {"y": "y"}},
         ("split-no-times", "n")),
        (TemporalSplit(type="temporal", timestamps=[50, 60]), "y", {}, _SPEC,
         ("split-empty",)),
        (TemporalSplit(type="temporal", timestamps=["2020-01-01", "2021-01-01"]), "y", {}, _SPEC,
         ("split-date",)),
    ],
)  # fmt: skip
def test_what_cannot_be_split(
    rule: Any, label: str, columns: dict, spec: dict, match: str, tmp_path: Path
) -> None:
    bundle = _bundle(tmp_path, _table(40, **columns), spec)
    with raises(*match):
        make_splits(bundle, "n", rule, label, 0)


def test_hash_split_is_golden() -> None:
    users = pa.array([f"user{i}" for i in range(10)])
    of_numbers, of_users = (hash_split(i, [0.5, 0.25, 0.25], 0) for i in (np.arange(10), users))
    assert of_numbers.tolist() == [2, 1, 3, 3, 1, 1, 1, 1, 3, 2]
    assert of_users.tolist() == [2, 2, 2, 3, 3, 2, 3, 1, 1, 1]


@given(ids=st.lists(st.integers(-(2**63), 2**63 - 1), unique=True), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_hash_split_follows_the_id(ids: list[int], seed: int) -> None:
    codes = hash_split(np.array(ids, np.int64), (0.6, 0.2, 0.2), seed)
    backwards = hash_split(np.array(ids[::-1], np.int64), (0.6, 0.2, 0.2), seed)
    assert codes[::-1].tolist() == backwards.tolist()
    assert set(codes.tolist()) <= {1, 2, 3}


def test_hash_split_shares_hold_in_expectation() -> None:
    counts = np.bincount(hash_split(np.arange(20_000), [0.7, 0.1, 0.1], 3), minlength=4) / 20_000
    assert np.abs(counts - [0.1, 0.7, 0.1, 0.1]).max() < 0.01


@pytest.mark.parametrize(
    "fractions", [[0.5, 0.5], [0.5, 0.5, 0.5], [-0.1, 0.5, 0.5], [0.0, 0.0, 0.0]]
)
def test_hash_split_refuses_fractions(fractions: list[float]) -> None:
    with raises("split-fractions"):
        hash_split(np.arange(3), fractions, 0)


@given(
    counts=st.lists(st.integers(5, 12), min_size=1, max_size=5),
    num_unlabelled=st.integers(0, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=30)
def test_per_class_split_has_exact_counts(
    counts: list[int], num_unlabelled: int, seed: int
) -> None:
    labels = np.repeat(np.arange(-1, len(counts)), [num_unlabelled, *counts])
    labels = np.random.default_rng(seed).permutation(labels)
    ids = np.arange(len(labels)) * 7
    codes = per_class_split(ids, labels, 3, 2, seed)
    for label, count in enumerate(counts):
        assert np.bincount(codes[labels == label], minlength=4).tolist() == [0, 3, 2, count - 5]
    assert not codes[labels == -1].any()
    order = np.argsort(-ids)
    assert per_class_split(ids[order], labels[order], 3, 2, seed).tolist() == codes[order].tolist()


def test_per_class_split_leaves_out_nan() -> None:
    labels = np.array([0.0, 0.0, np.nan, 1.0, 1.0])
    codes = per_class_split(np.arange(5), labels, 1, 1, 0)
    assert codes[2] == 0
    assert sorted(codes[[0, 1]].tolist()) == [1, 2]


@pytest.mark.parametrize(
    ("labels", "train", "val", "message"),
    [
        ([0, 0, 1], 1, 1, ("split-per-class-short", 2, 1)),
        ([-1, -1], 1, 1, ("split-per-class-short",)),
        ([0, 0], 0, 1, ("split-per-class",)),
        ([0, 0], 1, -1, ("split-per-class",)),
        ([[0, 1]], 1, 0, ("split-no-classes", "1, 2")),
    ],
)
def test_per_class_split_refuses(labels: list[object], train: int, val: int, message: str) -> None:
    array = np.array(labels)
    with raises(*message):
        per_class_split(np.arange(len(array)), array, train, val, 0)


def test_split_column_round_trips() -> None:
    names = split_column(np.array([0, 1, 2, 3, 0], np.uint8)).to_pylist()
    assert names == [None, "train", "val", "test", None]


def test_masks_become_codes() -> None:
    train, test = np.array([1, 0, 0, 0], bool), np.array([0, 0, 1, 0], np.uint8)
    codes = mask_codes({"train_mask": train, "test_mask": test}, 4, "f")
    assert codes is not None
    assert codes.tolist() == [1, 0, 3, 0]
    assert mask_codes({}, 4, "f") is None


def test_masks_must_fit() -> None:
    with raises("prepare-mask-shape", "f", "train_mask", "2, 2"):
        mask_codes({"train_mask": np.ones((2, 2), bool)}, 2, "f")
    both = np.ones(2, bool)
    with raises("prepare-masks-overlap", 2, "val_mask"):
        mask_codes({"train_mask": both, "val_mask": both}, 2, "f")
