"""Original ids, integers or strings, to dense ids 0..N-1 and back, on memory-mapped tables.

Tables use open addressing with linear probing. A slot contains a dense id or -1, and keys are
compared in the array of ids, so a table costs four bytes per slot for up to 2**31 nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from raygnn.data import arrays
from raygnn.data.hashing import fnv1a, hash_ids, splitmix64, string_buffers
from raygnn.errors import DataError

# Ids whose memory accesses overlap; as many as a core has misses under way, a few times over.
_GROUP = 256


@njit(nogil=True, cache=True)
def is_range(ids: np.ndarray) -> bool:
    for i in range(1, len(ids)):  # noqa: SIM110 (numba compiles no generator expression)
        # Compiled integers may be taken never to wrap around, so no term here can: the smallest id
        # is not reached by the second test.
        if ids[i] <= ids[i - 1] or ids[i] - 1 != ids[i - 1]:
            return False
    return True


@njit(nogil=True, cache=True)
def fill_direct(ids: np.ndarray, low: int, skip: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Fills `slots[id - low]` with row numbers; returns rows whose id came before."""
    duplicate = np.zeros(len(ids), np.bool_)
    for i in range(len(ids)):
        if skip[i]:
            continue
        slot = ids[i] - low
        if slots[slot] >= 0:
            duplicate[i] = True
        else:
            slots[slot] = i
    return duplicate


@njit(nogil=True, cache=True)
def find_direct(ids: np.ndarray, low: int, slots: np.ndarray, out: np.ndarray) -> None:
    """Looks ids up in a table of fill_direct; -1 is unknown."""
    span = np.uint64(len(slots))
    for i in range(len(ids)):
        # In uint64, the difference is exact even if it does not fit int64.
        inside = ids[i] >= low and np.uint64(ids[i] - low) < span
        out[i] = slots[ids[i] - low] if inside else -1


@njit(nogil=True, cache=True, inline="always")
def _home(hashed, slots):  # type: ignore[no-untyped-def]
    return np.int64(splitmix64(hashed)) & (len(slots) - 1)


@njit(nogil=True, cache=True, inline="always")
def _slot_of(wanted, ids, slots):  # type: ignore[no-untyped-def]
    """The slot of an integer id, or the free one where it would be."""
    slot = _home(np.uint64(wanted), slots)
    while slots[slot] >= 0 and ids[slots[slot]] != wanted:
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@njit(nogil=True, cache=True)
def fill_hashed(ids: np.ndarray, skip: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Inserts integer ids into empty slots; returns rows whose id came before."""
    duplicate = np.zeros(len(ids), np.bool_)
    for i in range(len(ids)):
        if not skip[i]:
            slot = _slot_of(ids[i], ids, slots)
            duplicate[i] = slots[slot] >= 0
            slots[slot] = slots[slot] if duplicate[i] else i
    return duplicate


@njit(nogil=True, cache=True)
def find_hashed(wanted: np.ndarray, ids: np.ndarray, slots: np.ndarray, out: np.ndarray) -> None:
    """Looks integer ids up in a table of fill_hashed; -1 is unknown."""
    for i in range(len(wanted)):
        out[i] = slots[_slot_of(wanted[i], ids, slots)]


@njit(nogil=True, cache=True, inline="always")
def _string_slot(slot, wanted, start, stop, offsets, data, slots):  # type: ignore[no-untyped-def]
    """The slot of the string `wanted[start:stop]`, or the free one, from its home on."""
    while slots[slot] >= 0:
        first, last = offsets[slots[slot]], offsets[slots[slot] + 1]
        if last - first == stop - start:
            i = 0
            while i < stop - start and wanted[start + i] == data[first + i]:
                i += 1
            if i == stop - start:
                break
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@njit(nogil=True, cache=True)
def fill_strings(
    offsets: np.ndarray, data: np.ndarray, skip: np.ndarray, slots: np.ndarray
) -> np.ndarray:
    """Inserts string ids into empty slots; returns rows whose id came before."""
    duplicate = np.zeros(len(offsets) - 1, np.bool_)
    for i in range(len(duplicate)):
        if not skip[i]:
            start, stop = offsets[i], offsets[i + 1]
            home = _home(fnv1a(data, start, stop), slots)
            slot = _string_slot(home, data, start, stop, offsets, data, slots)
            duplicate[i] = slots[slot] >= 0
            slots[slot] = slots[slot] if duplicate[i] else i
    return duplicate


@njit(nogil=True, cache=True)
def find_strings(
    wanted_offsets: np.ndarray,
    wanted_data: np.ndarray,
    offsets: np.ndarray,
    data: np.ndarray,
    slots: np.ndarray,
    out: np.ndarray,
) -> None:
    """Looks string ids up in a table of fill_strings; -1 is unknown.

    In steps over a group of ids, so that their cache misses overlap: the first steps only load, and
    the last finds everything in the cache.
    """
    homes = np.empty(_GROUP, np.int64)
    first_bytes = np.empty(_GROUP, np.int64)
    for base in range(0, len(out), _GROUP):
        size = min(_GROUP, len(out) - base)
        for i in range(size):
            start, stop = wanted_offsets[base + i], wanted_offsets[base + i + 1]
            homes[i] = _home(fnv1a(wanted_data, start, stop), slots)
        for i in range(size):
            out[base + i] = slots[homes[i]]
        for i in range(size):
            first_bytes[i] = offsets[max(out[base + i], 0)]
        for i in range(size):
            first_bytes[i] = data[first_bytes[i]] if first_bytes[i] < len(data) else -1
        for i in range(size):
            start, stop = wanted_offsets[base + i], wanted_offsets[base + i + 1]
            slot = homes[i]
            if out[base + i] >= 0 and stop > start and first_bytes[i] != wanted_data[start]:
                slot = (slot + 1) & (len(slots) - 1)
            slot = _string_slot(slot, wanted_data, start, stop, offsets, data, slots)
            out[base + i] = slots[slot]


IdKind = Literal["int", "string"]
IndexKind = Literal["range", "direct", "hashed", "strings"]

IDS = "ids.npy"
OFFSETS = "id_offsets.npy"
BYTES = "id_bytes.npy"
SLOTS = "id_slots.npy"

# A table over the whole range of ids is smaller and faster than a hashed one up to about here.
_DIRECT_SPAN = 4
_SEED = 0  # of the hash that samples rows and determines an id's bucket and part
# Linear probing stays short below a load of two thirds.
_SLOTS_PER_ID = 1.5


@dataclass(frozen=True)
class IdIndex:
    """Describes the index of a node type's ids. `low`: smallest id of a range or a direct table."""

    kind: IndexKind
    low: int
    num_ids: int

    @property
    def id_kind(self) -> IdKind:
        return "string" if self.kind == "strings" else "int"


def id_kind(column_type: pa.DataType, place: str) -> IdKind:
    """Whether an id column has integers or strings. Raises a DataError for other types."""
    if pa.types.is_integer(column_type):
        return "int"
    if pa.types.is_string(column_type):
        return "string"
    raise DataError(
        f"{place} is invalid: the column is {column_type}. Write ids as integers below 2**63, or "
        "as strings, in each row. [nodes-id-type]"
    )


def integer_ids(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Integer ids as int64, and the mask of those that int64 cannot represent; nulls become 0."""
    column = pc.fill_null(column, 0) if column.null_count else column
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype != np.uint64:
        return values.astype(np.int64, copy=False), np.zeros(len(values), bool)
    too_large = values > np.uint64(np.iinfo(np.int64).max)
    return np.where(too_large, 0, values).astype(np.int64), too_large


def hash_column(ids: pa.Array) -> np.ndarray:
    """uint64 [n], hashes of integer or string ids; nulls and ids beyond int64 count as 0 or ""."""
    if pa.types.is_integer(ids.type):
        return hash_ids(integer_ids(ids)[0], _SEED)
    return hash_ids(pc.fill_null(ids, "") if ids.null_count else ids, _SEED)


def stored_ids(
    folder: Path,
    kind: IdKind,
    open_file: Callable[[Path], np.ndarray] = lambda path: arrays.open_array(path, "r"),
) -> pa.Array:
    """Original ids in a folder: int64 or large_string, mapped."""
    if kind == "int":
        return pa.array(open_file(folder / IDS))
    offsets, data = open_file(folder / OFFSETS), open_file(folder / BYTES)
    buffers = pa.py_buffer(offsets), pa.py_buffer(data)
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, *buffers)


def gather_ids(sources: Sequence[arrays.Source], kind: IdKind, out: Path) -> None:
    if kind == "int":
        arrays.gather_rows(sources, IDS, out)
    else:
        arrays.gather_ragged_rows(sources, OFFSETS, [BYTES], out)


def build_index(folder: Path, skip: np.ndarray, kind: IdKind) -> tuple[IdIndex, np.ndarray]:
    """Builds the lookup table of the ids in `folder`, next to them, except those to skip.

    Returns the index, and bool [n] of the rows whose id an earlier row has.
    """
    if kind == "string":
        offsets, data = arrays.open_array(folder / OFFSETS), arrays.open_array(folder / BYTES)
        slots = _create_slots(folder, _num_hash_slots(len(skip)), len(skip))
        duplicate = fill_strings(offsets, data, skip, slots)
        return IdIndex("strings", 0, len(skip)), duplicate
    ids = arrays.open_array(folder / IDS)
    used = ids if not skip.any() else ids[~skip]
    if len(used) == 0:
        _create_slots(folder, 8, len(ids))
        return IdIndex("hashed", 0, len(ids)), np.zeros(len(ids), bool)
    if len(used) == len(ids) and is_range(ids):
        (folder / SLOTS).unlink(missing_ok=True)
        return IdIndex("range", int(ids[0]), len(ids)), np.zeros(len(ids), bool)
    low = int(used.min())
    span = int(used.max()) - low + 1
    if span <= _DIRECT_SPAN * len(ids):
        slots = _create_slots(folder, span, len(ids))
        return IdIndex("direct", low, len(ids)), fill_direct(ids, low, skip, slots)
    slots = _create_slots(folder, _num_hash_slots(len(ids)), len(ids))
    return IdIndex("hashed", 0, len(ids)), fill_hashed(ids, skip, slots)


def table_files(kind: IndexKind) -> tuple[str, ...]:
    files: dict[IndexKind, tuple[str, ...]] = {
        "range": (),
        "direct": (SLOTS,),
        "hashed": (SLOTS, IDS),
        "strings": (SLOTS, OFFSETS, BYTES),
    }
    return files[kind]


class IdMap:
    def __init__(self, index: IdIndex, tables: Sequence[np.ndarray]) -> None:
        self.index = index
        self._tables = tuple(tables)

    @classmethod
    def open(cls, folder: Path, index: IdIndex) -> IdMap:
        return cls(
            index, [arrays.open_array(folder / name, "r") for name in table_files(index.kind)]
        )

    @property
    def kind(self) -> IdKind:
        return self.index.id_kind

    @property
    def slots(self) -> np.ndarray | None:
        """Dense id of each slot of the table, -1 if empty. None for a range of ids."""
        return self._tables[0] if self._tables else None

    def lookup(self, ids: pa.Array | np.ndarray) -> np.ndarray:
        """Dense ids of original ids, int64 [n]; -1 for unknown ids and nulls.

        Raises a DataError for strings instead of integers, or the other way round.
        """
        if isinstance(ids, pa.ChunkedArray):
            ids = ids.combine_chunks()
        column = ids if isinstance(ids, pa.Array) else pa.array(ids)
        is_fine = pa.types.is_integer(column.type)
        if self.kind != "int":
            is_fine = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if len(column) and not is_fine:
            raise DataError(
                f"ids of type {column.type} are invalid: the node table has "
                f"{'integers' if self.kind == 'int' else 'strings'}. Give these. [nodes-id-kind]"
            )
        out = np.full(len(column), -1, np.int64)
        if len(column) == 0:
            return out
        if self.kind == "int":
            values, unknown = integer_ids(column)
            self._find_integers(values, out)
        else:
            unknown = np.zeros(len(column), bool)
            filled = pc.fill_null(column, "") if column.null_count else column
            offsets, data = string_buffers(filled)
            slots, id_offsets, id_data = self._tables
            find_strings(offsets, data, id_offsets, id_data, slots, out)
        if column.null_count:
            unknown = unknown | column.is_null().to_numpy(zero_copy_only=False)
        out[unknown] = -1
        return out

    def _find_integers(self, values: np.ndarray, out: np.ndarray) -> None:
        index = self.index
        if index.kind == "range":
            # Bounds before the difference: far ids would wrap around int64.
            inside = (values >= index.low) & (values <= index.low + index.num_ids - 1)
            np.subtract(values, index.low, out=out, where=inside)
        elif index.kind == "direct":
            (slots,) = self._tables
            find_direct(values, index.low, slots, out)
        else:
            slots, ids = self._tables
            find_hashed(values, ids, slots, out)


def _num_hash_slots(num_ids: int) -> int:
    return 1 << max(3, int(num_ids * _SLOTS_PER_ID).bit_length())


def _create_slots(folder: Path, num_slots: int, num_ids: int) -> np.ndarray:
    slots = arrays.create_array(folder / SLOTS, (num_slots,), arrays.index_dtype(num_ids))
    slots.fill(-1)
    return slots
