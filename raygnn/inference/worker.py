"""One worker of inference, from an open bundle to written tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from raygnn import __version__
from raygnn.config import build
from raygnn.console import Pace, say
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import edge_type_name
from raygnn.data.filesystem import read_bytes, redact
from raygnn.errors import FAILURES, CheckpointError, ConfigError, DataError
from raygnn.inference.embeddings import Embeddings, ExactEmbeddings, SampledEmbeddings
from raygnn.inference.job import InferenceJob, NodeRequest, TopKRequest
from raygnn.inference.neighbor_search import NeighborSearch
from raygnn.loops.context import WorkerContext
from raygnn.loops.process import prepare_process
from raygnn.loops.task import Task, TaskEnvironment
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.parallel import collectives
from raygnn.parallel.agreement import raise_if_any_failed, run_and_sync_errors
from raygnn.parallel.shared_rows import SharedRows

FORMAT = "raygnn/inference-v1"
# Rows that pass through the head at a time.
_ROWS_AT_A_TIME = 1 << 14


def run_inference(job: InferenceJob, context: WorkerContext) -> dict[str, Any]:
    """Computes and writes this rank's share of the tables.

    Collective: all ranks must call.

    Returns:
        The manifest, equal on all ranks.
    Raises:
        TrainingError: a rank failed; raised on all ranks.
    """
    loaded = job.model.loaded
    task, model = run_and_sync_errors(lambda: _set_up(job, context), "setting up inference")
    env, bundle, encoder = task.env, task.env.bundle, model.encoder
    assert isinstance(encoder, GraphEncoder)
    shared = SharedRows(env.scratch)
    as_of = job.request.as_of
    assert task.spec is not None
    given = (encoder, env, task.spec, job.request.node_types, shared, as_of)
    embeddings: Embeddings
    if context.rank == 0:
        nodes = ", ".join(f"{bundle.num_nodes(t):,} {t}" for t in job.request.node_types)
        how = loaded.config.training.eval
        when = "" if as_of is None else f", as of {as_of}"
        say(f"encoding {nodes}: {how}{when}, {context.world_size} worker(s), {context.device}")
    if loaded.config.training.eval == "exact":
        embeddings = ExactEmbeddings(*given, job.chunk_size)
    else:
        embeddings = SampledEmbeddings(*given)
    try:
        tables = _write(job, task, model, embeddings, context)
    finally:
        embeddings.close()
    return _manifest(job, bundle, tables)


def _set_up(job: InferenceJob, context: WorkerContext) -> tuple[Task, nn.Module]:
    """The task and the trained model, for the part of the graph that it reads."""
    loaded, spec = job.model.loaded, job.model.spec
    prepare_process(loaded)
    bundle = spec.fitted(Bundle.open(job.bundle_path))
    env = TaskEnvironment(loaded, bundle, context.rank, context.world_size, context.device, spec)
    task: Task = build(loaded.config.task, "task", loaded.allow_modules)
    task.setup(env)
    return task, _load_model(job, task)


def _load_model(job: InferenceJob, task: Task) -> nn.Module:
    """The trained model, in float32 and evaluation mode, on this worker's device."""
    model = task.build_model()
    weights = read_bytes(job.model.weights_uri)
    try:
        model.load_state_dict(load(weights))
    except (RuntimeError, SafetensorError) as error:  # torch raises the former
        raise CheckpointError(
            f"{redact(job.model.weights_uri)} does not fit the config beside it: {error}. Take the "
            "three files of one run: model.safetensors, model.json and config.yaml.",
            id="model-weights-mismatch",
        ) from error
    if not isinstance(getattr(model, "encoder", None), GraphEncoder):
        raise ConfigError(
            f"task.type={task.env.loaded.config.task.type!r} is invalid: its model has no "
            "`encoder` of class GraphEncoder, so there are no embeddings. Build it as "
            "NodeClassification does.",
            id="infer-no-encoder",
        )
    return model.float().eval().to(task.env.device)


def _write(
    job: InferenceJob,
    task: Task,
    model: nn.Module,
    embeddings: Embeddings,
    context: WorkerContext,
) -> dict[str, list[dict[str, Any]]]:
    """Writes all tables; every rank takes every world-size-th file of each."""
    bundle = task.env.bundle
    if isinstance(job.request, TopKRequest):
        search = NeighborSearch(job.request, bundle, model, embeddings, context.device)
        rows = max(job.rows_per_file // job.request.k, 1)
        parts = {"neighbors": (_cut(len(job.request.anchors), rows), search.table)}
    else:
        writer = _NodeTables(job.request, task, model, embeddings)
        rows = -(-job.rows_per_file // embeddings.alignment) * embeddings.alignment
        parts = {
            name: (_cut(bundle.num_nodes(name), rows), writer.maker(name))
            for name in job.request.node_types
        }
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


class _NodeTables:
    """Makes the tables of nodes, a range of nodes at a time."""

    def __init__(
        self, request: NodeRequest, task: Task, model: nn.Module, embeddings: Embeddings
    ) -> None:
        self._what = request.what
        self._task = task
        self._model = model
        self._embeddings = embeddings

    def maker(self, node_type: str) -> Any:
        return lambda first, last: self._table(node_type, first, last)

    def _table(self, node_type: str, first: int, last: int) -> pa.Table:
        ids = self._task.env.bundle.ids(node_type).slice(first, last - first)
        if pa.types.is_large_string(ids.type):
            ids = ids.cast(pa.string())
        rows = self._embeddings.rows(node_type, first, last)
        columns: Mapping[str, Any] = {"embedding": rows.float().numpy()}
        if self._what != "embeddings":
            rows = self._outputs(rows)
            columns = self._task.output_columns(self._what, rows)
        check_finite(rows, ids)
        return pa.table({"id": ids, **{name: _arrow(c) for name, c in columns.items()}})

    @torch.no_grad()
    def _outputs(self, rows: Tensor) -> Tensor:
        predictor: Any = self._model
        device = self._task.env.device
        parts = rows.split(_ROWS_AT_A_TIME)
        return torch.cat([predictor.readout(part.to(device)).cpu() for part in parts])


def _arrow(column: np.ndarray | pa.Array) -> pa.Array:
    """A column of a table; rows of several numbers are lists of one length."""
    if isinstance(column, pa.Array) or column.ndim == 1:
        return pa.array(column)
    return pa.FixedSizeListArray.from_arrays(pa.array(column.reshape(-1)), column.shape[1])


def check_finite(rows: Tensor, ids: pa.Array) -> None:
    """Checks that a model gives numbers.

    Raises:
        DataError: it does not, for some node.
    """
    wrong = np.flatnonzero(~rows.isfinite().all(dim=1).numpy())
    if len(wrong):
        raise DataError(
            f"the model gives values that are not finite for {len(wrong):,} nodes, such as "
            f"{ids[int(wrong[0])].as_py()!r}. Check their features for extreme values, and the "
            "metrics of the model.",
            id="infer-not-finite",
        )


def _cut(num_rows: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(first + size, num_rows)) for first in range(0, num_rows, size)]


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
    if request.as_of is not None:
        content |= {"as_of": request.as_of.time, "time_unit": request.as_of.unit}
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
