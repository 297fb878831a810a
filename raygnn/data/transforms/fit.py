"""Fitting while streaming: mergeable statistics of rows.

Counts, sums, extrema and vocabularies are exact, and quantiles are those of a fixed sample, so that
results do not depend on order and division of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.moments import Moments
from raygnn.data.transforms.fitted import FittedColumn
from raygnn.data.transforms.state import (
    AnyState,
    Category,
    Log1p,
    MultiHot,
    NoValues,
    Number,
    OneHot,
    RankGauss,
    Standard,
    Tfidf,
    Time,
)
from raygnn.data.transforms.values import ColumnTransform, Kind, lists, read_numbers, texts
from raygnn.errors import DataError

#: Rows that quantiles are of; of as many or fewer they are exact. The share of rows below a sampled
#: quantile is wrong by 0.008 or less with a probability of 0.999 (Dvoretzky, Kiefer, Wolfowitz).
SAMPLE_SIZE = 1 << 16
#: Distinct values that are counted: with more of them a column is an id or a free text.
MAX_DISTINCT = 1 << 20
#: Elements of a row that one column may become, and rows of an embedding.
MAX_WIDTH = 1024
MAX_CODES = 100_000

_NUM_QUANTILES = 1000  # as QuantileTransformer
_TEXT_DIM = 64  # directions of texts
_MAX_TEXTS = 1 << 14
_ONE_HOT_VALUES = 16  # of `auto`: more of them become a category
_ONE_HOT_WIDTH = 64  # of `auto`: of edges, which have no categories
_HEAVY = 10.0  # of `auto`: 0.1 % of normal values are 2.3 quartile ranges from the median
_TAIL = 0.001


@dataclass(frozen=True)
class Sample:
    """The rows with the smallest keys, which are hashes: arbitrary rows, but always the same."""

    keys: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, keys: np.ndarray, values: np.ndarray) -> Sample:
        if len(keys) > SAMPLE_SIZE:
            near = keys <= np.partition(keys, SAMPLE_SIZE - 1)[SAMPLE_SIZE - 1]
            keys, values = keys[near], values[near]
            first = _order(keys, values)[:SAMPLE_SIZE]
            keys, values = keys[first], values[first]
        return cls(keys, values)

    @property
    def sorted(self) -> np.ndarray:
        """The values by key, in which smaller samples of the same rows come first."""
        return self.values[_order(self.keys, self.values)]

    @property
    def bound(self) -> np.uint64:
        is_full = len(self.keys) == SAMPLE_SIZE
        return np.uint64(self.keys.max() if is_full else np.iinfo(np.uint64).max)

    def merged(self, other: Sample) -> Sample:
        return Sample.of(
            np.concatenate([self.keys, other.keys]), np.concatenate([self.values, other.values])
        )


def _order(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    ranks = np.unique(values, return_inverse=True)[1] if values.dtype == object else values
    return np.lexsort((ranks, keys))


class _Sampled:
    num_rows: int
    num_gaps: int
    sample: Sample

    @property
    def is_empty(self) -> bool:
        return self.num_gaps == self.num_rows

    @property
    def bound(self) -> np.uint64:
        return self.sample.bound


@dataclass(frozen=True)
class NumberCounts(_Sampled):
    """Statistics of rows of numbers or times, without infinite and unreadable values."""

    num_rows: int
    num_gaps: int
    moments: Moments
    sample: Sample

    @classmethod
    def of(
        cls, values: np.ndarray, keys: np.ndarray, *, sums: bool, bound: np.uint64
    ) -> NumberCounts:
        """Counts rows.

        Args:
            values: float64 [n]; NaN is a gap, infinity a value that is not counted.
            keys: uint64 [n].
            sums: whether to add the values up.
            bound: of a sample that these rows will be merged with; greater keys do not enter it.
        """
        is_finite = np.isfinite(values)
        finite = values[is_finite]
        near = is_finite & (keys <= bound)
        return cls(
            len(values),
            int(np.isnan(values).sum()),
            Moments.of(finite, sums=sums),
            Sample.of(keys[near], values[near]),
        )

    def merged(self, other: NumberCounts) -> NumberCounts:
        return NumberCounts(
            self.num_rows + other.num_rows,
            self.num_gaps + other.num_gaps,
            self.moments.merged(other.moments),
            self.sample.merged(other.sample),
        )


@dataclass(frozen=True)
class ProseCounts(_Sampled):
    """A sample of texts. Texts without a word are gaps."""

    num_rows: int
    num_gaps: int
    sample: Sample

    @classmethod
    def of(cls, values: pa.Array, keys: np.ndarray, bound: np.uint64) -> ProseCounts:
        has_word = pc.fill_null(pc.match_substring_regex(values, r"[\pL\pN_]"), False)
        has_word = has_word.to_numpy(zero_copy_only=False)
        near = has_word & (keys <= bound)
        texts = np.empty(near.sum(), object)
        texts[:] = values.filter(pa.array(near)).to_pylist()
        return cls(len(values), int((~has_word).sum()), Sample.of(keys[near], texts))

    def merged(self, other: ProseCounts) -> ProseCounts:
        return ProseCounts(
            self.num_rows + other.num_rows,
            self.num_gaps + other.num_gaps,
            self.sample.merged(other.sample),
        )


@dataclass(frozen=True)
class TextCounts:
    """Number of rows with each distinct string. Null is a gap.

    `is_cut`: there are more than `MAX_DISTINCT`, and `values` is empty.
    """

    num_rows: int
    values: pa.Array
    counts: np.ndarray
    is_cut: bool = False

    @classmethod
    def of(cls, values: pa.Array, num_rows: int) -> TextCounts:
        return cls._counted(num_rows, values, np.ones(len(values), np.int64))

    @property
    def num_gaps(self) -> int:
        return int(self.counts[pc.is_null(self.values).to_numpy(zero_copy_only=False)].sum())

    @property
    def bound(self) -> np.uint64:
        return np.uint64(np.iinfo(np.uint64).max)

    @property
    def num_distinct(self) -> int:
        return len(self.values) - self.values.null_count

    @property
    def is_empty(self) -> bool:
        return self.num_distinct == 0 and not self.is_cut

    def merged(self, other: TextCounts) -> TextCounts:
        num_rows = self.num_rows + other.num_rows
        if self.is_cut or other.is_cut:
            return _cut(num_rows)
        values = pa.concat_arrays([self.values, other.values])
        return self._counted(num_rows, values, np.concatenate([self.counts, other.counts]))

    @classmethod
    def _counted(cls, num_rows: int, values: pa.Array, counts: np.ndarray) -> TextCounts:
        table = pa.table({"value": values, "count": counts})
        table = table.group_by("value", use_threads=False).aggregate([("count", "sum")])
        if table.num_rows > MAX_DISTINCT:
            return _cut(num_rows)
        distinct = table.column("value").combine_chunks()
        return cls(num_rows, distinct, table.column("count_sum").to_numpy())


def _cut(num_rows: int) -> TextCounts:
    return TextCounts(num_rows, pa.array([], pa.string()), np.zeros(0, np.int64), is_cut=True)


Counts = NumberCounts | TextCounts | ProseCounts


def count(
    spec: ColumnTransform, kind: Kind, column: pa.Array, keys: np.ndarray, bound: np.uint64
) -> Counts:
    """Statistics of rows of a table. `keys`: uint64 [num_rows], a hash of each row. `bound`: of the
    sample so far.
    """
    if kind == "list":
        items = lists(column, spec.separator)
        return TextCounts.of(items.texts, items.num_rows)
    if spec.transform == "tfidf":
        return ProseCounts.of(texts(column), keys, bound)
    if kind == "text":
        return TextCounts.of(texts(column), len(column))
    values, unreadable = read_numbers(column, kind, spec.unit, spec.format)
    values = np.where(unreadable, np.inf, values)
    needs_sample = spec.missing is not None or spec.transform in {"rank_gauss", "auto"}
    bound = bound if needs_sample else np.uint64(0)
    return NumberCounts.of(values, keys, sums=spec.transform == "standard", bound=bound)


def needs_counts(spec: ColumnTransform) -> bool:
    return not (spec.transform in {None, "log1p"} and spec.missing in {None, "zero"})


def fit(
    spec: ColumnTransform, kind: Kind, counts: Counts | None, place: str, *, embeds: bool = True
) -> FittedColumn:
    """The state from training rows. Raises a DataError if the transform does not fit its column.

    Args:
        counts: statistics of all rows; None if the transform needs none.
        embeds: whether `auto` may choose `category`.
    """
    if counts is None:
        state: AnyState = Log1p() if spec.transform == "log1p" else Number()
        fill = None if spec.missing is None else 0.0
        return FittedColumn(spec.column, state, fill, format=spec.format)
    if counts.is_empty:
        return FittedColumn(spec.column, NoValues())
    if isinstance(counts, ProseCounts):
        sample = pa.array(counts.sample.sorted[:_MAX_TEXTS], pa.string())
        return FittedColumn(spec.column, Tfidf.of(sample, spec.dim or _TEXT_DIM))
    if isinstance(counts, TextCounts):
        _check_vocabulary(spec, counts, place)
        if spec.transform == "auto":
            spec = _chosen_vocabulary(spec, kind, counts, place, embeds)
        return FittedColumn(spec.column, _vocabulary_state(spec, counts, place))
    if counts.moments.count == 0:
        raise DataError(
            f"{place}: column {spec.column!r} is invalid: no training row has a readable "
            f"{'time' if kind == 'time' else 'value'}. Correct it. [transform-no-values]"
        )
    spec = _chosen_for_numbers(spec, kind, counts) if spec.transform == "auto" else spec
    state = _number_state(spec, counts, place)
    fill = None
    if spec.missing is not None:
        fill = 0.0 if spec.missing == "zero" else float(np.median(counts.sample.values))
    return FittedColumn(spec.column, state, fill, spec.missing == "indicator", spec.format)


def describe(fitted: FittedColumn, counts: Counts | None) -> str:
    state = fitted.state
    parts: list[str] = ["unchanged" if isinstance(state, Number) else state.type]
    if isinstance(counts, TextCounts) and isinstance(state, OneHot | Category | MultiHot):
        num_rare = len(counts.values) - len(state.vocabulary)
        parts.append(f"{len(state.vocabulary):,} values")
        parts += [f"{num_rare:,} rare values share one column"] if num_rare else []
        if counts.num_distinct == 1 and not counts.num_gaps:
            parts.append("WARNING: a constant, the same in all training rows")
    if isinstance(state, Tfidf):
        parts.append(f"{len(state.vocabulary):,} words and pairs in {state.width} directions")
    if isinstance(counts, NumberCounts) and counts.moments.low == counts.moments.high:
        parts.append(f"WARNING: a constant, {counts.moments.low:g} in all training rows")
    if counts is not None and counts.num_gaps:
        parts.append(f"{counts.num_gaps:,} gaps")
    if fitted.indicator:
        parts.append("missing: indicator")
    return ", ".join(parts)


def _number_state(spec: ColumnTransform, counts: NumberCounts, place: str) -> AnyState:
    low, high = counts.moments.low, counts.moments.high
    match spec.transform:
        case "standard":
            return Standard(*counts.moments.mean_and_std())
        case "log1p":
            if low <= -1:
                raise DataError(
                    f"{place}: column {spec.column!r} is invalid: log1p needs values above -1, and "
                    f"the minimum is {low:g}. Set rank_gauss, or repair it. [transform-log1p]"
                )
            return Log1p()
        case "rank_gauss":
            sample = counts.sample.values
            shares = np.linspace(0, 100, min(_NUM_QUANTILES, len(sample)))
            # Interpolation may round neighbors out of order.
            ascending = np.maximum.accumulate(np.percentile(sample, shares))
            return RankGauss(tuple(ascending.tolist()))
        case "time":
            return Time(high, spec.unit)
    return Number()


def _check_vocabulary(spec: ColumnTransform, counts: TextCounts, place: str) -> None:
    if counts.is_cut:
        raise DataError(
            f"{place}: column {spec.column!r} is invalid: it has more than {MAX_DISTINCT:,} "
            "distinct values. Take it out, or write a coarser column. [transform-too-many-values]"
        )


def _vocabulary_state(spec: ColumnTransform, counts: TextCounts, place: str) -> AnyState:
    is_category = spec.transform == "category"
    vocabulary, has_rare = _frequent(spec, counts, least=2 if is_category else 1)
    size, limit = len(vocabulary) + has_rare, MAX_CODES if is_category else MAX_WIDTH
    if size > limit:
        instead = "" if is_category else ", or transform: category"
        raise DataError(
            f"{place}: column {spec.column!r} is invalid: {size:,} values, above {limit:,}. Set "
            f"max_categories or min_frequency{instead}. [transform-too-many-values]"
        )
    if is_category:
        return Category(vocabulary)
    if spec.transform == "one_hot":
        return OneHot(vocabulary, has_rare)
    return MultiHot(
        tuple(text for text in vocabulary if text is not None), has_rare, spec.separator
    )


def _frequent(
    spec: ColumnTransform, text_counts: TextCounts, least: int
) -> tuple[tuple[str | None, ...], bool]:
    """Values that are not rare, sorted, None last; and whether there are rare ones. At equal counts
    later values stay, as in `OneHotEncoder`.
    """
    order = pc.sort_indices(text_counts.values).to_numpy()  # nulls come last
    counts = text_counts.counts[order]
    keep = counts >= (spec.min_frequency or least)
    limit = spec.max_categories
    if limit is not None and keep.sum() + 1 > limit:  # one is for rare values
        positions = np.flatnonzero(keep)
        by_count = positions[np.argsort(counts[positions], kind="stable")]
        keep[by_count[: len(positions) - (limit - 1)]] = False
    return tuple(text_counts.values.take(pa.array(order[keep])).to_pylist()), not keep.all()


def looks_like_ids(num_distinct: int, num_given: int) -> bool:
    """Whether most of `num_given` rows have their own text, like ids, names and free texts."""
    return num_distinct > 2 and 2 * num_distinct > num_given


def _chosen_vocabulary(
    spec: ColumnTransform, kind: Kind, counts: TextCounts, place: str, embeds: bool
) -> ColumnTransform:
    if kind == "list":
        cap = None if counts.num_distinct <= MAX_WIDTH else MAX_WIDTH
        return _chosen(spec, transform="multi_hot", max_categories=cap)
    num_distinct = counts.num_distinct
    if looks_like_ids(num_distinct, counts.num_rows - counts.num_gaps):
        raise DataError(
            f"{place}: column {spec.column!r} is invalid: {num_distinct:,} values in "
            f"{counts.num_rows:,} rows look like ids. Take it out, or set tfidf. [transform-ids]"
        )
    if num_distinct <= _ONE_HOT_VALUES or not embeds:
        return _chosen(spec, transform="one_hot", max_categories=_ONE_HOT_WIDTH)
    cap = None if num_distinct < MAX_CODES else MAX_CODES
    return _chosen(spec, transform="category", max_categories=cap)


def _chosen_for_numbers(spec: ColumnTransform, kind: Kind, counts: NumberCounts) -> ColumnTransform:
    """Logarithms or ranks for numbers with heavy tails; others do not change."""
    missing = spec.missing or ("indicator" if counts.num_gaps else "median")
    if kind == "time":
        missing = "median" if missing == "zero" else missing
        return _chosen(spec, transform="time", missing=missing)
    values = counts.sample.values
    name = None
    if is_heavy_tailed(values):
        is_log = counts.moments.low >= 0 and not is_heavy_tailed(np.log1p(values))
        name = "log1p" if is_log else "rank_gauss"
    return _chosen(spec, transform=name, missing=missing)


def is_heavy_tailed(values: np.ndarray) -> bool:
    """Whether one value in a thousand is many quartile ranges from the median; never for flags."""
    if len(np.unique(values)) <= 2:
        return False
    low, first, middle, third, high = np.quantile(values, [_TAIL, 0.25, 0.5, 0.75, 1 - _TAIL])
    spread = third - first or float(values.std())
    return bool(max(high - middle, middle - low) > _HEAVY * spread)


def _chosen(spec: ColumnTransform, **update: Any) -> ColumnTransform:
    return spec.model_copy(update=update)
