"""Partitioning: small tables in this process, others in Ray's tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from raygnn.console import say
from raygnn.data.filesystem import absolute, is_remote
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.ingest.schedule import Schedule, in_process
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.record import PartitionRecord
from raygnn.runtime.connection import connect
from raygnn.runtime.data_source import MIN_SCHEDULED_BYTES
from raygnn.runtime.ingest import lent_cpus, on_this_node, run_anywhere

_PROBE_S = 60.0  # time for a node to check a folder; the first task starts a process


def partition_tables(
    source: str, out: str, partitioning: Partitioning, options: IngestOptions
) -> PartitionRecord:
    """Partitions graph tables; see `raygnn.data.partition.build.partition`. Raises a ResourceError
    if Ray is needed and cannot be started.
    """

    def schedule(folder: Path) -> Schedule:
        tables = [uri for uri in (source, *options.allow_outside) if not is_remote(uri)]
        return _schedule([str(folder), *map(absolute, tables)])

    least = MIN_SCHEDULED_BYTES
    return partition(source, out, partitioning, options, schedule, say, min_scheduled_bytes=least)


def _schedule(folders: Sequence[str]) -> Schedule:
    """Ray's tasks on all nodes if these see the absolute folders, else on this node.

    In threads of this process if it lends Ray no CPU. The first folder is the one to write.
    """
    connect()
    here, cpus = lent_cpus()
    lending = [node for node, number in cpus.items() if number >= 1]
    if set(lending) - {here}:
        blind = _blind_nodes(lending, folders)
        if not blind:
            say(f"partition: on {len(lending)} nodes")
            return run_anywhere
        say(
            f"partition: on this node, as {len(blind)} of {len(lending)} nodes do not see "
            f"{' or '.join(folders)}. To compute on all, use a file system that all share"
        )
    return on_this_node if here in lending else in_process


def _blind_nodes(nodes: Sequence[str], folders: Sequence[str]) -> list[str]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    Path(folders[0]).mkdir(parents=True, exist_ok=True)
    # A folder of this name may be there on any node, a file of this name is not.
    with tempfile.NamedTemporaryFile(dir=folders[0], prefix=".seen-") as probe:
        paths = [probe.name, *folders]
        checks = {
            ray.remote(_see)
            .options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            )
            .remote(paths): node
            for node in nodes
        }
        answered, silent = ray.wait(list(checks), num_returns=len(checks), timeout=_PROBE_S)
        blind = [checks[reply] for reply in silent]
        for reply in answered:
            try:
                if not ray.get(reply):
                    blind.append(checks[reply])
            except ray.exceptions.RayError:  # its node has gone
                blind.append(checks[reply])
    return blind


def _see(paths: Sequence[str]) -> bool:
    return all(Path(path).exists() for path in paths)
