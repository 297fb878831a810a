"""Launching inference: model and graph first, then checks, then workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from raygnn.console import count, say
from raygnn.data.bundle import Bundle
from raygnn.data.extended_bundle import Addition
from raygnn.data.filesystem import join, redact
from raygnn.errors import ConfigError
from raygnn.inference.job import InferenceJob, TableRequest, TopKRequest
from raygnn.inference.output_folder import OutputFolder
from raygnn.outputs.saved_model import SavedModel
from raygnn.runtime.data_checks import graph_parts, open_outline
from raygnn.runtime.data_source import open_bundle

if TYPE_CHECKING:
    from raygnn.loops.context import WorkerContext

#: A request, and new rows of the graph that it is about.
Asked = tuple[TableRequest | TopKRequest, Addition | None]
#: Makes the request for a model and a graph that fit each other.
Ask = Callable[[SavedModel, Bundle], Asked]


@dataclass(frozen=True)
class OutputOptions:
    uri: str
    overwrite: bool = False
    rows_per_file: int = 65_536
    chunk_size: int = 100_000

    def check(self) -> None:
        for option, value in (
            ("--rows-per-file", self.rows_per_file),
            ("--chunk-size", self.chunk_size),
        ):
            if value < 1:
                raise ConfigError(
                    f"{option}={value!r} is invalid: it must be at least 1. Set it so, or leave it "
                    "out.",
                    id="infer-scaling",
                )


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
            f"GRAPH (the training graph is {model.graph}).",
            id="data-source-missing",
        )
    say(f"model {model.weights_uri}")
    run = _run_on_ray if model.loaded.config.scaling.max_workers else _run_in_process
    manifest: dict[str, Any] = run(model, options, ask, data)
    return manifest


def _run_in_process(
    model: SavedModel, options: OutputOptions, ask: Ask, data: Any
) -> dict[str, Any]:
    from raygnn.inference.worker import run_inference
    from raygnn.loops.context import ProcessContext
    from raygnn.parallel import collectives

    config, output = model.loaded.config, OutputFolder.check(options.uri, options.overwrite)
    bundle, scaling = _open_graph(model, data), config.scaling
    job = _job(model, bundle, options, ask, output)
    with (
        graph_parts(bundle, config, on_ray=False) as parts,
        closing(ProcessContext(use_gpu=scaling.use_gpu, timeout_s=scaling.timeout_s)) as context,
    ):
        is_first = context.rank == 0
        # One staging folder for all.
        job = collectives.broadcast_object(replace(job, parts=parts))
        with output.in_progress() if is_first else nullcontext():
            collectives.barrier()
            manifest = run_inference(job, context)
            if is_first:
                output.finish(manifest)
            collectives.barrier()
    if is_first:
        _tell(options, manifest)
    return manifest


def _run_on_ray(model: SavedModel, options: OutputOptions, ask: Ask, data: Any) -> dict[str, Any]:
    from raygnn.runtime.connection import connect
    from raygnn.runtime.preflight import plan_resources
    from raygnn.runtime.ray_workers import Work, run_on_workers

    config = model.loaded.config
    output = OutputFolder.check(options.uri, options.overwrite)
    connect()
    resources = plan_resources(config)
    bundle = _open_graph(model, data, on_cluster=True)
    job = _job(model, bundle, options, ask, output)
    with graph_parts(bundle, config, on_ray=True) as parts, output.in_progress():
        manifest: dict[str, Any] = run_on_workers(
            Work(_infer_worker, replace(job, parts=parts), "Inference"),
            config,
            resources,
            output.records_uri,
            num_workers=config.scaling.min_workers,
        )
        output.finish(manifest)
    _tell(options, manifest)
    return manifest


def _infer_worker(job: InferenceJob, context: WorkerContext) -> dict[str, Any]:
    from raygnn.inference.worker import run_inference
    from raygnn.runtime.part_actors import with_parts_of_this_node

    return run_inference(with_parts_of_this_node(job), context)


def _open_graph(model: SavedModel, data: Any, on_cluster: bool = False) -> Bundle:
    if data is None and model.loaded.config.data.mode == "partitioned":
        return open_outline(model.loaded)
    return open_bundle(model.loaded, data, on_cluster, model.spec.transforms)


def _job(
    model: SavedModel, bundle: Bundle, options: OutputOptions, ask: Ask, output: OutputFolder
) -> InferenceJob:
    fitted = model.fitted(bundle)
    unread = model.spec.unread_types(bundle)
    if unread:
        say(f"ignoring types that the model does not know: {', '.join(unread)}")
    request, addition = ask(model, fitted)
    return InferenceJob(
        model,
        str(bundle.path),
        request,
        output,
        options.rows_per_file,
        options.chunk_size,
        addition=addition,
    )


def _tell(options: OutputOptions, manifest: dict[str, Any]) -> None:
    for name, table in manifest["tables"].items():
        num_bytes = sum(file["num_bytes"] for file in table["files"])
        say(
            f"wrote {redact(join(options.uri, name))}: {table['num_rows']:,} rows, "
            f"{count(len(table['files']), 'file')}, {num_bytes:,} bytes"
        )
