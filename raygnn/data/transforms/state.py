"""Fitted transforms: their state, and their application to rows.

Names and arithmetic are those of scikit-learn's preprocessing. A state is a frozen record that is
saved as JSON with the bundle and with the model; applying it fits nothing.
"""

from __future__ import annotations

import base64
import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Discriminator

from raygnn.data.transforms.values import Kind, Lists

_DAY_S = 86_400.0
YEAR_S = 365.25 * _DAY_S
YEAR_US = YEAR_S * 1e6
_MONDAY_D = 3  # 1970-01-01 was a Thursday
_CLIP = 1e-7 - np.spacing(1)  # as QuantileTransformer: the least share that a normal score is of


class State(ABC):
    """A fitted transform.

    Attributes:
        width: output elements per row.
        is_scaled: whether elements have one scale already, so that `data.standardize` skips them.
    """

    kind: ClassVar[Kind] = "number"
    is_scaled: ClassVar[bool] = True

    @property
    def width(self) -> int:
        return 1

    @property
    def scaled(self) -> tuple[bool, ...]:
        return (self.is_scaled,) * self.width

    @abstractmethod
    def rows(self, values: Any) -> np.ndarray:
        """[num_rows, width] of values without gaps."""

    def refused(self, values: Any) -> tuple[str, np.ndarray] | None:
        """The rule that values may break, and a mask of those that do."""
        return None


@dataclass(frozen=True)
class Number(State):
    type: Literal["number"] = "number"
    is_scaled: ClassVar[bool] = False

    def rows(self, values: np.ndarray) -> np.ndarray:
        return values[:, None]


@dataclass(frozen=True)
class Standard(State):
    """(x - mean) / std; a constant becomes 0. See `StandardScaler`."""

    mean: float
    std: float
    type: Literal["standard"] = "standard"

    def rows(self, values: np.ndarray) -> np.ndarray:
        return ((values - self.mean) / (self.std or 1.0))[:, None]


@dataclass(frozen=True)
class Log1p(State):
    type: Literal["log1p"] = "log1p"
    is_scaled: ClassVar[bool] = False

    def rows(self, values: np.ndarray) -> np.ndarray:
        return np.log1p(values)[:, None]

    def refused(self, values: np.ndarray) -> tuple[str, np.ndarray]:
        return "values of -1 or less, which have no log1p", values <= -1


@dataclass(frozen=True)
class RankGauss(State):
    """The normal score of a value's rank. See `QuantileTransformer(output_distribution="normal")`.

    Equal values have the score of their middle rank, also at both ends.
    """

    quantiles: tuple[float, ...]
    type: Literal["rank_gauss"] = "rank_gauss"

    def rows(self, values: np.ndarray) -> np.ndarray:
        from torch import from_numpy
        from torch.special import ndtri

        shares, quantiles = np.linspace(0, 1, len(self.quantiles)), np.array(self.quantiles)
        # From below and from above, which differ where quantiles are equal.
        ranks = np.interp(values, quantiles, shares)
        ranks -= np.interp(-values, -quantiles[::-1], -shares[::-1])
        ranks = np.clip(ranks / 2, _CLIP, 1 - _CLIP)
        out: np.ndarray = ndtri(from_numpy(ranks)).numpy()
        return out[:, None]


@dataclass(frozen=True)
class Time(State):
    """Age in years before the latest training row; sine and cosine of day, week and year, in UTC.

    Attributes:
        latest: seconds since 1970.
    """

    latest: float
    unit: str | None = None
    type: Literal["time"] = "time"
    kind: ClassVar[Kind] = "time"

    @property
    def width(self) -> int:
        return 7

    @property
    def scaled(self) -> tuple[bool, ...]:
        return (False, *(True,) * 6)

    def rows(self, values: np.ndarray) -> np.ndarray:
        days = values / _DAY_S
        moments = np.floor(values).astype("datetime64[s]")
        starts = moments.astype("datetime64[Y]")
        start_s, end_s = (
            year.astype("datetime64[s]").astype(np.float64) for year in (starts, starts + 1)
        )
        year = (values - start_s) / (end_s - start_s)
        phases = np.stack([days % 1, (days + _MONDAY_D) % 7 / 7, year], axis=1) * (2 * np.pi)
        age = (self.latest - values) / YEAR_S
        waves = np.stack([np.sin(phases), np.cos(phases)], axis=2).reshape(len(values), 6)
        return np.concatenate([age[:, None], waves], axis=1)


@dataclass(frozen=True)
class OneHot(State):
    """One-hot of a value. See `OneHotEncoder(handle_unknown="infrequent_if_exist")`.

    Attributes:
        vocabulary: sorted; the last, None, is for gaps.
        has_rare: training rows have rarer values. The last element is for these and unknown ones;
            otherwise a row of an unknown value is 0.
    """

    vocabulary: tuple[str | None, ...]
    has_rare: bool
    type: Literal["one_hot"] = "one_hot"
    kind: ClassVar[Kind] = "text"

    @property
    def width(self) -> int:
        return len(self.vocabulary) + self.has_rare

    def rows(self, values: pa.Array) -> np.ndarray:
        return _one_hot(_positions(values, self.vocabulary), self.width)


@dataclass(frozen=True)
class Category(State):
    """The code of a value, whose embedding the model's input layer learns.

    0 is for rare and unknown values, i for `vocabulary[i - 1]`; see `OneHot`.
    """

    vocabulary: tuple[str | None, ...]
    type: Literal["category"] = "category"
    kind: ClassVar[Kind] = "text"

    @property
    def num_codes(self) -> int:
        return len(self.vocabulary) + 1

    def rows(self, values: pa.Array) -> np.ndarray:
        known = _positions(values, self.vocabulary)
        return np.where(known == len(self.vocabulary), 0, known + 1)[:, None]


@dataclass(frozen=True)
class MultiHot(State):
    """Encodes lists as in scikit-learn's `MultiLabelBinarizer`. Attributes as in `OneHot`."""

    vocabulary: tuple[str, ...]
    has_rare: bool
    separator: str | None = None
    type: Literal["multi_hot"] = "multi_hot"
    kind: ClassVar[Kind] = "list"

    @property
    def width(self) -> int:
        return len(self.vocabulary) + self.has_rare

    def rows(self, values: Lists) -> np.ndarray:
        out = np.zeros((values.num_rows, len(self.vocabulary) + 1), np.float32)
        out[values.rows, _positions(values.texts, self.vocabulary)] = 1
        return out[:, : self.width]


@dataclass(frozen=True)
class Tfidf(State):
    """Tf-idf of words and pairs of words, projected to the directions of a truncated SVD.

    As `TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)` followed by `TruncatedSVD`. A text
    counts with its first 2,000 characters.

    Attributes:
        vocabulary: words, and pairs of words with a space between, ascending.
        idf: base64 of float32 [num_terms].
        directions: base64 of float16 [num_terms, num_directions].
    """

    vocabulary: tuple[str, ...]
    idf: str
    directions: str
    num_directions: int
    type: Literal["tfidf"] = "tfidf"
    kind: ClassVar[Kind] = "text"
    is_scaled: ClassVar[bool] = False

    @classmethod
    def of(cls, texts: pa.Array, dim: int) -> Tfidf:
        """Fits to texts, each with a word. The result depends on their order."""
        from sklearn.decomposition import TruncatedSVD
        from threadpoolctl import threadpool_limits

        vectorizer = _vectorizer(max_features=_MAX_TERMS)
        terms = vectorizer.fit_transform(_clipped(texts))
        dim = min(dim, *terms.shape)
        with threadpool_limits(1):  # more threads round differently
            svd = TruncatedSVD(dim, random_state=0, n_iter=_SVD_ITERATIONS).fit(terms)
        return cls(
            tuple(vectorizer.get_feature_names_out().tolist()),
            _encoded(vectorizer.idf_.astype("<f4")),
            _encoded(svd.components_.T.astype("<f2")),
            dim,
        )

    @property
    def width(self) -> int:
        return self.num_directions

    def rows(self, values: pa.Array) -> np.ndarray:
        vectorizer, directions = _fitted_terms(self)
        out: np.ndarray = vectorizer.transform(_clipped(values)) @ directions
        return out


_MAX_TERMS = 8192
_MAX_CHARACTERS = 2000
_SVD_ITERATIONS = 7


def _vectorizer(**options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", sublinear_tf=True, **options
    )


@functools.lru_cache(maxsize=16)
def _fitted_terms(state: Tfidf) -> tuple[Any, np.ndarray]:
    vectorizer = _vectorizer(vocabulary=state.vocabulary)
    vectorizer.idf_ = np.frombuffer(base64.b64decode(state.idf), "<f4").astype(np.float64)
    directions = np.frombuffer(base64.b64decode(state.directions), "<f2").astype(np.float32)
    return vectorizer, directions.reshape(len(state.vocabulary), -1)


def _clipped(texts: pa.Array) -> list[str]:
    clipped = pc.utf8_slice_codeunits(pc.fill_null(texts, ""), 0, _MAX_CHARACTERS)
    found: list[str] = clipped.to_pylist()
    return found


def _encoded(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


@dataclass(frozen=True)
class NoValues(State):
    """0 for all values: no training row has one."""

    type: Literal["no_values"] = "no_values"
    kind: ClassVar[Kind] = "text"

    def rows(self, values: pa.Array) -> np.ndarray:
        return np.zeros((len(values), 1))


AnyState = Annotated[
    Number | Standard | Log1p | RankGauss | Time | OneHot | Category | MultiHot | Tfidf | NoValues,
    Discriminator("type"),
]


def _positions(values: pa.Array, vocabulary: tuple[str | None, ...]) -> np.ndarray:
    """int64: position of each value in the vocabulary, or its length if missing."""
    positions = pc.index_in(values, value_set=_value_set(vocabulary))
    out: np.ndarray = pc.fill_null(positions, len(vocabulary)).to_numpy(zero_copy_only=False)
    return out.astype(np.int64)


@functools.lru_cache(maxsize=256)
def _value_set(vocabulary: tuple[str | None, ...]) -> pa.Array:
    return pa.array(vocabulary, pa.string())


def _one_hot(positions: np.ndarray, width: int) -> np.ndarray:
    """float32 [num_rows, width]; a position beyond the width is a row of zeros."""
    out = np.zeros((len(positions), width + 1), np.float32)
    out[np.arange(len(positions)), np.minimum(positions, width)] = 1
    return out[:, :width]
