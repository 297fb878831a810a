"""One worker of inference, from an open bundle to written tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from raygnn import __version__
from raygnn.console import Pace, count, say
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import edge_type_name
from raygnn.data.filesystem import redact
from raygnn.data.partition.part import Outline
from raygnn.errors import FAILURES
from raygnn.inference.applied_model import (
    AppliedModel,
    evaluates_exactly,
    load_module,
    set_up_task,
    warn_of_missing,
)
from raygnn.inference.embeddings import (
    Embeddings,
    SampledEmbeddings,
    blended,
    exact_embeddings,
)
from raygnn.inference.job import InferenceJob, TableRequest, TopKRequest
from raygnn.inference.neighbor_search import NeighborSearch
from raygnn.inference.result_tables import EdgeTables, NodeTables, cut, edges_to_predict
from raygnn.loops.context import WorkerContext
from raygnn.loops.process import prepare_process, process_restored
from raygnn.parallel import collectives
from raygnn.parallel.agreement import raise_if_any_failed, run_and_sync_errors

FORMAT = "raygnn/inference-v1"

#: Ranges of the rows of a table, and what makes one.
_Part = tuple[list[tuple[int, int]], Callable[[int, int], pa.Table]]
#: Entries of files in the manifest, by table.
_Written = dict[str, list[dict[str, Any]]]


def run_inference(job: InferenceJob, context: WorkerContext) -> dict[str, Any]:
    """Computes and writes this rank's share of the tables. Returns the manifest.

    Collective: all ranks must call. Raises a TrainingError on all ranks if one failed.
    """
    with collectives.group_held(), process_restored():
        return _run(job, context)


def _run(job: InferenceJob, context: WorkerContext) -> dict[str, Any]:
    applied = run_and_sync_errors(lambda: _set_up(job, context), "setting up inference")
    request = job.request
    if isinstance(request, TopKRequest):
        num_targets = applied.bundle.num_nodes(request.target_type)
        what = (
            f"ranking {count(num_targets, 'node')} of type {request.target_type} for "
            f"{len(request.anchors):,} of type {request.anchor_type}"
        )
        _say_start(job, context, what, request.node_types)
        written = _write_neighbors(job, request, applied, context)
    elif request.node_types:
        written = _write_nodes(job, request, applied, context)
    else:
        written = _write_edges(job, request, applied, context)
    return _manifest(job, applied, written)


def _say_start(job: InferenceJob, context: WorkerContext, what: str, types: Sequence[str]) -> None:
    times, how = job.request.times, _how(job)
    when = "" if times is None else f", {times.describe(types)}"
    if context.rank == 0:
        workers = count(context.world_size, "worker")
        say(f"{what}: {how}{when}, {workers}, {context.device}")


def _how(job: InferenceJob) -> str:
    return "exact" if evaluates_exactly(job.model) else "sampled"


def _embeddings(
    job: InferenceJob, applied: AppliedModel, nodes: Mapping[str, np.ndarray] | None = None
) -> closing[Embeddings]:
    node_types = job.request.node_types
    embeddings: Embeddings
    if nodes is None and applied.encodes_by_layers(node_types):
        embeddings = exact_embeddings(applied, node_types, job.options.chunk_size)
    else:
        every = {name: np.arange(applied.bundle.num_nodes(name)) for name in node_types}
        embeddings = SampledEmbeddings(applied, nodes or every)
    return closing(blended(embeddings, applied, nodes))


def _set_up(job: InferenceJob, context: WorkerContext) -> AppliedModel:
    prepare_process(job.model.loaded)
    opened = (Bundle if job.parts is None else Outline).open(job.bundle_path)
    bundle = job.model.fitted(opened)
    task = set_up_task(job.model, bundle, context.device, job.parts)
    is_exact = evaluates_exactly(job.model)
    applied = AppliedModel(task, load_module(job.model, task), job.request.times, is_exact)
    if context.rank == 0:
        warn_of_missing(applied.missing)
    return applied if job.addition is None else applied.extended(job.addition)


def _write_neighbors(
    job: InferenceJob, request: TopKRequest, applied: AppliedModel, context: WorkerContext
) -> _Written:
    with _embeddings(job, applied) as embeddings:
        search = NeighborSearch(request, applied, embeddings)
        rows = max(job.options.rows_per_file // request.k, 1)
        parts = {"neighbors": (cut(len(request.anchors), rows), search.table)}
        return _write_parts(job, parts, context)


def _write_nodes(
    job: InferenceJob, request: TableRequest, applied: AppliedModel, context: WorkerContext
) -> _Written:
    nodes = request.nodes
    numbers = {
        name: applied.bundle.num_nodes(name) if nodes is None else len(nodes[name])
        for name in request.node_types
    }
    shown = (f"{count(number, 'node')} of type {name}" for name, number in numbers.items())
    _say_start(job, context, f"encoding {', '.join(shown)}", request.node_types)
    tables = NodeTables(request.what, applied, nodes)
    with _embeddings(job, applied, nodes) as embeddings:
        parts = {
            name: (
                cut(number, job.options.rows_per_file, embeddings.alignment),
                partial(tables.range, embeddings, name),
            )
            for name, number in numbers.items()
        }
        return _write_parts(job, parts, context)


def _write_edges(
    job: InferenceJob, request: TableRequest, applied: AppliedModel, context: WorkerContext
) -> _Written:
    edges = edges_to_predict(applied.spec, applied.bundle)
    name = edge_type_name(edges.edge_type)
    with closing(EdgeTables(request.what, applied, edges)) as tables:
        _say_start(job, context, f"predicting {tables.num_rows:,} {name}", [name])
        ranges = cut(tables.num_rows, job.options.rows_per_file, tables.alignment)
        return _write_parts(job, {name: (ranges, tables.range)}, context)


def _write_parts(job: InferenceJob, parts: Mapping[str, _Part], context: WorkerContext) -> _Written:
    written: _Written = {}
    for table, (ranges, make) in parts.items():
        mine, failure, pace = [], None, Pace(f"writing {table}", ranges[-1][1])
        try:
            for part in range(context.rank, len(ranges), context.world_size):
                mine.append(job.output.write(table, part, len(ranges), make(*ranges[part])))
                if context.rank == 0:
                    pace.reached(ranges[part][1])
        except FAILURES as error:  # reported to all ranks
            failure = error
        raise_if_any_failed(failure, f"writing {table}")
        files = [file for files in collectives.gather_objects(mine) for file in files]
        written[table] = sorted(files, key=lambda file: str(file["file"]))
    return written


def _manifest(job: InferenceJob, applied: AppliedModel, tables: _Written) -> dict[str, Any]:
    request, output = job.request, job.model.spec.output
    content: dict[str, Any] = {
        "format": FORMAT,
        "raygnn": __version__,
        "model": redact(job.model.uri),
        "graph": applied.bundle.fingerprint,
        "eval": _how(job),
    }
    if missing := applied.missing:
        content["missing"] = missing
    if request.times is not None:
        content |= request.times.manifest(request.node_types or list(tables))
    if isinstance(request, TopKRequest):
        content |= {
            "what": "neighbors",
            "k": request.k,
            "anchors": request.anchor_type,
            "targets": request.target_type,
            "score": request.score,
        }
        if request.relation is not None:
            content["edge_type"] = edge_type_name(output.links[request.relation])
    else:
        content["what"] = request.what
        if request.what != "embeddings":
            content |= output.manifest()
    return {
        **content,
        "tables": {
            name: {"num_rows": sum(file["num_rows"] for file in files), "files": files}
            for name, files in tables.items()
        },
    }
