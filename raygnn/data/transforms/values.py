"""A column of a feature in `graph.yaml`, and its values in the form that its transform reads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ConfigDict, Field, model_validator

from raygnn.config.section import Section
from raygnn.errors import RuleError

TransformName = Literal[
    "standard",
    "log1p",
    "rank_gauss",
    "one_hot",
    "category",
    "multi_hot",
    "tfidf",
    "time",
    "auto",
]
Missing = Literal["median", "zero", "indicator"]
#: Other forms of dates and numbers than ISO dates and plain numbers.
DateFormat = Literal["day_first", "month_first"]
NumberFormat = Literal["decimal_point", "decimal_comma"]
Format = Literal[DateFormat, NumberFormat]

_OF_VOCABULARY = frozenset({"one_hot", "category", "multi_hot"})
_OF_NUMBERS = frozenset({None, "standard", "log1p", "rank_gauss", "auto"})
# Transforms that accept an option; None is a column of unchanged numbers.
_TAKEN_BY: dict[str, frozenset[str | None]] = {
    "missing": _OF_NUMBERS | {"time"},
    "min_frequency": _OF_VOCABULARY,
    "max_categories": _OF_VOCABULARY,
    "separator": frozenset({"multi_hot"}),
    "dim": frozenset({"tfidf"}),
    "unit": frozenset({"time"}),
}
_OF_FORMAT: dict[Format, frozenset[str | None]] = {
    **dict.fromkeys(("day_first", "month_first"), frozenset({"time", "auto"})),
    **dict.fromkeys(("decimal_point", "decimal_comma"), _OF_NUMBERS),
}


class ColumnTransform(Section):
    """One column of a feature, and how its values become numbers. Without transform, numbers stay.

    docs/graph-format.md describes the options.
    """

    model_config = ConfigDict(strict=False)

    column: str
    transform: TransformName | None = None
    missing: Missing | None = None
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
                rule = f"{shown} of column {self.column!r} is of {taken}, not of {self.transform}"
                raise RuleError(rule, "Leave it out", id="transform-option")
        if self.transform == "time" and self.missing == "zero":
            rule = f"missing: zero of column {self.column!r} would be a time in 1970"
            raise RuleError(rule, "Set median or indicator", id="transform-missing-time")
        return self


#: `number` and `time`: float64, NaN where there is a gap; `text`: strings with nulls; `list`: rows
#: of strings.
Kind = Literal["number", "time", "text", "list"]

# Other ways to write a date that leave no doubt, as ISO 8601. 05/06/2024 is two dates.
_AS_ISO = (
    (r"^(\d{1,2})\.(\d{1,2})\.(\d{4})", r"\3-\2-\1"),
    (r"^(\d{4})/(\d{1,2})/(\d{1,2})", r"\1-\2-\3"),
    (r"^(\d{4})-(\d)-", r"\1-0\2-"),
    (r"^(\d{4}-\d{2})-(\d)(\D|$)", r"\1-0\2\3"),
    (r"^(\d{4}-\d{2}-\d{2})[ T](\d):", r"\1 0\2:"),
)
# Years of two digits are 1969 to 2068, as in POSIX.
_NUMBERS_OF_DATE = r"^(\d{1,2})[-/.](\d{1,2})[-/.]"
_YEARS = ((r"(\d{4})(\D|$)", ""), (r"([0-5]\d|6[0-8])(\D|$)", "20"), (r"(\d{2})(\D|$)", "19"))
_OF_DATE: dict[str, str] = {"day_first": r"-\2-\1", "month_first": r"-\1-\2"}
_OF_TWELVE_HOURS = ("%Y-%m-%d %I:%M:%S %p", "%Y-%m-%d %I:%M %p")  # a moment as 3:45 PM
_SIGNS: dict[str, tuple[str, str]] = {"decimal_point": (",", "."), "decimal_comma": (".", ",")}
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class Lists(NamedTuple):
    """Distinct values of each row: int64 [num_values] rows, ascending, and texts without nulls."""

    num_rows: int
    rows: np.ndarray
    texts: pa.Array


def kind_of(
    transform: str | None, type_: pa.DataType, *, split: bool = False, written: Format | None = None
) -> Kind | None:
    """The kind of values of an Arrow type. None if transforms cannot read it.

    `split`: texts are lists with a separator. `written`: the column's `format`.
    """
    is_text = pa.types.is_string(type_)
    if written in _OF_DATE:
        return "time" if is_text else None
    if written is not None:
        # A float that was 1.234 in a file is another number with a decimal comma.
        is_plain = (
            is_number_type(type_) if written == "decimal_point" else pa.types.is_integer(type_)
        )
        return "number" if is_text or is_plain else None
    is_number = is_number_type(type_) or pa.types.is_boolean(type_)
    is_time = pa.types.is_timestamp(type_) or pa.types.is_date(type_)
    if transform == "time":
        return "time" if is_time or is_text or is_number_type(type_) else None
    if transform in {"one_hot", "category"}:
        return "text" if is_text or is_number else None
    if transform == "tfidf":
        return "text" if is_text else None
    if transform == "multi_hot":
        is_list = pa.types.is_list(type_) and (
            pa.types.is_string(type_.value_type) or pa.types.is_integer(type_.value_type)
        )
        # A CSV file with one value in each row may hold numbers.
        return "list" if (split and (is_text or is_number)) or (is_list and not split) else None
    return "number" if is_number else None


def is_number_type(type_: pa.DataType) -> bool:
    return pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)


def numbers(column: pa.Array) -> np.ndarray:
    """float64 [n] of numbers and booleans; nulls are NaN."""
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    column = pc.cast(column, pa.float64(), safe=False)
    out: np.ndarray = pc.fill_null(column, np.nan).to_numpy(zero_copy_only=False)
    return out


def read_numbers(
    column: pa.Array, kind: Kind, unit: str | None, written: Format | None
) -> tuple[np.ndarray, np.ndarray]:
    """float64 [n] of a column of numbers or times, NaN for gaps, and a mask of invalid texts."""
    if kind == "time":
        return seconds(column, unit, written)
    if written is not None:
        return written_numbers(column, written)
    return numbers(column), np.zeros(len(column), bool)


def written_numbers(column: pa.Array, written: Format) -> tuple[np.ndarray, np.ndarray]:
    """float64 [n] of numbers as people write them, NaN for gaps, and a mask of invalid texts.

    Currencies (EUR, €), % and thousands separators are removed. Other units are refused, because 3
    kg and 3 g, or 1.2 and 1.2k, differ. `written`: `decimal_point` or `decimal_comma`.
    """
    if not is_text_type(column.type):
        values = numbers(column)
        is_other = pa.types.is_floating(column.type) and written == "decimal_comma"
        return values, ~np.isnan(values) & is_other
    group, point = _SIGNS[written]
    mark = r"(?:[A-Z]{3}|\p{Sc}|%)?"
    space = r"[\s\x{a0}\x{202f}]"
    between = rf"[{group}'\x{{2019}}\x{{a0}}\x{{202f}} ]"
    whole = rf"\d{{1,3}}(?:{between}\d{{2,3}})*{between}\d{{3}}|\d+"
    parts = pc.extract_regex(
        pc.cast(column, pa.string()),
        rf"^{space}*(?P<sign>-?{mark}{space}*|{mark}{space}*-)(?P<whole>{whole})"
        rf"(?:[{point}](?P<part>\d+))?{space}*{mark}{space}*$",
    )
    is_read = pc.is_valid(parts)
    sign = pc.replace_substring_regex(parts.field("sign"), "[^-]", "")
    digits = pc.replace_substring_regex(parts.field("whole"), r"\D", "")
    plain = pc.binary_join_element_wise(sign, digits, ".", parts.field("part"), "")
    values = numbers(pc.cast(pc.if_else(is_read, plain, None), pa.float64()))
    unreadable = pc.and_(pc.is_valid(column), pc.invert(is_read))
    return values, unreadable.to_numpy(zero_copy_only=False)


def seconds(
    column: pa.Array, unit: str | None, written: Format | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """float64 [n], seconds since 1970 in UTC, NaN for gaps, and a mask of values that are not
    times.

    `column`: timestamps, dates, texts for `parsed_times`, or numbers of a unit.
    """
    unreadable = np.zeros(len(column), bool)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        moments = pc.cast(column, pa.timestamp("us"), safe=False)
    elif is_text_type(column.type):
        moments, unreadable = parsed_times(column, written)
    else:
        values = numbers(column) / _PER_SECOND[unit or "s"]
        return values, ~np.isnan(values) & (written is not None)
    return numbers(pc.cast(moments, pa.int64())) / _PER_SECOND["us"], unreadable


def is_text_type(type_: pa.DataType) -> bool:
    return (
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
    )


def texts(column: pa.Array) -> pa.Array:
    if not pa.types.is_floating(column.type):
        return pc.cast(column, pa.string())
    values = numbers(column)
    is_whole = np.isfinite(values) & (np.abs(values) < 2.0**63)
    is_whole &= np.floor(np.where(is_whole, values, 0)) == values
    if is_whole[~np.isnan(values)].all():
        integers = np.where(is_whole, values, 0).astype(np.int64)
        return pc.cast(pa.array(integers, mask=~is_whole), pa.string())
    written = pc.cast(pa.array(values, mask=np.isnan(values)), pa.string())
    integers = pa.array(np.where(is_whole, values, 0).astype(np.int64))
    return pc.if_else(pa.array(is_whole), pc.cast(integers, pa.string()), written)


def lists(column: pa.Array, separator: str | None) -> Lists:
    if separator is not None:
        column = pc.split_pattern(texts(column), separator)
    lengths = pc.fill_null(column.value_lengths(), 0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    # `flatten` leaves out the rows that are null.
    items = texts(column.flatten())
    if separator is not None:
        items = pc.utf8_trim_whitespace(items)
        items = pc.if_else(pc.equal(items, ""), None, items)
    each = pa.table({"row": rows, "text": items}).filter(pc.is_valid(items))
    each = each.group_by(["row", "text"], use_threads=False).aggregate([])
    text = each.column("text").combine_chunks()
    return Lists(len(lengths), each.column("row").to_numpy(), text)


def looks_like_times(column: pa.Array, written: Format | None = None) -> bool:
    """Whether there are texts, and all are dates or times."""
    if column.null_count == len(column):
        return False
    # A year or a plain number is not a date, even if a parser accepts it.
    column = _as_iso(column, written)
    is_dated = pc.all(pc.match_substring_regex(column, r"^\d{4}-\d{2}-\d{2}")).as_py()
    return bool(is_dated) and not parsed_times(column)[1].any()


def parsed_times(column: pa.Array, written: Format | None = None) -> tuple[pa.Array, np.ndarray]:
    """Parsed times, null for gaps and invalid texts, and a mask of the latter.

    Args:
        column: ISO 8601, also without leading zeros, with dots and the day first (21.5.2024) or
            with slashes and the year first; a time may follow.
        written: for dates as 05/06/2024.
    """
    column = pc.cast(column, pa.string())
    none = np.zeros(len(column), bool)
    # Texts are rewritten only if some are not plain ISO 8601.
    for is_plain in (True, False):
        column = column if is_plain else _as_iso(column, written)
        try:
            return pc.cast(column, pa.timestamp("us")), none
        except pa.ArrowInvalid:  # another form, a zone, another precision, or no time at all
            continue
    parsed = pa.array([_microseconds(text) for text in column.to_pylist()], pa.int64())
    unreadable = pc.and_(pc.is_valid(column), pc.is_null(parsed))
    return pc.cast(parsed, pa.timestamp("us")), unreadable.to_numpy(zero_copy_only=False)


def _as_iso(column: pa.Array, written: Format | None) -> pa.Array:
    if written is not None:
        for year, century in _YEARS:
            instead = rf"{century}\3{_OF_DATE[written]}\4"
            column = pc.replace_substring_regex(column, _NUMBERS_OF_DATE + year, instead)
    for pattern, instead in _AS_ISO:
        column = pc.replace_substring_regex(column, pattern, instead)
    return column


def _microseconds(text: str | None) -> int | None:
    moment = None if text is None else _moment(text)
    try:
        return None if moment is None else microseconds(moment)
    except ValueError:
        return None


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970, in UTC without a zone. Raises a ValueError beyond the year 9999."""
    try:
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("its year in UTC is not from 1 to 9999") from error
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        for form in _OF_TWELVE_HOURS if text[-1:] in "mM" else ():
            try:
                return datetime.strptime(text, form)
            except ValueError:
                continue
        return None
