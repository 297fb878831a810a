from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.data.edge_types import edge_type_name
from raygnn.data.links.split import LinkSplit
from raygnn.loops.row_guesses import BoostedTrees, columns_of_edges
from raygnn.loops.tasks.edge_prediction.label_factors import NUM_FACTORS, LabelFactors
from raygnn.loops.tasks.edge_prediction.target import EdgeOutput, EdgeTarget
from raygnn.loops.tasks.labels.task import LabelTask
from raygnn.loops.tasks.link_rules import reverse_types
from raygnn.models.graph_encoder import EdgeHead, EdgePredictor, FactorizedEdges, GraphEncoder
from raygnn.sampling.batch import EdgeBatch
from raygnn.sampling.edge_loader import EdgeLoader, EdgePlan


class EdgePrediction(LabelTask[EdgeBatch]):
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
    _start: FactorizedEdges | None = None  # the model's start, if it has one

    @property
    def output(self) -> EdgeOutput:
        assert isinstance(self.spec.output, EdgeOutput)
        return self.spec.output

    def build_head(self, encoder: GraphEncoder) -> nn.Module:
        output, width = self.output, self.env.loaded.config.embedding_width
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

    def guesses(self, split: str, asked: np.ndarray) -> Mapping[str, np.ndarray]:
        """For numbers, the mean and damped biases of both ends; LightGBM if it is installed."""
        output, guesses = self.output, dict[str, np.ndarray]()
        if output.problem == "regression" and output.num_outputs == 1:
            values, scale = self._label_factors.by_biases(asked), output.scale
            values = values if scale is None else values * scale.std[0] + scale.mean[0]
            guesses["biases"] = values.reshape(-1, 1)
        if self._boosted_trees is not None:
            guesses["lightgbm"] = self._boosted_trees.guess(self._columns_of(asked))
        return guesses

    def _columns_of(self, positions: np.ndarray) -> np.ndarray:
        target, inputs = self.target, self.output.inputs
        feature = target.arguments.feature
        return columns_of_edges(self.env.bundle, target.edges, positions, feature, inputs)

    @cached_property
    def _boosted_trees(self) -> BoostedTrees | None:
        return self.boosted_trees(self._columns_of)

    def warnings(self) -> list[str]:
        """Warnings of the labels, and of edges that read their future."""
        warnings = super().warnings()
        if self.env.loaded.config.sampling.temporal is None and self.target.is_split_by_time:
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
        env, columns = self.env, self.spec.edge_inputs
        is_late: bool = self.target.is_held_out_by_time(env.bundle, env.loaded.config, columns)
        return is_late

    def build_loader(self, split: str) -> EdgeLoader | None:
        target, output = self.target, self.output
        seeds = getattr(target.splits, split)
        if not len(seeds):
            return None
        graph = self.message_store(split)
        labels = {"y": target.labels}
        if split == "train" and self._start is not None:
            self._start.fill(self._label_factors.mean, self._label_factors.rows)
            labels["start"] = self._label_factors.held_out
        return EdgeLoader(
            graph,
            self.features,
            EdgePlan(
                edges=target.edges,
                seeds=seeds,
                reverse_types=reverse_types(self.env.bundle),
                inputs=output.inputs,
                labels=labels,
                num_known=output.num_known(self.env.bundle),
            ),
            sampler=self.sampler(split, graph),
            columns=self.spec.node_columns,
            **self.loader_options(split),
        )

    def predict(self, batch: EdgeBatch) -> tuple[Any, Tensor | None]:
        prediction, embeddings = self.model(batch)
        if self.model.training and "start" in batch.labels:
            prediction = prediction + batch.labels["start"].to(prediction.dtype).unsqueeze(1)
        return prediction, embeddings

    def predict_exactly(
        self, rows: np.ndarray, every: Mapping[str, Tensor], loader: Any
    ) -> tuple[Any, Tensor | None]:
        assert isinstance(self.model, EdgePredictor)
        source, target = (
            every[name][torch.from_numpy(ids)].to(self.env.device)
            for name, ids in zip(self.output.ends, self.target.edges.ends(rows), strict=True)
        )
        inputs = loader.inputs(rows)
        attr = None if inputs is None else inputs.to(self.env.device)
        return self.model.of_ends(source, target, attr, loader.end_ids(rows).to(self.env.device))

    def evaluates_by_layers(self, split: str) -> bool:
        """Not training edges, which carry messages: a batch excludes its own."""
        return super().evaluates_by_layers(split) and split != "train"
