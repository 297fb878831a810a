"""Node classification and regression on the nodes of one type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.data.standardization import ColumnScale
from raygnn.errors import ConfigError
from raygnn.loops.baselines import Baselines, label_baselines
from raygnn.loops.task import EvalOutput, StepOutput, TaskEnvironment
from raygnn.loops.tasks.build_encoder import build_encoder
from raygnn.loops.tasks.encoder_task import EncoderTask
from raygnn.loops.tasks.exact_encoding import check_exact
from raygnn.loops.tasks.node_classification.columns import prediction_columns, probability_columns
from raygnn.loops.tasks.node_classification.objective import NodeObjective
from raygnn.loops.tasks.node_classification.output import NodeOutput
from raygnn.loops.tasks.node_classification.target import METRICS_OF_ORDER, NodeTarget
from raygnn.losses.seed_losses import in_units, standardized
from raygnn.metrics import ClassFigures
from raygnn.models.graph_encoder import NodePredictor
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.loader import NeighborLoader
from raygnn.sampling.whole_graph import WholeGraphLoader

_IMBALANCE = 10  # times as many nodes of one class as of another, or as have a label
_MAX_GATHERED = 1 << 26  # predictions, which metrics of order bring together on every rank
_RARE, _MAX_NAMED = 0.01, 5


class NodeClassification(EncoderTask[NodeBatch]):
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

    target_class = NodeTarget

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self._every: Tensor | None = None  # embeddings of all nodes, of an exact evaluation

    def setup(self, env: TaskEnvironment) -> None:
        """Builds the losses."""
        super().setup(env)
        self.objective = NodeObjective(env.loaded, self.output, env.device)
        self.step_metrics = (*self.step_metrics, *self.objective.step_metrics)
        if self.output.scale is not None:
            self.loss_unit = _unit(self.output.label, self.output.scale)

    @property
    def output(self) -> NodeOutput:
        """What is predicted."""
        assert isinstance(self.spec.output, NodeOutput)
        return self.spec.output

    @property
    def _counts(self) -> np.ndarray:
        """Training nodes of each class, or with each label."""
        counts = self.output.label_counts or self.target.label_counts()  # of an older model
        return np.array(counts.counts)

    def build_model(self) -> nn.Module:
        """The encoder; with `model.args.out_channels` set, a linear head follows it."""
        config, output = self.env.loaded.config, self.output
        width = config.model.args.get("out_channels")
        chosen = output.num_outputs if width is None else None
        encoder = build_encoder(self.env.loaded, self.env.bundle, self.spec, chosen)
        if config.training.eval == "exact":
            check_exact(encoder, config.model.type)
        head = None if width is None else (width, output.num_outputs)
        return NodePredictor(encoder, output.node_type, head)

    def output_columns(self, what: str, outputs: Tensor) -> Mapping[str, Any]:
        """Predictions, or probabilities of classes or labels."""
        make = prediction_columns if what == "predictions" else probability_columns
        return make(outputs, self.output)

    def metric_problem(self) -> tuple[int, str]:
        """See `EncoderTask`."""
        return self.output.num_outputs, self.output.problem

    def class_figures(self) -> ClassFigures | None:
        """Of classes and labels."""
        output = self.output
        if output.problem == "regression":
            return None
        problem: Any = output.problem
        return ClassFigures(output.num_outputs, problem, output.shown_classes)

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
        output = self.output
        return label_baselines(output.problem, output.num_outputs, train, labels, metrics)

    def warnings(self) -> list[str]:
        """Names the classes that are rare in training."""
        if self.output.problem != "multi_class":
            return []
        counts = self._counts
        share = max(_RARE, 1 / (_IMBALANCE * len(counts)))
        rare = np.flatnonzero((counts > 0) & (counts < share * counts.sum()))
        if not len(rare):
            return []
        names = self.output.shown_classes
        shown = [
            f"{names[c]!r} ({counts[c] / counts.sum():.2%}, {counts[c]:,})"
            for c in rare[:_MAX_NAMED]
        ]
        more = f" and {len(rare) - _MAX_NAMED} more" if len(rare) > _MAX_NAMED else ""
        return [
            f"classes of under {100 * share:.2g} % of the {counts.sum():,} training labels: "
            f"{', '.join(shown)}{more}. Accuracy hardly counts them; see f1_macro, "
            f"average_precision, and per_class in metrics.json.{self._remedy()}"
        ]

    def _remedy(self) -> str:
        """What to set for rare classes, where nothing is set."""
        config = self.env.loaded.config
        weighs = any({"class_weights", "alpha"} & set(term.args) for term in config.losses)
        if weighs or config.loader.balances_seeds:
            return ""
        return (
            " To weigh them more, set losses to [{type: cross_entropy, args: {class_weights: "
            "balanced}}], or loader.train.balanced_seeds to true."
        )

    def metric_names(self) -> Sequence[str]:
        """Of two classes, or of classes or labels far from balance, metrics of order too."""
        every, output = super().metric_names(), self.output
        names = [name for name in every if name not in METRICS_OF_ORDER]
        splits, config = self.target.splits, self.env.loaded.config
        if output.problem == "regression":
            return names
        stopping = config.early_stopping
        watched = {config.checkpoint.monitor, None if stopping is None else stopping.monitor}
        if watched & {f"val/{name}" for name in METRICS_OF_ORDER}:
            return every
        if not len(splits.train):  # as where all labelled nodes of a graph are test nodes
            return every
        if output.num_outputs * max(len(splits.val), len(splits.test)) > _MAX_GATHERED:
            return names
        counts = self._counts
        if output.problem == "multi_class":
            present = counts[counts > 0]
            is_even = output.num_outputs > 2 and present.max() <= _IMBALANCE * present.min()
        else:
            is_even = output.num_outputs > 1 and (_IMBALANCE * counts >= len(splits.train)).all()
        return names if is_even else every

    def training_step(self, batch: NodeBatch) -> StepOutput:
        prediction, embeddings = self._predict(batch)
        return self._loss(prediction, embeddings, batch.y, batch)

    def prepare_evaluation(self, split: str) -> None:
        """Embeds the whole graph, layer by layer, where evaluation is exact."""
        if self.env.loaded.config.training.eval == "exact":
            predictor, node_type = self.model, self.output.node_type
            assert isinstance(predictor, NodePredictor)
            self._every = self.encode_exactly(predictor.encoder, self.graph, [node_type])[node_type]

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

    def build_loader(self, split: str) -> NeighborLoader | WholeGraphLoader | None:
        """See `EncoderTask`."""
        output, seeds = self.output, getattr(self.target.splits, split)
        return self.neighbor_loader(split, seeds, output.node_type, {output.label: "y"})

    def seed_classes(self) -> np.ndarray:
        """See `EncoderTask`."""
        if self.output.problem != "multi_class":
            return super().seed_classes()
        return self.target.labels[self.target.splits.train].reshape(-1)

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

    def _checked(self, prediction: Any) -> Any:
        output, is_one = self.output, isinstance(prediction, Tensor) and prediction.dim() == 2
        if is_one and output.problem == "multi_class" and prediction.shape[1] != output.num_outputs:
            raise ConfigError(
                f"model.type={self.env.loaded.config.model.type!r} is invalid: it gives "
                f"{prediction.shape[1]} outputs for {output.num_outputs} classes. Let it give as "
                "many as the out_channels that it is built with.",
                id="model-output-width",
            )
        return prediction

    def _loss(
        self, prediction: Any, embeddings: Tensor | None, target: Tensor, batch: NodeBatch | None
    ) -> StepOutput:
        if self.output.scale is not None:
            target = standardized(target, self.output.scale)
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
        if self.output.scale is not None:
            shown = in_units(shown, self.output.scale)
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
