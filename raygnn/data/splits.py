"""Training, validation and test rows, from a column of the tables or a rule.

Rules are pure functions of ids, labels and a seed: the same in a preparer and in a config. They
return uint8 codes: 0 no split, 1 train, 2 validation, 3 test.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raygnn.config.data_section import TemporalSplit
from raygnn.data.arrays import MANY_ROWS, create_array, open_array, row_blocks
from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.cache import build_once
from raygnn.data.hashing import hash_ids
from raygnn.data.time_units import date_as_time
from raygnn.errors import DataError

#: Names of codes 1, 2 and 3; 0 means that there is no split.
SPLIT_NAMES = ("train", "val", "test")
#: The words of a split column, in lower case, and what they mean; 0 is a node of no split.
SPLIT_CODES = {
    **{name: code for code, name in enumerate(SPLIT_NAMES, start=1)},
    **{"valid": 2, "validation": 2, "": 0, "none": 0},
}

if TYPE_CHECKING:
    from raygnn.config.data_section import HashSplit, PerClassSplit, SplitRule

#: An array of values of some rows.
_OfRows = Callable[[slice], np.ndarray]
_SUM_TOLERANCE = 1e-6  # shares are written with few decimals, and summed in binary


def hash_split(ids: pa.Array | np.ndarray, fractions: Sequence[float], seed: int) -> np.ndarray:
    """Splits by the hash of (seed, id): a node keeps its split when the graph grows. uint8 codes.

    `ids`: [n], without nulls. `fractions`: expected shares of train, val and test; the rest is in
    no split. Raises a DataError unless these are three shares with a sum in (0, 1].
    """
    return split_by_hash(hash_ids(ids, seed), fractions)


def split_by_hash(hashes: np.ndarray, fractions: Sequence[float]) -> np.ndarray:
    """uint8 codes of uint64 hashes. Raises a DataError for invalid shares."""
    position = (hashes >> np.uint64(11)) * 2.0**-53  # uniform in [0, 1)
    codes = np.searchsorted(split_bounds(fractions), position, side="right") + 1
    return (codes & 3).astype(np.uint8)


def split_bounds(fractions: Sequence[float]) -> np.ndarray:
    """Upper bounds of the splits on [0, 1): float64 [3]. Raises a DataError for invalid shares."""
    total = sum(fractions)
    if len(fractions) != 3 or min(fractions) < 0 or not 0 < total <= 1 + _SUM_TOLERANCE:
        raise DataError(
            f"splits.fractions={list(fractions)!r} is invalid: their sum is above 1, or not three. "
            "Set shares as [0.8, 0.1, 0.1]. [split-fractions]"
        )
    bounds = np.cumsum(np.asarray(fractions, np.float64))
    if total > 1 - _SUM_TOLERANCE:
        bounds[-1] = 1.0  # 0.7 + 0.2 + 0.1 is below 1 in floats; all nodes are meant
    return bounds


def per_class_split(
    ids: pa.Array | np.ndarray, labels: np.ndarray, train: int, val: int, seed: int
) -> np.ndarray:
    """Draws `train` and `val` nodes of each class by the hash of (seed, id); the rest are test.

    `labels`: class of each node [n]; negative or NaN is unlabelled and in no split. Returns uint8
    codes [n]. Raises a DataError if labels are not classes, counts are invalid, or a class has too
    few nodes.

    Source: Shchur et al., Pitfalls of Graph Neural Network Evaluation, arXiv:1811.05868.
    """
    if train < 1 or val < 0:
        raise DataError(
            f"splits.train={train!r}, splits.val={val!r} is invalid: needs a training node per "
            "class. Set both, as train: 20, val: 30. [split-per-class]"
        )
    if labels.ndim != 1:
        raise DataError(
            f"splits.type='per_class' is invalid: labels have shape {labels.shape}. Use hash, "
            "which needs none. [split-no-classes]"
        )
    labelled = np.flatnonzero(labels >= 0)  # NaN compares false
    classes, class_of = np.unique(labels[labelled], return_inverse=True)
    counts = np.bincount(class_of, minlength=len(classes))
    if len(classes) == 0 or counts.min() < train + val:
        few = [f"{c} ({n} nodes)" for c, n in zip(classes, counts, strict=True) if n < train + val]
        what = f"too few in class {', '.join(few[:5])}" if few else "no node has a label"
        raise DataError(
            f"splits.train={train!r}, splits.val={val!r} is invalid: needs {train + val} labelled "
            f"nodes in each of {len(classes)} classes, {what}. Lower the counts, or set hash. "
            "[split-per-class-short]"
        )
    order = np.lexsort((hash_ids(ids, seed)[labelled], class_of))
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    codes = np.zeros(len(labels), np.uint8)
    codes[labelled[order]] = np.where(rank < train, 1, np.where(rank < train + val, 2, 3))
    return codes


@dataclass(frozen=True)
class Splits:
    """Dense node ids or rows of each split, int64, ascending; possibly empty."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray

    def __getitem__(self, split: str) -> np.ndarray:
        rows: np.ndarray = getattr(self, split)
        return rows


def make_splits(
    bundle: Bundle,
    rows: SeedRows | str,
    rule: SplitRule | None,
    label: str | None,
    seed: int,
    *,
    may_be_empty: bool = False,
) -> Splits:
    """Splits nodes, or rows of a training table. Rows without a label or with weight 0 are in none.

    Of more than `MANY_ROWS` rows, quantiles of time are those of every n-th, and the splits are
    mapped files in the bundle's folder.

    Args:
        rows: rows of a training table, or a node type.
        rule: `data.splits`; null uses the split column of the table. A training table without one
            is split by time, 80 : 10 : 10. The hash split keeps all rows of an entity together.
        label: column of labels; null uses all rows.
        seed: seed of rules without their own.
    Raises:
        DataError: there is no split, or a requested split is empty.
    """
    if isinstance(rows, str):
        rows = SeedRows.of_nodes(bundle, rows)
    if rule is None and rows.name is not None and rows.split is None and rows.time is not None:
        rule = TemporalSplit(type="temporal", quantiles=[0.8, 0.9])
    labelled = _labelled(bundle, rows, label)
    if rule is None:
        codes = _declared(rows)
    elif rule.type == "hash":
        of_nodes = hash_split(bundle.ids(rows.node_type), rule.fractions, _seed(rule, seed))
        nodes = rows.nodes
        codes = of_nodes.__getitem__ if nodes is None else lambda some: of_nodes[nodes[some]]
    elif rule.type == "per_class":
        codes = _per_class(bundle, rows, rule, label, seed).__getitem__
    else:
        codes = _temporal(rows, rule, labelled)

    def chosen(some: slice) -> np.ndarray:
        return codes(some) * labelled(some)

    if rows.num_rows <= MANY_ROWS:
        of_all = chosen(slice(None))
        parts = [np.flatnonzero(of_all == code) for code in (1, 2, 3)]
    else:
        written = None if rule is None else rule.model_dump_json()
        named = json.dumps([rows.name, rows.node_type, label, seed, written])
        name = hashlib.sha256(named.encode()).hexdigest()[:20]
        folder = build_once(
            bundle.path / "splits" / name,
            partial(_write_splits, rows.num_rows, chosen),
            f"the splits of {rows.place}",
        )
        parts = [open_array(folder / f"{split}.npy") for split in SPLIT_NAMES]
    empty = empty_splits(rule, dict(zip(SPLIT_NAMES, map(len, parts), strict=True)))
    if empty and not may_be_empty:
        num = sum(int(labelled(some).sum()) for some in row_blocks(rows.num_rows))
        raise DataError(
            f"data.splits={_text(rule)} is invalid: no labelled {_words(rows)} ({num:,} of "
            f"{rows.num_rows:,}) is in {' and '.join(empty)}. Set others. [split-empty]"
        )
    return Splits(*parts)


def _write_splits(num_rows: int, chosen: _OfRows, folder: Path) -> None:
    blocks = list(row_blocks(num_rows))
    sizes = np.sum([np.bincount(chosen(some), minlength=4) for some in blocks], axis=0)
    for code, name in enumerate(SPLIT_NAMES, start=1):
        out, at = create_array(folder / f"{name}.npy", (int(sizes[code]),), np.int64), 0
        for some in blocks:
            found = some.start + np.flatnonzero(chosen(some) == code)
            out[at : at + len(found)] = found
            at += len(found)


def empty_splits(rule: SplitRule | None, sizes: Mapping[str, int]) -> list[str]:
    """The splits without rows among those that a rule makes."""
    if rule is None:
        wanted = (True, False, False)
    elif rule.type == "hash":
        wanted = (rule.fractions[0] > 0, rule.fractions[1] > 0, rule.fractions[2] > 0)
    elif rule.type == "per_class":
        wanted = (True, rule.val > 0, False)
    else:
        reaches_end = rule.quantiles is not None and rule.quantiles[1] >= 1
        wanted = (True, True, not reaches_end)
    made = zip(SPLIT_NAMES, wanted, strict=True)
    return [name for name, is_made in made if is_made and not sizes[name]]


def _words(rows: SeedRows) -> str:
    if rows.name is None:
        return f"node of type {rows.node_type!r}"
    return f"row of training table {rows.name!r}"


def _labelled(bundle: Bundle, rows: SeedRows, label: str | None) -> _OfRows:
    if label is None:
        return lambda some: np.ones(len(range(*some.indices(rows.num_rows))), bool)
    if label not in rows.columns or rows.columns[label].role != "label":
        raise DataError(
            f"label={label!r} is no label of {rows.place}. Name one of its labels. [labels-unknown]"
        )
    labels, weights = bundle.row_column(rows, label), bundle.row_weights(rows)
    if weights is None:
        return lambda some: has_label(labels[some])
    return lambda some: has_label(labels[some]) & (weights[some] > 0)


def has_label(labels: np.ndarray) -> np.ndarray:
    """bool [num_rows]: rows of a label column with a value."""
    mask = ~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0
    return np.asarray(mask.reshape(len(labels), -1).all(axis=1))


def _seed(rule: HashSplit | PerClassSplit, seed: int) -> int:
    return seed if rule.seed is None else rule.seed


def _declared(rows: SeedRows) -> _OfRows:
    if rows.split is None:
        raise DataError(
            f"data.splits=None is invalid: {rows.place} has no split column. Name one in "
            "graph.yaml, or set data.splits to {type: hash, fractions: [0.8, 0.1, 0.1]}, "
            "{type: per_class, train: 20, val: 30} or {type: temporal, quantiles: [0.8, 0.9]}. "
            "[split-missing]"
        )
    return rows.split.__getitem__


def _per_class(
    bundle: Bundle, rows: SeedRows, rule: PerClassSplit, label: str | None, seed: int
) -> np.ndarray:
    if rows.name is not None:
        raise DataError(
            f"data.splits={_text(rule)} is invalid: {rows.place} may repeat an entity. Use "
            "temporal or hash. [split-per-class-rows]"
        )
    if label is None or rows.columns[label].dtype.startswith("float"):
        raise DataError(
            f"data.splits={_text(rule)} is invalid: label {label!r} of node type "
            f"{rows.node_type!r} has no classes. Use hash. [split-no-classes]"
        )
    ids, labels = bundle.ids(rows.node_type), bundle.row_column(rows, label)
    return per_class_split(ids, labels, rule.train, rule.val, _seed(rule, seed))


def _temporal(rows: SeedRows, rule: TemporalSplit, labelled: _OfRows) -> _OfRows:
    times = rows.time
    if times is None:
        raise DataError(
            f"data.splits={_text(rule)} is invalid: {rows.place} has no time column. Name one, or "
            "use hash. [split-no-times]"
        )
    some = slice(None, None, -(-rows.num_rows // MANY_ROWS) or 1)
    bounds = _temporal_bounds(times[some], labelled(some), rows.time_unit, rule)
    return lambda some: _codes_between(times[some], bounds)


def temporal_codes(
    times: np.ndarray, counted: np.ndarray | None, unit: str | None, rule: TemporalSplit
) -> np.ndarray:
    """Splits by time: train before the first bound, validation from it on, test from the second on.

    Args:
        counted: bool mask of the times whose quantiles are used; null means all.
        unit: unit of dates; null for plain numbers.
    Raises:
        DataError: the rule names dates, and the times are plain numbers.
    """
    return _codes_between(times, _temporal_bounds(times, counted, unit, rule))


def _temporal_bounds(
    times: np.ndarray, counted: np.ndarray | None, unit: str | None, rule: TemporalSplit
) -> list[int | float | None]:
    if rule.quantiles is not None:
        ordered = np.sort(times if counted is None else times[counted])
        return [_quantile(ordered, share) for share in rule.quantiles]
    assert rule.timestamps is not None
    return [_bound(given, unit, rule) for given in rule.timestamps]


def _codes_between(times: np.ndarray, bounds: Sequence[int | float | None]) -> np.ndarray:
    codes = np.ones(len(times), np.uint8)
    for code, bound in enumerate(bounds, start=2):
        if bound is not None:
            codes[times >= bound] = code
    return codes


def _quantile(ordered: np.ndarray, share: float) -> int | float | None:
    # Ten digits, so that 0.7 * 10 counts as 7, not as 7.000000000000001.
    position = math.ceil(round(share * len(ordered), 10))
    return ordered[position].item() if position < len(ordered) else None


def _bound(given: str | int | float, unit: str | None, rule: TemporalSplit) -> int | float:
    if not isinstance(given, str):
        return given
    if unit is None:
        raise DataError(
            f"data.splits={_text(rule)} is invalid: times are numbers. Give numbers. [split-date]"
        )
    return date_as_time(given)


def _text(rule: SplitRule | None) -> str:
    return "None" if rule is None else repr(rule.model_dump(exclude_none=True))
