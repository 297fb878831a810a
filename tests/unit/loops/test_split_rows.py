"""Digests and sketches of the rows of splits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from raygnn.loops.split_rows import SplitRows


def _rows(ids: np.ndarray, labels: np.ndarray | None = None) -> SplitRows:
    columns = {"id": pa.array([f"n{i}" for i in ids]), "time": ids * 10}
    return SplitRows.of(columns, labels)


def test_digests_ignore_the_order_and_read_labels() -> None:
    ids = np.arange(500)
    order = np.random.default_rng(0).permutation(500)
    labels = ids % 3
    digest = _rows(ids, labels).digest
    assert _rows(ids[order], labels[order]).digest == digest
    assert _rows(ids, np.roll(labels, 1)).digest != digest
    assert _rows(ids[1:], labels[1:]).digest != digest
    assert SplitRows.of({"id": np.arange(3), "time": np.arange(3)[::-1]}).digest != (
        SplitRows.of({"id": np.arange(3), "time": np.arange(3)}).digest
    )


def test_overlaps_are_seen() -> None:
    learned = _rows(np.arange(10_000)).sketch
    assert not _rows(np.arange(10_000, 20_000)).overlaps(learned)
    assert _rows(np.arange(9_000, 19_000)).overlaps(learned)  # missed with probability 0.9^256
    assert len(learned) < 3_000
