"""Finds keys and references by names and values.

A reference needs two kinds of evidence: almost all rows have an id of the other table, and a chance
match is excluded, by the names or because ids are texts or have large gaps. Small integers are ids
of every table that counts its rows from 1, so alone they prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.tables.files import is_parquet
from raygnn.data.tables.source import system
from raygnn.errors import ConfigError
from raygnn.prepare.drafts.columns import Column, is_plural, type_name, word_set, words_of
from raygnn.prepare.drafts.raw_tables import DRAFTED, Reference, Table

#: Names of the columns of an edge's ends.
ENDS = (
    (
        *("source", "src", "from", "head", "sender", "follower", "giver", "payer", "debtor"),
        *("orig", "origin", "originator", "caller", "citing", "winner", "home"),
    ),
    (
        *("target", "dst", "to", "tail", "receiver", "followee", "taker", "payee", "creditor"),
        *("dest", "destination", "beneficiary", "callee", "cited", "recipient", "loser", "away"),
    ),
)
#: Last words of the names of columns of ids.
_ID_WORDS = word_set("id key code no nr num number sku uid uuid ref fk")
_ROW_ID = ("row", "id")  # numbers the rows of each table, as `id` does
_KEYS = word_set("id key code sku uid uuid pk")
_OF_ITS_OWN = word_set(
    "manager supervisor boss parent mentor referrer referred superior reply reports invited"
    " predecessor previous original root"
)
#: Words for people: a column with one of them may refer to a table with another one.
PEOPLE = word_set(
    "user customer client member person patient student reader viewer buyer seller account"
    " author owner employee staff clerk rep representative teacher driver player holder"
    " creator poster reviewer assignee doctor physician agent subscriber passenger visitor"
    " sender receiver commenter voter follower followee guest listener"
    " manager supervisor reporter editor operator nurse tutor lead"
)
_SIDES = PEOPLE | word_set("team club squad party company organization node vertex")
THINGS = word_set(
    "item product article movie film book song track artist album game recipe video show course"
    " restaurant business shop store job event"
)
_NODES = word_set("node vertex entity")
_LINKING = frozenset(["to", "by", "of"])  # `ReportsTo`, `referred_by`
# Words for counts and measures: `num_users` and `user_age` refer to no user.
_COUNTS = word_set("num n count total avg mean max min sum is has")
_MEASURES = word_set(
    "name title date day month rank position number age count amount price size level score value"
    " index order type"
)
_NAMED_RATE = 0.7  # least rate of a reference by name
_UNNAMED_RATE = 0.99
_UNLISTED = 0.05  # share of the ids above which a table lists only a part of them
_BY_CHANCE = 1e-6  # of numbers to be among the keys
_DENSE = 0.3  # share of the numbers between two keys that are keys too
_FEW = 10  # distinct values; a match of fewer proves little
_LISTED = 20  # distinct ids that make a column without a table a node type
_MANY = 100  # distinct ids whose largest proves something
#: Level of the names of a table's own ids; see `key_level`.
OWN_NAME = 3
_NAME_OF_AN_END = "the name is that of an end"
_REPEATED_ID = "an id that repeats is that of another table"
#: Why numbers are rejected that merely coincide with ids.
COINCIDENCE = "small numbers, which would match the ids of any table that counts from 1"


class Match(NamedTuple):
    """How well a column fits a key.

    Attributes:
        level: 3 names agree; 2 they agree in part; 1 they may agree; 0 only values do.
        is_accepted: whether the evidence suffices.
        why: the evidence, or what is missing.
    """

    level: int
    rate: float
    is_accepted: bool
    why: str


#: By (table, column): the table and column that it refers to, or None for no reference.
Overrides = Mapping[tuple[str, str], tuple[str, str] | None]


def parse_overrides(refs: Sequence[str], tables: Sequence[Table]) -> Overrides:
    """Parses `ratings.movie_id=movies.id` and `ratings.stars=none`. Raises a ConfigError for
    anything else.
    """
    columns = {(table.name, name.strip()): name for table in tables for name in table.columns}
    found: dict[tuple[str, str], tuple[str, str] | None] = {}
    for text in refs:
        left, equals, right = (part.strip() for part in text.partition("="))
        ends = []
        for end in (left, right):
            name, _, column = end.partition(".")
            ends += [(end, name, column.strip())] if end != "none" else []
        unknown = [end for end, table, column in ends if (table, column) not in columns]
        if not equals or unknown or left == "none":
            raise ConfigError(
                f"--ref={text!r} is invalid: "
                f"{f'there is no column {unknown[0]!r}' if unknown else 'it names no column'}. Set "
                f"TABLE.COLUMN=TABLE.COLUMN or =none, of {sorted({name for name, _ in columns})}. "
                "[prepare-ref]"
            )
        pairs = [(table, columns[table, column]) for _, table, column in ends]
        found[pairs[0]] = pairs[1] if len(pairs) > 1 else None
    return found


def find_references(tables: list[Table], overrides: Overrides) -> None:
    """Sets `key`, `references` and `rejected` of all tables, joins ids of several columns, and
    completes lists of a part of the ids.
    """
    _find_single_references(tables, overrides)
    are_joined = [_join_key(table, tables) for table in tables if table.key is None]
    if any(are_joined):
        _find_single_references(tables, overrides)
    for table in tables:
        if table.key in table.joined and not table.columns[table.key].is_unique:
            _drop_repeated(table, table.columns[table.key])
    are_completed = [_complete_ids(table, tables, overrides) for table in tables]
    if any(are_completed):
        _find_single_references(tables, overrides)


def _drop_repeated(table: Table, key: Column) -> None:
    """Leaves out rows that repeat ids, which would lead to two nodes each."""
    codes = key.ids.combine_chunks().dictionary_encode().indices
    distinct, first = np.unique(pc.fill_null(codes, -1), return_index=True)
    kept = np.sort(first[distinct >= 0])
    table.repairs.append(
        f"rows that repeat {key.name} or lack it are left out: {table.num_rows - len(kept):,}"
    )
    for column in list(table.columns.values()):
        table.set_column(column.name, column.values.take(kept))


def _complete_ids(table: Table, tables: Sequence[Table], overrides: Overrides) -> bool:
    """Adds rows for ids of a table that only columns of the same name in other tables have.

    Demographics of a third of the households are columns of all of them. A few unknown ids are
    errors. Returns whether rows were added.
    """
    if table.key is None:
        return False
    key = table.columns[table.key]
    words = words_of(key.name)
    by_name = (table.name, key.name) if len(words) > 1 else None
    sources = [
        (other.name, column)
        for other in tables
        for column in other.columns.values()
        if other is not table
        and column.distinct_ids.type == key.distinct_ids.type
        and overrides.get(
            (other.name, column.name), by_name if words_of(column.name) == words else None
        )
        == (table.name, key.name)
    ]
    rivals = [other for other in tables if other.key and words_of(other.key) == words]
    if not sources or max(rivals, key=_num_keys, default=table) is not table:
        return False
    ids = pa.concat_arrays([column.distinct_ids for _, column in sources]).unique()
    added = ids.filter(pc.invert(pc.is_in(ids, value_set=key.distinct_ids)))
    num_known = len(ids) - len(added)
    if len(added) <= _UNLISTED * len(ids) or num_known < _NAMED_RATE * len(key.distinct_ids):
        return False
    column = max(sources, key=lambda source: len(source[1].distinct_ids))  # of most ids
    for name, each in list(table.columns.items()):
        kind = each.values.type
        more = pc.cast(added, kind) if each is key else pa.nulls(len(added), kind)
        table.set_column(name, pa.chunked_array([*each.values.chunks, more]))
    table.num_added = len(added)
    table.repairs.append(
        f"{len(added):,} rows are added for ids that {column[0]}.{column[1].name} has"
    )
    return True


def _join_key(table: Table, tables: Sequence[Table]) -> bool:
    """Adds a column that joins the ids of a table which are several columns, and of other tables
    with these columns. Returns whether there are such columns.

    Columns that all refer to other tables are the ends of an edge, such as user and item. Beside
    references, only columns called a number or id count: a rank within a race would often match.
    """
    others = [other for other in tables if other is not table]
    shared = [
        name
        for name, column in table.columns.items()
        if column.kind in {"int", "text"} and any(name in other.columns for other in others)
        if name not in table.joined
    ]
    for names in (*combinations(shared, 2), *combinations(shared, 3)):
        own = {*names} - {*table.references}
        if any({*names} == {*parts} for parts in table.joined.values()):
            continue
        if not own or (table.references and not all(map(_is_called_id, own))):
            continue
        name = " ".join(names)
        key = Column(name, _joined_ids(table, names))
        if not key.can_be_key:
            continue
        referring = {
            other.name: pc.mean(pc.is_in(ids, value_set=key.distinct)).as_py()
            for other in others
            if {*names} <= {*other.columns}
            and (ids := _joined_ids(other, names).drop_null()).length()
        }
        if max(referring.values(), default=0) < _NAMED_RATE:
            continue
        for each in tables:
            if each is table or referring.get(each.name, 0) >= _NAMED_RATE:
                each.set_column(name, _joined_ids(each, names))
                each.joined[name] = names
                each.repairs.append(f"{name} joins {' and '.join(names)}, the ids of {table.name}")
        return True
    return False


def _is_called_id(column: str) -> bool:
    return not _ID_WORDS.isdisjoint(words_of(column)[-1:])


def _joined_ids(table: Table, names: Sequence[str]) -> pa.ChunkedArray:
    parts = [pc.cast(table.columns[name].ids, pa.string()) for name in names]
    return pc.binary_join_element_wise(*parts, "|")


def _find_single_references(tables: list[Table], overrides: Overrides) -> None:
    for table in tables:
        table.references.clear()
        table.rejected.clear()
    for table in tables:
        table.key = _find_key(table, tables, overrides)
    _release_shared_keys(tables, overrides)
    for table in tables:
        for column in table.columns.values():
            if column.name != table.key or (table.name, column.name) in overrides:
                _find_reference(table, column, tables, overrides)
    _find_by_equal_names(tables, overrides)


def _find_by_equal_names(tables: Sequence[Table], overrides: Overrides) -> None:
    """A few texts are ids if a column of the same name in another table refers to them."""
    known = {
        name: (table, reference)
        for table in tables
        for name, reference in table.references.items()
        if table.columns[name].kind == "text"
    }
    for table in tables:
        for name, column in table.columns.items():
            source, reference = known.get(name, (table, None))
            is_free = name != table.key and (table.name, name) not in {*overrides}
            if reference is None or source is table or reference.table == table.name or not is_free:
                continue
            other = next(other for other in tables if other.name == reference.table)
            rate, num_unknown = _containment(column, other)
            if name not in table.references and rate >= _UNNAMED_RATE:
                why = f"the name is that of {source.name}.{name}"
                table.references[name] = Reference(name, other.name, rate, num_unknown, why)
                table.rejected = [each for each in table.rejected if each.column != name]


def _find_key(table: Table, tables: Sequence[Table], overrides: Overrides) -> str | None:
    named = [end[1] for end in overrides.values() if end is not None and end[0] == table.name]
    if named:
        return named[0]
    if table.declared_key is not None:
        return table.declared_key
    scores: dict[str, int] = {}
    for column in table.columns.values():
        if not column.can_be_key or (table.name, column.name) in overrides:
            continue
        as_nodes = replace(table, key=column.name)
        matches = [
            _match(other, each, as_nodes)
            for other in tables
            if other is not table
            for each in other.columns.values()
        ]
        accepted = [match for match in matches if match.is_accepted]
        is_weak = all(match.level == 1 for match in accepted)
        score = key_level(column.name, table, tables)
        score += 0 if not accepted else 1 if is_weak else 5
        if score:
            scores[column.name] = score
    return max(scores, key=lambda name: scores[name]) if scores else None


def key_level(column: str, table: Table, tables: Sequence[Table]) -> int:
    """How well a column's name fits the ids of its table: 4 best, 0 not at all."""
    column = _bare(column, table)
    words, stem = words_of(column), _stem(column)
    if not words:
        return 0
    others = {_joined(other.words) for other in tables if other is not table}
    if _joined(stem or words) == _joined(table.words):
        return 4
    if (len(words) == 1 and words[0] in _KEYS) or words == _ROW_ID:
        return OWN_NAME
    if not stem or _joined(stem) in others:
        return 0
    if _ends(stem, table.words) or _ends(table.words, stem):
        return OWN_NAME
    return 2 if words[-1] in _ID_WORDS or column.lower().endswith(("id", "key")) else 0


def _release_shared_keys(tables: Sequence[Table], overrides: Overrides) -> None:
    """If two tables have the same ids in a column of the same name, one of them lists them."""
    fixed = {end[0] for end in overrides.values() if end is not None}
    for table in tables:
        for other in tables:
            if table is other or table.key is None or table.name in fixed:
                continue
            if other.key is None or words_of(table.key) != words_of(other.key):
                continue
            column = table.columns[table.key]
            if not _stem(table.key) and pa.types.is_integer(column.ids.type):
                continue  # `id` numbers the rows of each table from 1
            own, its = (key_level(each.key or "", each, tables) for each in (table, other))
            is_listed = _containment(column, other)[0] >= _UNNAMED_RATE
            is_smaller = its > own or len(column.distinct_ids) < _num_keys(other)
            if is_listed and is_smaller and own < 4 and len(table.words) >= len(other.words):
                table.key = None


def _find_reference(
    table: Table, column: Column, tables: Sequence[Table], overrides: Overrides
) -> None:
    place = (table.name, column.name)
    if place in overrides:
        end = overrides[place]
        if end is not None:
            other = next(other for other in tables if other.name == end[0])
            rate, num_unknown = _containment(column, other)
            why = "a declared key" if column.name in table.declared_references else "given by --ref"
            key = other.columns[other.key or ""]
            if rate == 0 and column.ids.type != key.ids.type:
                raise ConfigError(
                    f"--ref={table.name}.{column.name} is invalid: "
                    f"{_type_difference(column, key)}. Write both columns alike. [prepare-ref]"
                )
            table.references[column.name] = Reference(
                column.name, other.name, rate, num_unknown, why
            )
        return
    matches = [(other, _match(table, column, other)) for other in tables if other.key is not None]
    matches.sort(key=lambda pair: (-pair[1].level, -pair[1].rate, _num_keys(pair[0])))
    fitting = [(other, match) for other, match in matches if match.is_accepted]
    if fitting and fitting[0][1].why in {_NAME_OF_AN_END, _REPEATED_ID}:  # people first
        fitting.sort(key=lambda pair: (-pair[1].level, -pair[1].rate, not is_side(pair[0])))
        rivals = [other for other, match in fitting if match[:2] == fitting[0][1][:2]]
        if len(rivals) > 1 and is_side(rivals[0]) == is_side(rivals[1]):
            why = f"{' and '.join(other.name for other in rivals)} have all its ids"
            rate = fitting[0][1].rate
            table.rejected.append(Reference(column.name, rivals[0].name, rate, why=why))
            return
    if fitting:
        other, match = fitting[0]
        table.references[column.name] = Reference(
            column.name, other.name, *_containment(column, other), match.why
        )
        for second, its in fitting[1:]:
            if its.level == match.level:
                why = f"{other.name} fits better"
                table.rejected.append(Reference(column.name, second.name, its.rate, why=why))
        return
    for other, match in [pair for pair in matches if pair[1].why][:1]:
        table.rejected.append(Reference(column.name, other.name, match.rate, why=match.why))


def is_side(table: Table) -> bool:
    """Whether rows may be the two sides of a match or a transfer."""
    return bool(_SIDES & {*table.words})


def _num_keys(table: Table) -> int:
    return len(table.columns[table.key or ""].distinct_ids)


def _containment(column: Column, other: Table) -> tuple[float, int]:
    keys = other.columns[other.key or ""].distinct_ids
    num_given = len(column.ids) - int(column.ids.null_count)
    if not num_given or column.ids.type != keys.type:
        return 0.0, num_given
    num_known = pc.sum(pc.is_in(column.ids, value_set=keys)).as_py() or 0
    return num_known / num_given, num_given - num_known


def _match(table: Table, column: Column, other: Table) -> Match:
    key = other.columns[other.key or ""]
    is_id = column.kind in {"int", "text"} or column.is_whole
    values, keys = column.distinct_ids, key.distinct_ids
    if not is_id or not len(values) or column is key:
        return Match(0, 0.0, False, "")
    level, names = _name_level(table, column, other)
    if values.type != keys.type:
        is_same_name = level == 3 and words_of(column.name) == words_of(key.name)
        return Match(0, 0.0, False, _type_difference(column, key) if is_same_name else "")
    rate, _ = _containment(column, other)
    is_number = pa.types.is_integer(values.type)
    is_handful = len(values) < min(_FEW, len(keys) // 2)
    has_stem = bool(_stem(_bare(column.name, table)))
    if level >= 2:
        if is_number and is_handful and not has_stem and table is not other:
            why = f"{len(values)} distinct small numbers, and the name is not one of ids"
            return Match(level, rate, False, why)
        is_accepted = rate >= _NAMED_RATE
        why = "too many rows have an unknown value" if rate > 0.1 else ""
        return Match(level, rate, is_accepted, names if is_accepted else why)
    is_within = table is other and is_number and has_stem and _ends_together(values, keys)
    is_many = len(values) >= _FEW
    is_telling = level == 1 and is_many and (not is_number or _is_sparse(values, keys))
    least = _NAMED_RATE if is_telling else _UNNAMED_RATE
    if rate < least or (level == 0 and table is other and not is_within):
        is_close = rate >= 0.9 and (level or not is_number) and table is not other
        return Match(level, rate, False, "too many rows have an unknown value" if is_close else "")
    if is_number:
        if is_many and _is_sparse(values, keys):
            return Match(level, rate, True, "ids with gaps, which other numbers would not hit")
        if is_within and column.repeats:
            return Match(level, rate, True, "ids up to the last of the table")
        is_accepted = level == 1 and (has_stem or not is_handful)
        is_small = pc.min(keys).as_py() <= len(keys)
        why = COINCIDENCE if is_small else "numbers, and the names do not agree"
        return Match(level, rate, is_accepted, names if is_accepted else why)
    uses_all = len(keys) > 2 and len(values) >= _UNNAMED_RATE * len(keys)
    if level or is_many or uses_all:
        return Match(level, rate, True, names or "texts that are ids")
    return Match(level, rate, False, f"{len(values)} distinct texts, and other names")


def _type_difference(column: Column, key: Column) -> str:
    """Why ids of two types do not match. A row of totals turns a column of numbers into texts."""
    of_texts = key if pa.types.is_integer(column.distinct_ids.type) else column
    return f"{of_texts.name} has values that are not whole numbers, such as {of_texts.first_text!r}"


def _name_level(table: Table, column: Column, other: Table) -> tuple[int, str]:
    name, key_name = _bare(column.name, table), _bare(other.key or "", other)
    words, stem, key = words_of(name), _stem(name), words_of(key_name)
    names = stem or words
    is_number = pa.types.is_integer(column.distinct_ids.type)
    if not words or words == _ROW_ID:
        return 0, ""
    if is_number and (_COUNTS & {words[0], words[-1]} or (not stem and is_plural(name))):
        return 0, ""  # `num_orders` and `orders` are counts
    if table is other:
        is_own = names[-1] in _OF_ITS_OWN | _LINKING or not (stem or names[-1] in _MEASURES)
        if _OF_ITS_OWN & {*names} and is_own:
            return 3, "the name is one of a reference within a table"
        if stem and len(stem) > len(other.words) and _ends(stem, other.words):
            return 2, "the name ends like the table's"
        return (1, _NAME_OF_AN_END) if _is_end(words, table) else (0, "")
    if words == key and (len(key) > 1 or key_name != other.key):
        return 3, "the names of the columns are equal"
    if words == key and {*key} <= _KEYS and column.repeats:
        return 1, _REPEATED_ID
    if _joined(names) == _joined(other.words):
        return 3, "the names agree"
    key_stem = _stem(key_name)
    if key_stem and names == key_stem:
        return 3, "the names of the columns agree"
    siblings = (name for name in other.columns if name != other.key and not is_plural(name))
    if words in {words_of(each) for each in siblings} and not _OF_ITS_OWN & {*names}:
        return 0, ""  # both refer to a third table
    if _ends(names, other.words) or (len(key) > 1 and _ends(words, key)):
        return 2, "the names end alike"
    if stem and _ends(other.words, stem[-1:]):
        return 2, "the names share a word"
    if stem and len(stem) == 1 and _abbreviates(stem[0], other.words[-1]):
        return 2 if other.words[-1].startswith(stem[0]) else 1, "the name is an abbreviation"
    if len(words[0]) > 3 and words[0] != other.words[-1] and other.words[-1].startswith(words[0]):
        is_full = len(column.distinct_ids) == _num_keys(other)
        return (1, "the name is an abbreviation") if is_full else (0, "")
    if not {*key} & (_KEYS | _MEASURES) and _ends(words, key):
        return 1 if is_number else 2, "the names of the columns end alike"
    if _is_end(words, table):
        return 1, _NAME_OF_AN_END
    if PEOPLE & {names[-1], _joined(words)} and PEOPLE & set(other.words):
        return 1, "both names are of people"
    return 0, ""


def _bare(name: str, table: Table) -> str:
    """A column's name without a mark of the table that begins all its columns: `c_` of `c_name`."""
    start = re.match(r"[A-Za-z]{1,2}_", name)
    mark = start[0] if start and len(table.columns) > 1 else ""
    return name[len(mark) :] if all(other.startswith(mark) for other in table.columns) else name


def _stem(name: str) -> tuple[str, ...]:
    """The words before the word for an id: `user_id` is user. Empty without an id word."""
    words = words_of(name)
    if words == _ROW_ID:
        return ()
    if len(words) > 1 and words[-1] in _ID_WORDS:
        return words[:-1]
    if len(words) == 1 and words[0] not in _ID_WORDS and len(words[0]) > 4:
        glued = re.fullmatch(r"(.{2,})(?:id|key)", words[0])  # userid, custkey
        return (glued[1],) if glued else ()
    return ()


def _ends_together(values: pa.Array, keys: pa.Array) -> bool:
    """Whether many numbers reach the last of the keys, as those of a longer table would not."""
    last = pc.max(keys).as_py()
    return bool(len(values) >= _MANY and last >= pc.max(values).as_py() >= 0.99 * last)


def _joined(words: Sequence[str]) -> str:
    return "".join(words)


def _ends(words: Sequence[str], tail: Sequence[str]) -> bool:
    return 0 < len(tail) <= len(words) and tuple(words[-len(tail) :]) == tuple(tail)


def _is_end(words: Sequence[str], table: Table) -> bool:
    """Whether a name such as `from` or `to_node` is one of a pair in its table."""
    if not words:
        return False
    all_words = {word for name in table.columns for word in words_of(name)}
    last = words[-2 if len(words) > 1 and words[-1] in _ID_WORDS | _NODES else -1]
    return any(
        last in ENDS[end] and bool(all_words & set(ENDS[1 - end])) for end in range(len(ENDS))
    )


def _abbreviates(short: str, word: str) -> bool:
    """Whether letters of a word, in order, make the short form: dept, cust, acct."""
    if len(short) < 3 or short[0] != word[0] or len(short) >= len(word):
        return False
    letters = iter(word)
    return all(letter in letters for letter in short)


def _is_sparse(values: pa.Array, keys: pa.Array) -> bool:
    """Whether the keys have enough gaps to make chance matches unlikely.

    Gaps are measured on the keys' grid: numbers in steps of 10 hit ids in steps of 10.
    """
    low, high = pc.min_max(values).as_py().values()
    is_within = pc.and_(pc.greater_equal(keys, low), pc.less_equal(keys, high))
    within = keys.filter(is_within).to_numpy()
    step = max(int(np.gcd.reduce(within - low)), 1)
    share = len(within) / ((high - low) // step + 1)
    return bool(share <= _DENSE and share ** len(values) < _BY_CHANCE)


def list_missing_nodes(tables: list[Table], overrides: Overrides) -> dict[str, pa.Table]:
    """Adds node types for id columns that no table lists, if a table would have only one end.

    Returns the tables to write, by file.
    """
    users: dict[str, list[tuple[Table, Column]]] = {}
    referred = {ref.table for table in tables for ref in table.references.values()}
    for table in tables:
        if len(table.references) > 1 or table.name in referred:
            continue
        ends = [
            column
            for column in table.columns.values()
            if column.name not in {*table.references, table.key}
            and (table.name, column.name) not in overrides
            and (column.kind in {"int", "text"} or column.is_whole)
            and not column.is_split
            and not column.is_year
            and (
                (_stem_of_id(column.name) and column.repeats)
                or _is_end(words_of(column.name), table)
                or (column.kind == "text" and column.repeats and _other_side(column.name, table))
                or (_is_of_pair(column.name, table) and column.repeats)
            )
            and (not table.references or len(column.distinct_ids) > _LISTED)
        ]  # fmt: skip
        if len(ends) + len(table.references) < 2:
            continue
        sides = [column for column in ends if _other_side(column.name, table)]
        for column in sides or ends[: 2 - len(table.references)]:
            stem = _stem_of_id(column.name)
            if not stem and _is_of_pair(column.name, table):
                stem = _without_name(words_of(column.name))
            if sides:  # both sides are of one type: `home_team` and `away_team` are teams
                words = stem or words_of(column.name)
                stem = tuple(word for word in words if word not in {*ENDS[0], *ENDS[1]})
            name = type_name("_".join(stem)) if stem else ""
            users.setdefault(name or "node", []).append((table, column))
    made: dict[str, pa.Table] = {}
    for name, columns in users.items():
        # ids of two tables may be of several integer types, or of numbers here and texts there
        is_text = any(pa.types.is_string(column.ids.type) for _, column in columns)
        kind = pa.string() if is_text else pa.int64()
        ids = pa.concat_arrays([pc.cast(column.distinct_ids, kind) for _, column in columns])
        ids = _with_leading_zeros(ids.unique(), [column for _, column in columns])
        rows = pa.table({"id": ids.take(pc.sort_indices(ids))})
        file = f"{DRAFTED}/{name}_ids.parquet"
        nodes = Table(name, file, {"id": Column("id", rows["id"])}, key="id")
        nodes.database = columns[0][0].database
        if nodes.database is None:
            made[file] = rows
            note = f"their ids are written to {file}"
        else:
            ids_of = [table.select([(column.name, "id")], column.name) for table, column in columns]
            union = " UNION DISTINCT " if system(nodes.database) == "bigquery" else " UNION "
            nodes.pattern, note = union.join(ids_of), "a query reads their ids"
        nodes.unsure.append(f"no table lists these nodes; {note}")
        tables.append(nodes)
        for table, column in columns:
            table.references[column.name] = Reference(column.name, name, why="no table lists them")
    return made


def _is_of_pair(name: str, table: Table) -> bool:
    """Whether a column is `user` or `item` in a table with columns of people and of things."""
    names = [_without_name(words_of(each)) for each in table.columns]
    single_words = {words[0] for words in names if len(words) == 1}
    people, things = single_words & PEOPLE, single_words & THINGS
    words = _without_name(words_of(name))
    return bool(people and things) and words in {(word,) for word in people | things}


def _without_name(words: tuple[str, ...]) -> tuple[str, ...]:
    """`customer_name` is customer."""
    return words[:-1] if len(words) > 1 and words[-1] == "name" else words


def _other_side(name: str, table: Table) -> str | None:
    """The column whose name differs in the word for an end: `away_team` of `home_team`."""
    words = words_of(name)
    for other in table.columns:
        its = words_of(other)
        pairs = [pair for pair in zip(words, its, strict=False) if pair[0] != pair[1]]
        if len(words) == len(its) and len(pairs) == 1:
            one, two = pairs[0]
            if any(one in ENDS[end] and two in ENDS[1 - end] for end in range(len(ENDS))):
                return other
    return None


def _stem_of_id(name: str) -> tuple[str, ...]:
    words = words_of(name)
    is_id = words[-1:] == ("id",) or (len(words) == 1 and words[0].endswith("id"))
    return _stem(name) if is_id else ()


def spell_references(tables: Sequence[Table]) -> None:
    """Spells references like the ids of their table, if ingest would not treat them as equal."""
    keys = {table.name: table.columns[table.key] for table in tables if table.key is not None}
    for table in tables:
        for name, reference in table.references.items():
            column, key = table.columns[name], keys[reference.table]
            if _is_read_as(column, key):
                continue
            if pa.types.is_integer(key.values.type):
                values = column.ids
                how = "whole numbers" if column.is_whole else "numbers"
            else:
                position = pc.index_in(column.ids, value_set=key.ids.combine_chunks())
                values = pc.take(pc.cast(key.values, pa.string()).combine_chunks(), position)
                how = f"the ids of {reference.table}"
            table.set_column(name, pa.chunked_array([values]) if isinstance(values, pa.Array)
                             else values)  # fmt: skip
            is_gap = pc.and_(pc.is_valid(column.values), pc.is_null(column.ids))
            gaps = column.values.filter(is_gap).unique()
            others = column.values.filter(pc.invert(is_gap)).drop_null()
            if len(gaps):
                words = ", ".join(map(str, gaps.to_pylist()))
                table.repairs.append(f"{name}: {pc.sum(is_gap).as_py():,} gaps written as {words}")
            if len(others) and (not len(gaps) or not _is_read_as(Column(name, others), key)):
                example = others[0].as_py()
                table.repairs.append(f"{name}: written as {how} (such as {example!r} in the files)")


def _is_read_as(column: Column, key: Column) -> bool:
    if column.kind == "int" or key.kind == "int":
        return column.kind == key.kind
    texts = pc.cast(column.values, pa.string())
    as_written = pc.is_in(texts, value_set=pc.cast(key.distinct, pa.string()))
    in_one_spelling = pc.is_in(column.ids, value_set=key.distinct_ids)
    is_gap = pc.and_(pc.is_valid(texts), pc.is_null(column.ids))
    is_same = pc.sum(as_written).as_py() == pc.sum(in_one_spelling).as_py()
    return bool(is_same and not pc.any(is_gap).as_py())


def _with_leading_zeros(ids: pa.Array, columns: Sequence[Column]) -> pa.Array:
    """Spells integer ids as a column that pads them does: 007."""
    padded = [column.distinct for column in columns if column.is_padded]
    if not padded or not pa.types.is_integer(ids.type):
        return ids
    texts = pa.concat_arrays([pc.cast(texts, pa.string()) for texts in padded])
    found = texts.take(pc.index_in(ids, value_set=pc.cast(texts, pa.int64())))
    return pc.coalesce(found, pc.cast(ids, pa.string()))


def read_as_numbers(tables: Sequence[Table]) -> None:
    """Lets digits with leading zeros be numbers where they are not ids, as ingest does."""
    for table in tables:
        if table.database is not None or is_parquet(table.pattern):
            continue
        for name, column in table.columns.items():
            if column.is_padded and name not in {table.key, *table.references}:
                table.set_column(name, pc.cast(column.values, pa.int64()))
