from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import edge_type_name
from raygnn.data.fit_history import fit_history
from raygnn.data.history_spec import HistoryColumn, HistorySpec
from raygnn.data.links.split import LinkSplit
from raygnn.data.links.supervision import SeedEdges
from raygnn.data.raw_columns import RawColumn, raw_columns
from raygnn.data.time_units import time_unit
from raygnn.loops.blend import TREES
from raygnn.loops.tasks.blended_task import BlendedTask
from raygnn.loops.tasks.edge_prediction.label_factors import NUM_FACTORS, LabelFactors
from raygnn.loops.tasks.edge_prediction.target import EdgeOutput, EdgeTarget
from raygnn.loops.tasks.link_rules import reverse_types
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.predictors import EdgeHead, EdgePredictor, FactorizedEdges
from raygnn.sampling.batch import EdgeBatch
from raygnn.sampling.edge_loader import EdgeLoader, EdgePlan


@dataclass(frozen=True)
class EdgeRows:
    """Edges to predict.

    Attributes:
        positions: int64 [num_rows], of edges.
        as_of: edges see all events up to it; None: those before each edge.
    """

    edges: SeedEdges
    positions: np.ndarray
    as_of: float | None = None


class EdgePrediction(BlendedTask[EdgeBatch]):
    """Learns a label of each edge from the sampled neighborhoods of both ends.

    The head reads the embeddings of both ends, their product, and the edge's own features. Messages
    exclude a batch's edges, their reverses and parallel edges. Edges of validation and test carry
    no messages in training. `data.splits` splits the labelled edges (hash on the unordered pair, or
    temporal); otherwise the edges' split column does.

    Args:
        edge_type: `src__rel__dst` of the edges. Default: the only type with labels.
        label_edges: labels belong to label edges. Default: to message edges, if they have any.
        inputs: features of the edge that the head reads. Default: all except copies of the label.
            An empty list reads none.
        factorize: start from a factorization of the training labels (biases of source and target,
            and factors if they help in validation) and learn the rest. New nodes start from 0.
            Default: for a regression of one number.
    """

    target_class = EdgeTarget
    target: EdgeTarget
    output: EdgeOutput
    model: EdgePredictor
    of_graph = (*BlendedTask.of_graph, "edge_inputs", "latest_time")
    _start: FactorizedEdges | None = None  # the model's start, if it has one

    def build_head(self, encoder: GraphEncoder) -> nn.Module:
        output, width = self.output, self.config.embedding_width
        name = edge_type_name(output.edge_type)
        num_inputs = sum(self.spec.edge_columns[column][name] for column in output.inputs)
        start = None
        if output.factorized is not None:
            num_sources, num_targets = (num for num, _ in output.factorized)
            self._start = start = FactorizedEdges((num_sources, num_targets), NUM_FACTORS)
        head = EdgeHead(width, num_inputs, output.num_outputs, start)
        return EdgePredictor(encoder, head, output.ends)

    @cached_property
    def _label_factors(self) -> LabelFactors:
        """Factorizations of the training labels, which validation chooses among."""
        target, scale = self.target, self.output.scale
        values = target.labels.reshape(-1).astype(np.float64)
        mean, std = (0.0, 1.0) if scale is None else (scale.mean[0], scale.std[0])
        rows = np.arange(target.edges.num_edges)
        sizes = [self.env.bundle.num_nodes(name) for name in self.output.ends]
        return LabelFactors.fit(
            np.stack(target.edges.ends(rows)),
            (values - mean) / std,
            (sizes[0], sizes[1]),
            target.splits,
            only_biases=self.output.factorized is None,
        )

    def groups(self, rows: np.ndarray) -> np.ndarray:
        """The sources, whose edges may have similar errors."""
        sources, _ = self.target.edges.ends(rows)
        return sources

    def guesses(self, split: str, asked: np.ndarray) -> Mapping[str, np.ndarray]:
        """For numbers, the mean and damped biases of both ends; LightGBM."""
        output, guesses = self.output, dict[str, np.ndarray]()
        if output.is_number:
            values, scale = self._label_factors.by_biases(asked), output.scale
            values = values if scale is None else values * scale.std[0] + scale.mean[0]
            guesses["biases"] = values.reshape(-1, 1)
        names = [] if self.trees is None else [TREES]
        return guesses | self.rungs(names, self.model, EdgeRows(self.target.edges, asked))

    def row_ids(self, positions: np.ndarray) -> Mapping[str, Any]:
        edges, bundle = self.target.edges, self.env.bundle
        ends = zip(("source", "target"), self.output.ends, edges.ends(positions), strict=True)
        ids = {end: bundle.take_ids(name, nodes) for end, name, nodes in ends}
        times = {} if edges.times is None else {"time": np.asarray(edges.times)[positions]}
        return ids | times

    def fitted_histories(self, bundle: Bundle) -> Iterable[HistorySpec]:
        edges, temporal = self.target.edges, self.config.sampling.temporal
        train = np.asarray(self.target.splits.train)
        unit = None if temporal is None else time_unit(bundle, temporal.column)
        for node_type, nodes in zip(self.output.ends, edges.ends(train), strict=True):
            yield fit_history(
                bundle,
                node_type,
                self.target.arguments.feature,
                nodes,
                edges.times_before(train),
                max_age=self.max_age(unit),
                edge_features=self.output.inputs,
            )

    @cached_property
    def edge_inputs(self) -> list[RawColumn]:
        """The edges' own features."""
        edge_type, bundle = self.output.edge_type, self.whole_bundle
        columns = [raw_columns(bundle, edge_type, name) for name in self.output.inputs]
        return [column for of_feature in columns for column in of_feature]

    @cached_property
    def latest_time(self) -> float | None:
        """Time of the latest edge of the type; None without times."""
        bundle, output = self.whole_bundle, self.output
        edges = SeedEdges.of_bundle(bundle, output.edge_type, label_edges=output.label_edges)
        return None if edges.times is None or not edges.num_edges else edges.times.max()

    def row_columns(self, rows: np.ndarray, split: str) -> np.ndarray:
        columns = self.tree_columns(self.model, EdgeRows(self.target.edges, rows))
        if split == "train" and self.output.factorized is not None:
            columns[:, -1] = self._label_factors.held_out[rows]
        return columns

    def tree_columns(self, model: EdgePredictor, rows: EdgeRows) -> np.ndarray:
        """History of both ends, features of the edge, and the value that the factorization
        predicts.
        """
        ends, times = rows.edges.ends(rows.positions), self._times(rows)
        columns = [h.columns(n, times) for h, n in zip(self.histories, ends, strict=True)]
        columns += [column.values[rows.positions, None] for column in self.edge_inputs]
        if self.output.factorized is not None:
            columns.append(self._factorized(model, np.stack(ends))[:, None])
        return np.concatenate(columns, axis=1)

    def _factorized(self, model: EdgePredictor, ends: np.ndarray) -> np.ndarray:
        if "train" in self._loaders:  # the model may be sharded over the ranks of a run
            return self._label_factors.of_pairs(ends)
        num_known = np.array([self.output.num_known(self.env.bundle)]).T
        start = model.head.start
        assert start is not None
        ids = torch.from_numpy(np.where(ends < num_known, ends, -1)).to(start.mean.device)
        with torch.no_grad():
            return start(ids).flatten().double().cpu().numpy()

    def _times(self, rows: EdgeRows) -> np.ndarray | None:
        times, as_of = rows.edges.times_before(rows.positions), rows.as_of
        if times is None and as_of is None:
            as_of = self.latest_time  # pairs for a model that samples without times
        return times if as_of is None else np.full(len(rows.positions), as_of)

    @property
    def described_columns(self) -> list[tuple[str, HistoryColumn]]:
        source, relation, target = self.output.edge_type
        described = list[tuple[str, HistoryColumn]]()
        for end, name, history in zip(
            ("source", "target"), (source, target), self.histories, strict=True
        ):
            for each in history.described:
                of = ", ".join(filter(None, (end, each.of))) if source == target else each.of
                described.append((name, replace(each, of=of)))
        edge = edge_type_name(self.output.edge_type)
        described += [(edge, HistoryColumn(each.name, relation)) for each in self.edge_inputs]
        if self.output.factorized is not None:
            described.append((edge, HistoryColumn(f"expected {self.output.label}", relation)))
        return described

    def in_units(self, columns: np.ndarray) -> np.ndarray:
        scale = self.output.scale
        if self.output.factorized is None or scale is None:
            return columns
        expected = columns[:, -1:] * scale.std[0] + scale.mean[0]
        return np.concatenate([columns[:, :-1], expected], axis=1)

    def warnings(self) -> list[str]:
        """Warnings of the labels, and of edges that read their future."""
        warnings = super().warnings()
        if self.config.sampling.temporal is None and self.target.is_split_by_time:
            warnings.append(
                "the splits of the edges follow one another in time, and sampling.temporal is not "
                "set: training edges see later ones. Set sampling: {temporal: {strategy: last}, "
                "disjoint: true}."
            )
        return warnings

    def links(self) -> list[LinkSplit]:
        return [] if self._is_held_out_by_time else [self.target.link]

    @cached_property
    def _is_held_out_by_time(self) -> bool:
        columns = self.spec.edge_inputs
        return self.target.is_held_out_by_time(self.env.bundle, self.config, columns)

    def build_loader(self, split: str) -> EdgeLoader | None:
        target, output = self.target, self.output
        seeds = target.splits[split]
        if not len(seeds):
            return None
        labels = target.batch_columns
        if split == "train" and self._start is not None:
            self._start.fill(self._label_factors.mean, self._label_factors.rows)
            labels["start"] = self._label_factors.held_out
        plan = EdgePlan(
            edges=target.edges,
            seeds=seeds,
            reverse_types=reverse_types(self.env.bundle),
            inputs=output.inputs,
            labels=labels,
            num_known=output.num_known(self.env.bundle),
        )
        return EdgeLoader(plan=plan, **self.loader_options(split))

    def predict(self, batch: EdgeBatch) -> tuple[Any, Tensor | None]:
        prediction, embeddings = self.model(batch)
        if not self.model.training:
            return self._evaluated_edges(batch.input_id, prediction), embeddings
        if "start" in batch.labels:
            prediction = prediction + batch.labels["start"].to(prediction.dtype).unsqueeze(1)
        return prediction, embeddings

    def _evaluated_edges(self, positions: Tensor, outputs: Tensor) -> Tensor:
        edges = self.target.edges
        return self.evaluated(positions, outputs, lambda: EdgeRows(edges, positions.cpu().numpy()))

    def predict_exactly(
        self, rows: np.ndarray, every: Mapping[str, Tensor], loader: Any
    ) -> tuple[Any, Tensor | None]:
        source, target = (
            every[name][torch.from_numpy(ids)].to(self.env.device)
            for name, ids in zip(self.output.ends, self.target.edges.ends(rows), strict=True)
        )
        inputs = loader.inputs(rows)
        attr = None if inputs is None else inputs.to(self.env.device)
        ids = loader.end_ids(rows).to(self.env.device)
        prediction, embeddings = self.model.of_ends(source, target, attr, ids)
        return self._evaluated_edges(torch.from_numpy(rows), prediction), embeddings

    def evaluates_by_layers(self, split: str) -> bool:
        """Not training edges, which carry messages: a batch excludes its own."""
        return super().evaluates_by_layers(split) and split != "train"
