"""Partitioning where it fits: small tables in this process, others in Ray's tasks on this node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raygnn.console import say
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.ingest.schedule import Item, Result, in_process
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.record import PartitionRecord
from raygnn.runtime.connection import connect
from raygnn.runtime.data_source import MIN_SCHEDULED_BYTES
from raygnn.runtime.ingest import lent_cpus, ray_data_schedule


def partition_tables(
    source: str, out: str, partitioning: Partitioning, options: IngestOptions
) -> PartitionRecord:
    """Partitions graph tables, see `raygnn.data.partition.build.partition`.

    Raises:
        DataError: the tables break a rule, or `out` cannot be written into.
        ResourceError: Ray is needed and cannot be started.
    """
    least = MIN_SCHEDULED_BYTES
    return partition(
        source, out, partitioning, options, _schedule_here, say, min_scheduled_bytes=least
    )


def _schedule_here(fn: Callable[[Item], Result], items: Sequence[Item], label: str) -> list[Result]:
    """Ray's tasks on this node; threads of this process where it lends Ray no CPU."""
    connect()
    here, cpus = lent_cpus()
    schedule = ray_data_schedule if cpus.get(here, 0) >= 1 else in_process
    return schedule(fn, items, label)
