"""Explains nodes, rows and pairs of a graph, each in its own neighborhood."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from raygnn.data.bundle import SeedRows
from raygnn.data.links.supervision import SeedEdges
from raygnn.data.manifest import Manifest
from raygnn.inference.applied_model import AppliedModel
from raygnn.inference.explain.explanations import Explanations, explain_batches
from raygnn.inference.explain.options import ExplainOptions
from raygnn.inference.explain.seeds import Seed, seed_node, seed_pair
from raygnn.inference.result_tables import EdgeTables
from raygnn.inference.seed_times import seed_edges
from raygnn.sampling.batch import Batch, EdgeBatch
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
        seed = partial(seed_node, applied=applied, rows=rows)
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
        return seed_pair(batch, applied, edges, relation, tables.as_of)

    def background() -> Iterator[Batch]:
        others = EdgeTables(
            "predictions", applied, seed_edges(applied.spec, applied.bundle, edges.edge_type)
        )
        with closing(others):
            yield from islice(others.batches(), 1)

    with closing(tables):
        return explain_batches(tables.batches(), seed, applied, manifest, options, background)


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
