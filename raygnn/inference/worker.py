"""One worker of inference, from an open bundle to written tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from raygnn.inference.embeddings import NodeEncoder
from raygnn.inference.job import InferenceJob, TopKRequest
from raygnn.inference.result_tables import Parts
from raygnn.inference.tables import tables
from raygnn.loops.context import WorkerContext
from raygnn.loops.process import prepare_process, process_restored
from raygnn.loops.tasks.exact_encoding import check_exact
from raygnn.parallel import collectives
from raygnn.parallel.agreement import raise_if_any_failed, run_and_sync_errors

FORMAT = "raygnn/inference-v1"

#: Entries of files in the manifest, by table.
_Written = Mapping[str, list[dict[str, Any]]]


def run_inference(job: InferenceJob, context: WorkerContext) -> dict[str, Any]:
    """Computes and writes this rank's share of the tables. Returns the manifest.

    Collective: all ranks must call. Raises a TrainingError on all ranks if one failed.
    """
    with collectives.group_held(), process_restored():
        encoder = run_and_sync_errors(lambda: _set_up(job, context), "setting up inference")
        if context.rank == 0:
            _say_start(job, encoder.applied, context)
        share = slice(context.rank, None, context.world_size)
        with tables(encoder, job.request, job.options.rows_per_file, share) as made:
            written = {name: _write(job, name, parts, context) for name, parts in made.items()}
        return _manifest(job, encoder.applied, written)


def _set_up(job: InferenceJob, context: WorkerContext) -> NodeEncoder:
    prepare_process(job.model.loaded)
    opened = (Bundle if job.parts is None else Outline).open(job.bundle_path)
    bundle = job.model.fitted(opened)
    task = set_up_task(job.model, bundle, context.device, job.parts)
    is_exact = evaluates_exactly(job.model)
    applied = AppliedModel(task, load_module(job.model, task), job.times, is_exact)
    if context.rank == 0:
        warn_of_missing(applied.missing)
    if job.addition is not None:
        applied = applied.extended(job.addition)
    elif job.request.takes_all and applied.encodes_by_layers(job.request.node_types):
        check_exact(applied.encoder, job.model.loaded.config.model.type)
    return NodeEncoder(applied, keeps_rows=False, chunk_size=job.options.chunk_size)


def _say_start(job: InferenceJob, applied: AppliedModel, context: WorkerContext) -> None:
    request, bundle, times = job.request, applied.bundle, applied.times
    types: Sequence[str] = request.node_types
    if isinstance(request, TopKRequest):
        num_targets = bundle.num_nodes(request.target_type)
        what = (
            f"ranking {count(num_targets, 'node')} of type {request.target_type} for "
            f"{len(request.anchors):,} of type {request.anchor_type}"
        )
        has_rows = request.rows is not None
    elif request.node_types:
        kind, has_rows = "node" if request.plan is None else "row", request.plan is not None
        numbers = {name: count(request.num_rows(bundle, name), kind) for name in types}
        what = "encoding " + ", ".join(
            f"{number} of type {name}" for name, number in numbers.items()
        )
    else:
        assert applied.spec.output.predicted_edges is not None
        types, has_rows = [edge_type_name(applied.spec.output.predicted_edges)], False
        what = f"predicting {types[0]}"
    when = "each at its own time" if has_rows else times and times.describe(types)
    how = _how(job) if times is None else f"{_how(job)}, {when}"
    say(f"{what}: {how}, {count(context.world_size, 'worker')}, {context.device}")


def _how(job: InferenceJob) -> str:
    return "exact" if evaluates_exactly(job.model) else "sampled"


def _write(
    job: InferenceJob, table: str, parts: Parts, context: WorkerContext
) -> list[dict[str, Any]]:
    ranges, mine, failure = parts.ranges, [], None
    pace = Pace(f"writing {table}", ranges[-1][1])
    try:
        for part, rows in parts:
            mine.append(job.output.write(table, part, len(ranges), rows))
            if context.rank == 0:
                pace.reached(ranges[part][1])
    except FAILURES as error:  # reported to all ranks
        failure = error
    raise_if_any_failed(failure, f"writing {table}")
    files = [file for files in collectives.gather_objects(mine) for file in files]
    return sorted(files, key=lambda file: str(file["file"]))


def _manifest(job: InferenceJob, applied: AppliedModel, written: _Written) -> dict[str, Any]:
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
    if applied.times is not None:
        content |= applied.times.manifest(request.node_types or list(written))
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
            for name, files in written.items()
        },
    }
