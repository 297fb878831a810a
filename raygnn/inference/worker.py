"""One worker of inference, from an open bundle to written tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache, partial
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
from raygnn.inference.embeddings import (
    Embeddings,
    SampledEmbeddings,
    Stores,
    exact_embeddings,
    find_basis,
    with_factors,
)
from raygnn.inference.job import EdgeRequest, InferenceJob, NodeRequest, TopKRequest
from raygnn.inference.neighbor_search import NeighborSearch
from raygnn.inference.result_tables import EdgeTables, NodeTables, cut, edges_to_predict
from raygnn.inference.set_up import AppliedModel, load_module, set_up_task
from raygnn.loops.context import WorkerContext
from raygnn.loops.process import prepare_process, process_restored
from raygnn.models.link_factors import LinkBasis, LinkFactors
from raygnn.parallel import collectives
from raygnn.parallel.agreement import raise_if_any_failed, run_and_sync_errors

FORMAT = "raygnn/inference-v1"

#: Ranges of the rows of a table, and what makes one.
_Part = tuple[list[tuple[int, int]], Callable[[int, int], pa.Table]]


def run_inference(job: InferenceJob, context: WorkerContext) -> dict[str, Any]:
    """Computes and writes this rank's share of the tables. Returns the manifest.

    Collective: all ranks must call.

    Raises:
        TrainingError: a rank failed; raised on all ranks.
    """
    with collectives.group_held(), process_restored():
        return _run(job, context)


def _run(job: InferenceJob, context: WorkerContext) -> dict[str, Any]:
    applied = run_and_sync_errors(lambda: _set_up(job, context), "setting up inference")
    bundle = applied.bundle
    if isinstance(job.request, EdgeRequest):
        return _manifest(job, bundle, _write_edges(job, job.request, applied, context))
    times, node_types = job.request.times, job.request.node_types
    embeddings: Embeddings
    how = job.model.loaded.config.training.eval
    if context.rank == 0:
        when = "" if times is None else f", {times.describe(node_types)}"
        workers = f"{count(context.world_size, 'worker')}, {context.device}"
        say(f"{_show_request(job, bundle)}: {how}{when}, {workers}")
    chosen = job.request.nodes if isinstance(job.request, NodeRequest) else None
    have_own_times = times is not None and not times.own.isdisjoint(node_types)
    if how == "exact" and chosen is None and not have_own_times:
        embeddings = exact_embeddings(applied, node_types, times, job.chunk_size)
    else:
        nodes = chosen or {name: np.arange(bundle.num_nodes(name)) for name in node_types}
        given = (applied, Stores.of(applied), nodes, times)
        embeddings = SampledEmbeddings(*given, exact=how == "exact")
    basis = cache(partial(find_basis, applied, times))
    with closing(with_factors(embeddings, applied, basis, chosen)) as joined:
        tables = _write(job, applied, joined, context, basis)
    return _manifest(job, bundle, tables)


def _show_request(job: InferenceJob, bundle: Bundle) -> str:
    request = job.request
    if isinstance(request, TopKRequest):
        num_targets = bundle.num_nodes(request.target_type)
        return (
            f"ranking {count(num_targets, 'node')} of type {request.target_type} for "
            f"{len(request.anchors):,} of type {request.anchor_type}"
        )
    numbers = {name: _num_nodes(job, bundle, name) for name in request.node_types}
    nodes = (f"{count(number, 'node')} of type {name}" for name, number in numbers.items())
    return f"encoding {', '.join(nodes)}"


def _num_nodes(job: InferenceJob, bundle: Bundle, node_type: str) -> int:
    nodes = job.request.nodes if isinstance(job.request, NodeRequest) else None
    return bundle.num_nodes(node_type) if nodes is None else len(nodes[node_type])


def _set_up(job: InferenceJob, context: WorkerContext) -> AppliedModel:
    prepare_process(job.model.loaded)
    opened = (Bundle if job.parts is None else Outline).open(job.bundle_path)
    bundle = job.model.fitted(opened)
    task = set_up_task(job.model, bundle, context.device, job.parts)
    applied = AppliedModel(task, load_module(job.model, task))
    return applied if job.addition is None else applied.extended(job.addition)


def _write(
    job: InferenceJob,
    applied: AppliedModel,
    embeddings: Embeddings,
    context: WorkerContext,
    basis: Callable[[LinkFactors], LinkBasis],
) -> dict[str, list[dict[str, Any]]]:
    if isinstance(job.request, TopKRequest):
        search = NeighborSearch(job.request, applied, embeddings, basis)
        rows = max(job.rows_per_file // job.request.k, 1)
        parts: dict[str, _Part] = {"neighbors": (cut(len(job.request.anchors), rows), search.table)}
    else:
        assert isinstance(job.request, NodeRequest)
        tables = NodeTables(job.request.what, applied, job.request.nodes)
        parts = {
            name: (
                cut(_num_nodes(job, applied.bundle, name), job.rows_per_file, embeddings.alignment),
                partial(tables.range, embeddings, name),
            )
            for name in job.request.node_types
        }
    return _write_parts(job, parts, context)


def _write_edges(
    job: InferenceJob, request: EdgeRequest, applied: AppliedModel, context: WorkerContext
) -> dict[str, list[dict[str, Any]]]:
    edges = edges_to_predict(applied.spec, applied.bundle)
    name, how = edge_type_name(edges.edge_type), job.model.loaded.config.training.eval
    given = (request.what, applied, Stores.of(applied), edges, request.times)
    tables = EdgeTables(*given, exact=how == "exact")
    if context.rank == 0:
        when = "" if request.times is None else f", {request.times.describe([name])}"
        say(
            f"predicting {tables.num_rows:,} {name}: {how}{when}, "
            f"{count(context.world_size, 'worker')}, {context.device}"
        )
    ranges = cut(tables.num_rows, job.rows_per_file, tables.alignment)
    with closing(tables):
        return _write_parts(job, {name: (ranges, tables.range)}, context)


def _write_parts(
    job: InferenceJob, parts: Mapping[str, _Part], context: WorkerContext
) -> dict[str, list[dict[str, Any]]]:
    written: dict[str, list[dict[str, Any]]] = {}
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


def _manifest(
    job: InferenceJob, bundle: Bundle, tables: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    request, output = job.request, job.model.spec.output
    content: dict[str, Any] = {
        "format": FORMAT,
        "raygnn": __version__,
        "model": redact(job.model.uri),
        "graph": bundle.fingerprint,
        "eval": job.model.loaded.config.training.eval,
    }
    if request.times is not None:
        edge_type = output.predicted_edges if isinstance(request, EdgeRequest) else None
        content |= request.times.manifest(
            request.node_types if edge_type is None else [edge_type_name(edge_type)]
        )
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
