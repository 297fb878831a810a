"""Split rules: pure functions of (seed, id), whatever the order of the rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.splits import hash_split, per_class_split
from raygnn.data.tables.clean_up import mask_codes
from raygnn.data.tables.columns import split_column
from tests.errors import raises


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
