"""Units of the times that temporal sampling compares, and the latest of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.transforms.values import microseconds
from raygnn.errors import ConfigError, DataError

if TYPE_CHECKING:
    from raygnn.data.bundle import Bundle

#: In the unit of a graph's times.
Time = int | float

#: Unit of dates and timestamps. Plain numbers have none.
TIME_UNIT = "us"

_CLOCK = 0.98  # correlation with time, of values or of ranks
_JUMPS = 0.8  # correlation from which on ranks are compared

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}

#: The name of times of nodes and edges among the columns of a batch.
TIME = "time"


class HasColumns(Protocol):
    @property
    def node_types(self) -> Sequence[str]: ...

    @property
    def edge_types(self) -> Sequence[EdgeType]: ...

    def columns(self, type_: str | EdgeType) -> Mapping[str, ColumnInfo]: ...


@dataclass(frozen=True)
class AsOf:
    """A moment: later data is not read.

    Attributes:
        column: time column of nodes and edges; types without it exist at all times.
        unit: unit of timestamps; null for plain numbers.
        window: maximum age of edges; None reads all.
    """

    column: str
    time: Time
    unit: str | None = None
    window: Time | None = None

    def __str__(self) -> str:
        if self.unit is None:
            return str(self.time)
        moment = np.array(int(self.time)).astype(f"datetime64[{self.unit}]")
        return str(moment).replace("T", " ").removesuffix(".000000").removesuffix(" 00:00:00")


def check_time_units(
    graph: HasColumns, column: str, others: Mapping[str, str | None] = MappingProxyType({})
) -> None:
    """Raises a DataError if the times of all node and edge types have several units.

    `others`: units of further times, by a name for messages.
    """
    types = {name: name for name in graph.node_types}
    named = types | {edge_type_name(edge_type): edge_type for edge_type in graph.edge_types}
    columns = {name: graph.columns(type_).get(column) for name, type_ in named.items()}
    units = {name: info.unit for name, info in columns.items() if info is not None} | dict(others)
    if len(set(units.values())) > 1:
        raise DataError(
            f"sampling.temporal.column={column!r} is invalid: its times have different units "
            f"({shown_units(units)}). Write all as dates, or all as numbers. [sampling-time-units]"
        )


def unit_words(unit: str | None) -> str:
    return "plain numbers" if unit is None else "dates"


def shown_units(units: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {unit_words(unit)}" for name, unit in units.items())


def parse_time(value: object, unit: str | None) -> Time:
    """Reads a user's time (a date, its ISO 8601 text, a number or its text) in a graph's unit.

    Raises:
        TypeError: a date instead of a plain number, or the other way round.
        OverflowError: a number is not finite or exceeds 64 bits.
        ValueError: neither a date nor a number.
    """
    number = _number(value)
    if number is None:
        moment = date_as_time(value.isoformat() if isinstance(value, date) else str(value))
    elif not math.isfinite(number) or not -(2**63) <= number < 2**63:
        raise OverflowError("it is not a finite number of 64 bits")
    if (number is None) != (unit is not None):
        kind = "a date" if number is None else "a number"
        raise TypeError(f"it is {kind}, and the times of the graph are {unit_words(unit)}")
    if number is None:
        return moment
    integer = math.floor(number)
    return integer if integer == number else number


def _number(value: Any) -> Time | None:
    for kind in (int, float):
        try:
            return kind(value)
        except (TypeError, ValueError):
            continue
    return None


def date_as_time(text: str) -> int:
    """ISO 8601 text as microseconds since 1970, in UTC without a zone. Raises a ValueError."""
    return microseconds(datetime.fromisoformat(text))


def window_as_time(
    window: str | Time | None, unit: str | None, key: str = "sampling.temporal.window"
) -> Time | None:
    """`sampling.temporal.window` in the unit of a graph's times.

    A duration such as 90d is for dates, a number for plain numbers; the other way round is a
    ConfigError.
    """
    if window is None:
        return None
    if isinstance(window, str) == (unit is None):
        words = "plain numbers. Set a number" if unit is None else "dates. Set a duration like 90d"
        raise ConfigError(
            f"{key}={window!r} is invalid: the graph's times are {words}. [sampling-window-unit]"
        )
    if not isinstance(window, str):
        return window
    return round(float(window[:-1]) * _SECONDS[window[-1]] * 1_000_000)


def time_unit(graph: HasColumns, column: str) -> str | None:
    """The unit of a graph's times; null for numbers. Raises a DataError for several or no times."""
    check_time_units(graph, column)
    types: list[str | EdgeType] = [*graph.node_types, *graph.edge_types]
    for type_ in types:
        info = graph.columns(type_).get(column)
        if info is not None:
            return info.unit
    raise DataError(
        f"sampling.temporal.column={column!r} is invalid: no type has it. Declare times in "
        "graph.yaml. [sampling-time-column]"
    )


def latest_time(bundle: Bundle, column: str) -> Time | None:
    """The latest time of any node or edge; null without times.

    Reads all of them, except in a partitioned graph, whose record has their range.
    """
    maxima = []
    for type_ in bundle.types:
        info = bundle.columns(type_).get(column)
        if info is None:
            continue
        if bundle.is_of_parts and info.statistics is not None:
            (latest,) = info.statistics.high
            maxima.append(int(latest) if info.dtype.startswith("int") else latest)
            continue
        times = bundle.dense(type_, column)
        if len(times):
            maxima.append(np.fmax.reduce(times).item())
    numbers = [time for time in maxima if not math.isnan(time)]
    return max(numbers, default=None)


def is_clock(values: np.ndarray, times: np.ndarray) -> bool:
    """Whether values grow or fall with time: a date, or a running number, perhaps with jumps.

    Args:
        values: float64 [num_rows], without NaN.
        times: [num_rows].
    """
    if len(values) < 3:
        return False
    linear = _correlation(values, (times - times[0]).astype(np.float64))
    return linear > _CLOCK or (
        linear > _JUMPS and _correlation(_ranks(values), _ranks(times)) > _CLOCK
    )


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return abs(float(x @ y)) / scale if scale > 0 else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - counts / 2)[inverse]
