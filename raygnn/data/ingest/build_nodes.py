"""The node half of a bundle: plans, schedules and assembles all node types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from raygnn.data.bundle_record import NodeRecord
from raygnn.data.ingest.assemble_nodes import (
    AssembledNodes,
    assemble_nodes,
    create_node_arrays,
    drop_bad_nodes,
    finish_nodes,
)
from raygnn.data.ingest.findings import describe
from raygnn.data.ingest.node_tasks import NodePlan, NodeTask, convert_nodes
from raygnn.data.ingest.pieces import cut_table
from raygnn.data.ingest.scan import ScannedTable
from raygnn.data.ingest.schedule import Schedule
from raygnn.errors import DataError


def build_nodes(
    plans: Mapping[str, NodePlan],
    tables: Mapping[str, ScannedTable],
    folder: Path,
    work: Path,
    drop: bool,
    schedule: Schedule,
    progress: Callable[[str], None],
) -> dict[str, NodeRecord]:
    """Writes every node type below `folder/nodes`.

    Args:
        work: folder for what only the ingest needs.
        drop: bad rows are left out instead of failing.
    Raises:
        DataError: rows break rules (all of them are listed), or none would be left.
    """
    tasks: dict[str, list[NodeTask]] = {}
    for node_type, plan in plans.items():
        target, parts = folder / "nodes" / node_type, work / "nodes" / node_type
        parts.mkdir(parents=True)
        create_node_arrays(plan, target, tables[node_type].num_rows)
        tasks[node_type] = [
            NodeTask(piece, plan, target, parts) for piece in cut_table(tables[node_type])
        ]
    flat = [task for group in tasks.values() for task in group]
    num_rows = sum(table.num_rows for table in tables.values())
    progress(f"ingest: reading {num_rows:,} nodes of {len(plans)} type(s)")
    results = iter(schedule(convert_nodes, flat, "reading nodes"))
    assembled = {
        node_type: assemble_nodes(
            plan,
            folder / "nodes" / node_type,
            tasks[node_type],
            [next(results) for _ in tasks[node_type]],
            drop,
        )
        for node_type, plan in plans.items()
    }
    _report(list(assembled.values()), drop, progress)
    records = {}
    for node_type, nodes in assembled.items():
        num_dropped = drop_bad_nodes(nodes) if drop else 0
        if num_dropped:
            progress(f"ingest: dropped {num_dropped:,} nodes of type {node_type!r}")
        records[node_type] = finish_nodes(nodes, num_dropped)
    return records


def _report(
    assembled: Sequence[AssembledNodes], drop: bool, progress: Callable[[str], None]
) -> None:
    findings = [finding for nodes in assembled for finding in nodes.findings]
    if not findings:
        return
    if not drop:
        raise DataError(describe(findings))
    progress(f"ingest: data.on_error=drop leaves out what is wrong:\n{describe(findings)}")
