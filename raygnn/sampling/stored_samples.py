"""Reads stored neighborhoods: one row group per micro-batch, on demand."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raygnn.data.checksums import Checksum, checksum
from raygnn.data.filesystem import absolute, is_remote, join, open_fs, redact, write_bytes
from raygnn.data.storage_retry import is_of_content, retried
from raygnn.errors import DataError
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import SampledSubgraph, SampleRequest
from raygnn.sampling.rng import seed_order
from raygnn.sampling.sample_record import (
    SCHEMA,
    RowLayout,
    SampleFile,
    SamplePlan,
    SampleRecord,
    other_requests,
)
from raygnn.sampling.sampled_sequence import SampledSequence

_MAX_FOOTERS = 16  # footers of files that a loader caches


@dataclass(frozen=True)
class StoredSamples:
    """A complete set of stored neighborhoods. Crosses process boundaries."""

    uri: str
    record: SampleRecord

    @classmethod
    def open(cls, uri: str) -> StoredSamples:
        where = absolute(uri)
        return cls(where, SampleRecord.load(where))

    def of_split(self, split: str, seed: int) -> StoredSplit | None:
        """The neighborhoods of a split, if any. `seed`: of the run; it orders repeated epochs."""
        return StoredSplit(self, split, seed) if split in self.record.splits else None


@dataclass(frozen=True)
class StoredSplit:
    """The neighborhoods of a split. Thread-safe; a thread has only the current row in memory."""

    samples: StoredSamples
    split: str
    seed: int
    _footers: dict[str, pq.FileMetaData] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_remote(self) -> bool:
        return is_remote(self.samples.uri)

    def position(self, epoch: int, index: int) -> tuple[int, int]:
        """Maps a training epoch and micro-batch to the stored ones."""
        plan = self.samples.record.splits[self.split]
        if epoch < plan.num_epochs:
            return epoch, index
        (other,) = seed_order(plan.num_batches, self.seed, epoch, index, index + 1).tolist()
        return epoch % plan.num_epochs, other

    def read(
        self, epoch: int, index: int, request: SampleRequest, sampler: NeighborSampler
    ) -> SampledSubgraph:
        """The neighborhood of a stored micro-batch.

        Raises a DataError if it answers another request, or its file is missing or damaged.
        """
        plan, row = self.samples.record, self.row(epoch, index)
        if row["request"] != request.digest(sampler.fingerprint):
            raise other_requests(self.samples.uri, self.split, plan, plan)
        try:
            return plan.layout.decode(row, request, sampler.temporal)
        except ValueError as error:
            name = plan.file_of(self.split, epoch, index).name
            raise self._damaged(name, error) from error

    def row(self, epoch: int, index: int) -> dict[str, Any]:
        """A row, by column. Raises a DataError if its file is missing or damaged."""
        file = self.samples.record.file_of(self.split, epoch, index)
        row = self._read(file.name, index - file.first)
        key = (row["split"], row["epoch"], row["number"])
        if key != (self.split, epoch, index):
            raise self._damaged(file.name, ValueError(f"row {index - file.first} is of {key}"))
        return row

    @retried
    def _read(self, name: str, number: int) -> dict[str, Any]:
        fs, path = open_fs(join(self.samples.uri, name))
        try:
            # Ranges of a row group are read at once; a file system's own reading ahead would fetch
            # rows of other ranks.
            options = {"cache_type": "none"} if self.is_remote else {}
            with fs.open(path, "rb", **options) as file:
                footer = self._footers.get(name)
                parquet = pq.ParquetFile(
                    file, metadata=footer, pre_buffer=True, page_checksum_verification=True
                )
                self._keep_footer(name, parquet.metadata)
                (row,) = parquet.read_row_group(number, use_threads=False).to_pylist()
        except FileNotFoundError as error:
            raise DataError(
                f"data.samples={redact(self.samples.uri)!r} is invalid: {name} is not there. Run "
                "the same raygnn presample, or share the folder. [samples-file-missing]"
            ) from error
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and not is_of_content(error):
                raise
            raise self._damaged(name, error) from error
        arrays: dict[str, Any] = row
        return arrays

    def _keep_footer(self, name: str, footer: pq.FileMetaData) -> None:
        if name not in self._footers and len(self._footers) >= _MAX_FOOTERS:
            oldest = list(self._footers)[0]  # noqa: RUF015, an iterator fails if threads add others
            self._footers.pop(oldest, None)
        self._footers[name] = footer

    def _damaged(self, name: str, error: Exception) -> DataError:
        return DataError(
            f"data.samples={redact(self.samples.uri)!r} is invalid: {name} is damaged: "
            f"{' '.join(str(error).split())}. Remove it, and run the same raygnn presample. "
            "[samples-damaged]"
        )


#: Bytes of a file, which is built in memory. A larger micro-batch gets its own file.
FILE_BYTES = 16 << 20
#: Name, bytes and checksums of files, as they are written.
Written = Generator[tuple[str, int, Checksum]]
_MAX_ROWS = 1024  # per file: its footer names all columns of all rows


def rows_per_file(row_bytes: int) -> int:
    return min(_MAX_ROWS, max(1, FILE_BYTES // row_bytes))


def write_file(
    uri: str, plan: SamplePlan, loaders: Mapping[str, SampledSequence], file: SampleFile
) -> tuple[int, Checksum]:
    """Samples the micro-batches of a file, writes it, and returns its size and checksums."""
    numbers = range(file.first, file.last)
    content = _content(plan.layout, loaders[file.split], file.split, file.epoch, numbers)
    write_bytes(join(uri, file.name), content)
    return len(content), checksum(content)


def row_bytes(loader: SampledSequence) -> int:
    """Size of a file with only the first micro-batch."""
    layout = RowLayout.of_sampler(loader.sampler)
    return len(_content(layout, loader, loader.split, 0, range(1)))


def _content(
    layout: RowLayout, loader: SampledSequence, split: str, epoch: int, numbers: Iterable[int]
) -> bytes:
    sink, sampler = pa.BufferOutputStream(), loader.sampler
    with pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    ) as writer:
        for number in numbers:
            request = loader.request(epoch, number)
            row = {
                "split": split,
                "epoch": epoch,
                "number": number,
                "request": request.digest(sampler.fingerprint),
                **layout.encode(sampler.sample(**request.arguments)),
            }
            writer.write_table(pa.Table.from_pylist([row], SCHEMA), row_group_size=1)
    content: bytes = sink.getvalue().to_pybytes()
    return content
