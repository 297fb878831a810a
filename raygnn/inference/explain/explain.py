"""Explains nodes, rows and pairs of a graph, each in its own neighborhood."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from raygnn.data.bundle import SeedRows
from raygnn.data.links.supervision import SeedEdges
from raygnn.data.manifest import Manifest
from raygnn.data.tables.read_ids import original_ids
from raygnn.inference.applied_model import AppliedModel
from raygnn.inference.explain.explanations import Explanations, Seed, explain_batches
from raygnn.inference.explain.options import ExplainOptions
from raygnn.inference.explain.rungs import rungs_of_row
from raygnn.inference.result_tables import EdgeTables
from raygnn.inference.row_tables import times_of
from raygnn.inference.seed_times import seed_edges
from raygnn.loops.tasks.edge_prediction.task import EdgeRows
from raygnn.loops.tasks.node_classification.task import NodeClassification, seeds_of
from raygnn.models.label_propagation import LabelScores
from raygnn.models.predictors import EdgePredictor
from raygnn.sampling.batch import Batch, EdgeBatch, NodeBatch
from raygnn.sampling.loader import RowPlan

_NUM_BACKGROUND = 64  # nodes that explained ones are compared with


def explain_nodes(
    applied: AppliedModel,
    manifest: Manifest | None,
    options: ExplainOptions,
    nodes: np.ndarray,
    plan: RowPlan | None,
) -> Explanations:
    """Explains nodes by dense id, or with a `plan` rows by position."""
    node_type, rows = applied.spec.output.ends[0], None if plan is None else plan.rows
    loader = applied.loader(node_type, nodes, plan, batch_size=1)
    with loader, closing(loader.iterate(0, 0, len(nodes))) as batches:
        moved = (batch.to(applied.env.device) for batch in batches)
        seed = partial(_seed_node, applied=applied, rows=rows)
        background = partial(_background, applied, rows)
        return explain_batches(moved, seed, applied, manifest, options, background)


def explain_pairs(
    applied: AppliedModel,
    manifest: Manifest | None,
    options: ExplainOptions,
    edges: SeedEdges,
    relation: int,
) -> Explanations:
    """Explains the edges of pairs. `relation`: number of the relation, of a model of links."""
    tables = EdgeTables("predictions", applied, edges, one_by_one=True)

    def seed(batch: EdgeBatch) -> Seed:
        return _seed_pair(batch, applied, edges, relation, tables.as_of)

    def background() -> Iterator[Batch]:
        others = EdgeTables(
            "predictions", applied, seed_edges(applied.spec, applied.bundle, edges.edge_type)
        )
        with closing(others):
            yield from islice(others.batches(), 1)

    with closing(tables):
        return explain_batches(tables.batches(), seed, applied, manifest, options, background)


def _seed_node(batch: NodeBatch, applied: AppliedModel, rows: SeedRows | None) -> Seed:
    """The only node of a batch, or the only one of some rows."""
    name, index, model = batch.node_type, batch.seed_index, cast("Any", applied.model)
    task, seeds = applied.task, seeds_of(batch)
    assert isinstance(task, NodeClassification)

    def head(rows: Mapping[str, Any]) -> Tensor:
        encoded = rows[name]
        encoded = next(iter(encoded.values())) if isinstance(encoded, Mapping) else encoded
        return task.outputs_of_gnn(model, model.readout(encoded[index]), seeds)

    positions = batch.input_id.cpu().numpy()
    dense = positions if rows is None else rows.node_ids(positions)
    ids = {"id": original_ids(applied.bundle, name, dense)}
    if rows is not None and rows.time is not None:
        ids["time"] = times_of(rows, positions)
    around = getattr(model, "labels", None)
    labels = None
    if isinstance(around, LabelScores) and around.is_used:
        none = torch.zeros(1, task.output.num_outputs, device=index.device)
        labels = task.outputs_of_gnn(model, none, seeds)
    return Seed(ids, [(name, int(index[0]))], head, rungs_of_row(task, model, seeds), labels)


def _seed_pair(
    batch: EdgeBatch, applied: AppliedModel, edges: SeedEdges, relation: int, as_of: float | None
) -> Seed:
    """The only pair of a batch. `as_of`: time of all pairs; None if each has its own."""
    edge_type, position = edges.edge_type, int(batch.input_id[0])
    names, index, model = edge_type[::2], batch.end_index, cast("Any", applied.model)

    def head(rows: Mapping[str, Any]) -> Tensor:
        source, target = (rows[name][end] for name, end in zip(names, index, strict=True))
        if isinstance(model, EdgePredictor):
            return model.of_ends(source, target, batch.inputs, batch.end_id)[0]
        scores: Tensor = model.decoder.score_pairs(source, target, relation)
        return scores.unsqueeze(1)

    ends = [(name, int(end[0])) for name, end in zip(names, index, strict=True)]
    ids = {
        column: original_ids(applied.bundle, name, batch.nodes[name].n_id[[end]].cpu().numpy())
        for column, (name, end) in zip(("from_id", "to_id"), ends, strict=True)
    }
    rows = EdgeRows(edges, np.array([position]), as_of)
    return Seed(ids, ends, head, rungs_of_row(applied.task, model, rows))


def _background(applied: AppliedModel, rows: SeedRows | None) -> Iterator[Batch]:
    """A batch of other nodes of the predicted type, at the times of the rows."""
    node_type = applied.spec.output.ends[0]
    num_nodes = applied.bundle.num_nodes(node_type)
    num = min(_NUM_BACKGROUND, num_nodes)
    nodes, plan = np.linspace(0, num_nodes - 1, num).astype(np.int64), None
    if rows is not None:
        times = None if rows.time is None else np.resize(np.asarray(rows.time), num)
        plan = RowPlan(replace(rows, num_rows=num, nodes=nodes, time=times, split=None))
        nodes = np.arange(num)
    loader = applied.loader(node_type, nodes, plan, batch_size=num)
    with loader, closing(loader.iterate(0, 0, 1)) as batches:
        yield from (batch.to(applied.env.device) for batch in batches)
