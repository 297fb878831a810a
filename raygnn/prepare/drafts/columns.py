"""The profile of a column: possible meanings of its values."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.splits import SPLIT_CODES
from raygnn.data.tables.csv_tables import NULL_WORDS
from raygnn.data.time_units import is_clock
from raygnn.data.transforms.fit import looks_like_ids
from raygnn.data.transforms.values import (
    Format,
    is_number_type,
    is_text_type,
    looks_like_times,
    parsed_times,
    written_numbers,
)

DATE_FORMATS: tuple[Format, ...] = ("day_first", "month_first")
NUMBER_FORMATS: tuple[Format, ...] = ("decimal_point", "decimal_comma")
FEW_CLASSES = 20
_OPEN_DATE = r"^\d{1,2}[/-]\d{1,2}[/-]\d{2,4}\b"  # 05/06/2024 is two dates
_SHORT_DATE = r"^\d{2}\.\d{2}\.\d{2,4}\b"  # 21.05.24, in which the day is first
_CURRENCIES = (
    "AED|ARS|AUD|BGN|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EGP|EUR|GBP|HKD|HUF|IDR|ILS|INR|JPY|KRW|MXN|MYR"
    "|NGN|NOK|NZD|PEN|PHP|PKR|PLN|RON|RUB|SAR|SEK|SGD|THB|TRY|TWD|UAH|USD|VND|ZAR"
)
_YEARS = frozenset(["year", "season", "fiscal"])
_FIRST_YEAR, _LAST_YEAR = 1700, 2200
_WHOLE_NUMBER = r"^[0-9]{1,18}(\.0+)?$"
_ERRORS = 0.01  # share of the rows in which a key may repeat or lack an id, or times be swapped
_MOST_CATEGORY_WORDS = 3
_FEWEST_OF_CLOCK = 30  # rows in which a number may follow the time by chance
_MANY_TEXTS = 1000  # distinct texts that show whether most are numbers or dates
_FEW_EXCEPTIONS = 0.5  # share of distinct texts, each of which may be in one row only
_MANY_NAMES = 100  # distinct texts; fewer may be categories of which few rows are early
_MANY_NUMBERS = 10  # whole numbers, and fractions, that show how a column is written


@dataclass
class Column:
    """A column of a table.

    Attributes:
        distinct: distinct numbers and texts, without gaps.
    """

    name: str
    values: pa.ChunkedArray
    distinct: pa.Array = field(init=False)

    def __post_init__(self) -> None:
        hashable = is_number_type(self.values.type) or is_text_type(self.values.type)
        self.distinct = self.values.unique().drop_null() if hashable else pa.array([], pa.null())

    @property
    def num_given(self) -> int:
        return len(self.values) - int(self.values.null_count)

    @cached_property
    def kind(self) -> str:
        """int, text, number, time, list or other."""
        type_ = self.values.type
        if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
            return "time"
        if is_text_type(type_):
            return "time" if looks_like_times(self.distinct) else "text"
        if pa.types.is_integer(type_):
            return "int"
        if is_number_type(type_) or pa.types.is_boolean(type_):
            return "number"
        is_list = pa.types.is_list(type_) or pa.types.is_large_list(type_)
        return "list" if is_list or pa.types.is_fixed_size_list(type_) else "other"

    @cached_property
    def ids(self) -> pa.ChunkedArray:
        """[num_rows] ids in one spelling: 7, 7.0 and 007 are the int64 7, texts are trimmed.

        Words for gaps (NA, NULL) are null. All rows are null if the values cannot be ids.
        """
        none = pa.chunked_array([pa.nulls(len(self.values))])
        if self.kind == "int":
            return pc.cast(self.values, pa.int64())
        if pa.types.is_floating(self.values.type):
            try:
                return pc.cast(pc.if_else(pc.is_nan(self.values), None, self.values), pa.int64())
            except pa.ArrowInvalid:
                return none
        if self.kind != "text":
            return none
        texts = pc.utf8_trim_whitespace(pc.cast(self.values, pa.string()))
        gaps = pa.array(["", *NULL_WORDS])
        texts = pc.if_else(pc.is_in(texts, value_set=gaps), None, texts)
        if pc.all(pc.match_substring_regex(texts, _WHOLE_NUMBER)).as_py():
            return pc.cast(pc.replace_substring_regex(texts, r"\.0+$", ""), pa.int64())
        return texts

    @property
    def is_padded(self) -> bool:
        """Whether texts are whole numbers, some with leading zeros."""
        is_digits = self.kind == "text" and len(self.distinct) > 0 and self.all_match(r"^\d+$")
        return is_digits and bool(pc.any(pc.match_substring_regex(self.distinct, r"^0\d")).as_py())

    @cached_property
    def distinct_ids(self) -> pa.Array:
        return self.ids.unique().drop_null()

    @property
    def first_text(self) -> str | None:
        """The first id that is not a whole number."""
        texts = pc.cast(self.distinct, pa.string())
        is_text = pc.invert(pc.match_substring_regex(texts, _WHOLE_NUMBER))
        return next(iter(texts.filter(is_text).to_pylist()), None)

    @cached_property
    def can_be_key(self) -> bool:
        """Whether each row has its own id, apart from a few errors. The days of a calendar are
        dates, not ids: the columns of dates that match them are times.
        """
        num_rows = len(self.values)
        num_errors = num_rows - len(self.distinct_ids)
        is_id = self.kind in {"int", "text"} and not self.is_time
        return is_id and num_rows > 0 and num_errors <= _ERRORS * num_rows

    @cached_property
    def is_unique(self) -> bool:
        return self.can_be_key and len(self.distinct_ids) == len(self.values)

    @cached_property
    def repeats(self) -> bool:
        """Whether more than a few ids are in several rows."""
        num_ids = len(self.ids) - int(self.ids.null_count)
        return len(self.distinct_ids) < (1 - _ERRORS) * num_ids

    @property
    def is_free_text(self) -> bool:
        return self.kind == "text" and looks_like_ids(len(self.distinct), self.num_given)

    def begins_as_free_text(self, time: Column) -> bool:
        """Whether most of the first quarter of the rows have texts of their own.

        A model may be trained on these rows only: order numbers that later rows repeat are still
        ids to it.
        """
        if self.kind != "text" or len(self.distinct) < _MANY_NAMES or not time.is_time:
            return False
        moments = time.times.cast(pa.int64())
        is_early = pc.less_equal(moments, pc.quantile(moments, q=0.25)[0])
        early = self.values.filter(is_early).drop_null()
        return len(early) > 0 and looks_like_ids(len(early.unique()), len(early))

    @cached_property
    def is_prose(self) -> bool:
        """Whether texts have more words than names and categories."""
        if not self.is_free_text:
            return False
        num_words = pc.count_substring_regex(self.distinct, r"[\pL\pN_]+")
        return bool(pc.mean(num_words).as_py() > _MOST_CATEGORY_WORDS)

    @property
    def may_have_thousands(self) -> bool:
        """Whether floats may be whole numbers with a point between thousands: 7, 850, 1.234.

        Measurements with three decimals are hardly ever whole.
        """
        if not pa.types.is_floating(self.values.type):
            return False
        values = self.distinct.to_numpy()
        is_whole = values == np.floor(values)
        whole, fractions = values[is_whole], values[~is_whole]
        if min(len(whole), len(fractions)) < _MANY_NUMBERS:
            return False
        thousandths = np.round(fractions * 1000)
        have_three_decimals = np.isclose(thousandths, fractions * 1000).all()
        return bool(
            have_three_decimals
            and np.mean(thousandths % 10 != 0) > 0.8  # unlike prices, which have two
            and whole.max() < 1000
            and fractions.min() >= 1
        )

    @cached_property
    def formats(self) -> tuple[Format, ...]:
        """Formats that fit texts with dates or numbers, the most likely first."""
        texts = self.distinct
        if self.kind != "text" or len(texts) == 0:
            return ()
        if self.all_match(_SHORT_DATE) and looks_like_times(texts, "day_first"):
            return ("day_first",)
        if self.all_match(_OPEN_DATE):
            return tuple(form for form in DATE_FORMATS if looks_like_times(texts, form))
        if (len(texts) <= FEW_CLASSES and not self.is_free_text) or self.all_match(r"^\d+$"):
            return ()
        bare = pc.replace_substring_regex(texts, _CURRENCIES, "")
        if pc.any(pc.match_substring_regex(bare, "[A-Z]{3}")).as_py():
            return ()  # ART-07 would be read as an amount
        read = {form: written_numbers(texts, form) for form in NUMBER_FORMATS}
        fit = [form for form, (_, unreadable) in read.items() if not unreadable.any()]
        if len(fit) == 2 and (read[fit[0]][0] == read[fit[1]][0]).all():
            return (fit[0],)
        # Each group has three digits: thousands rather than thousandths.
        return tuple(sorted(fit, key=lambda form: -float(read[form][0].sum())))

    @cached_property
    def exceptions(self) -> tuple[str, pa.Array]:
        """Numbers or dates, and the few texts that are none and make the column one of texts."""
        none = pa.array([], pa.string())
        if self.kind != "text" or len(self.distinct) < _MANY_NUMBERS:
            return "", none
        texts = pc.cast(self.distinct, pa.string())
        for kind, read in (
            ("numbers", partial(written_numbers, written=NUMBER_FORMATS[0])),
            ("dates", parsed_times),
        ):
            if read(texts.slice(0, _MANY_TEXTS))[1].mean() > _FEW_EXCEPTIONS:
                continue
            others = texts.filter(pa.array(read(texts)[1]))
            num_rows = pc.sum(pc.is_in(self.values, value_set=others)).as_py()
            if 0 < num_rows <= _ERRORS * self.num_given:
                return kind, others
        return "", none

    def all_match(self, pattern: str) -> bool:
        return bool(pc.all(pc.match_substring_regex(self.distinct, pattern)).as_py())

    @property
    def is_time(self) -> bool:
        is_one_date = len(self.formats) == 1 and self.formats[0] in DATE_FORMATS
        return self.kind == "time" or is_one_date

    @cached_property
    def is_year(self) -> bool:
        """Whether this column names the year of its row, such as `year`, `yearID` or `season`."""
        words = {*words_of(self.name)} - {"id", "key"}
        if not words or not words <= _YEARS or len(self.distinct_ids) == 0:
            return False
        ends = pc.min_max(self.distinct_ids).as_py()
        is_number = pa.types.is_integer(self.distinct_ids.type)
        return is_number and ends["min"] >= _FIRST_YEAR and ends["max"] <= _LAST_YEAR

    @cached_property
    def times(self) -> pa.Array:
        """[num_rows] timestamps of a column of times."""
        times: pa.Array = self.values.combine_chunks()
        if is_text_type(times.type):
            times, _ = parsed_times(times, *self.formats[:1])
        return times.cast(pa.timestamp("us"), safe=False)

    @cached_property
    def span(self) -> tuple[datetime, datetime]:
        """The first and the last of the times."""
        ends = pc.min_max(self.times).as_py()
        return ends["min"], ends["max"]

    def is_later_than(self, time: Column) -> bool:
        """Whether both are times, and those of this column are later in more than a few rows."""
        if not (self.is_time and time.is_time):
            return False
        share = pc.mean(pc.greater(self.times, time.times)).as_py()
        return share is not None and share > _ERRORS

    def follows(self, time: Column) -> bool:
        """Whether this column is a running number, such as a week, that grows with the time."""
        is_number = is_number_type(self.values.type) and self.num_given >= _FEWEST_OF_CLOCK
        if not is_number or not time.is_time:
            return False
        both = pc.and_(self.values.is_valid(), time.times.is_valid()).combine_chunks()
        moments = time.times.filter(both).cast(pa.int64())
        values = self.values.combine_chunks().filter(both).cast(pa.float64(), safe=False)
        return is_clock(np.asarray(values), np.asarray(moments))

    @property
    def is_split(self) -> bool:
        if self.kind != "text" or not 2 <= len(self.distinct) <= len(SPLIT_CODES):
            return False
        words = {text.strip().lower() for text in self.distinct.to_pylist()}
        return "train" in words and words <= SPLIT_CODES.keys()

    @property
    def is_class(self) -> bool:
        is_small = 2 <= len(self.distinct) <= min(FEW_CLASSES, self.num_given // 2)
        is_flag = pa.types.is_boolean(self.values.type)
        return is_flag or (is_small and (self.kind in {"int", "text"} or self.is_whole))

    @cached_property
    def is_whole(self) -> bool:
        """Whether floats are whole numbers, as pandas writes integers with gaps."""
        is_float = pa.types.is_floating(self.values.type)
        return is_float and len(self.distinct) > 0 and len(self.distinct_ids) > 0


def words_of(name: str) -> tuple[str, ...]:
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return tuple(singular(word.lower()) for word in re.findall(r"[^\W\d_]+|\d+", apart))


def word_set(text: str) -> frozenset[str]:
    """Words to look for in `words_of` a name, and so in the singular."""
    return frozenset(singular(word) for word in text.split())


def is_plural(name: str) -> bool:
    last = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)[-1:]
    return bool(last) and singular(last[0].lower()) != last[0].lower()


def singular(word: str) -> str:
    irregular = {"people": "person", "children": "child", "movies": "movie"}
    irregular |= dict.fromkeys(("status", "series"), word)
    if word in irregular:
        return irregular[word]
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("s", "")):
        if word.endswith(ending) and not word.endswith("ss") and len(word) > len(ending) + 1:
            return word[: -len(ending)] + instead
    return word


def type_name(name: str) -> str:
    """A name that is valid in `graph.yaml`."""
    name = re.sub(r"[\W_]+", "_", unicodedata.normalize("NFC", name))
    return name.strip("_") or "node"
