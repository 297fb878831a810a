"""Node classification and regression on the nodes of one type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from raygnn.loops.task import EvalOutput, StepOutput
from raygnn.loops.tasks.labels.task import LabelTask
from raygnn.loops.tasks.node_classification.target import NodeOutput, NodeTarget
from raygnn.models.graph_encoder import GraphEncoder, NodePredictor
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.loader import NeighborLoader
from raygnn.sampling.whole_graph import WholeGraphLoader


class NodeClassification(LabelTask[NodeBatch]):
    """Learns a label of each node from its sampled neighborhood.

    Args:
        target: node type to predict; null takes the only type that has labels.
        label: label column; null takes the only one of the target type.
        feature: feature column of the input.
        problem: multi_class (cross-entropy), multi_label (binary cross-entropy) or regression
            (squared error); null goes by the labels: integers, several columns, or floats.
        edge_feature: edge column that the model reads as `edge_attr`; null takes `edge_attr` where
            a model of raygnn reads edge features.
        edge_weight: edge column of a factor on each message, for GCN, LightGCN and modules of one's
            own; null takes none.
        standardize_target: whether the model learns a regression target as standard deviations from
            the mean of the training nodes, in which the loss is then; predictions and metrics are
            in the target's own unit. null does so with losses that measure a distance (mse, the
            default, mae, huber, and MSELoss, L1Loss, SmoothL1Loss and HuberLoss of torch.nn).
    """

    target_class = NodeTarget

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self._every: Tensor | None = None  # embeddings of all nodes, of an exact evaluation

    @property
    def output(self) -> NodeOutput:
        """What is predicted."""
        assert isinstance(self.spec.output, NodeOutput)
        return self.spec.output

    @property
    def encoder_width(self) -> int:
        """The number of outputs: there is no head then."""
        return self.output.num_outputs

    def build_head(self, encoder: GraphEncoder) -> nn.Module:
        """With `model.args.out_channels` set, a linear head follows the encoder."""
        output = self.output
        width = self.env.loaded.config.model.args.get("out_channels")
        head = None if width is None else (width, output.num_outputs)
        return NodePredictor(encoder, output.node_type, head)

    def warnings(self) -> list[str]:
        """With training nodes that take no messages."""
        seeds = self.target.splits.train
        silent = self.silent_nodes(self.output.node_type, seeds, "the training nodes")
        return [*super().warnings(), *silent]

    def training_step(self, batch: NodeBatch) -> StepOutput:
        prediction, embeddings = self._predict(batch)
        return self._loss(prediction, embeddings, batch.y, batch)

    def prepare_evaluation(self, split: str) -> None:
        """Embeds the whole graph, layer by layer, where evaluation is exact."""
        if self.env.loaded.config.evaluates_by_layers:
            predictor, node_type = self.model, self.output.node_type
            assert isinstance(predictor, NodePredictor)
            graph = self.message_store(split)
            self._every = self.encode_exactly(predictor.encoder, graph, [node_type])[node_type]

    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        if self.env.loaded.config.evaluates_by_layers:
            yield from self._evaluate_exactly(split, num_batches)
            return
        loader = self.loader(split)
        assert loader is not None
        with closing(loader.iterate(0, stop=num_batches)) as batches:
            for batch in batches:
                moved = batch.to(self.env.device)
                prediction, embeddings = self._predict(moved)
                output = self._loss(prediction, embeddings, moved.y, moved)
                yield self._evaluated(moved.index, moved.input_id, prediction, moved.y, output)

    def build_loader(self, split: str) -> NeighborLoader | WholeGraphLoader | None:
        output, seeds = self.output, getattr(self.target.splits, split)
        return self.neighbor_loader(split, seeds, output.node_type, {output.label: "y"})

    def _evaluate_exactly(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        """Judges this rank's share of the batches by what `prepare_evaluation` computed."""
        every, predictor = self._every, self.model
        self._every = None
        assert every is not None
        assert isinstance(predictor, NodePredictor)
        loader, env = self.loader(split), self.env
        assert loader is not None
        seeds, size = getattr(self.target.splits, split), loader.batch_size
        for index in range(env.rank, num_batches, env.world_size):
            ids = torch.from_numpy(seeds[index * size : (index + 1) * size])
            labels = torch.from_numpy(self.target.labels[ids.numpy()]).to(env.device)
            embeddings = every[ids.to(every.device)].to(env.device)
            prediction = predictor.readout(embeddings)
            output = self._loss(prediction, embeddings, labels, batch=None)
            yield self._evaluated(index, ids, prediction, labels, output)

    def _predict(self, batch: NodeBatch) -> tuple[Any, Tensor | None]:
        """Predictions, and the embeddings behind them where a term of the loss takes them."""
        if "embeddings" not in self.objective.needs:
            return self._checked(self.model(batch)), None
        prediction, embeddings = self.model(batch, with_embeddings=True)
        return self._checked(prediction), embeddings
