"""Tasks whose validation chooses what predicts: the GNN, LightGBM, or a simpler guess."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.data.arrays import thinned
from raygnn.data.bundle import Bundle
from raygnn.data.extended_bundle import ExtendedBundle
from raygnn.data.extended_history import ExtendedHistory
from raygnn.data.history import History
from raygnn.data.history_spec import HistoryColumn, HistorySpec
from raygnn.data.past_labels import TableLabels
from raygnn.data.time_units import window_as_time
from raygnn.device_memory import read_together
from raygnn.errors import ConfigError
from raygnn.loops.baselines import Baselines, own_metrics, weighted_median
from raygnn.loops.blend import (
    CONSTANT,
    GNN,
    MODEL,
    RUNGS,
    TREES,
    Blend,
    Judge,
    Standings,
    compare_rungs,
    fit_blend,
    log_odds,
    log_scores,
)
from raygnn.loops.boosted_trees import BoostedTrees
from raygnn.loops.column_effects import MAX_ROWS, describe_effects
from raygnn.loops.early_stopping import LEAST_GAIN, Watched
from raygnn.loops.ranges import Ranges
from raygnn.loops.task import NodeRows
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.loops.tasks.label_task import LabelTask
from raygnn.losses.seed_losses import standardized
from raygnn.metrics import Calibration, metrics_of
from raygnn.metrics.seed_metrics import AUROC
from raygnn.parallel.agreement import agreement, made_by_rank_0, run_and_sync_errors
from raygnn.parallel.collectives import gather_rows
from raygnn.sampling.batch_sequence import BatchT

_SUSPICIOUS, _LIFT = 0.1, 0.05  # share of gains, and AUROC, by one column without times
_OF_MEDIANS = ("mae", "nmae", "mape", "median_ae")  # metrics that a median minimizes
_STEPS_UNVALIDATED = 40
_MAX_CELLS = 1 << 26  # of the columns that LightGBM reads in training
_MAX_COLUMNS = 512  # of a history, which leave cells for many rows
_MAX_RANKED = 10_000  # training rows on which more columns are ranked


@dataclass(frozen=True)
class TreeRow:
    """LightGBM's columns of one row.

    Attributes:
        columns: float64 [1, num_columns].
        described: node type and description of each column.
        in_units: float64 [num_columns], the values in the units of the tables.
    """

    columns: np.ndarray
    described: Sequence[tuple[str, HistoryColumn]]
    in_units: np.ndarray


class BlendedTask(LabelTask[BatchT]):
    """A task with labels whose validation chooses what predicts: the GNN, LightGBM, a simpler
    guess, or a sum of these (`Blend`).
    """

    of_graph: ClassVar[tuple[str, ...]] = ("whole_bundle", "histories")
    #: Evaluated positions and outputs of encoder and head, once the blend is to be chosen.
    _recorded: list[tuple[Tensor, Tensor]] | None = None
    #: The task without the nodes and edges that were added to its graph.
    known: BlendedTask[BatchT] | None = None
    #: Warning of rank 0 about a column that LightGBM depends on.
    _lifts: Sequence[str] = ()
    #: Rungs beside the model on validation, once it is chosen.
    val_standings: Standings | None = None
    #: `describe_effects` of LightGBM on validation rows, on rank 0.
    column_effects: Mapping[str, Any] | None = None

    def judged_baselines(
        self, asked: np.ndarray, metrics: Sequence[Any], guesses: Mapping[str, np.ndarray]
    ) -> Baselines:
        """Also adds the rung of the GNN, and compares the rungs with the model."""
        blend = self.output.blend
        if blend is None:
            return super().judged_baselines(asked, metrics, guesses)
        guesses = {**guesses, GNN: self._recorded_outputs(asked)}
        return replace(
            super().judged_baselines(asked, metrics, guesses),
            standings=self._standings(asked, guesses, metrics),
            parts=frozenset(blend.shares),
            uncalibrated=self._uncalibrated(asked, guesses, blend),
        )

    @property
    def watched(self) -> Watched:
        """Beside LightGBM, smaller gains of the GNN change no blend, and it learns from many rows
        of few entities within an epoch.
        """
        is_blended = self.target.arguments.blend is not False and not self.left_out()
        if not is_blended or self.config.sampling.temporal is None:
            return super().watched
        num_evaluated = -(-len(self.target.splits.val) // self.config.batch.global_batch_size)
        most_steps = max(_STEPS_UNVALIDATED, 2 * num_evaluated)
        return super().watched._replace(least_gain=LEAST_GAIN, most_steps=most_steps)

    def warnings(self) -> list[str]:
        """Also warns about a column that LightGBM depends on."""
        return [*super().warnings(), *self._lifts]

    @cached_property
    def trees(self) -> BoostedTrees | None:
        """LightGBM on columns of the training rows, fitted by rank 0. None if there is a reason
        (`why_no_trees`). Collective in training: all ranks must call.
        """
        if self.why_no_trees is not None:
            return None
        text = made_by_rank_0(lambda: self._fitted_trees().to_text(), "fitting LightGBM")
        return BoostedTrees.of_text(text)

    @property
    def why_no_trees(self) -> str | None:
        """Why LightGBM predicts no rows; None if it does."""
        if self.env.bundle.is_of_parts:
            return "it reads all edges of a node, and a part of a graph has some of them"
        return None if len(self.target.splits.train) else "there is nothing to learn from"

    def left_out(self) -> list[str]:
        if self.target.arguments.blend is False:
            return []
        if (reason := self.target.why_no_blend(self.config)) is not None:
            return [f"the GNN predicts alone, without LightGBM: {reason}"]
        reason = self.why_no_trees
        return [] if reason is None else [f"LightGBM is left out: {reason}"]

    def max_fitted_rows(self, num_columns: int) -> int:
        """Training rows that LightGBM is fitted to; of more, every n-th."""
        return _MAX_CELLS // max(num_columns, 1)

    def _tree_rows(self) -> dict[str, np.ndarray]:
        """Training and validation rows that LightGBM is fitted to; of too many, every n-th."""
        rows = {"train": self.target.splits.train, "val": self.target.splits.val}
        width = self.row_columns(rows["train"][:1], "train").shape[1]
        share = min(1.0, self.max_fitted_rows(width) / sum(map(len, rows.values())))
        return {name: thinned(each, max(1, int(share * len(each)))) for name, each in rows.items()}

    def _fitted_trees(self) -> BoostedTrees:
        labels, output = self.target.labels, self.output
        train, val = self._tree_rows().values()
        columns, val_columns = self.row_columns(train, "train"), self.row_columns(val, "val")
        every = np.arange(columns.shape[1])
        val_labels, categorical = labels[val].reshape(self._tree_shape), np.zeros(len(every), bool)
        categorical[list(self.categorical_columns)] = True

        def fitted(kept: np.ndarray) -> BoostedTrees:
            rows = (train, columns[:, kept]), (val, val_columns[:, kept])
            return self._trees_of(*rows, np.flatnonzero(categorical[kept]).tolist())

        trees, names = fitted(every), self.columns_without_time
        shares = trees.gains()
        suspect = max(names, key=lambda at: float(shares[at]), default=None)
        is_ranked = output.is_binary and len(val) > 0
        if is_ranked and suspect is not None and shares[suspect] > _SUSPICIOUS:
            kept = np.delete(every, suspect)
            without = fitted(kept).predict(val_columns[:, kept])
            self._lifts = _lifts(names[suspect], trees.predict(val_columns), without, val_labels)
        return trees

    def _trees_of(
        self,
        train: tuple[np.ndarray, np.ndarray],
        val: tuple[np.ndarray, np.ndarray],
        categorical: Sequence[int],
    ) -> BoostedTrees:
        """LightGBM fitted to positions of rows and their columns."""
        labels, output = self.target.labels, self.output
        return BoostedTrees.fit(
            train[1],
            labels[train[0]].reshape(self._tree_shape),
            val[1],
            labels[val[0]].reshape(self._tree_shape),
            {"multi_class": output.num_outputs, "multi_label": 2}.get(output.problem),
            categorical,
            weights=(self.target.weights_of(train[0]), self.target.weights_of(val[0])),
            learns_medians=self.learns_medians,
        )

    def narrowed(self, history: History, positions: np.ndarray, rows: NodeRows) -> HistorySpec:
        """The spec of a history, of many columns with those by which a first LightGBM gains most.

        Args:
            positions: of training rows.
            rows: nodes and times of the training rows.
        """
        if len(history.names) <= _MAX_COLUMNS:
            return history.spec
        some = thinned(np.arange(len(positions)), _MAX_RANKED)
        times = None if rows.times is None else rows.times[some]
        read = positions[some], history.columns(rows.nodes[some], times)
        none = read[0][:0], read[1][:0]
        gains = self._trees_of(read, none, history.categorical).gains()
        useless = np.argsort(-gains, kind="stable")[_MAX_COLUMNS:]
        left_out = (*history.spec.left_out, *(history.names[i] for i in useless))
        return replace(history.spec, left_out=left_out)

    @property
    def _tree_shape(self) -> tuple[int, ...]:
        """Shape of labels for LightGBM."""
        is_one = self.output.problem == "multi_class" or self.output.num_outputs == 1
        return (-1,) if is_one else (-1, self.output.num_outputs)

    def refit(self) -> None:
        """Fits a blend's LightGBM again, to the rows of training and validation."""
        blend = self.blend
        is_due = len(self.target.splits.test) > 0 or self.config.training.refit
        if blend is None or TREES not in blend.shares or not is_due:
            return
        self.trees = BoostedTrees.of_text(
            made_by_rank_0(self._refitted_trees, "fitting LightGBM again")
        )
        refitted = self.output.refitted or "LightGBM"
        self.spec = replace(self.spec, output=replace(self.output, refitted=refitted))

    def _refitted_trees(self) -> str:
        assert self.trees is not None
        parts = self._tree_rows()
        columns = [self.row_columns(rows, split) for split, rows in parts.items()]
        rows, both = np.concatenate([*parts.values()]), np.concatenate(columns)
        labels = self.target.labels[rows].reshape(self._tree_shape)
        return self.trees.refitted(both, labels, weights=self.target.weights_of(rows)).to_text()

    @contextmanager
    def refitting(self) -> Iterator[int]:
        """Takes validation rows as training rows in a block. Yields their number together."""
        target, loaders = self.target, self._loaders
        rows = np.sort(np.concatenate([target.splits.train, target.splits.val]))
        splits = replace(target.splits, train=rows, val=rows[:0])
        self.target, self._loaders = replace(target, splits=splits), {}
        try:
            yield len(rows)
        finally:
            self.close()
            self.target, self._loaders = target, loaders
        self.spec = replace(self.spec, output=replace(self.output, refitted="model"))

    @property
    def columns_without_time(self) -> Mapping[int, str]:
        """Names of those of `row_columns` whose values have no time, by position."""
        return {}

    @property
    def learns_medians(self) -> bool:
        """Whether LightGBM learns medians of numbers: by the monitored metric, else by the loss."""
        config, names = self.config, self.metric_names()
        monitors = [config.early_stopping and config.early_stopping.monitor]
        monitors.append(config.checkpoint.monitor)
        watched = [name.removeprefix("val/") for name in monitors if name]
        watched = [name for name in watched if name in names]
        return watched[0] in _OF_MEDIANS if watched else not self.is_squared

    def row_columns(self, rows: np.ndarray, split: str) -> np.ndarray:
        """float64 [num_rows, num_columns], what simple models read of rows at these positions.

        NaN for unknown values.
        """
        raise NotImplementedError(f"{type(self).__name__}.row_columns")

    @property
    def described_columns(self) -> Sequence[tuple[str, HistoryColumn]]:
        """Node type and description of each of `row_columns`."""
        raise NotImplementedError(f"{type(self).__name__}.described_columns")

    def in_units(self, columns: np.ndarray) -> np.ndarray:
        """`row_columns` in the units of the tables."""
        raise NotImplementedError(f"{type(self).__name__}.in_units")

    @property
    def categorical_columns(self) -> Sequence[int]:
        """Positions of columns with categories, among those of `histories`, which come first."""
        described = [each for history in self.histories for each in history.described]
        return [i for i, column in enumerate(described) if column.is_category]

    @property
    def blend(self) -> Blend | None:
        """The rungs that predict beside encoder and head; None if these predict alone."""
        output = self.spec.output
        blend = output.blend if isinstance(output, LabelOutput) else None
        return None if blend is None or blend.is_gnn else blend

    @property
    def trees_text(self) -> str | None:
        if self.blend is None or not self.output.has_trees or self.trees is None:
            return None
        return self.trees.to_text()

    def rungs(self, names: Collection[str], model: Any, rows: Any) -> dict[str, np.ndarray]:
        """Predictions of rungs beside the GNN, [num_rows, num_outputs] by name: probabilities of
        classes, logits of labels, or numbers.
        """
        if TREES not in names:
            return {}
        assert self.trees is not None
        return {TREES: self.of_labels(self.trees.predict(self.tree_columns(model, rows)))}

    def of_labels(self, rows: np.ndarray) -> np.ndarray:
        """Probabilities as logits, if there are several labels; else the rows as they are."""
        return log_odds(rows) if self.output.problem == "multi_label" else rows

    def tree_columns(self, model: Any, rows: Any) -> np.ndarray:
        """LightGBM's columns, float64 [num_rows, num_columns]. `rows`: as in `completed`."""
        raise NotImplementedError(f"{type(self).__name__}.tree_columns")

    def tree_row(self, model: Any, rows: Any) -> TreeRow:
        """LightGBM's columns of the only row of some rows, for its explanation."""
        columns = self.tree_columns(model, rows)
        return TreeRow(columns, self.described_columns, self.in_units(columns)[0])

    def completed(self, model: nn.Module, outputs: Tensor, rows: Any) -> Tensor:
        """Adds the other rungs of a blend to the outputs of encoder and head."""
        outputs = self.outputs_of_gnn(model, outputs, rows)
        return self.blended(outputs, lambda names: self.rungs(names, model, rows))

    def outputs_of_gnn(self, model: nn.Module, outputs: Tensor, rows: Any) -> Tensor:
        """The rung of the GNN from the outputs of encoder and head."""
        return outputs

    def evaluated(self, positions: Tensor, outputs: Tensor, rows_of: Callable[[], Any]) -> Tensor:
        """As `completed` in a run; also keeps the rung of the GNN, once the blend is to be chosen.

        Args:
            positions: int64 [num_rows], in the rows that the task learns from.
            rows_of: makes the rows, if they are read: copying them to the host waits for a device.
        """
        outputs = self.evaluated_gnn(outputs, rows_of)
        if self._recorded is not None:
            self._recorded.append((positions.clone(), self.output.in_units(outputs).float()))
        return self.blended(outputs, lambda names: self.rungs(names, self.model, rows_of()))

    def evaluated_gnn(self, outputs: Tensor, rows_of: Callable[[], Any]) -> Tensor:
        """`outputs_of_gnn` in a run."""
        return outputs

    def conclude(self) -> bool:
        """Chooses the model's `Blend` on the validation rows, and finds the ranges of a number."""
        target, output = self.target, self.output
        blends = target.arguments.blend is not False and target.why_no_blend(self.config) is None
        has_ranges = output.is_number
        limit, loader = self.config.training.num_val_batches, self.loader("val")
        if loader is None or not (blends or has_ranges):
            return False
        num_batches = min(loader.num_batches, limit or loader.num_batches)
        self._recorded = [] if blends else None
        self.prepare_evaluation("val")
        judged = run_and_sync_errors(
            lambda: [*self.evaluate("val", num_batches)], "judging the rungs"
        )
        if not blends:
            self._recorded = [(each.ids.cpu(), each.prediction.float().cpu()) for each in judged]
        asked = self.target.splits.val[: num_batches * loader.batch_size]
        values: dict[str, np.ndarray] = {GNN: self._recorded_outputs(asked)}
        if not blends:
            self._recorded = None
            self._keep_ranges(asked, values[GNN])
            return False
        values |= self.guesses("val", asked)
        blend = made_by_rank_0(
            lambda: self._fitted_blend(asked, values), "choosing among the rungs"
        )
        self.spec = replace(self.spec, output=replace(self.output, blend=blend))
        self.val_standings = self._standings(asked, values, self.build_metrics())
        mixed = self._mixed(values, blend)
        with agreement("describing LightGBM's columns"):
            if self.env.rank == 0 and TREES in blend.shares:
                self.column_effects = self._effects(asked, mixed)
        if has_ranges:
            self._keep_ranges(asked, mixed)
        return not blend.is_gnn

    def _effects(self, asked: np.ndarray, mixed: np.ndarray) -> Mapping[str, Any]:
        """Effects of LightGBM's columns on predictions, at most `MAX_ROWS` of these rows."""
        output, blend, trees = self.output, self.output.blend, self.trees
        assert blend is not None
        assert trees is not None
        chosen = thinned(np.arange(len(asked)), MAX_ROWS)
        rows, share = asked[chosen], blend.shares[TREES]
        columns = self.row_columns(rows, "val")
        added = share.weight * share.scale * trees.contributions(columns)[..., :-1].mean(axis=0)
        labels = predictions = None
        if output.is_number:
            labels, predictions = self.target.labels[rows].reshape(-1), mixed[chosen, 0]
        elif output.is_binary:
            positive = output.positive_class
            labels = (self.target.labels[rows].reshape(-1) == positive).astype(np.float64)
            margins = mixed[chosen, positive] - mixed[chosen, 1 - positive]
            predictions = 1 / (1 + np.exp(-margins))
        # Of classes, the mean size over them; of two, that of the second, as the first has none.
        sizes = np.abs(added[:, 1:] if output.is_binary else added).mean(axis=1)
        return describe_effects(
            self.described_columns,
            sizes,
            self.in_units(columns),
            labels,
            predictions,
            is_date=any(spec.unit is not None for spec in blend.history),
        )

    def _keep_ranges(self, asked: np.ndarray, predictions: np.ndarray) -> None:
        ranges = Ranges.fit(predictions[:, 0], self.target.labels[asked].reshape(-1))
        self.spec = replace(self.spec, output=replace(self.output, ranges=ranges))

    def _standings(
        self, asked: np.ndarray, values: Mapping[str, np.ndarray], metrics: Sequence[Any]
    ) -> Standings:
        predictions = {CONSTANT: np.tile(self.constant, (len(asked), 1)), **values}
        predictions = {name: rows for name, rows in predictions.items() if name in RUNGS}
        assert self.output.blend is not None
        predictions[MODEL] = self._mixed(predictions, self.output.blend)
        labels, groups = self.target.labels[asked], self.groups(asked)
        weights = self.target.weights_of(asked)
        return compare_rungs(own_metrics(metrics), predictions, labels, groups, weights)

    def _fitted_blend(self, asked: np.ndarray, values: Mapping[str, np.ndarray]) -> Blend:
        output = self.output
        values = {CONSTANT: np.tile(self.constant, (len(asked), 1)), **values}
        scores = self.rung_scores({name: values[name] for name in RUNGS if name in values})
        labels = self.target.labels[asked]
        units = np.ones(1) if output.scale is None else np.array(output.scale.std)
        units = np.where(units > 0, units, 1)
        more = (self.groups(asked), units, self.target.weights_of(asked))
        judge = Judge(labels, output.problem, self.is_squared, *more)
        blend = fit_blend(scores, judge, self.constant)
        if TREES not in blend.shares:
            return blend
        return replace(blend, history=tuple(history.spec for history in self.histories))

    @cached_property
    def whole_bundle(self) -> Bundle:
        """The graph, for LightGBM. Raises a ConfigError on parts of a graph."""
        bundle = self.env.bundle
        if bundle.is_of_parts:
            rule = "the model blends LightGBM, which reads all events of the graph"
            remedy = "Set it to in_memory, or train with task.args.blend: false"
            raise ConfigError.invalid("data.mode", "partitioned", rule, remedy, id="blend-of-parts")
        return bundle

    @cached_property
    def histories(self) -> Sequence[History]:
        """History columns that LightGBM reads: of a row's node, or of both ends of an edge."""
        bundle, blend = self.whole_bundle, self.output.blend
        if isinstance(bundle, ExtendedBundle):
            assert self.known is not None
            return [ExtendedHistory(each, bundle) for each in self.known.histories]
        specs = self.fitted_histories(bundle) if blend is None else blend.history
        return [self.history_of(bundle, spec) for spec in specs]

    def history_of(self, bundle: Bundle, spec: HistorySpec) -> History:
        labels = self.table_labels if spec.reads_labels else None
        return History(bundle, spec, max_age=self.max_age(spec.unit), labels=labels)

    @property
    def table_labels(self) -> TableLabels:
        """Labels of the rows of the training table, for history columns."""
        raise NotImplementedError(f"{type(self).__name__}.table_labels")

    def extended(self, bundle: ExtendedBundle) -> Self:
        task = super().extended(bundle)
        task.known = self
        return task

    def fitted_histories(self, bundle: Bundle) -> Iterable[HistorySpec]:
        """Chooses history columns by the training rows."""
        raise NotImplementedError(f"{type(self).__name__}.fitted_histories")

    def max_age(self, unit: str | None) -> float | None:
        """Age in this unit from which on the model knows no event; None without one."""
        temporal = self.config.sampling.temporal
        return None if temporal is None else window_as_time(temporal.window, unit)

    @cached_property
    def constant(self) -> np.ndarray:
        """The score of rows without known events, float64 [num_outputs]: logarithms of the
        classes' shares, logits of the labels' shares, or mean or median.
        """
        output = self.output
        if output.blend is not None:
            return np.array(output.blend.constant)
        positions = self.target.counted_rows
        train, weights = self.target.labels[positions], self.target.weights_of(positions)
        if output.problem == "multi_class":
            counts = np.bincount(train.reshape(-1), weights, output.num_outputs)
            return log_scores(counts / counts.sum())
        rows = train.reshape(len(train), -1).astype(np.float64)
        if output.problem == "multi_label" or self.is_squared:
            mean = np.average(rows, axis=0, weights=weights)
            return log_odds(mean) if output.problem == "multi_label" else mean
        return weighted_median(rows, weights)

    @property
    def constant_prediction(self) -> np.ndarray:
        """`constant` as classes' or labels' shares, or a number."""
        score = self.constant
        match self.output.problem:
            case "multi_class":
                return np.asarray(np.exp(score))
            case "multi_label":
                return np.asarray(1 / (1 + np.exp(-score)))
        return score

    def rung_scores(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Scores of rungs (see `Blend`) from their predictions, which may be probabilities."""
        are_logits = {GNN, CONSTANT} if self.output.problem == "multi_class" else set(values)
        return {
            name: rows if name in are_logits else log_scores(rows) for name, rows in values.items()
        }

    def _mixed(self, values: Mapping[str, np.ndarray], blend: Blend) -> np.ndarray:
        constant = np.tile(self.constant, (len(values[GNN]), 1))
        every = self.rung_scores({**values, CONSTANT: constant})
        return blend.mix({name: every[name] for name in blend.shares})

    def blended(
        self, outputs: Tensor, values_of: Callable[[Collection[str]], Mapping[str, np.ndarray]]
    ) -> Tensor:
        """The model's predictions from the outputs of encoder and head, in the same unit.

        `values_of`: predictions of further rungs, [num_rows, num_outputs], by name.
        """
        blend = self.blend
        if blend is None:
            return outputs
        output = self.output
        names = [name for name in blend.shares if name not in (GNN, CONSTANT)]
        values = dict(values_of(names))
        if CONSTANT in blend.shares:
            values[CONSTANT] = np.tile(self.constant, (len(outputs), 1))
        mixed = torch.zeros_like(outputs, dtype=torch.float64)
        if values:
            mixed += torch.from_numpy(blend.mix(self.rung_scores(values))).to(mixed)
        if GNN in blend.shares:
            share = blend.shares[GNN]
            of_gnn = share.scale * output.in_units(outputs.double())
            shift = of_gnn.new_tensor(share.shift) if share.shift else 0.0
            mixed = mixed + share.weight * (of_gnn + shift)
        return (mixed if output.scale is None else standardized(mixed, output.scale)).float()

    def _recorded_outputs(self, asked: np.ndarray) -> np.ndarray:
        """Recorded outputs of all ranks, [num_asked, num_outputs] in the order of positions.
        Collective: all ranks must call.
        """
        none = torch.empty(0, self.output.num_outputs)
        recorded, self._recorded = self._recorded or [], []
        read = read_together([part for both in recorded for part in both])
        ids = gather_rows(torch.cat([none[:, 0].long(), *read[::2]]))
        rows = gather_rows(torch.cat([none, *read[1::2]]))
        ids, order = ids.sort()
        places = torch.searchsorted(ids, torch.from_numpy(np.asarray(asked)).long())
        return rows[order[places]].numpy()

    def _uncalibrated(
        self, asked: np.ndarray, values: Mapping[str, np.ndarray], blend: Blend
    ) -> Mapping[str, Any] | None:
        if self.output.problem != "multi_class" or blend.uncalibrated == blend:
            return None
        figures = Calibration(self.output.num_outputs, "multi_class")
        scores = torch.from_numpy(self._mixed(values, blend.uncalibrated))
        figures.compute(figures.update(scores, torch.from_numpy(self.target.labels[asked])))
        described: Mapping[str, Any] = figures.describe()
        return described


def _lifts(
    name: str, probabilities: np.ndarray, without: np.ndarray, classes: np.ndarray
) -> list[str]:
    metric, of = AUROC(2, "multi_class"), torch.from_numpy(classes)
    with_it, without_it = (
        metrics_of([metric], torch.from_numpy(rows), of).get(metric.name, math.nan)
        for rows in (probabilities, without)
    )
    if not with_it - without_it >= _LIFT:  # unknown with one class only
        return []
    return [
        f"column {name!r} alone raises LightGBM's AUROC on validation from {without_it:.3f} "
        f"to {with_it:.3f}. If it becomes known later than a row, or with the label, leave it out "
        "of the features in graph.yaml."
    ]
