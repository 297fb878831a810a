"""Node classification and regression on the nodes of one type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.config import Component, build
from raygnn.data.splits import Splits
from raygnn.data.standardization import ColumnScale
from raygnn.errors import ConfigError
from raygnn.loops.baselines import Baselines, label_baselines
from raygnn.loops.signature import ModelSignature, NodeOutput
from raygnn.loops.task import EvalOutput, StepOutput, Task, TaskEnvironment
from raygnn.loops.tasks.build_encoder import (
    build_encoder,
    edge_columns_of,
    encoder_signature,
    feature_widths,
    find_standardization,
)
from raygnn.loops.tasks.build_sampler import build_sampler
from raygnn.loops.tasks.exact_encoding import check_exact, encode_exactly
from raygnn.loops.tasks.node_classification.target import NodeTarget, NodeTargetArguments
from raygnn.loops.tasks.objective import Objective
from raygnn.losses.seed_losses import in_units, standardized
from raygnn.metrics import as_metric
from raygnn.models.graph_encoder import NodePredictor
from raygnn.parallel.shared_rows import computed_by_all
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.loader import NeighborLoader
from raygnn.sampling.stores import LocalFeatureStore, LocalGraphStore

_LOSS_OF = {
    "multi_class": "cross_entropy",
    "multi_label": "binary_cross_entropy",
    "regression": "mse",
}
#: What a term of the loss may take: the model's output (that of `on`) and all of them, the labels,
#: [num_seeds, channels] of the encoder, the module, and the batch.
_INPUTS = frozenset({"prediction", "outputs", "target", "embeddings", "model", "batch"})
_METRICS_OF = {
    "multi_class": ("accuracy", "f1_macro"),
    "multi_label": ("f1_micro", "f1_macro"),
    "regression": ("mae", "r2"),
}
_METRICS_OF_ORDER = ("auroc", "average_precision")
_ALL_METRICS_OF = {
    problem: names if problem == "regression" else (*names, *_METRICS_OF_ORDER)
    for problem, names in _METRICS_OF.items()
}
_IMBALANCE = 10  # times as many nodes of one class as of another, or as have a label
_MAX_GATHERED = 1 << 26  # predictions, which metrics of order bring together on every rank
_RARE, _MAX_NAMED = 0.01, 5


class NodeClassification(Task[NodeBatch]):
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
            default, and MSELoss, L1Loss, SmoothL1Loss and HuberLoss of torch.nn).
    """

    default_metrics = _ALL_METRICS_OF

    def __init__(
        self,
        target: str | None = None,
        label: str | None = None,
        feature: str = "x",
        problem: str | None = None,
        edge_feature: str | None = None,
        edge_weight: str | None = None,
        standardize_target: bool | None = None,
    ) -> None:
        self._arguments = NodeTargetArguments.of(
            {
                "target": target,
                "label": label,
                "feature": feature,
                "problem": problem,
                "edge_feature": edge_feature,
                "edge_weight": edge_weight,
                "standardize_target": standardize_target,
            }
        )
        self._loaders: dict[str, NeighborLoader | None] = {}
        self._every: Tensor | None = None  # embeddings of all nodes, of an exact evaluation

    def setup(self, env: TaskEnvironment) -> None:
        """Finds target, labels and splits in the bundle.

        Raises:
            ConfigError: an argument names something that the graph does not have.
            DataError: the target has no labels or no features, or a split is empty.
        """
        super().setup(env)
        self.target = NodeTarget.find(env.bundle, env.loaded.config, self._arguments)
        exact = env.loaded.config.training.eval == "exact"
        inputs = _INPUTS - {"batch"} if exact else _INPUTS  # exact evaluation has no batches
        default = _LOSS_OF[self.target.problem]
        self.objective = Objective(env.loaded, default, inputs, env.device)
        self.step_metrics = (*self.step_metrics, *self.objective.step_metrics)
        self._scale = self._find_scale()
        if self._scale is not None:
            self.loss_unit = _unit(self.target.label, self._scale)
        self._graph = LocalGraphStore(env.bundle, env.loaded.config.sampling.direction)
        self._sampler = build_sampler(env.loaded, self._graph)
        self.edge_columns = edge_columns_of(env, self._arguments)
        self._standardization = find_standardization(
            env.loaded.config, env.bundle, self.target.feature, self.edge_columns
        )
        self._features = LocalFeatureStore(env.bundle, self._standardization)

    def setup_inference(self, env: TaskEnvironment, signature: ModelSignature) -> None:
        """Takes what is predicted from the signature."""
        super().setup_inference(env, signature)
        self.edge_columns = edge_columns_of(env, self._arguments)
        output = signature.output
        assert isinstance(output, NodeOutput)
        nobody = np.zeros(0, np.int64)
        self.target = NodeTarget(
            output.node_type,
            output.label,
            signature.feature,
            output.problem,
            output.num_outputs,
            in_channels=signature.node_types[output.node_type].width or 0,
            labels=nobody,
            splits=Splits(nobody, nobody, nobody),
        )

    def signature(self, model: nn.Module) -> ModelSignature:
        """What is predicted, and from what."""
        target, bundle = self.target, self.env.bundle
        assert isinstance(model, NodePredictor)
        names = bundle.columns(target.node_type)[target.label].class_names
        output = NodeOutput(
            target.node_type,
            target.label,
            target.problem,
            target.num_outputs,
            names,
            self._scale,
        )
        return encoder_signature(
            model.encoder,
            bundle,
            target.feature,
            self.edge_columns,
            output,
            self._standardization,
        )

    def build_model(self) -> nn.Module:
        """The encoder; with `model.args.out_channels` set, a linear head follows it."""
        loaded, target = self.env.loaded, self.target
        config = loaded.config
        width = config.model.args.get("out_channels")
        num_outputs = target.num_outputs
        chosen = num_outputs if width is None else None
        encoder = build_encoder(loaded, self.env.bundle, target.feature, chosen, self.edge_columns)
        if config.training.eval == "exact":
            check_exact(encoder, config.model.type)
        head = None if width is None else (width, num_outputs)
        return NodePredictor(encoder, target.node_type, head)

    def build_metrics(self) -> Sequence[Any]:
        loaded = self.env.loaded
        chosen = loaded.config.metrics or [Component(type=name) for name in self._default_metrics()]
        injected: Any = {"num_outputs": self.target.num_outputs, "problem": self.target.problem}
        return [
            as_metric(build(metric, "metric", loaded.allow_modules, **injected), **injected)
            for metric in chosen
        ]

    def baselines(
        self, split: str, num_batches: int | None, metrics: Sequence[Any]
    ) -> Baselines | None:
        """Guesses from the labels of training alone; see `label_baselines`."""
        loader, target = self.loader(split), self.target
        if loader is None or not len(target.splits.train):
            return None
        last = None if num_batches is None else num_batches * loader.batch_size
        train = target.labels[target.splits.train]
        labels = target.labels[getattr(target.splits, split)[:last]]
        return label_baselines(target.problem, target.num_outputs, train, labels, metrics)

    def warnings(self) -> list[str]:
        """Names the classes that are rare in training."""
        target = self.target
        if target.problem != "multi_class":
            return []
        counts = self._label_counts()
        rare = np.flatnonzero((counts > 0) & (counts < _RARE * counts.sum()))
        if not len(rare):
            return []
        names = self.env.bundle.columns(target.node_type)[target.label].class_names
        shown = [
            f"{c if names is None else names[c]!r} ({counts[c] / counts.sum():.2%}, {counts[c]:,})"
            for c in rare[:_MAX_NAMED]
        ]
        more = f" and {len(rare) - _MAX_NAMED} more" if len(rare) > _MAX_NAMED else ""
        return [
            f"classes of under 1 % of the {counts.sum():,} training labels: {', '.join(shown)}"
            f"{more}. Accuracy hardly counts them; see f1_macro and average_precision."
        ]

    def _label_counts(self) -> np.ndarray:
        """Training nodes of each class, or of each label."""
        target = self.target
        labels = target.labels[target.splits.train]
        if target.problem == "multi_class":
            return np.bincount(labels.reshape(-1).astype(np.int64), minlength=target.num_outputs)
        return labels.reshape(len(labels), target.num_outputs).astype(bool).sum(axis=0)

    def _default_metrics(self) -> tuple[str, ...]:
        """Of two classes, or of classes or labels far from balance, metrics of order too."""
        target, names = self.target, _METRICS_OF[self.target.problem]
        splits, config = target.splits, self.env.loaded.config
        if target.problem == "regression":
            return names
        stopping = config.early_stopping
        watched = {config.checkpoint.monitor, None if stopping is None else stopping.monitor}
        if watched & {f"val/{name}" for name in _METRICS_OF_ORDER}:
            return (*names, *_METRICS_OF_ORDER)
        if target.num_outputs * max(len(splits.val), len(splits.test)) > _MAX_GATHERED:
            return names
        counts = self._label_counts()
        if target.problem == "multi_class":
            present = counts[counts > 0]
            is_even = target.num_outputs > 2 and present.max() <= _IMBALANCE * present.min()
        else:
            is_even = target.num_outputs > 1 and (_IMBALANCE * counts >= len(splits.train)).all()
        return names if is_even else (*names, *_METRICS_OF_ORDER)

    def loader(self, split: str) -> NeighborLoader | None:
        if split not in self._loaders:
            self._loaders[split] = self._build_loader(split)
        return self._loaders[split]

    def training_step(self, batch: NodeBatch) -> StepOutput:
        prediction, embeddings = self._predict(batch)
        return self._loss(prediction, embeddings, batch.y, batch)

    def prepare_evaluation(self, split: str) -> None:
        """Embeds the whole graph, layer by layer, where evaluation is exact."""
        if self.env.loaded.config.training.eval == "exact":
            self._every = self._embed_graph()

    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        if self.env.loaded.config.training.eval == "exact":
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
        inputs = {target.feature: "x"} if feature_widths(env.bundle, target.feature) else {}
        return NeighborLoader(
            self._graph,
            self._features,
            seeds,
            target.node_type,
            sampler=self._sampler,
            columns={**inputs, target.label: "y"},
            edge_columns=self.edge_columns,
            batch_size=settings.batch_size,
            split=split,
            seed=config.seed,
            shuffle=split == "train",
            rank=env.rank,
            world_size=env.world_size,
            num_threads=settings.num_threads,
            prefetch_batches=settings.prefetch_batches,
            device=env.device,
        )

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

    def _embed_graph(self) -> Tensor:
        """Exact embeddings of all nodes, [num_nodes, channels]."""
        predictor = self.model
        assert isinstance(predictor, NodePredictor)
        target = self.target
        return encode_exactly(
            predictor.encoder,
            self._graph,
            self._features,
            target.feature,
            [target.node_type],
            edge_columns=self.edge_columns,
            device=self.env.device,
            compute=computed_by_all(
                self.env.scratch, self.env.loaded.config.training.precision == "fp32"
            ),
        )[target.node_type]

    def _predict(self, batch: NodeBatch) -> tuple[Any, Tensor | None]:
        """Predictions, and the embeddings behind them where a term of the loss takes them."""
        if "embeddings" not in self.objective.needs:
            return self._checked(self.model(batch)), None
        prediction, embeddings = self.model(batch, with_embeddings=True)
        return self._checked(prediction), embeddings

    def _checked(self, prediction: Any) -> Any:
        target = self.target
        is_one = isinstance(prediction, Tensor) and prediction.dim() == 2
        if is_one and target.problem == "multi_class" and prediction.shape[1] != target.num_outputs:
            raise ConfigError(
                f"model.type={self.env.loaded.config.model.type!r} is invalid: it gives "
                f"{prediction.shape[1]} outputs for {target.num_outputs} classes. Let it give as "
                "many as the out_channels that it is built with.",
                id="model-output-width",
            )
        return prediction

    def _find_scale(self) -> ColumnScale | None:
        """How the targets of a regression are standardised; None where they are not.

        Raises:
            ConfigError: it was asked for, and the targets are classes.
        """
        asked, target = self._arguments.standardize_target, self.target
        if target.problem != "regression":
            if asked:
                raise ConfigError(
                    f"task.args.standardize_target=True is invalid: {target.label!r} is not a "
                    "number to be regressed, but a class. Leave it out.",
                    id="task-standardize-class",
                )
            return None
        wanted = self.objective.measures_distance if asked is None else asked
        return ColumnScale.of_rows(target.labels[target.splits.train]) if wanted else None

    def _loss(
        self, prediction: Any, embeddings: Tensor | None, target: Tensor, batch: NodeBatch | None
    ) -> StepOutput:
        if self._scale is not None:
            target = standardized(target, self._scale)
        return self.objective(
            len(target),
            prediction=prediction,
            outputs=prediction,
            target=target,
            embeddings=embeddings,
            model=self.model,
            batch=batch,
        )

    def _evaluated(
        self, index: int, ids: Tensor, prediction: Any, target: Tensor, output: StepOutput
    ) -> EvalOutput:
        shown = prediction if isinstance(prediction, Tensor) else next(iter(prediction.values()))
        if self._scale is not None:
            shown = in_units(shown, self._scale)
        loss_sum, weight = float(output.loss_sum), output.weight
        return EvalOutput(index, ids, loss_sum, weight, shown, target, output.metrics)


def _unit(label: str, scale: ColumnScale) -> str:
    """What a loss of standardised targets is of."""
    if len(scale.mean) > 1:
        return f"{label} in standard deviations from its means over the training nodes"
    (mean,), (std,) = scale.mean, scale.std
    return (
        f"{label} in standard deviations ({std:,.6g}) from its mean ({mean:,.6g}) over the "
        f"training nodes; metrics and predictions are of {label} itself"
    )
