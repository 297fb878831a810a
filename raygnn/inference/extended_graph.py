"""An open graph with new nodes and edges, and a model's results for them."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from raygnn.data.added_rows import AddedRows
from raygnn.data.edge_types import EdgeType
from raygnn.data.extended_bundle import Addition
from raygnn.data.growth import Growth
from raygnn.data.links.supervision import KnownPositives
from raygnn.data.tables.read_ids import Ids, as_plain_texts
from raygnn.errors import ConfigError
from raygnn.inference import job
from raygnn.inference.embeddings import NodeEncoder
from raygnn.inference.neighbor_search import NeighborSearch
from raygnn.inference.new_rows import read_new
from raygnn.inference.open_graph import OpenGraph
from raygnn.inference.result_tables import Table


class ExtendedGraph(OpenGraph):
    """A graph as if its tables also contained new nodes and edges.

    Each node is encoded from its own neighborhood. Top-k compares new nodes with known ones, whose
    embeddings do not see the new rows. Nothing is written to disk. Errors: see
    `TrainedModel.extended`.

    Args:
        graph: perhaps itself with new nodes and edges.
        rows: new rows, the folder or URI of their tables, or decoded rows of `graph`.
    """

    _graph: OpenGraph
    _addition: Addition

    def __init__(self, graph: OpenGraph, rows: AddedRows | str | Addition) -> None:
        addition = rows
        if not isinstance(addition, Addition):
            reader = graph.row_reader
            if isinstance(graph, ExtendedGraph):
                reader = reader.on(graph.bundle)
            addition = read_new(graph.saved, reader, addition)
        if isinstance(graph, ExtendedGraph):
            growth = Growth(graph._graph.bundle, graph._addition)
            growth.append(addition)
            graph, addition = graph._graph, growth.view()
        vars(self).update(vars(graph))
        self._graph = graph
        self._addition = addition
        self._encoder = NodeEncoder(graph._applied.extended(addition), own_batches=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def top_k(self, anchors: Ids, k: int = 10, **options: Any) -> Table:
        """The k best known nodes of each new node; see `OpenGraph.top_k`."""
        chosen = job.TopKOptions.of(options)
        every = chosen.model_copy(update={"filter_known": False})
        request = job.TopKRequest.of(self._spec, self.bundle, k, anchors, every, self._read_columns)
        graph, anchor, target = self._graph.bundle, request.anchor_type, request.target_type
        job.check_k(k, graph, anchor, target)
        known_anchors = request.anchors[request.anchors < graph.num_nodes(anchor)]
        if len(known_anchors):
            shown = as_plain_texts(graph.take_ids(anchor, known_anchors[:1]))[0].as_py()
            raise ConfigError(
                f"anchors are invalid: {shown!r} is a node of the graph, and with new nodes only "
                "these are anchors. Ask for known ones without new nodes. [rows-anchor-known]"
            )
        known = []
        if chosen.filter_known:
            types = job.known_types(self._spec, graph, anchor, target, request.relation)
            known = [self._links(edge_type) for edge_type in types]
        with self._prepared(), self._graph._encoder.encoded([target]) as embeddings:
            search = NeighborSearch(request, self._applied, embeddings.all_rows(target), known)
            rows = self._encoder.rows(anchor, request.anchors)
            return Table(search.table(request.anchors, rows))

    def _links(self, edge_type: EdgeType) -> KnownPositives:
        anchors, targets = self._addition.edges[edge_type]
        order = np.lexsort((targets, anchors))
        every = np.arange(self.bundle.num_nodes(edge_type[0]) + 1)
        return KnownPositives(np.searchsorted(anchors[order], every), targets[order])

    def _node_table(self, request: job.TableRequest, nodes: Ids | None) -> Table:
        if nodes is None:
            nodes = as_plain_texts(self._addition.ids[request.node_types[0]])
        return super()._node_table(request, nodes)

    def _edge_table(self, request: job.TableRequest, pairs: object) -> Table:
        job.check_no_new_nodes("rows")
        raise AssertionError
