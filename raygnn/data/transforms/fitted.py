"""Columns and features with the states of their transforms, and rows by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raygnn.data.checksums import type_adapter
from raygnn.data.transforms.state import AnyState, Category, MultiHot, NoValues, Time
from raygnn.data.transforms.values import Format, kind_of, lists, read_numbers, texts
from raygnn.errors import DataError

GAP = "null or NaN values"  # the broken rule of columns that accept no gaps
VERSION = 1  # version of the saved states and their arithmetic


class Applied(NamedTuple):
    """A column's part of the rows of a feature.

    Attributes:
        rows: float32 [num_rows, width]; arbitrary for rows that break a rule.
        broken: by broken rule, bool [num_rows].
    """

    rows: np.ndarray
    broken: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class FittedColumn:
    """A column of a feature with its state.

    Attributes:
        fill: replacement of a gap, in the column's own unit (seconds since 1970 for a time); None
            refuses gaps.
        indicator: the last element is 1 for a gap.
    """

    column: str
    state: AnyState
    fill: float | None = None
    indicator: bool = False
    format: Format | None = None

    @property
    def width(self) -> int:
        return self.state.width + self.indicator

    @property
    def scaled(self) -> tuple[bool, ...]:
        return self.state.scaled + (True,) * self.indicator

    def check_type(self, type_: pa.DataType, place: str) -> None:
        """Raises a DataError if a column has a type that the transform does not read."""
        is_any = pa.types.is_null(type_) or isinstance(self.state, NoValues)
        if not is_any and not self.takes(type_):
            raise DataError(
                f"{place}: column {self.column!r} is invalid: it is {type_}, and in training it "
                f"was transformed by {self.state.type}. Write it so. [transform-type]"
            )

    def takes(self, type_: pa.DataType) -> bool:
        state = self.state
        split = isinstance(state, MultiHot) and state.separator is not None
        if kind_of(state.type, type_, split=split, written=self.format) == state.kind:
            return True
        # So is a CSV column of gaps alone; other floats break a rule of their rows.
        return self.format is not None and pa.types.is_floating(type_)

    def apply(self, column: pa.Array) -> Applied:
        state = self.state
        if isinstance(state, MultiHot):
            return Applied(state.rows(lists(column, state.separator)), {})
        if state.kind == "text":
            column = column if isinstance(state, NoValues) else texts(column)
            return Applied(state.rows(column).astype(np.float32, copy=False), {})
        unit = state.unit if isinstance(state, Time) else None
        values, unreadable = read_numbers(column, state.kind, unit, self.format)
        what = "dates or times" if state.kind == "time" else "numbers"
        broken = {f"texts that are not {what}": unreadable}
        gap = np.isnan(values) & ~unreadable
        if self.fill is None:
            broken[GAP] = gap
        else:
            values = np.where(gap, self.fill, values)
        broken["infinite values"] = np.isinf(values)
        refused = state.refused(values)
        broken |= {} if refused is None else dict([refused])
        good = ~np.any(np.stack(list(broken.values())), axis=0)
        rows = np.zeros((len(values), self.width), np.float32)
        with np.errstate(over="ignore"):
            rows[good, : state.width] = state.rows(values[good])
        if self.indicator:
            rows[:, -1] = gap
        broken["values too large for float32"] = np.any(~np.isfinite(rows), axis=1)
        return Applied(rows, {rule: mask for rule, mask in broken.items() if mask.any()})


@dataclass(frozen=True)
class PlainColumn:
    column: str
    width: int

    @property
    def scaled(self) -> tuple[bool, ...]:
        return (False,) * self.width


@dataclass(frozen=True)
class FittedFeature:
    parts: tuple[PlainColumn | FittedColumn, ...]
    version: int = VERSION

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(part.column for part in self.parts)

    @property
    def scaled(self) -> tuple[bool, ...]:
        return tuple(is_scaled for part in self.parts for is_scaled in part.scaled)

    @property
    def num_codes(self) -> dict[int, int]:
        """Number of categories, by position of a category code in a row."""
        numbers, position = {}, 0
        for part in self.parts:
            if isinstance(part, FittedColumn) and isinstance(part.state, Category):
                numbers[position] = part.state.num_codes
            position += part.width
        return numbers

    def to_content(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_content(cls, content: Any, name: str) -> FittedFeature:
        """Reads saved states of the named feature. Raises a DataError for another version, a
        ValueError for invalid content.
        """
        version = content.get("version") if isinstance(content, dict) else None
        if version != VERSION:
            raise DataError(
                f"the transforms of {name} are saved in version {version!r}, and raygnn reads "
                f"{VERSION}. Train again. [transform-version]"
            )
        return type_adapter(FittedFeature).validate_python(content)


#: By name of a node or edge type and by feature.
Transforms = Mapping[str, Mapping[str, FittedFeature]]
