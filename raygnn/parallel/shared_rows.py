"""Rows of all nodes, computed by all ranks, and stored once on each host."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from raygnn.console import Pace
from raygnn.errors import FAILURES
from raygnn.models.exact import RowComputation, compute_here
from raygnn.parallel import collectives
from raygnn.parallel.agreement import agreement, raise_if_any_failed


class SharedRows:
    """Divides the computation of rows among the ranks; a `RowComputation` of `raygnn.models.exact`.

    Rank r of w computes chunks r, r + w, ... Rows are in a memory-mapped file shared by the ranks
    of a host, so they are in the page cache once and may exceed memory. Hosts exchange rows as they
    are computed, a chunk of each rank at a time. The file is deleted as soon as all have mapped it.

    Args:
        folder: on a local disk, for the files.
        host: identifies this rank's host.
    """

    def __init__(self, folder: Path, host: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        place = folder.stat()
        key = f"{host or socket.gethostname()}:{place.st_dev}:{place.st_ino}"
        hosts = collectives.gather_objects(key)
        self._rank, self._world_size = collectives.rank(), collectives.world_size()
        self._leader = hosts.index(key)
        self._is_one_host = len(set(hosts)) == 1

    def __call__(
        self,
        chunks: Sequence[tuple[int, int]],
        rows_of: Callable[[int, int], Tensor],
        width: int,
        what: str = "",
    ) -> Tensor:
        """Computes the rows of all chunks. Collective: all ranks must call.

        Args:
            chunks: (first, last + 1) row, in order and without gaps.
            rows_of: computes float32 [last - first, width], on any device.
            what: shown as progress, such as "layer 1 of 2".
        Returns:
            float32 [num_rows, width] on the CPU, mapped.
        """
        num_rows = chunks[-1][1] if chunks else 0
        if num_rows * width == 0:
            return torch.zeros(num_rows, width)
        out = self._map(num_rows, width)
        fill = self._fill_own if self._is_one_host else self._fill_and_exchange
        fill(out, chunks, rows_of, Pace(f"encoding {what}".strip(), num_rows))
        return torch.from_numpy(out)

    def _fill_own(
        self,
        out: np.ndarray,
        chunks: Sequence[tuple[int, int]],
        rows_of: Callable[[int, int], Tensor],
        pace: Pace,
    ) -> None:
        failure = None
        try:
            # The pages are new: writing them costs a third of the computation.
            with ThreadPoolExecutor(1, "rows") as writer:
                written: Future[None] | None = None
                for first, last in chunks[self._rank :: self._world_size]:
                    rows = rows_of(first, last).cpu().numpy()
                    if written is not None:
                        written.result()
                    written = writer.submit(np.copyto, out[first:last], rows)
                    if self._rank == 0:
                        pace.reached(last)
                if written is not None:
                    written.result()
        except FAILURES as error:  # reported to all ranks
            failure = error
        raise_if_any_failed(failure, "encoding")

    def _fill_and_exchange(
        self,
        out: np.ndarray,
        chunks: Sequence[tuple[int, int]],
        rows_of: Callable[[int, int], Tensor],
        pace: Pace,
    ) -> None:
        for start in range(0, len(chunks), self._world_size):
            turn = chunks[start : start + self._world_size]
            rows, failure = torch.zeros(0, out.shape[1]), None
            try:
                if self._rank < len(turn):
                    rows = rows_of(*turn[self._rank]).cpu()
            except FAILURES as error:  # reported to all ranks
                failure = error
            raise_if_any_failed(failure, "encoding")
            everyones = collectives.gather_rows(rows)
            if self._rank == self._leader:
                out[turn[0][0] : turn[-1][1]] = everyones.numpy()
            if self._rank == 0:
                pace.reached(turn[-1][1])
        collectives.barrier()

    def _map(self, num_rows: int, width: int) -> np.ndarray:
        path, failure = None, None
        if self._rank == self._leader:
            try:
                path = self._create(num_rows * width * 4)
            except OSError as error:
                failure = error
        raise_if_any_failed(failure, f"making room for rows in {self._folder}")
        paths = collectives.gather_objects(path)
        shape = (num_rows, width)
        try:
            with agreement("mapping rows"):
                mapped = np.memmap(paths[self._leader], np.float32, "r+", shape=shape)
        finally:
            if path is not None:
                os.unlink(path)
        return mapped.view(np.ndarray)

    def _create(self, num_bytes: int) -> str:
        descriptor, path = tempfile.mkstemp(prefix="rows-", dir=self._folder)
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)  # a full disk fails here, not by SIGBUS
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        return path


def computed_by_all(scratch: Path, is_fp32: bool) -> RowComputation:
    """Divides the computation of rows among the ranks of a run, if there are several.

    With another precision than fp32, every rank computes all rows, because their dtypes vary.
    Collective: all ranks must call.
    """
    if collectives.world_size() == 1 or not is_fp32:
        return compute_here
    return SharedRows(scratch)
