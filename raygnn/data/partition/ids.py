"""Original ids by hash: buckets that find duplicates and give dense ids, one bucket at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.arrays import open_array
from raygnn.data.hashing import hash_ids
from raygnn.data.id_map import BYTES, IDS, OFFSETS, IdIndex, IdKind, IdMap, integer_ids
from raygnn.data.ingest.array_tasks import Rows

_SEED = 0  # of the hash that an id's bucket and part follow from
DENSE = "dense.npy"


def bucket_of(ids: pa.Array, num_buckets: int) -> np.ndarray:
    """int64 [n]: the bucket of each id; nulls and ids that int64 cannot hold count as 0 or ""."""
    if pa.types.is_integer(ids.type):
        hashes = hash_ids(integer_ids(ids)[0], _SEED)
    else:
        hashes = hash_ids(pc.fill_null(ids, "") if ids.null_count else ids, _SEED)
    return (hashes % np.uint64(num_buckets)).astype(np.int64)


def read_ids(folder: Path, kind: IdKind) -> pa.Array:
    """The ids in a folder: int64 or large_string, mapped."""
    if kind == "int":
        return pa.array(open_array(folder / IDS, "r"))
    offsets, data = open_array(folder / OFFSETS, "r"), open_array(folder / BYTES, "r")
    buffers = pa.py_buffer(offsets), pa.py_buffer(data)
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, *buffers)


def write_ids(folder: Path, ids: pa.Array, kind: IdKind) -> None:
    """Writes ids as `read_ids` reads them."""
    if kind == "int":
        np.save(folder / IDS, ids.to_numpy(zero_copy_only=False))
        return
    lengths = pc.binary_length(ids).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    np.save(folder / OFFSETS, offsets)
    _, given, data = ids.buffers()
    starts = np.frombuffer(given, np.int64)[ids.offset :] if given else np.zeros(1, np.int64)
    raw = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    np.save(folder / BYTES, raw[starts[0] : starts[0] + offsets[-1]])


@dataclass(frozen=True)
class Bucket:
    """The ids of one hash bucket of a node type.

    Attributes:
        ids: folder of the ids and their table.
        dense: folder of DENSE: the dense id of each of them.
    """

    ids: Path
    index: IdIndex
    dense: Path


@dataclass(frozen=True)
class BucketedIds:
    """The id map of a node type, of which one bucket at a time is mapped."""

    buckets: tuple[Bucket, ...]

    @property
    def inputs(self) -> tuple[Rows, ...]:
        """Nothing: a bucket is mapped while ids are looked up in it."""
        return ()

    def open(self, tables: Sequence[np.ndarray]) -> BucketedIds:
        """Itself."""
        return self

    def lookup(self, ids: pa.Array) -> np.ndarray:
        """Dense ids of original ids.

        Returns:
            int64 [n]; -1 where no node has the id, and for nulls.
        """
        out = np.full(len(ids), -1, np.int64)
        if len(ids) == 0:
            return out
        bucket_of_id = bucket_of(ids, len(self.buckets))
        order = np.argsort(bucket_of_id, kind="stable")
        ends = np.cumsum(np.bincount(bucket_of_id, minlength=len(self.buckets)))
        start = 0
        for bucket, end in zip(self.buckets, ends.tolist(), strict=True):
            rows, start = order[start:end], end
            if len(rows) == 0:
                continue
            found = IdMap.open(bucket.ids, bucket.index).lookup(ids.take(pa.array(rows)))
            known = found >= 0
            out[rows[known]] = open_array(bucket.dense / DENSE, "r")[found[known]]
        return out
