"""What a task of a partition holds in memory is of the size of a part, not of the graph."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from raygnn.data.ingest import pieces
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.steps import StepTask
from raygnn.data.tables.graph_tables import write_tables
from raygnn.prepare.synthetic import synthetic_tables

_NODES_OF_PART = 2_000


#: Bytes of what is no array: objects of Python, of a task and its paths.
_OBJECTS = 60_000


def _largest_tasks(folder: Path, num_parts: int) -> dict[str, int]:
    """Bytes of the arrays that the largest task of each step holds at once.

    Mapped files are not in it, nor the block of a table that Arrow has read. The tables have a file
    for each part.
    """
    tables = synthetic_tables(
        "planted_partition",
        num_nodes=num_parts * _NODES_OF_PART,
        num_classes=3,
        avg_degree=10,
        num_features=16,
    )
    graph = write_tables(tables, str(folder / "tables"), num_shards=num_parts)
    peaks: dict[str, int] = {}

    def measured(fn: Callable[[Any], Any], items: list[Any], label: str) -> list[Any]:
        results = []
        for item in items:
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            results.append(fn(item))
            if isinstance(item, StepTask):
                held = tracemalloc.get_traced_memory()[1] - before
                peaks[label] = max(peaks.get(label, 0), held)
        return results

    tracemalloc.start()
    try:
        partition(graph, folder / "parts", Partitioning(num_parts), schedule=lambda _: measured)
    finally:
        tracemalloc.stop()
    return peaks


def _of_two_and_eight_parts(folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    # Of this process, which ends.
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    pieces.PIECE_BYTES = 1  # a piece is a file, as of large tables: small files would share one
    _largest_tasks(folder / "warm", 1)  # compiles
    return _largest_tasks(folder / "small", 2), _largest_tasks(folder / "large", 8)


@pytest.mark.slow
def test_four_times_the_graph_in_four_times_the_parts_takes_the_same_memory(tmp_path: Path) -> None:
    # In a process of its own: threads that other tests have left, as those of Ray, count as well.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        small, large = alone.submit(_of_two_and_eight_parts, tmp_path).result()
    assert max(small.values()) > 4 * _OBJECTS  # arrays are what is measured
    assert {step: held for step, held in large.items() if held > 1.2 * small[step] + _OBJECTS} == {}
