"""A column of a feature in `graph.yaml`: its name, its transform, its replacement of gaps."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from raygnn.config.section import Section
from raygnn.errors import RuleError

TransformName = Literal[
    "standard",
    "min_max",
    "log1p",
    "rank_gauss",
    "bucket",
    "one_hot",
    "category",
    "multi_hot",
    "hashed_words",
    "time",
    "auto",
]
Missing = Literal["median", "zero", "indicator"]
#: How people have written what is no ISO date and no plain number.
DateFormat = Literal["day_first", "month_first"]
NumberFormat = Literal["decimal_point", "decimal_comma"]
Format = Literal[DateFormat, NumberFormat]

_OF_VOCABULARY = frozenset({"one_hot", "category", "multi_hot"})
_OF_NUMBERS = frozenset({None, "standard", "min_max", "log1p", "rank_gauss", "bucket", "auto"})
# Transforms that accept an option; None is a column of unchanged numbers.
_TAKEN_BY: dict[str, frozenset[str | None]] = {
    "missing": _OF_NUMBERS | {"time"},
    "n_bins": frozenset({"bucket"}),
    "min_frequency": _OF_VOCABULARY,
    "max_categories": _OF_VOCABULARY,
    "separator": frozenset({"multi_hot"}),
    "dim": frozenset({"hashed_words"}),
    "unit": frozenset({"time"}),
}
_OF_FORMAT: dict[Format, frozenset[str | None]] = {
    **dict.fromkeys(("day_first", "month_first"), frozenset({"time", "auto"})),
    **dict.fromkeys(("decimal_point", "decimal_comma"), _OF_NUMBERS),
}


class ColumnTransform(Section):
    """One column of a feature, and how its values become numbers.

    Attributes:
        transform: null leaves numbers unchanged.
        missing: replacement of nulls and NaN: the median of the training rows, 0, or the median and
            an additional element of 1. null refuses gaps.
        n_bins: of `bucket`. Default: 10.
        min_frequency: a value in fewer training rows is rare. Default: 2 for `category`, else 1.
        max_categories: maximum number of elements, including one for rare values; null sets no
            limit.
        separator: between the values of a text, for tables without lists.
        dim: elements of `hashed_words`. Default: 128.
        unit: of times that are numbers since 1970.
        format: of texts: dates as 15/06/2024 (`day_first`) or 06/15/2024 (`month_first`), numbers
            as EUR 1,234.50 (`decimal_point`) or 1.234,50 EUR (`decimal_comma`).
    """

    model_config = ConfigDict(strict=False)

    column: str
    transform: TransformName | None = None
    missing: Missing | None = None
    n_bins: int | None = Field(default=None, ge=2)
    min_frequency: int | None = Field(default=None, ge=1)
    max_categories: int | None = Field(default=None, ge=1)
    separator: str | None = Field(default=None, min_length=1)
    dim: int | None = Field(default=None, ge=1)
    unit: Literal["s", "ms", "us", "ns"] | None = None
    format: Format | None = None

    @model_validator(mode="after")
    def _options_fit(self) -> ColumnTransform:
        taken_by = dict(_TAKEN_BY)
        if self.format is not None:
            taken_by["format"] = _OF_FORMAT[self.format]
        for option, transforms in taken_by.items():
            value = getattr(self, option)
            if value is not None and self.transform not in transforms:
                taken = ", ".join(sorted(name for name in transforms if name is not None))
                shown = f"format: {value}" if option == "format" else option
                raise RuleError(
                    f"{shown} of column {self.column!r} is of transform {taken} only, and this "
                    f"is {self.transform}",
                    "Leave it out",
                    id="transform-option",
                )
        if self.transform == "time" and self.missing == "zero":
            raise RuleError(
                f"missing: zero of column {self.column!r} would be a time in 1970",
                "Set median or indicator",
                id="transform-missing-time",
            )
        return self
