"""Node classification and regression on the nodes of one type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from raygnn.config import Component, build
from raygnn.data.node_target import NodeTarget, NodeTargetArguments
from raygnn.errors import ConfigError
from raygnn.loops.build_encoder import build_encoder
from raygnn.loops.build_sampler import build_sampler
from raygnn.loops.objective import Objective
from raygnn.loops.task import EvalOutput, StepOutput, Task, TaskEnvironment
from raygnn.metrics import as_metric
from raygnn.models.encoder import Encoder
from raygnn.models.exact import exact_inference
from raygnn.models.predictor import NodePredictor
from raygnn.sampling.loader import NeighborLoader
from raygnn.sampling.stores import LocalFeatureStore, LocalGraphStore

_LOSS_OF = {
    "multi_class": "cross_entropy",
    "multi_label": "binary_cross_entropy",
    "regression": "mse",
}
_METRICS_OF = {
    "multi_class": ("accuracy", "f1_macro"),
    "multi_label": ("f1_micro", "f1_macro"),
    "regression": ("mae", "r2"),
}


class NodeClassification(Task):
    """Learns a label of each node from its sampled neighborhood.

    Args:
        target: node type to predict; null takes the only type that has labels.
        label: label column; null takes the only one of the target type.
        feature: feature column of the input.
        problem: multi_class (cross-entropy), multi_label (binary cross-entropy) or regression
            (squared error); null goes by the labels: integers, several columns, or floats.
    """

    def __init__(
        self,
        target: str | None = None,
        label: str | None = None,
        feature: str = "x",
        problem: str | None = None,
    ) -> None:
        self._arguments = NodeTargetArguments(target, label, feature, problem)
        self._loaders: dict[str, NeighborLoader | None] = {}

    def setup(self, env: TaskEnvironment) -> None:
        """Finds target, labels and splits in the bundle.

        Raises:
            ConfigError: an argument names something that the graph does not have.
            DataError: the target has no labels or no features, or a split is empty.
        """
        super().setup(env)
        self.target = NodeTarget.find(env.bundle, env.loaded.config, self._arguments)
        self._objective = Objective(env.loaded, _LOSS_OF[self.target.problem], env.device)
        self._graph = LocalGraphStore(env.bundle, env.loaded.config.sampling.direction)
        self._features = LocalFeatureStore(env.bundle)
        self._sampler = build_sampler(env.loaded, self._graph)

    def build_model(self) -> nn.Module:
        """The encoder; with `model.args.out_channels` set, a linear head follows it."""
        loaded, target = self.env.loaded, self.target
        config = loaded.config
        width = config.model.args.get("out_channels")
        num_outputs = target.num_outputs
        chosen = num_outputs if width is None else None
        encoder = build_encoder(loaded, self.env.bundle, target.feature, chosen)
        head = None if width is None else (width, num_outputs)
        return NodePredictor(encoder, target.node_type, head)

    def build_metrics(self) -> Sequence[Any]:
        loaded = self.env.loaded
        chosen = loaded.config.metrics or [
            Component(type=name) for name in _METRICS_OF[self.target.problem]
        ]
        injected: Any = {"num_outputs": self.target.num_outputs, "problem": self.target.problem}
        return [
            as_metric(build(metric, "metric", loaded.allow_modules, **injected), **injected)
            for metric in chosen
        ]

    def loader(self, split: str) -> NeighborLoader | None:
        if split not in self._loaders:
            self._loaders[split] = self._build_loader(split)
        return self._loaders[split]

    def training_step(self, batch: Any) -> StepOutput:
        loss_sum, weight = self._objective(self.model(batch), self._seeds_of(batch).y)
        return StepOutput(loss_sum, weight)

    def num_samples(self, batch: Any) -> int:
        return int(self._seeds_of(batch).num_seeds)

    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        if self.env.loaded.config.training.eval == "exact":
            yield from self._evaluate_exactly(split, num_batches)
            return
        loader = self.loader(split)
        assert loader is not None
        with closing(loader.iterate(0, stop=num_batches)) as batches:
            for batch in batches:
                moved = batch.to(self.env.device)
                seeds = self._seeds_of(moved)
                yield self._judge(batch.index, seeds.input_id, self.model(moved), seeds.y)

    def close(self) -> None:
        for loader in self._loaders.values():
            if loader is not None:
                loader.close()

    def _build_loader(self, split: str) -> NeighborLoader | None:
        seeds = getattr(self.target.splits, split)
        if len(seeds) == 0:
            return None
        config, env, target = self.env.loaded.config, self.env, self.target
        settings = config.loader_plan(split)
        return NeighborLoader(
            self._graph,
            self._features,
            seeds,
            target.node_type,
            sampler=self._sampler,
            columns={target.feature: "x", target.label: "y"},
            batch_size=settings.batch_size,
            split=split,
            seed=config.seed,
            shuffle=split == "train",
            rank=env.rank,
            world_size=env.world_size,
            num_threads=settings.num_threads,
            prefetch_batches=settings.prefetch_batches,
            pin_memory=env.device.type == "cuda",
        )

    def _evaluate_exactly(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        """Encodes the whole graph layer by layer, then judges this rank's share of the batches."""
        predictions = self._predict_graph()
        loader, env = self.loader(split), self.env
        assert loader is not None
        seeds, size = getattr(self.target.splits, split), loader.batch_size
        for index in range(env.rank, num_batches, env.world_size):
            ids = torch.from_numpy(seeds[index * size : (index + 1) * size])
            labels = torch.from_numpy(self.target.labels[ids.numpy()]).to(env.device)
            yield self._judge(index, ids, predictions[ids.to(predictions.device)], labels)

    def _predict_graph(self) -> Tensor:
        """Exact predictions of all nodes, [num_nodes, num_outputs], on this worker's device."""
        predictor = self.model.module if hasattr(self.model, "module") else self.model
        assert isinstance(predictor, NodePredictor)
        encoder = predictor.encoder.module
        if not isinstance(encoder, Encoder):
            name = self.env.loaded.config.model.type
            raise ConfigError(
                f"training.eval='exact' is invalid: model.type={name!r} does not go layer by layer "
                "over one edge type. Set it to sampled."
            )
        target, adjacency = self.target, self._graph.adjacency(self.env.bundle.edge_types[0])
        embeddings = exact_inference(
            encoder,
            lambda ids: self._features.gather(target.node_type, target.feature, ids),
            (adjacency.indptr, adjacency.indices),
            device=self.env.device,
        )
        predictions: Tensor = predictor.readout(embeddings.to(self.env.device))
        return predictions

    def _seeds_of(self, batch: Any) -> Any:
        """Where a batch keeps what belongs to its seeds."""
        return batch[self.target.node_type] if isinstance(batch, HeteroData) else batch

    def _judge(self, index: int, ids: Tensor, prediction: Any, target: Tensor) -> EvalOutput:
        loss_sum, weight = self._objective(prediction, target)
        shown = prediction if isinstance(prediction, Tensor) else next(iter(prediction.values()))
        return EvalOutput(index, ids, float(loss_sum), weight, shown, target)
