"""Partitioning where it fits: small tables in this process, others in Ray's tasks on this node."""

from __future__ import annotations

from raygnn.console import say
from raygnn.data.ingest.plan_bundle import IngestOptions, list_tables
from raygnn.data.ingest.schedule import Schedule, in_process
from raygnn.data.manifest import Manifest, manifest_folder
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.record import PartitionRecord
from raygnn.runtime.connection import connect
from raygnn.runtime.data_source import MIN_SCHEDULED_BYTES
from raygnn.runtime.ingest import ray_data_schedule


def partition_tables(
    source: str, out: str, partitioning: Partitioning, options: IngestOptions
) -> PartitionRecord:
    """Partitions graph tables, see `raygnn.data.partition.build.partition`.

    Raises:
        DataError: the tables break a rule, or `out` cannot be written into.
        ResourceError: Ray is needed and cannot be started.
    """
    manifest = Manifest.load(source, options.allow_outside)
    files = list_tables(manifest, (manifest_folder(source), *options.allow_outside))
    schedule: Schedule = in_process
    if sum(file.size for table in files.values() for file in table) >= MIN_SCHEDULED_BYTES:
        connect()
        schedule = _schedule_here()
    return partition(source, out, partitioning, options, schedule, say)


def _schedule_here() -> Schedule:
    """Ray's tasks on this node; threads of this process where it lends Ray no CPU."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    cpus = {n["NodeID"]: n["Resources"].get("CPU", 0) for n in ray.nodes() if n["Alive"]}
    return ray_data_schedule if cpus.get(here, 0) >= 1 else in_process
