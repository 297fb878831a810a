"""Training and evaluation with labels of nodes or edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raygnn.data.arrays import thinned
from raygnn.data.hashing import hash_ids
from raygnn.data.standardization import ColumnScale
from raygnn.device_memory import copied
from raygnn.errors import ConfigError
from raygnn.loops.baselines import Baselines, label_baselines, own_metrics, precision_of
from raygnn.loops.split_rows import SplitRows
from raygnn.loops.task import EvalOutput, StepOutput, TaskEnvironment
from raygnn.loops.tasks.encoder_task import EncoderTask
from raygnn.loops.tasks.label_target import METRICS_OF_ORDER, LabelOutput, LabelTarget
from raygnn.loops.tasks.label_warnings import label_warnings
from raygnn.loops.tasks.objective import label_objective
from raygnn.losses.seed_losses import standardized
from raygnn.metrics import (
    MAX_CONFUSED,
    Calibration,
    ClassFigures,
    Confusion,
    Coverage,
    Described,
    ErrorsByValue,
    Metric,
    MetricsByOutput,
    TopRows,
)
from raygnn.metrics.seed_metrics import R2, NormalizedMeanAbsoluteError, SeedRankingMetric
from raygnn.sampling.batch import Batch
from raygnn.sampling.batch_sequence import BatchT


def prediction_columns(outputs: Tensor, of: LabelOutput) -> dict[str, np.ndarray | pa.Array]:
    """The predicted value, in the type of the label column, from [num_rows, num_outputs].

    `prediction`: the class (its name if the tables have names), a list of 0 and 1 by label, or the
    targets. Classes also have `probability`, and a number has the ends of its range, `low` and
    `high`.
    """
    if of.problem == "multi_class":
        logits = outputs.double()
        chosen = logits.argmax(dim=1, keepdim=True)
        classes = pa.array(chosen.flatten().numpy())
        if of.class_names is not None:
            nameless = [None] * (of.num_outputs - len(of.class_names))  # if there is one class
            classes = pa.array([*of.class_names, *nameless], pa.string()).take(classes)
        probability = logits.softmax(dim=1).gather(1, chosen).flatten()
        return {"prediction": classes, "probability": probability.numpy()}
    if of.problem == "multi_label":
        return {"prediction": (outputs > 0).numpy().astype(np.int8)}
    targets = of.in_units(outputs).float().numpy()
    if targets.shape[1] > 1:
        return {"prediction": targets}
    columns = {"prediction": targets[:, 0]}
    if of.ranges is not None:
        columns["low"], columns["high"] = of.ranges.of(targets[:, 0])
    return dict(columns)


def probability_columns(outputs: Tensor, of: LabelOutput) -> dict[str, np.ndarray | pa.Array]:
    """`probability` of each class or label, from logits [num_rows, num_outputs].

    As float32, different logits above 16 are all 1: rows would lose the order that metrics read.
    """
    logits = outputs.double()
    is_class = of.problem == "multi_class"
    probabilities = logits.softmax(dim=1) if is_class else logits.sigmoid()
    return {"probability": probabilities.numpy()}


_IMBALANCE = 10  # ratio of the largest class to the smallest, or of rows to positive rows
#: Predictions that metrics of order bring together on every rank.
MAX_GATHERED = 1 << 26
_NUM_VALUE_BINS = 10  # bins in the table of regression errors


class LabelTask(EncoderTask[BatchT]):
    """A task that learns a label: its losses, metrics, baselines and tables."""

    target_class: ClassVar[type[LabelTarget]]
    target: LabelTarget

    @property
    def can_pad(self) -> bool:
        return not self.output.weighs_rows  # the weight of a recorded pass is a constant

    def setup(self, env: TaskEnvironment) -> None:
        super().setup(env)
        self.objective = label_objective(env.loaded, self.output, env.device)
        self.step_metrics = (*self.step_metrics, *self.objective.step_metrics)
        if self.output.scale is not None:
            self.loss_unit = _unit(self.output.label, self.output.scale, self.target_class.rows)

    @property
    def output(self) -> LabelOutput:
        assert isinstance(self.spec.output, LabelOutput)
        return self.spec.output

    @property
    def _counts(self) -> np.ndarray:
        counts = self.output.label_counts or self.target.label_counts()  # probes have none
        return np.array(counts.counts)

    def output_columns(self, what: str, outputs: Tensor) -> Mapping[str, Any]:
        make = prediction_columns if what == "predictions" else probability_columns
        return make(outputs, self.output)

    def metric_problem(self) -> tuple[int, str]:
        return self.output.num_outputs, self.output.problem

    def build_metrics(self) -> Sequence[Any]:
        built = super().build_metrics()
        for metric in built:
            if isinstance(metric, SeedRankingMetric):
                metric.positive = self.output.positive_class
            elif isinstance(metric, NormalizedMeanAbsoluteError):
                metric.scale = self._target_scale.std[0]
            elif isinstance(metric, R2):
                metric.center = self._target_scale.mean
        return built

    @cached_property
    def _target_scale(self) -> ColumnScale:
        """Scale of the training labels; a graph to evaluate on may lack them."""
        train = self.target.splits.train
        own = self.target.train_scale if len(train) else ColumnScale((0.0,), (0.0,))
        return self.output.scale or own

    def diagnostics(self) -> Sequence[Described]:
        output = self.output
        problem: Any = output.problem
        width, names = output.num_outputs, output.shown_classes
        diagnostics: list[Described] = []
        splits = self.target.splits
        most = max(len(splits.val), len(splits.test))
        if problem != "multi_class" and 1 < width <= MAX_CONFUSED and width * most <= MAX_GATHERED:
            weights = self.target.weights
            outputs = [str(number) for number in range(1, width + 1)]
            diagnostics.append(
                MetricsByOutput(problem, self._metrics_by_output(), outputs, weights)
            )
        if problem == "regression":
            if width == 1 and (bounds := self._value_bounds()) is not None:
                diagnostics.append(ErrorsByValue(width, problem, bounds))
            if (ranges := output.ranges) is not None:
                edges = torch.tensor(ranges.bounds, dtype=torch.float64)
                diagnostics.append(Coverage(width, problem, edges, ranges.of))
            return diagnostics
        diagnostics.append(ClassFigures(width, problem, names))
        if problem == "multi_class":
            diagnostics.append(Calibration(width, problem))
            positive = output.positive_class
            if width == 2 and 2 * most <= MAX_GATHERED:
                diagnostics.append(TopRows(width, problem, positive, names[positive]))
            if width <= MAX_CONFUSED:
                diagnostics.append(Confusion(width, problem, names))
        return diagnostics

    def _metrics_by_output(self) -> list[list[Metric]]:
        found = []
        for output in range(self.output.num_outputs):
            metrics = [type(each)(1, each.problem) for each in own_metrics(self.build_metrics())]
            for metric in metrics:
                if isinstance(metric, NormalizedMeanAbsoluteError):
                    metric.scale = self._target_scale.std[output]
                elif isinstance(metric, R2):
                    metric.center = self._target_scale.mean[output : output + 1]
            found.append(metrics)
        return found

    def _value_bounds(self) -> Tensor | None:
        values = self.target.labels[self.target.counted_rows]
        if not len(values):
            return None
        tenths = np.quantile(values, np.arange(1, _NUM_VALUE_BINS) / _NUM_VALUE_BINS)
        return torch.from_numpy(np.unique(tenths))

    def baselines(
        self, split: str, num_batches: int | None, metrics: Sequence[Any]
    ) -> Baselines | None:
        loader, target = self.loader(split), self.target
        if loader is None or not len(target.splits.train):
            return None
        last = None if num_batches is None else num_batches * loader.batch_size
        asked = target.splits[split][:last]
        return self.judged_baselines(asked, metrics, self.guesses(split, asked))

    def judged_baselines(
        self, asked: np.ndarray, metrics: Sequence[Any], guesses: Mapping[str, np.ndarray]
    ) -> Baselines:
        """Baselines on rows, including `guesses`."""
        output, target = self.output, self.target
        train = target.counted_rows
        return label_baselines(
            output.problem,
            output.num_outputs,
            target.labels[train],
            target.labels[asked],
            metrics,
            output.positive_class,
            guesses,
            (target.weights_of(train), target.weights_of(asked)),
        )

    def precision(self, split: str) -> Baselines | None:
        output = self.output
        labels = self.target.labels[self.target.splits[split]]
        return precision_of(output.problem, output.num_outputs, labels, output.positive_class)

    def split_rows(self, split: str, num_batches: int | None) -> SplitRows | None:
        loader = self.loader(split)
        if loader is None:
            return None
        last = None if num_batches is None else num_batches * loader.batch_size
        positions = thinned(np.asarray(self.target.splits[split])[:last])
        labels, names = self.target.labels[positions], self.output.class_names
        if names is not None and labels.ndim == 1:  # codes may differ between graphs
            labels = (hash_ids(pa.array(names), 0) >> 12)[labels]
        return SplitRows.of(self.row_ids(positions), labels)

    def row_ids(self, positions: np.ndarray) -> Mapping[str, Any]:
        """Original ids and times of rows, by column."""
        raise NotImplementedError(f"{type(self).__name__}.row_ids")

    def guesses(self, split: str, asked: np.ndarray) -> Mapping[str, np.ndarray]:
        """Further baselines by name, float [num_rows, num_outputs]."""
        return {}

    def groups(self, rows: np.ndarray) -> np.ndarray:
        """Numbers of rows whose errors may be dependent, int64 [num_rows]."""
        return rows

    @property
    def is_squared(self) -> bool:
        """Whether numbers are judged by squared errors, as by the loss; else by absolute ones."""
        return [term.type for term in self.config.losses] == ["mse"] or (
            not self.config.losses and self.output.default_loss == "mse"
        )

    def warnings(self) -> list[str]:
        """Warns about single or rare classes, and targets that are mostly 0 or have huge values."""
        return label_warnings(self.config, self.target, self.output, self._counts)

    def metric_names(self) -> Sequence[str]:
        """Default metrics; ranking metrics for two classes and for imbalanced ones."""
        every, output = super().metric_names(), self.output
        names = [name for name in every if name not in METRICS_OF_ORDER]
        splits, config = self.target.splits, self.config
        if output.problem == "regression":
            return names
        stopping = config.early_stopping
        watched = {config.checkpoint.monitor, None if stopping is None else stopping.monitor}
        if watched & {f"val/{name}" for name in METRICS_OF_ORDER}:
            return every
        if not len(splits.train):  # if all labelled nodes are test nodes, for example
            return every
        if output.num_outputs * max(len(splits.val), len(splits.test)) > MAX_GATHERED:
            return names
        counts = self._counts
        if output.problem == "multi_class":
            present = counts[counts > 0]
            is_even = output.num_outputs > 2 and present.max() <= _IMBALANCE * present.min()
        else:
            is_even = output.num_outputs > 1 and (_IMBALANCE * counts >= len(splits.train)).all()
        return names if is_even else every

    def training_step(self, batch: Any) -> StepOutput:
        return self._loss(*self.predict(batch), batch.y, batch, batch.labels.get("weight"))

    def judge(self, batch: Any) -> EvalOutput:
        predicted, weight = self.predict(batch), batch.labels.get("weight")
        return self._evaluated(batch.index, batch.input_id, predicted, batch.y, weight, batch)

    def prepare_evaluation(self, split: str) -> None:
        """Embeds the whole graph layer by layer if evaluation is exact."""
        if self.evaluates_by_layers(split):
            model: Any = self.model
            graph = self.message_store(split)
            self._every = self.encode_exactly(model.encoder, graph, self.output.ends)

    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        if not self.evaluates_by_layers(split):
            yield from super().evaluate(split, num_batches)
            return
        every, self._every = self._every, {}
        env, loader, seeds = self.env, self.loader(split), self.target.splits[split]
        size, columns = loader.batch_size, self.target.batch_columns
        for index in range(env.rank, num_batches, env.world_size):
            rows = np.asarray(seeds[index * size : (index + 1) * size])
            predicted = self.predict_exactly(rows, every, loader)
            of_rows = {
                name: copied(torch.from_numpy(values[rows]), env.device)
                for name, values in columns.items()
            }
            ids, labels, weight = torch.from_numpy(rows), of_rows["y"], of_rows.get("weight")
            yield self._evaluated(index, ids, predicted, labels, weight)

    def evaluates_by_layers(self, split: str) -> bool:
        """Whether a split is evaluated with embeddings of the whole graph."""
        return self.config.evaluates_by_layers

    def predict(self, batch: Any) -> tuple[Any, Tensor | None]:
        raise NotImplementedError(f"{type(self).__name__}.predict")

    def predict_exactly(
        self, rows: np.ndarray, every: Mapping[str, Tensor], loader: Any
    ) -> tuple[Any, Tensor | None]:
        raise NotImplementedError(f"{type(self).__name__}.predict_exactly")

    def _checked(self, prediction: Any) -> Any:
        output, is_one = self.output, isinstance(prediction, Tensor) and prediction.dim() == 2
        if is_one and output.problem == "multi_class" and prediction.shape[1] != output.num_outputs:
            raise ConfigError(
                f"model.type={self.config.model.type!r} is invalid: it gives {prediction.shape[1]} "
                f"outputs for {output.num_outputs} classes. Return out_channels of them. "
                "[model-output-width]"
            )
        return prediction

    def _loss(
        self,
        prediction: Any,
        embeddings: Tensor | None,
        target: Tensor,
        batch: Batch | None,
        weight: Tensor | None,
    ) -> StepOutput:
        if self.output.scale is not None:
            target = standardized(target, self.output.scale)
        return self.objective(
            len(target) if weight is None else float(weight.double().sum()),
            prediction=prediction,
            outputs=prediction,
            target=target,
            embeddings=embeddings,
            model=self.model,
            batch=batch,
            weight=weight,
        )

    def _evaluated(
        self,
        index: int,
        ids: Tensor,
        predicted: tuple[Any, Tensor | None],
        target: Tensor,
        weight: Tensor | None,
        batch: Batch | None = None,
    ) -> EvalOutput:
        prediction, embeddings = predicted
        output = self._loss(prediction, embeddings, target, batch, weight)
        shown = prediction if isinstance(prediction, Tensor) else next(iter(prediction.values()))
        shown = self.output.in_units(shown)
        sums = (output.loss_sum, output.weight)
        of_rows = None if weight is None else weight.double()
        return EvalOutput(index, ids, *sums, shown, target, output.metrics, of_rows)


def _unit(label: str, scale: ColumnScale, rows: str) -> str:
    if len(scale.mean) > 1:
        return f"{label} in standard deviations from its means over the training {rows}"
    (mean,), (std,) = scale.mean, scale.std
    return (
        f"{label} in standard deviations ({std:,.6g}) from its mean ({mean:,.6g}) over the "
        f"training {rows}; metrics and predictions are in its own unit"
    )
