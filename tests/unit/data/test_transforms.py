"""Transforms: what scikit-learn gives, the same bits however the rows are cut, bounds that hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import (
    MultiLabelBinarizer,
    OneHotEncoder,
    QuantileTransformer,
    StandardScaler,
)

from raygnn.data.hashing import splitmix64_array
from raygnn.data.moments import Moments
from raygnn.data.transforms import fit as fitting
from raygnn.data.transforms.fit import (
    SAMPLE_SIZE,
    Counts,
    NumberCounts,
    count,
    describe,
    fit,
    needs_counts,
)
from raygnn.data.transforms.fitted import VERSION, FittedColumn, FittedFeature, PlainColumn
from raygnn.data.transforms.state import Category
from raygnn.data.transforms.values import ColumnTransform, Kind, kind_of, looks_like_times, texts
from tests.errors import raises

ANY_KEY = np.uint64(np.iinfo(np.uint64).max)
#: With no more than seven digits, so that float32 tells them apart.
NUMBERS = st.integers(-(10**6), 10**6).map(lambda n: n / 8)
WORDS = st.sampled_from(["a", "b", "c", "dd", "é", ""])


def _kind(spec: ColumnTransform, column: pa.Array) -> Kind:
    split = spec.separator is not None
    kind = kind_of(spec.transform, column.type, split=split, written=spec.format)
    assert kind is not None
    return kind


def counted(spec: ColumnTransform, column: pa.Array, cuts: Sequence[int] = ()) -> Counts:
    """The counts of a column that is read in pieces."""
    kind = _kind(spec, column)
    keys = splitmix64_array(np.arange(len(column)))
    bounds = [0, *sorted(cuts), len(column)]
    parts = [count(spec, kind, column[a:b], keys[a:b], ANY_KEY) for a, b in pairwise(bounds)]
    found: Counts = reduce(lambda one, other: one.merged(other), parts)  # type: ignore[arg-type]
    return found


def fitted(column: pa.Array, cuts: Sequence[int] = (), **options: Any) -> FittedColumn:
    spec = ColumnTransform(column="c", **options)
    kind = _kind(spec, column)
    found = counted(spec, column, cuts) if needs_counts(spec) else None
    return fit(spec, kind, found, "node_types.n.features.x")


def rows(column: pa.Array, other: pa.Array | None = None, **options: Any) -> np.ndarray:
    """What a transform that was fitted to one column makes of another."""
    applied = fitted(column, **options).apply(column if other is None else other)
    assert not applied.broken
    return applied.rows


columns = st.lists(NUMBERS, min_size=2, max_size=40)


@settings(max_examples=100)
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_sums_are_exact(values: list[float]) -> None:
    found = Moments.of(np.array(values))
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    variance = sum((value - mean) ** 2 for value in exact) / len(exact)
    got_mean, got_std = found.mean_and_std()
    assert got_mean == float(mean)
    assert (got_std == 0) == (variance == 0)
    assert abs(Fraction(got_std) ** 2 - variance) <= variance * Fraction(1, 2**50)


@settings(max_examples=50)
@given(
    values=st.lists(NUMBERS | st.none(), min_size=2, max_size=40).filter(
        lambda values: any(value is not None for value in values)
    ),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    options=st.sampled_from(
        [
            {"transform": "standard", "missing": "median"},
            {"transform": "rank_gauss", "missing": "indicator"},
            {"transform": "auto"},
            {"missing": "median"},
            {"transform": "one_hot", "min_frequency": 2},
            {"transform": "category", "max_categories": 5},
        ]
    ),
)
def test_no_cut_changes_a_bit(values: list[Any], cuts: list[int], options: dict[str, Any]) -> None:
    column = pa.array(values, pa.float64())
    within = [min(cut, len(values)) for cut in cuts]
    whole, pieces = fitted(column, **options), fitted(column, within, **options)
    assert whole == pieces
    feature = FittedFeature((PlainColumn("p", 3), whole))
    assert FittedFeature.of_content(feature.to_content(), "x") == feature
    one_by_one = [pieces.apply(column[i : i + 1]).rows for i in range(len(column))]
    together = whole.apply(column)
    assert not together.broken
    assert together.rows.tobytes() == np.concatenate(one_by_one).tobytes()
    assert together.rows.shape[1] == whole.width == len(whole.scaled)


def test_a_sample_is_the_same_for_any_order_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "SAMPLE_SIZE", 100)
    values, keys = np.arange(1000.0), splitmix64_array(np.arange(1000))
    order = np.random.default_rng(0).permutation(1000)

    def sampled(chosen: np.ndarray, size: int) -> np.ndarray:
        found, bound = None, ANY_KEY
        for start in range(0, 1000, size):
            part = chosen[start : start + size]
            new = NumberCounts.of(values[part], keys[part], sums=False, bound=bound)
            found = new if found is None else found.merged(new)
            bound = found.sample.bound
        assert found is not None
        assert len(found.sample.values) == 100
        return np.sort(found.sample.values)

    expected = np.sort(values[np.argsort(keys)[:100]])
    for size in (1000, 300, 7):
        assert np.array_equal(sampled(order, size), expected)
        assert np.array_equal(sampled(np.arange(1000), size), expected)


def test_quantiles_of_a_sample_keep_the_stated_error() -> None:
    values = np.random.default_rng(0).lognormal(0, 2, 6 * SAMPLE_SIZE)
    median = fitted(pa.array(values), missing="median").fill
    assert median is not None
    assert abs((values < median).mean() - 0.5) < 0.008
    assert median != np.median(values)


@settings(max_examples=100)
@given(
    name=st.sampled_from(["standard", "rank_gauss"]),
    values=st.lists(NUMBERS, min_size=2, max_size=40, unique=True),
    others=columns,
)
def test_scaled_numbers_are_as_of_scikit_learn(
    name: str, values: list[float], others: list[float]
) -> None:
    ranks = QuantileTransformer(n_quantiles=len(values), output_distribution="normal")
    theirs = {"standard": StandardScaler(), "rank_gauss": ranks}[name]
    expected = theirs.fit(np.array(values)[:, None]).transform(np.array(others)[:, None])
    got = rows(pa.array(values), pa.array(others), transform=name)
    tolerance = 1e-4 if name == "standard" else 1e-5
    assert np.allclose(got, expected, rtol=tolerance, atol=tolerance)


def test_equal_numbers_are_one_point() -> None:
    """As in scikit-learn, where nothing is divided by a spread of 0."""
    column = np.full((3, 1), 2.5)
    expected = StandardScaler().fit(column).transform(column + 1)
    got = rows(pa.array(column[:, 0]), pa.array([3.5] * 3), transform="standard")
    assert np.allclose(got, expected)


def test_equal_values_have_their_middle_rank() -> None:
    """scikit-learn puts those at an end at -5.2, as if half of the rows were one outlier."""
    got = rows(pa.array([0.0] * 50 + list(range(1, 51))), transform="rank_gauss")[:, 0]
    assert got[0] == pytest.approx(-0.67, abs=0.02)  # the score of a quarter
    assert (np.diff(got[49:]) > 0).all()
    assert rows(pa.array([3.0] * 4), transform="rank_gauss").tolist() == [[0.0]] * 4


@settings(max_examples=100)
@given(
    values=st.lists(WORDS | st.none(), min_size=1, max_size=30).filter(any),
    others=st.lists(WORDS | st.sampled_from(["new", "newer"]), min_size=1, max_size=10),
    min_frequency=st.none() | st.integers(1, 4),
    max_categories=st.none() | st.integers(1, 5),
)
def test_one_hot_is_as_of_scikit_learn(
    values: list[Any], others: list[Any], min_frequency: int | None, max_categories: int | None
) -> None:
    options = {"min_frequency": min_frequency, "max_categories": max_categories}
    theirs = OneHotEncoder(
        **options, handle_unknown="infrequent_if_exist", sparse_output=False
    ).fit(np.array(values, object)[:, None])
    column = pa.array(values, pa.string())
    for given_ in (values, others):
        got = rows(column, pa.array(given_, pa.string()), transform="one_hot", **options)
        assert np.array_equal(got, theirs.transform(np.array(given_, object)[:, None]))


@settings(max_examples=50)
@given(
    values=st.lists(st.lists(WORDS, max_size=4), min_size=1, max_size=20).filter(any),
    others=st.lists(st.lists(WORDS, max_size=4), min_size=1, max_size=5),
)
def test_multi_hot_is_as_of_scikit_learn(values: list[Any], others: list[Any]) -> None:
    theirs = MultiLabelBinarizer().fit(values)
    known = [[word for word in words if word in theirs.classes_] for words in others]
    type_ = pa.list_(pa.string())
    got = rows(pa.array(values, type_), pa.array(others, type_), transform="multi_hot")
    assert np.array_equal(got, theirs.transform(known))


def test_tfidf_is_as_of_scikit_learn_however_the_rows_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(0)
    words = np.array(["red", "wine", "vin\u00e9", "CHEESE", "3", "rouge,", "old\nblue", "!"])
    texts = [" ".join(draw.choice(words, n)) for n in draw.integers(0, 9, 200)]
    column = pa.array([*texts, None])
    monkeypatch.setattr(fitting, "SAMPLE_SIZE", 100)
    found = fitted(column, transform="tfidf", dim=5)
    assert fitted(column, [3, 50, 120], transform="tfidf", dim=5) == found
    keys = splitmix64_array(np.arange(len(column)))
    has_word = np.array([any(c.isalnum() for c in text) for text in texts] + [False])
    sample = sorted(np.flatnonzero(has_word), key=keys.__getitem__)[:100]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\b\w+\b")
    svd = TruncatedSVD(5, random_state=0, n_iter=7)
    svd.fit(vectorizer.fit_transform([texts[i] for i in sample]))
    wanted = svd.transform(vectorizer.transform([*texts, ""]))
    got = found.apply(column).rows
    np.testing.assert_allclose(got, wanted, atol=2e-3)  # directions are stored as float16
    assert got.shape == (201, 5)
    assert not got[-1].any()
    np.testing.assert_array_equal(found.apply(column[7:]).rows, got[7:])
    saved = FittedFeature((found,))
    assert FittedFeature.of_content(json.loads(json.dumps(saved.to_content())), "x") == saved


def test_tfidf_of_few_or_no_words() -> None:
    small = fitted(pa.array(["a b", "b c"]), transform="tfidf")
    assert small.apply(pa.array(["b", "new", None])).rows.shape == (3, 2)
    assert (
        fitted(pa.array(["!", "", None], pa.string()), transform="tfidf").state.type == "no_values"
    )


@pytest.mark.slow
def test_tfidf_tells_topics_apart_better_than_hashed_words() -> None:
    draw = np.random.default_rng(1)
    popularity, topics = 1 / np.arange(1, 4001), draw.integers(0, 12, 6000)
    shares = np.stack([popularity * (1 + 7 * (draw.random(4000) < 0.04)) for _ in range(12)])
    shares /= shares.sum(axis=1, keepdims=True)
    texts = [" ".join(f"w{w}" for w in draw.choice(4000, 15, p=shares[t])) for t in topics]

    def accuracy(x: np.ndarray) -> float:
        model = LogisticRegression(C=10, max_iter=1000).fit(x[:3000], topics[:3000])
        return float(model.score(x[3000:], topics[3000:]))

    column = pa.array(texts)
    found = accuracy(10 * fitted(column[:3000], transform="tfidf").apply(column).rows)
    hashed = HashingVectorizer(ngram_range=(1, 2), n_features=1024).transform(texts).toarray()
    print(f"tfidf {found:.3f}, 1,024 hashes {accuracy(hashed):.3f}")
    assert found > accuracy(hashed) + 0.02


def test_multi_hot_of_texts_with_a_separator() -> None:
    column = pa.array(["Action|Comedy", "Comedy", None, "", " Drama |Comedy|Comedy"])
    found = fitted(column, transform="multi_hot", separator="|", min_frequency=2)
    assert found.state.vocabulary == ("Comedy",)  # type: ignore[union-attr]
    got = found.apply(pa.array(["Comedy|Western", None, "Drama|Action"])).rows
    assert got.tolist() == [[1, 1], [0, 0], [0, 1]]  # the last is of rare and unknown ones


def test_categories_are_numbered_and_the_rest_is_0() -> None:
    column = pa.array(["b", "a", "b", "a", "once", None, None])
    found = fitted(column, transform="category")
    assert found.state == Category(("a", "b", None))
    assert found.apply(pa.array(["a", "b", None, "once", "new"])).rows[:, 0].tolist() == [
        *(1, 2, 3, 0, 0)
    ]
    assert FittedFeature((PlainColumn("p", 2), found)).num_codes == {2: 4}
    capped = fitted(column, transform="category", max_categories=2)
    assert len(capped.state.vocabulary) == 1  # type: ignore[union-attr]


def test_whole_numbers_are_one_category_in_any_type() -> None:
    found = fitted(pa.array([7, 7, 8, 8]), transform="category")
    for column in (pa.array([8, 9], pa.int8()), pa.array([8.0, 9.0]), pa.array(["8", "9"])):
        assert found.apply(column).rows[:, 0].tolist() == [2, 0]
    assert texts(pa.array([1.5, 2.0, None, float("nan"), 1e300])).to_pylist() == [
        *("1.5", "2", None, None, "1e+300")
    ]
    assert texts(pa.array([True, None])).to_pylist() == ["true", None]


def test_gaps_are_filled_as_by_scikit_learn() -> None:
    given_ = [3.0, None, 1.0, float("nan"), 8.0]
    array = np.array(given_, np.float64)[:, None]
    for missing, theirs in (
        ("median", SimpleImputer(strategy="median")),
        ("zero", SimpleImputer(strategy="constant", fill_value=0)),
        ("indicator", SimpleImputer(strategy="median", add_indicator=True)),
    ):
        got = rows(pa.array(given_), missing=missing)
        assert np.array_equal(got, theirs.fit_transform(array))


def test_gaps_are_refused_where_nothing_stands_for_them() -> None:
    column = pa.array([1.0, None, float("nan"), float("inf"), 1e300])
    applied = FittedColumn("c", fitted(pa.array([1.0])).state).apply(column)
    assert {rule: mask.tolist() for rule, mask in applied.broken.items()} == {
        "null or NaN values": [False, True, True, False, False],
        "infinite values": [False, False, False, True, False],
        "values too large for float32": [False, False, False, False, True],
    }


def test_logarithms_refuse_what_they_have_no_number_for() -> None:
    applied = fitted(pa.array([0.0]), transform="log1p").apply(pa.array([0.0, -1.0, np.e - 1]))
    assert applied.rows[[0, 2], 0].tolist() == [0, 1]
    ((rule, mask),) = applied.broken.items()
    assert "log1p" in rule
    assert mask.tolist() == [False, True, False]
    with raises("transform-log1p", "'c'", -5):
        fitted(pa.array([1.0, -5.0]), transform="log1p", missing="median")


TIMES = st.datetimes(datetime(1950, 1, 1), datetime(2100, 1, 1))


@settings(max_examples=100)
@given(moments=st.lists(TIMES, min_size=1, max_size=5))
def test_times_are_age_and_phases(moments: list[datetime]) -> None:
    got = rows(pa.array(moments, pa.timestamp("us")), transform="time")
    for moment, row in zip(moments, got, strict=True):
        year = datetime(moment.year, 1, 1)
        length = datetime(moment.year + 1, 1, 1) - year
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        day = (moment - midnight).total_seconds() / 86_400
        phases = [day, (moment.weekday() + day) / 7, (moment - year) / length]
        waves = [wave(2 * np.pi * phase) for phase in phases for wave in (np.sin, np.cos)]
        age = (max(moments) - moment).total_seconds() / (365.25 * 86_400)
        assert np.allclose(row, [age, *waves], atol=1e-4)


def test_a_moment_is_the_same_in_any_form() -> None:
    moment = datetime(2024, 3, 1, 12, 30, tzinfo=UTC)
    seconds = int(moment.timestamp())
    state = fitted(pa.array([0]), transform="time", unit="s")
    ms = FittedColumn("c", type(state.state)(0.0, "ms"))  # type: ignore[call-arg]
    expected = state.apply(pa.array([seconds])).rows
    for found in (
        state.apply(pa.array(["2024-03-01T12:30:00"])),
        state.apply(pa.array(["2024-03-01 14:30:00+02:00"])),
        state.apply(pa.array(["1.3.2024 12:30"])),
        state.apply(pa.array(["2024/03/01 12:30:00"])),
        state.apply(pa.array(["2024-3-1 12:30:00 pm"])),
        replace(state, format="day_first").apply(pa.array(["1/3/2024 12:30"])),
        replace(state, format="month_first").apply(pa.array(["3/1/24 12:30 PM"])),
        replace(state, format="month_first").apply(pa.array(["03-01-2024 12:30"])),
        state.apply(pa.array([moment], pa.timestamp("ns", "Europe/Berlin"))),
        state.apply(pa.array([seconds], pa.timestamp("s"))),
        ms.apply(pa.array([seconds * 1000])),
    ):
        assert np.array_equal(found.rows, expected)
    broken = state.apply(pa.array(["2024-03-01", "soon"])).broken
    assert [mask.tolist() for mask in broken.values()] == [[False, True]]


def test_texts_are_times_only_with_dates() -> None:
    assert looks_like_times(pa.array(["2024-03-01", None, "2024-03-01 10:00:00"]))
    assert looks_like_times(pa.array(["28.09.1992", "1.2.2024 03:04", "2024/5/21", "2024-5-2"]))
    assert not looks_like_times(pa.array(["05/06/2024"])), "of May or of June"
    assert not looks_like_times(pa.array(["31.02.2024"]))
    assert not looks_like_times(pa.array(["10.12.1999.3"])), "a version"
    assert not looks_like_times(pa.array(["2024", "2023"]))
    assert not looks_like_times(pa.array(["2024-03-01", "soon"]))
    assert not looks_like_times(pa.array([None], pa.string()))


@pytest.mark.parametrize("written", ["day_first", "month_first"])
def test_dates_with_slashes_are_read_in_one_order_only(written: Any) -> None:
    day_is_first = written == "day_first"
    days = [datetime(1969 + i, 1 + i % 12, 1 + i % 28, i % 24, tzinfo=UTC) for i in range(100)]
    for year in ("%Y", "%y"):
        order = f"%d/%m/{year} %H:%M" if day_is_first else f"%m/%d/{year} %I:%M %p"
        column = pa.array([day.strftime(order) for day in days])
        state = fitted(column, transform="auto", format=written)
        assert not state.apply(column).broken
        expected = state.apply(pa.array(days, pa.timestamp("us"))).rows
        assert np.array_equal(state.apply(column).rows, expected)
    assert [mask.all() for mask in state.apply(pa.array([2024.0])).broken.values()] == [True]
    assert not state.apply(pa.array([None], pa.float64())).broken
    other = pa.array(["05/20/2024" if day_is_first else "20/05/2024", None])
    assert [mask.tolist() for mask in state.apply(other).broken.values()] == [[True, False]]


AMOUNTS = st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=8)


@settings(max_examples=100)
@given(cents=AMOUNTS, comma=st.booleans(), mark=st.sampled_from(["", "EUR ", "€", "$ "]))
def test_amounts_are_the_numbers_that_people_mean(cents: list[int], comma: bool, mark: str) -> None:
    values = [cent / 100 for cent in cents]
    texts = [f"{mark}{value:,.2f}" for value in values]
    if comma:
        texts = [text.translate(str.maketrans(",.", ".,")) for text in texts]
    written: Any = "decimal_comma" if comma else "decimal_point"
    got = rows(pa.array(texts), format=written)
    assert np.array_equal(got[:, 0], np.array(values, np.float32))


def test_what_is_no_amount_is_refused() -> None:
    state = fitted(pa.array(["1"]), format="decimal_point", missing="zero")
    good = ["12%", "1 234 567.5", "1'234", "1,00,000", "-$5", "$-5", "7", None]
    assert not state.apply(pa.array(good)).broken
    for text in ("1.234,5", "12,34", "1.2k", "3 kg", "", "five", "1e5", "1.2.3", "--5"):
        ((rule, mask),) = state.apply(pa.array(["1", text])).broken.items()
        assert "not numbers" in rule
        assert mask.tolist() == [False, True]
    comma = fitted(pa.array(["1"]), format="decimal_comma")
    ((rule, mask),) = comma.apply(pa.array([1.234, 2.0])).broken.items()
    assert "not numbers" in rule, "1.234 in a file is one thousand"
    assert mask.all()
    assert comma.apply(pa.array([7])).rows.tolist() == [[7]]
    again = FittedFeature.of_content(FittedFeature((comma,)).to_content(), "x")
    assert again.parts == (comma,)


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("column", "chosen"),
    [
        (pa.array(RNG.normal(size=5000)), "number"),
        (pa.array(RNG.integers(0, 2, 5000)), "number"),
        (pa.array((RNG.uniform(size=5000) < 0.002).astype(float)), "number"),
        (pa.array(RNG.lognormal(0, 2, 5000)), "log1p"),
        (pa.array(RNG.standard_cauchy(5000)), "rank_gauss"),
        (pa.array([True, False, None]), "number"),
        (pa.array(["a", "b", None, "a", "b", "a"]), "one_hot"),
        (pa.array([f"{i % 40}" for i in range(200)]), "category"),
        (pa.array([["a"], ["a", "b"]]), "multi_hot"),
        (pa.array([1, 2], pa.timestamp("s")), "time"),
    ],
)
def test_auto_chooses_by_type_and_spread(column: pa.Array, chosen: str) -> None:
    spec = ColumnTransform(column="c", transform="auto")
    kind = {"one_hot": "text", "category": "text", "multi_hot": "list", "time": "time"}.get(
        chosen, "number"
    )
    keys = splitmix64_array(np.arange(len(column)))
    found = count(spec, kind, column, keys, ANY_KEY)  # type: ignore[arg-type]
    made = fit(spec, kind, found, "x")  # type: ignore[arg-type]
    assert made.state.type == chosen
    assert made.indicator == (kind == "number" and column.null_count > 0)
    assert (chosen if chosen != "number" else "unchanged") in describe(made, found)


def test_a_line_says_what_was_fitted() -> None:
    column = pa.array(["a", "a", "b", None])
    spec = ColumnTransform(column="c", transform="one_hot", min_frequency=2)
    found = counted(spec, column)
    line = describe(fit(spec, "text", found, "x"), found)
    assert line == "one_hot, 1 values, 2 rare values share one column, 1 gaps"


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("standard", 0),
        ("rank_gauss", 0),
        ("one_hot", 1),
        ("auto", 2),
    ],
)
def test_constants_are_fine_and_said(name: str, element: float) -> None:
    column, spec = pa.array([2, 2]), ColumnTransform(column="c", transform=name)  # type: ignore[arg-type]
    found = counted(spec, column)
    made = fit(spec, _kind(spec, column), found, "x")
    same = "the same" if name == "one_hot" else "2"
    assert f"WARNING: a constant, {same} in all training rows" in describe(made, found)
    assert made.apply(column).rows.tolist() == [[element]] * 2


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ({"transform": "standard"}, pa.array([None, float("nan")], pa.float64())),
        ({"transform": "auto"}, pa.array([None], pa.float64())),
        ({"transform": "category"}, pa.array([None], pa.string())),
        ({"transform": "multi_hot"}, pa.array([[], None], pa.list_(pa.string()))),
    ],
)
def test_columns_of_gaps_become_zeros(options: dict[str, Any], column: pa.Array) -> None:
    made = fitted(column, **options)
    for later in (column, pa.array([1.5]), pa.array(["a"]), pa.array([["a"]]), pa.nulls(1)):
        made.check_type(later.type, "x")
        applied = made.apply(later)
        assert not applied.broken
        assert np.array_equal(applied.rows, np.zeros((len(later), 1)))


def test_ids_are_no_categories() -> None:
    spec = ColumnTransform(column="c", transform="auto")
    column = pa.array([f"user {i}" for i in range(50)])
    with raises("transform-ids", "'c'", 50):
        fit(spec, "text", count(spec, "text", column, np.zeros(50, np.uint64), ANY_KEY), "x")


def test_what_is_counted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MAX_DISTINCT", 20)
    column = pa.array([f"{i}" for i in range(30)])
    spec = ColumnTransform(column="c", transform="category")
    found = counted(spec, column, cuts=range(5, 30, 5))
    assert len(found.values) == 0  # type: ignore[union-attr]
    with raises("transform-too-many-values", "'c'", 20):
        fit(spec, "text", found, "x")


@pytest.mark.parametrize("name", ["one_hot", "category", "multi_hot"])
def test_wide_columns_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MAX_WIDTH", 20)
    monkeypatch.setattr(fitting, "MAX_CODES", 20)
    words = [f"{i % 30}" for i in range(60)]
    column = pa.array([[word] for word in words] if name == "multi_hot" else words)
    with raises("transform-too-many-values", "'c'", 30, 20):
        fitted(column, transform=name)
    assert rows(column, transform=name, max_categories=20).max() <= 20


@pytest.mark.parametrize(
    "options",
    [
        {"transform": "standart"},
        {"transform": "standard", "dim": 3},
        {"transform": "category", "missing": "zero"},
        {"transform": "time", "missing": "zero"},
        {"separator": "|"},
    ],
)
def test_options_fit_the_transform(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ColumnTransform(column="c", **options)


def test_states_of_another_version_are_refused() -> None:
    content = FittedFeature((fitted(pa.array([1.0])),)).to_content()
    with raises("transform-version", 99, VERSION):
        FittedFeature.of_content({**content, "version": 99}, "x")
