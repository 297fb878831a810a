"""Metrics of a saved model on a labelled graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.config import LoadedConfig
from raygnn.config.data_section import HashSplit
from raygnn.console import warn
from raygnn.data.bundle import Bundle
from raygnn.data.splits import SPLIT_NAMES
from raygnn.errors import ConfigError, DataError
from raygnn.inference.applied_model import set_up_task, warn_of_missing
from raygnn.loops.evaluation import evaluate
from raygnn.loops.process import process_prepared
from raygnn.loops.split_rows import SplitRows
from raygnn.loops.task import EvalOutput
from raygnn.loops.tasks.build_sampler import with_all_neighbors
from raygnn.loops.tasks.exact_encoding import is_layerwise
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.loops.tasks.label_task import LabelTask
from raygnn.loops.tasks.node_classification.task import NodeClassification
from raygnn.metrics import metrics_of
from raygnn.metrics.standard_errors import paired_error
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.outputs.saved_model import SavedModel

# Not a split to train by, so the check of configs refuses it.
_ALL_ARE_TEST = HashSplit(type="hash").model_copy(update={"fractions": [0.0, 0.0, 1.0]})


@dataclass(frozen=True)
class JudgedOutputs:
    """Outputs and targets for metrics, in the order of ids, which all models share.

    Attributes:
        metrics: of the config or task.
        groups: int64 [num_rows], the entity of each row.
        weights: float64 [num_rows], of rows with weights.
    """

    metrics: Sequence[Any]
    predictions: Tensor
    targets: Tensor
    groups: np.ndarray
    weights: Tensor | None = None

    @classmethod
    def of(cls, task: Any, metrics: Sequence[Any], outputs: Sequence[EvalOutput]) -> JudgedOutputs:
        ids, order = torch.cat([output.ids for output in outputs]).sort(stable=True)
        predictions = torch.cat([output.prediction for output in outputs])[order]
        targets = torch.cat([output.target for output in outputs])[order]
        groups = task.groups(ids.numpy()) if isinstance(task, LabelTask) else ids.numpy()
        weights = [each.row_weights for each in outputs if each.row_weights is not None]
        of_rows = torch.cat(weights).cpu()[order] if weights else None
        return cls(metrics, predictions, targets, groups, of_rows)

    def error_of_difference(self, metric: str, other: JudgedOutputs) -> float:
        """The standard error of the difference of a metric to that of another model on the same
        rows; NaN if it is not one of `metrics`, or the rows are not the same.
        """
        if not torch.equal(self.targets, other.targets):
            return math.nan

        def difference(rows: np.ndarray) -> float:
            return self.value(metric, rows) - other.value(metric, rows)

        return paired_error(difference, self.groups)

    def value(self, metric: str, rows: np.ndarray) -> float:
        """A metric of some rows, int64 positions; NaN if it is not one of `metrics`."""
        at = torch.from_numpy(rows)
        weights = None if self.weights is None else self.weights[at]
        values = metrics_of(self.metrics, self.predictions[at], self.targets[at], weights)
        return values.get(metric, math.nan)


@dataclass(frozen=True)
class Judged:
    """Metrics of a model on a split, without the loss.

    Attributes:
        intervals: 95 % intervals by metric, if there are enough batches.
        standard_errors: by metric, if known.
        rows: the rows of the split; None if unknown.
        outputs: of all rows, if they were asked for.
    """

    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    standard_errors: dict[str, float]
    rows: SplitRows | None
    outputs: JudgedOutputs | None = None


def judge_model(
    saved: SavedModel,
    model: nn.Module,
    bundle: Bundle,
    split: str | None,
    *,
    exact: bool,
    with_outputs: bool = False,
) -> Judged:
    """Evaluates a model with the metrics of its config or task; see `TrainedModel.evaluate`.

    Collective: all ranks must call.

    Args:
        saved: opened with its metrics.
        exact: seeds with times are sampled as of their own, with all neighbors.
        with_outputs: also returns `Judged.outputs`, of one rank.
    """
    if split is not None and split not in SPLIT_NAMES:
        raise ConfigError(
            f"split={split!r} is invalid: unknown split. Set one of: {', '.join(SPLIT_NAMES)}, or "
            "None for all labelled nodes. [model-split]"
        )
    fitted = saved.fitted(bundle)
    saved.spec.output.check_labels(fitted)
    takes_all = split is None and not saved.spec.output.judged_on_test
    assert isinstance(model.encoder, GraphEncoder)
    loaded = _as_asked(saved.loaded, fitted, model.encoder, exact=exact, takes_all=takes_all)
    device = next(model.parameters(), torch.empty(0)).device
    name = "test" if split is None else split
    with process_prepared(loaded):
        task: Any = set_up_task(replace(saved, loaded=loaded), fitted, device)
        if saved.task is not None and not takes_all:
            # Edges held out by other tasks carry no messages, as in training.
            others = [each for each in saved.tasks if each.task != saved.task]
            task.share_encoder([task, *(set_up_task(each, fitted, device) for each in others)])
        elif takes_all and isinstance(task, NodeClassification):
            by_split: Any = set_up_task(saved, fitted, device)
            task.labels_from = by_split
        warn_of_missing(task.missing(model))
        with closing(task):
            task.model = model
            output = task.spec.output
            if name == "val" and isinstance(output, LabelOutput) and output.refitted:
                warn(
                    f"the saved {output.refitted} has learned from the validation rows of its "
                    "graph; metrics.json has the metrics from before"
                )
            intervals: dict[str, tuple[float, float]] = {}
            of_rows, outputs = task.build_metrics(), list[EvalOutput]()

            def keep(made: Iterator[EvalOutput], _: int) -> Iterator[EvalOutput]:
                for each in made:
                    ids, *rows = (t.cpu().clone() for t in (each.ids, each.prediction, each.target))
                    outputs.append(replace(each, ids=ids, prediction=rows[0], target=rows[1]))
                    yield each

            watch = keep if with_outputs else None
            metrics = evaluate(task, name, None, of_rows, watch, intervals=intervals)
            kept_outputs = JudgedOutputs.of(task, of_rows, outputs) if outputs else None
            rows, precision = task.split_rows(name, None), task.precision(name)
    if not metrics:
        raise DataError(
            f"split={name!r} is invalid: this graph has none. Set another. [model-split-empty]"
        )
    left_out = {"loss", *task.step_metrics}

    def kept(found: Mapping[str, Any]) -> dict[str, Any]:
        plain = {key.partition("/")[2]: value for key, value in found.items()}
        return {key: value for key, value in plain.items() if key not in left_out}

    values, errors = kept(metrics), {}
    if precision is not None:
        errors = {key: precision.standard_error(key, value) for key, value in values.items()}
    known = {key: error for key, error in errors.items() if error is not None}
    return Judged(values, kept(intervals), known, rows, kept_outputs)


def _as_asked(
    loaded: LoadedConfig, bundle: Bundle, encoder: GraphEncoder, *, exact: bool, takes_all: bool
) -> LoadedConfig:
    config = loaded.config
    by_layers = exact and is_layerwise(encoder) and config.sampling.temporal is None
    how = {"eval": "exact" if by_layers else "sampled"}
    changes: dict[str, object] = {"training": config.training.model_copy(update=how)}
    if takes_all:
        changes["data"] = config.data.model_copy(update={"splits": _ALL_ARE_TEST})
    changed = replace(loaded, config=config.model_copy(update=changes))
    return with_all_neighbors(changed, bundle) if exact and not by_layers else changed
