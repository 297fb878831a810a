"""Columns of a table in their own units, from features whose transforms are inverted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType
from raygnn.data.transforms.fitted import FittedColumn
from raygnn.data.transforms.state import (
    YEAR_S,
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

RARE = "other values"


@dataclass(frozen=True)
class RawColumn:
    """One column of all nodes or edges of a type.

    Attributes:
        kind: `number`; `category`, codes of `names`; `date`, microseconds since 1970; or `vector`,
            one element of a wide feature, whose sums mean nothing.
        values: float64 [num_rows]; NaN for unknown values.
        names: name of each code.
    """

    name: str
    kind: Literal["number", "category", "date", "vector"]
    values: np.ndarray
    names: tuple[str, ...] = ()


def raw_columns(bundle: Bundle, type_: str | EdgeType, feature: str) -> list[RawColumn]:
    """Columns of a feature; none if it is missing or sparse.

    Amounts that ingest put through a logarithm or ranks are amounts again, up to the rounding of
    float32. Values beyond the range that ranks were fitted on are its ends.
    """
    info = bundle.columns(type_).get(feature)
    if info is None or info.sparse:
        return []
    return raw_columns_of(info, bundle.dense(type_, feature))


def raw_columns_of(info: ColumnInfo, rows: np.ndarray) -> list[RawColumn]:
    """Columns of some rows of a feature."""
    return list(_columns(info, rows.reshape(len(rows), info.width)))


def _columns(info: ColumnInfo, rows: np.ndarray) -> Iterator[RawColumn]:
    if info.transforms is None:
        yield from _plain(info.name, rows)
        return
    position = 0
    for part in info.transforms.parts:
        block = rows[:, position : position + part.width]
        position += part.width
        if not isinstance(part, FittedColumn):
            yield from _plain(part.column, block)
            continue
        for column in _inverted(part.column, part.state, block[:, : part.state.width]):
            if part.indicator:
                column.values[block[:, -1] == 1] = np.nan
            yield column


def _plain(name: str, block: np.ndarray) -> Iterator[RawColumn]:
    if block.shape[1] == 1:
        yield RawColumn(name, "number", block[:, 0].astype(np.float64))
        return
    for i in range(block.shape[1]):
        yield RawColumn(f"{name}[{i}]", "vector", block[:, i].astype(np.float64))


def _inverted(name: str, state: AnyState, block: np.ndarray) -> Iterator[RawColumn]:
    match state:
        case OneHot() | Category():
            yield RawColumn(name, "category", _codes(state, block), _names(state))
        case MultiHot():
            for i, value in enumerate(state.vocabulary):
                yield RawColumn(f"{name}={value}", "number", block[:, i].astype(np.float64))
        case Tfidf():
            yield from _plain(name, block)
        case Time():
            moments = (state.latest - block[:, 0].astype(np.float64) * YEAR_S) * 1e6
            yield RawColumn(name, "date", moments)
        case NoValues():
            pass
        case _:
            yield RawColumn(name, "number", _numbers(state, block[:, 0].astype(np.float64)))


def _numbers(state: AnyState, values: np.ndarray) -> np.ndarray:
    match state:
        case Standard():
            return values * (state.std or 1.0) + state.mean
        case Log1p():
            return np.expm1(values)
        case RankGauss():
            from torch import from_numpy
            from torch.special import ndtr

            shares = ndtr(from_numpy(values)).numpy()
            return np.interp(shares, np.linspace(0, 1, len(state.quantiles)), state.quantiles)
        case Number():
            return values
    raise AssertionError(state)


def _codes(state: OneHot | Category, block: np.ndarray) -> np.ndarray:
    if isinstance(state, Category):
        return block[:, 0].astype(np.float64)
    return np.where(block.any(axis=1), block.argmax(axis=1) + 1.0, 0.0)  # 0 for unknown values


def _names(state: OneHot | Category) -> tuple[str, ...]:
    names = [RARE, *("missing" if value is None else value for value in state.vocabulary)]
    is_extra = isinstance(state, OneHot) and state.has_rare
    return (*names, RARE) if is_extra else tuple(names)
