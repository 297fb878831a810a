"""The tables of a request: every way to predict, for one process or many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial

import numpy as np

from raygnn.data.edge_types import edge_type_name
from raygnn.inference.embeddings import Embeddings, NodeEncoder
from raygnn.inference.job import TableRequest, TopKRequest
from raygnn.inference.neighbor_search import neighbors
from raygnn.inference.result_tables import (
    EVERY,
    EdgeTables,
    NodeTables,
    Parts,
    cut,
    edges_to_predict,
)


@contextmanager
def tables(
    encoder: NodeEncoder, request: TableRequest | TopKRequest, size: int, share: slice = EVERY
) -> Iterator[dict[str, Parts]]:
    """The tables of a request by name, in parts of `size` rows, rounded up to whole batches.

    Collective: all ranks must call. Each then reads the parts of its share alone, whose rows do not
    depend on the number of ranks.
    """
    applied = encoder.applied
    if isinstance(request, TopKRequest):
        yield {"neighbors": neighbors(encoder, request, size, share)}
    elif request.node_types:
        of_nodes, made = NodeTables(request, applied), dict[str, Parts]()
        numbers = {name: request.num_rows(applied.bundle, name) for name in request.node_types}
        encoding: AbstractContextManager[Embeddings]
        if request.takes_all:
            encoding = encoder.encoded(request.node_types)
        else:
            positions = {name: np.arange(number) for name, number in numbers.items()}
            encoding = encoder.chosen(request.nodes or positions, request.plan)
        with encoding as embeddings:
            for name, number in numbers.items():
                ranges = cut(number, size, embeddings.alignment)
                made[name] = Parts(ranges, partial(of_nodes.range, embeddings, name), share)
            yield made
    else:
        edges = request.edges or edges_to_predict(applied.spec, applied.bundle)
        with closing(EdgeTables(request.what, applied, edges)) as predicted:
            ranges = cut(predicted.num_rows, size, predicted.alignment)
            name = edge_type_name(edges.edge_type)
            yield {name: Parts(ranges, predicted.range, share)}
