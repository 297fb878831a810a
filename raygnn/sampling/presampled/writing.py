"""Sampling micro-batches into files."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from raygnn.data.checksums import Checksum, checksum
from raygnn.data.filesystem import join, write_bytes
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.presampled.record import SampleFile, SamplePlan
from raygnn.sampling.presampled.rows import SCHEMA, RowLayout
from raygnn.sampling.sampled_sequence import SampledSequence

#: Bytes of a file, which is made in memory; a larger micro-batch has a file of its own.
FILE_BYTES = 16 << 20
#: Name, bytes and checksums of files, as they are written.
Written = Generator[tuple[str, int, Checksum]]
_MAX_ROWS = 1024  # of a file: its footer names all columns of all rows


def rows_per_file(row_bytes: int) -> int:
    """How many micro-batches of this size a file has."""
    return min(_MAX_ROWS, max(1, FILE_BYTES // row_bytes))


def write_file(
    uri: str, plan: SamplePlan, loaders: Mapping[str, SampledSequence], file: SampleFile
) -> tuple[int, Checksum]:
    """Samples the micro-batches of a file, writes it, and returns its bytes and checksums.

    Args:
        uri: folder of the set.
        loaders: by split.
    """
    numbers = range(file.first, file.last)
    content = _content(plan.layout, loaders[file.split], file.split, file.epoch, numbers)
    write_bytes(join(uri, file.name), content)
    return len(content), checksum(content)


def row_bytes(loader: SampledSequence) -> int:
    """Bytes of a file of the first micro-batch."""
    layout = RowLayout.of_sampler(_sampler(loader))
    return len(_content(layout, loader, loader.split, 0, range(1)))


def _content(
    layout: RowLayout, loader: SampledSequence, split: str, epoch: int, numbers: Iterable[int]
) -> bytes:
    sink, sampler = pa.BufferOutputStream(), _sampler(loader)
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


def _sampler(loader: SampledSequence) -> NeighborSampler:
    assert isinstance(loader.sampler, NeighborSampler)
    return loader.sampler
