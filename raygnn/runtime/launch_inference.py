"""Launching inference: model and graph first, then checks, then workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from raygnn.console import count, say
from raygnn.data.bundle import Bundle
from raygnn.data.extended_bundle import Addition
from raygnn.data.filesystem import join, redact
from raygnn.errors import ConfigError
from raygnn.inference.database_table import DatabaseTable
from raygnn.inference.job import InferenceJob, OutputOptions, TableRequest, TopKRequest
from raygnn.inference.output_folder import OutputFolder
from raygnn.inference.row_tables import write_table
from raygnn.inference.seed_times import SeedTimes
from raygnn.outputs.saved_model import SavedModel
from raygnn.runtime.data_checks import graph_parts, open_outline
from raygnn.runtime.data_source import open_bundle

if TYPE_CHECKING:
    from raygnn.loops.context import WorkerContext
    from raygnn.runtime.preflight import WorkerResources


Finish = Callable[[Mapping[str, Any]], None]


class Asked(NamedTuple):
    """A request for a graph.

    Attributes:
        times: encoding times; None for a model without times.
        addition: new rows of the graph.
    """

    request: TableRequest | TopKRequest
    times: SeedTimes | None
    addition: Addition | None = None


#: Makes the request for a model and a graph that fit each other.
Ask = Callable[[SavedModel, Bundle], Asked]


def launch_inference(
    model: SavedModel, options: OutputOptions, ask: Ask, data: Any = None
) -> dict[str, Any]:
    """Runs inference from tables to tables. Returns the manifest of the output. Processes and
    `data` are those of `launch`.
    """
    options.check()
    source = model.loaded.config.data
    if data is None and not source.names_a_graph:
        raise ConfigError(
            "data.uri=None is invalid: the config of a model contains no graph. Add --data.uri "
            f"GRAPH (the training graph is {model.graph}). [data-source-missing]"
        )
    say(f"model {model.weights_uri}")
    config = model.loaded.config
    if (table := DatabaseTable.of(options.uri)) is not None:
        table.check(options.overwrite)
        output = OutputFolder.of_file(join(config.run.storage_path, table.name))
    elif options.is_file:
        output = OutputFolder.of_file(options.uri)
    else:
        output = OutputFolder.check(options.uri, options.overwrite)
    resources = None
    if config.scaling.max_workers:
        from raygnn.runtime.connection import connect
        from raygnn.runtime.preflight import plan_resources

        connect()
        resources = plan_resources(config)
    on_ray = resources is not None
    if data is None and source.mode == "partitioned":
        bundle: Bundle = open_outline(model.loaded)
    else:
        bundle = open_bundle(model.loaded, data, on_ray, model.spec.transforms)
    fitted = model.fitted(bundle)
    if unread := model.spec.unread_types(bundle):
        say(f"ignoring types that the model does not know: {', '.join(unread)}")
    request, times, addition = ask(model, fitted)
    if table is not None and isinstance(request, TableRequest) and request.node_types[1:]:
        raise ConfigError(
            f"--out is invalid: {', '.join(request.node_types)} are several tables. Choose one "
            "with --node-type. [output-database-table]"
        )
    with graph_parts(bundle, config, on_ray=on_ray) as parts:
        path = str(bundle.path)
        job = InferenceJob(model, path, request, times, output, options, parts, addition)
        finish = partial(_finish, job)
        if resources is None:
            return _run_in_process(job, finish)
        return _run_on_ray(job, resources, finish)


def _run_in_process(job: InferenceJob, finish: Finish) -> dict[str, Any]:
    from raygnn.inference.worker import run_inference
    from raygnn.loops.context import ProcessContext
    from raygnn.parallel import collectives

    scaling = job.model.loaded.config.scaling
    with closing(ProcessContext(use_gpu=scaling.use_gpu, timeout_s=scaling.timeout_s)) as context:
        is_first = context.rank == 0
        job = collectives.broadcast_object(job)  # one staging folder for all
        with job.output.in_progress() if is_first else nullcontext():
            collectives.barrier()
            manifest = run_inference(job, context)
            if is_first:
                finish(manifest)
            collectives.barrier()
    return manifest


def _run_on_ray(job: InferenceJob, resources: WorkerResources, finish: Finish) -> dict[str, Any]:
    from raygnn.runtime.ray_workers import Work, run_on_workers

    config, output = job.model.loaded.config, job.output
    with output.in_progress():
        manifest: dict[str, Any] = run_on_workers(
            Work(_infer_worker, job, "Inference"),
            config,
            resources,
            output.records_uri,
            num_workers=config.scaling.min_workers,
        )
        finish(manifest)
    return manifest


def _infer_worker(job: InferenceJob, context: WorkerContext) -> dict[str, Any]:
    from raygnn.inference.worker import run_inference
    from raygnn.runtime.part_actors import with_parts_of_this_node

    return run_inference(with_parts_of_this_node(job), context)


def _finish(job: InferenceJob, manifest: Mapping[str, Any]) -> None:
    options, output = job.options, job.model.spec.output
    tables: Mapping[str, Any] = manifest["tables"]
    if options.is_file:

        def write(table: pa.Table, uri: str) -> None:
            if (place := DatabaseTable.of(options.uri)) is not None:
                place.write(table, options.overwrite)
            else:
                write_table(table, uri, getattr(output, "class_names", None) or ())

        job.output.finish_file(manifest, write)
        num_rows = sum(table["num_rows"] for table in tables.values())
        say(f"wrote {count(num_rows, 'row')} to {redact(options.uri)}")
        return
    job.output.finish(manifest)
    for name, table in tables.items():
        num_bytes = sum(file["num_bytes"] for file in table["files"])
        say(
            f"wrote {redact(join(options.uri, name))}: {table['num_rows']:,} rows, "
            f"{count(len(table['files']), 'file')}, {num_bytes:,} bytes"
        )
