"""A trained model on an open graph: predictions, embeddings, scores and neighbors, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from raygnn.data.added_rows import RowReader
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import edge_type_name
from raygnn.data.links.supervision import SeedEdges
from raygnn.data.manifest import Manifest, TrainingTable
from raygnn.data.tables.read_ids import Ids, look_up_ids, original_ids
from raygnn.data.time_units import AsOf, Time
from raygnn.errors import ConfigError, DataError
from raygnn.inference import applied_model
from raygnn.inference.embeddings import NodeEncoder
from raygnn.inference.job import TableRequest, TopKOptions, TopKRequest, find_score, relation_of
from raygnn.inference.neighbor_search import EdgeValues, build_decoder
from raygnn.inference.new_rows import TablesSource, row_reader
from raygnn.inference.result_tables import EdgeTables, Table, check_finite, pairs_to_predict
from raygnn.inference.row_tables import (
    DEFAULT_K,
    RowRequest,
    declared_table,
    find_rows,
    request_rows,
)
from raygnn.inference.seed_times import SeedTimes, find_seed_times, seed_edges, times_of_pairs
from raygnn.inference.tables import tables
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.process import process_prepared
from raygnn.outputs.saved_model import SavedModel
from raygnn.sampling.stores import LocalFeatureStore

if TYPE_CHECKING:
    from raygnn.inference.explain.explanations import Explanations
    from raygnn.inference.explain.options import ExplainOptions

_ROWS_PER_PART = 65_536  # rows per file of `raygnn.infer`


class OpenGraph:
    """A graph that fits a trained model, with the model's results by original ids.

    Exact embeddings of all nodes are kept after their first use. After changing the model's
    weights or device, open the graph again. Collective in a process group of torch.distributed: all
    ranks must call, and all get all rows.

    """

    def __init__(
        self,
        saved: SavedModel,
        model: nn.Module,
        bundle: Bundle,
        *,
        exact: bool | None = None,
        own_batches: bool = False,
        as_of: str | Time | None = None,
        source: TablesSource | None = None,
    ) -> None:
        device = next(model.parameters(), torch.empty(0)).device
        fitted = saved.fitted(bundle)
        times = find_seed_times(saved, fitted, as_of)
        self._source = source
        self._read_columns = None if source is None else lru_cache(8)(source.columns)
        self.saved = saved
        self._loaded = saved.loaded
        is_exact = applied_model.evaluates_exactly(saved) if exact is None else exact
        task = applied_model.set_up_task(saved, fitted, device)
        applied_model.warn_of_missing(task.missing(model))
        self._encoder = NodeEncoder(
            applied_model.AppliedModel(task, model, times, is_exact), own_batches
        )

    def as_of(self, time: str | Time) -> Self:
        """The same graph, with all rows as of a time; see `TrainedModel.open`."""
        graph = copy(self)
        graph._encoder = self._encoder.as_of(find_seed_times(self.saved, self.bundle, time))
        return graph

    @property
    def _applied(self) -> applied_model.AppliedModel:
        return self._encoder.applied

    @property
    def bundle(self) -> Bundle:
        """The part of the graph that the model reads."""
        return self._applied.bundle

    @property
    def is_precomputed(self) -> bool:
        """Whether the rows of all nodes of the model's end types are kept."""
        return self._encoder.keeps(self._spec.output.ends)

    def precompute(self) -> None:
        """Encodes all nodes of the types that the model predicts or links, and keeps the rows, also
        for models that do not work layer by layer, or sampled.
        """
        with self._prepared():
            self._encoder.keep(list(dict.fromkeys(self._spec.output.ends)))

    @property
    def times(self) -> SeedTimes | None:
        return self._applied.times

    @property
    def moment(self) -> AsOf | None:
        """The time of rows without their own, by default the latest of the graph; None if the model
        reads no times.
        """
        return None if self._applied.times is None else self._applied.times.moment

    def predict(
        self,
        nodes: Any = None,
        *,
        what: str | None = None,
        rows: Any = None,
        split: str | None = None,
    ) -> Table:
        """Predictions for nodes or edges of the model's type.

        Args:
            nodes: original ids, in any order. Default: all nodes. For a model of edges, pairs of
                ids as in `score`. Default: all label edges of its type, or all edges without any.
            what: predictions or probabilities.
            rows: rows of (entity, time) instead of nodes, each predicted from what is known at its
                time: the name of a training table of the graph, or a DataFrame, Arrow table or
                mapping with the columns `id` and `time`, or their names in the training table. Rows
                of only ids are as of now.
            split: train, val or test of the training table. Default: all its rows.
        Returns:
            Columns `id` (for edges `source_id` and `target_id`), `prediction` and for classes
            `probability`; for probabilities the ids and `probability`, [num_nodes, num_classes].
            Rows are in the order of `nodes`.
        Raises:
            ConfigError: the model has no such output, or pairs lack features that it reads.
            DataError: an id is not in the graph, or values are not finite.
        """
        chosen = what or next(iter(self._spec.output.predictions), "predictions")
        if rows is not None:
            return self._table(self._row_request(rows, split, what=chosen))
        if chosen == "embeddings":
            return self.embed(nodes)
        request = TableRequest.of(self._spec, chosen)
        if not request.node_types:
            return self._edge_table(request, nodes)
        return self._node_table(request, nodes)

    def embed(self, nodes: Ids | None = None, *, node_type: str | None = None) -> Table:
        """The encoder's output: columns `id` and `embedding`, [num_nodes, channels].

        Args:
            nodes: as in `predict`.
            node_type: any that the model knows. Default: that of its predictions or links.
        Raises:
            ConfigError: the model does not know the node type, or links have two.
            DataError: as in `predict`.
        """
        ends = dict.fromkeys(self._spec.output.ends)
        if node_type is None and len(ends) > 1:
            raise ConfigError(
                "node_type=None is invalid: the links of the model have two. Set one of: "
                f"{', '.join(ends)}. [model-node-type-open]"
            )
        chosen = next(iter(ends)) if node_type is None else node_type
        return self._node_table(TableRequest.of(self._spec, "embeddings", (chosen,)), nodes)

    def score(self, pairs: Any, *, edge_type: str | None = None, score: str | None = None) -> Table:
        """Scores of links between given nodes. A higher score is a likelier link.

        With times, a pair that is a link of the relation is encoded as of that link, without it;
        other pairs as of the latest time. `as_of` encodes all pairs at one time.

        Args:
            pairs: original ids of anchors and targets: a list of pairs, an array [num_pairs, 2], or
                a DataFrame of two columns.
            edge_type: `src__rel__dst`, for a model of several relations.
            score: decoder or inner_product of the embeddings. Default: the decoder of a link model,
                the predicted number of a model of edges, else the inner product.
        Returns:
            Columns `anchor_id`, `target_id` and `score`, computed in float64, in the order of
            `pairs`.
        Raises:
            ConfigError: the model has no such score or relation.
            DataError: an id is not in the graph, or `pairs` are not pairs.
        """
        output, ends = self._spec.output, self._spec.output.ends
        relation = None if edge_type is None else relation_of(self._spec, edge_type)
        chosen = find_score(self._spec, score or ("decoder" if output.links else None), relation)
        given = self._pairs(pairs)
        decoder = build_decoder(chosen, self._applied)
        with self._prepared():
            device = self._applied.env.device
            anchor_rows, target_rows = (
                self._encoder.rows(name, dense).double().to(device)
                for name, dense in zip(ends, given, strict=True)
            )
            self._encode_known_links(relation, given, (anchor_rows, target_rows))
            if isinstance(decoder, EdgeValues):
                anchor_rows, target_rows = map(
                    decoder.rows, (anchor_rows, target_rows), given, output.num_known(self.bundle)
                )
            found = decoder.score_pairs(anchor_rows, target_rows, relation or 0)
        scores = found.float().cpu()
        anchors, targets = (original_ids(self.bundle, *e) for e in zip(ends, given, strict=True))
        check_finite(scores.unsqueeze(1), anchors)
        names = ("anchor_id", "target_id", "score")
        return Table(pa.table([anchors, targets, pa.array(scores.numpy())], names=names))

    def top_k(self, anchors: Ids, k: int = 10, **options: Any) -> Table:
        """The k best-scored nodes among all nodes, for each anchor; see `raygnn.infer.top_k`.

        Args:
            options: fields of `TopKOptions`.
        Returns:
            Columns `anchor_id`, `neighbor_id`, `score` and `rank`, from 1, and those of `columns`.
        """
        chosen = TopKOptions.of(options)
        request = TopKRequest.of(self._spec, self.bundle, k, anchors, chosen, self._read_columns)
        return self._table(request)

    def top_k_of_rows(self, rows: Any, k: int = DEFAULT_K, *, split: str | None = None) -> Table:
        """The k best-scored targets of each row of (anchor, time), as of its time.

        Args:
            rows: relation of the label edges that the model was trained on by time; or a table as
                in `predict`. Rows of only ids are as of now.
            split: train, val or test of the label edges. Default: all their rows.
        Returns:
            Columns `id`, `time`, and lists `neighbor_id` and `score`, best first.
        Raises:
            ConfigError: the model has no such rows, or fewer targets than k.
            DataError: as in `predict`.
        """
        return self._table(self._row_request(rows, split, k=k))

    def explain(
        self,
        nodes: Ids | None = None,
        options: ExplainOptions | None = None,
        *,
        rows: Any = None,
        pairs: Any = None,
        edge_type: str | None = None,
    ) -> Explanations:
        """Explains predictions of nodes, of edges or of links by neighbors and columns.

        Each node or pair is explained in its own neighborhood, whose edges and columns are masked.
        An edge is not part of its own explanation.

        Args:
            nodes: original ids of the predicted type.
            options: default: `ExplainOptions()`.
            rows: as in `predict`, instead of nodes.
            pairs: as in `score`, instead of nodes, for a model of edges or links (whose score is
                explained).
            edge_type: as in `score`.
        Raises:
            ConfigError: the model predicts several values together, reads nothing that can be
                masked, or has no exact neighborhoods; or pairs are requested for a model of nodes,
                or nodes for a model of edges or links.
            DataError: an id is not in the graph.
        """
        from raygnn.inference.explain.explain import explain_nodes, explain_pairs
        from raygnn.inference.explain.explanations import check_explained
        from raygnn.inference.explain.options import ExplainOptions

        check_explained(self._spec)
        shared = self._applied, self.manifest(), options or ExplainOptions()
        output = self._spec.output
        has_pairs = bool(output.links) or output.predicted_edges is not None
        has_nodes = (nodes is None) != (rows is None)
        if (pairs is None) is has_pairs or has_nodes is has_pairs:
            wanted, given = ("pairs", "nodes") if has_pairs else ("nodes", "pairs")
            rule, remedy = f"the model predicts {wanted}", f"Give {wanted}, and leave {given} out"
            value = nodes if has_pairs else pairs
            raise ConfigError.invalid(given, value, rule, remedy, id="explain-seeds")
        if has_pairs:
            relation = 0 if edge_type is None else relation_of(self._spec, edge_type)
            if len(output.links) > 1:
                find_score(self._spec, "decoder", None if edge_type is None else relation)
            ends = self._pairs(pairs)
            edges = pairs_to_predict(self._spec, self.bundle, *ends, self.times, relation)
            with self._prepared():
                return explain_pairs(*shared, edges, relation)
        plan = None
        if nodes is not None:
            dense = look_up_ids(self.bundle, output.ends[0], nodes, "nodes")
        else:
            named = self._named_rows(rows)
            plan = find_rows(self._spec, self._loaded.config, self.bundle, named)
            dense = np.arange(plan.rows.num_rows)
        with self._prepared():
            return explain_nodes(*shared, dense, plan)

    def _pairs(self, pairs: Any) -> tuple[np.ndarray, np.ndarray]:
        given = zip(self._spec.output.ends, _columns_of(pairs), strict=True)
        sources, targets = (look_up_ids(self.bundle, name, ids, "pairs") for name, ids in given)
        return sources, targets

    def manifest(self) -> Manifest | None:
        """Column descriptions of the graph's tables; None for parts and data in memory."""
        return None if self._source is None else self._source.manifest()

    @cached_property
    def training_table(self) -> TrainingTable | None:
        return declared_table(self.manifest(), self._spec.output)

    def to_pyg(self) -> Data | HeteroData:
        """The graph for PyG's modules, with features as the model reads them.

        Returns:
            `Data`, or `HeteroData` of several types: `x` (standardized; category codes unchanged),
            `edge_index` of all message edges, and `edge_attr` or `edge_weight` if the model reads
            it. Node i has the i-th id of `embed()`.
        """
        bundle, spec = self.bundle, self._spec
        features, graph = LocalFeatureStore(bundle, spec.standardization), HeteroData()
        for name in bundle.node_types:
            graph[name].num_nodes = bundle.num_nodes(name)
            if spec.feature in bundle.columns(name) and name not in spec.embedded_types:
                rows = features.gather(name, spec.feature, np.arange(bundle.num_nodes(name)))
                graph[name].x = torch.from_numpy(np.array(rows))
        for edge_type in bundle.edge_types:
            csc, store = bundle.csc(edge_type), graph[edge_type]
            targets = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
            store.edge_index = torch.from_numpy(np.stack([csc.indices.astype(np.int64), targets]))
            for column, called in spec.edge_inputs.items():
                if column in bundle.columns(edge_type):
                    rows = features.gather(edge_type, column, np.arange(len(targets)))
                    store[called] = torch.from_numpy(np.array(rows))
        if len(graph.node_types) > 1 or len(graph.edge_types) > 1:
            return graph
        (nodes,), edges = graph.node_stores, graph.edge_stores
        return Data(**nodes, **(edges[0] if edges else {}))

    @property
    def _spec(self) -> ModelSpec:
        return self._applied.spec

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        model = self._applied.model
        training = model.training
        if training:
            model.eval()
        try:
            with process_prepared(self._loaded), torch.no_grad():
                yield
        finally:
            if training:
                model.train()

    def _table(self, request: TableRequest | TopKRequest) -> Table:
        with self._prepared(), tables(self._encoder, request, _ROWS_PER_PART) as made:
            (parts,) = made.values()
            return Table(pa.concat_tables([table for _, table in parts]))

    def _node_table(self, request: TableRequest, nodes: Ids | None) -> Table:
        if nodes is None:
            return self._table(request)
        (node_type,) = request.node_types
        dense = look_up_ids(self.bundle, node_type, nodes, "nodes")
        ids, places = np.unique(dense, return_inverse=True)
        table = self._table(replace(request, nodes={node_type: ids})).arrow
        return Table(table.take(pa.array(places)))

    def _row_request(
        self, rows: Any, split: str | None, **options: Any
    ) -> TableRequest | TopKRequest:
        request = self._named_rows(rows, split)
        return request_rows(self._spec, self._loaded.config, self.bundle, request, **options)

    def _named_rows(self, rows: Any, split: str | None = None) -> RowRequest:
        return RowRequest(rows, split, self.moment, self.training_table)

    def _edge_table(self, request: TableRequest, pairs: Any) -> Table:
        if pairs is not None:
            times, ends = self._applied.times, self._pairs(pairs)
            edges = pairs_to_predict(self._spec, self.bundle, *ends, times)
            request = replace(request, edges=edges)
        return self._table(request)

    def _encode_known_links(
        self, relation: int | None, pairs: Sequence[np.ndarray], rows: Sequence[Tensor]
    ) -> None:
        """Replaces the rows of pairs that are links with times by those as of the link, except
        a linear recommender, whose rows are as of one moment.
        """
        links, times = self._spec.output.links, self._applied.times
        factors = applied_model.used_recommender(self._applied.model)
        if times is None or not links or (relation is None and len(links) > 1) or factors:
            return
        edge_type = links[relation or 0]
        if times.of(edge_type_name(edge_type)) is not None:
            return
        edges = seed_edges(self._spec, self.bundle, edge_type)
        is_known, own = times_of_pairs(edges, *pairs)
        if not is_known.any():
            return
        sources, targets = (dense[is_known] for dense in pairs)
        known = replace(SeedEdges.of_pairs(edge_type, sources, targets), times=own[is_known])
        with closing(EdgeTables("embeddings", self._applied, known)) as tables:
            for of_end, found in zip(rows, tables.end_rows(), strict=True):
                of_end[torch.from_numpy(is_known)] = found.to(of_end)

    @cached_property
    def row_reader(self) -> RowReader:
        return row_reader(self.saved, self.bundle, self._source)


def _columns_of(pairs: Any) -> list[Any]:
    if isinstance(pairs, pa.Table):
        columns = pairs.columns
    elif hasattr(pairs, "columns"):
        columns = [pairs[name] for name in pairs.columns]
    elif isinstance(pairs, np.ndarray | Tensor):
        columns = list(np.asarray(pairs).T) if pairs.ndim == 2 else []
    else:
        rows = [tuple(pair) if isinstance(pair, list | tuple) else () for pair in pairs]
        columns = list(zip(*rows, strict=True)) if {len(row) for row in rows} == {2} else []
    if len(columns) != 2:
        raise DataError(
            "pairs is invalid: it is not a list of pairs. Give [(anchor, target), ...], an array "
            "[num_pairs, 2], or a DataFrame of two columns. [model-pairs]"
        )
    return columns
