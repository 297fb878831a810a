"""The node or pair of a batch whose prediction is explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raygnn.data.bundle import SeedRows
from raygnn.data.links.supervision import SeedEdges
from raygnn.data.tables.read_ids import original_ids
from raygnn.inference.applied_model import AppliedModel
from raygnn.inference.explain.rungs import RowRungs, rungs_of_row
from raygnn.inference.row_tables import times_of
from raygnn.loops.tasks.edge_prediction.task import EdgeRows
from raygnn.loops.tasks.node_classification.task import NodeClassification, seeds_of
from raygnn.models.label_propagation import LabelScores
from raygnn.models.predictors import EdgePredictor
from raygnn.sampling.batch import EdgeBatch, NodeBatch


@dataclass(frozen=True)
class Seed:
    """The node or pair of a batch whose prediction is explained.

    Attributes:
        ids: columns of one row, original ids.
        ends: the node or the two nodes, as node type and local id.
        head: see `MaskedModel`.
        rungs: of the blend that predicts; None if encoder and head predict alone.
        labels: logits of the labels around the node, [1, num_outputs]; None if it reads none.
    """

    ids: Mapping[str, pa.Array]
    ends: Sequence[tuple[str, int]]
    head: Callable[[Mapping[str, Any]], Tensor]
    rungs: RowRungs | None = None
    labels: Tensor | None = None


def seed_node(batch: NodeBatch, applied: AppliedModel, rows: SeedRows | None = None) -> Seed:
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


def seed_pair(
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
