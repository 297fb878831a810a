"""Node classification and regression, for nodes or for rows of a training table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.console import warn
from raygnn.data.bundle import Bundle
from raygnn.data.extended_bundle import ExtendedBundle
from raygnn.data.fit_history import fit_history, outgrows
from raygnn.data.history_spec import HistoryColumn, HistorySpec
from raygnn.data.past_labels import PastLabels, TableLabels
from raygnn.data.splits import Splits, has_label, make_splits
from raygnn.data.time_units import window_as_time
from raygnn.device_memory import copied, read_together
from raygnn.errors import DataError
from raygnn.loops.baselines import own_metrics
from raygnn.loops.blend import ENTITY_MEAN, GNN, LAST_LABEL, TREES
from raygnn.loops.task import EvalOutput, NodeRows, TaskEnvironment
from raygnn.loops.tasks.blended_task import BlendedTask
from raygnn.loops.tasks.exact_encoding import both_ways
from raygnn.loops.tasks.label_task import MAX_GATHERED
from raygnn.loops.tasks.node_classification.audit import audit
from raygnn.loops.tasks.node_classification.target import (
    NodeOutput,
    NodeTarget,
    can_propagate,
    find_past_labels,
)
from raygnn.metrics import Described, MetricsOverTime
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.label_propagation import LabelScores, PropagatedLabels
from raygnn.models.predictors import NodePredictor
from raygnn.models.subgraph_module import EDGE_ATTR
from raygnn.parallel.agreement import run_and_sync_errors
from raygnn.parallel.collectives import broadcast, gather_rows
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.extended_stores import ExtendedGraphStore
from raygnn.sampling.loader import NeighborLoader, RowPlan
from raygnn.sampling.rng import batch_key
from raygnn.sampling.stores import LocalGraphStore
from raygnn.sampling.whole_graph import WholeGraphLoader


class NodeClassification(BlendedTask[NodeBatch]):
    """Predicts a label of each node, or of each row of a training table.

    Args:
        table: training table to learn from. Default: the only one with labels, unless `target` is
            set.
        target: node type to predict. Default: the only type with labels.
        past_labels: the model also reads labels of the entity's earlier rows whose `window` is
            over: their number, the latest and its age, and the mean of the latest 32. LightGBM also
            reads number and mean of those of all rows whose entity refers to the same node. auto
            does if the table has times and a window.
        propagate_labels: add the classes of the training nodes around a node to its logits, with
            weights that each validation chooses, if they lower the loss by a standard error.
            Default: for classes of nodes, without `sampling.temporal` and with the default loss.
    """

    target_class = NodeTarget
    target: NodeTarget
    output: NodeOutput
    model: NodePredictor
    #: The task whose graph and splits have the labels around nodes; None for this one.
    labels_from: NodeClassification | None = None
    _judged: Sequence[EvalOutput] = ()  # validation batches, judged by the encoder alone

    def setup(self, env: TaskEnvironment) -> None:
        super().setup(env)
        self._around: dict[int | None, PropagatedLabels | None] = {}

    @property
    def encoder_width(self) -> int:
        """The number of outputs, because the encoder predicts without a head by default."""
        return self.output.num_outputs

    def build_head(self, encoder: GraphEncoder) -> nn.Module:
        output = self.output
        width = self.config.model.args.get("out_channels")
        head = None if width is None else (width, output.num_outputs)
        labels = None
        if output.propagated is not None:
            labels = LabelScores()
        return NodePredictor(encoder, output.node_type, head, labels)

    def extended(self, bundle: ExtendedBundle) -> Self:
        task = super().extended(bundle)
        task.labels_from, task._around = self, {}
        return task

    def missing(self, model: nn.Module) -> list[str]:
        found = []
        times, output = self.spec.relative_time, self.output
        specs = () if output.blend is None else output.blend.history
        has_past = times is not None and times.past_labels
        if has_past or any(spec.reads_labels for spec in specs):
            rows = self.env.bundle.training_tables.get(output.table or "")
            if rows is None or output.label not in rows.columns or rows.window is None:
                found.append(
                    f"labels of earlier rows (the graph has no training table {output.table!r} "
                    f"with {output.label!r} and a window)"
                )
        labels = self._labels_of(model)
        if labels is None or not labels.is_used:
            return found
        _, problem = (self.labels_from or self)._known_labels
        return found if problem is None else [*found, f"labels around the nodes ({problem})"]

    @cached_property
    def _known_labels(self) -> tuple[Splits | None, str | None]:
        """Labelled nodes of the graph by the model's splits, and a problem if some are missing."""
        bundle, output, config = self.env.bundle, self.output, self.config
        if output.label_in(bundle) is None:
            return None, f"the graph has no label {output.label!r}"
        if not can_propagate(bundle, config, output):
            return None, "the graph is too large"
        try:
            output.check_labels(bundle)
            rows, rule = output.rows(bundle), config.data.splits
            splits = make_splits(bundle, rows, rule, output.label, config.seed, may_be_empty=True)
        except DataError as error:
            return None, str(error)
        num, trained = len(splits.train), output.propagated or 0
        fewer = f"{num:,} of {trained:,} training labels are there" if num < trained else None
        return (splits if num else None), fewer

    def _propagated(self, reach: int | None = None) -> PropagatedLabels | None:
        """Labels around the nodes of the graph, also around added nodes."""
        if reach not in self._around:
            found = self._find_propagated(reach)
            self._around |= {reach: found, None if found is None else found.reach: found}
        return self._around[reach]

    def _find_propagated(self, reach: int | None) -> PropagatedLabels | None:
        task, bundle, output = self.labels_from or self, self.env.bundle, self.output
        splits, _ = task._known_labels
        label = output.label_in(task.env.bundle)
        if splits is None or label is None:
            return None
        store, labels = task.message_store("train"), np.asarray(label[1]).reshape(-1)
        if isinstance(bundle, ExtendedBundle):
            assert isinstance(store, LocalGraphStore)
            store = ExtendedGraphStore(store, bundle)
            labels = np.pad(labels, (0, bundle.num_nodes(output.node_type) - len(labels)))
        adjacency, first = both_ways(store)
        at, num_classes = first[output.node_type], output.num_outputs
        return PropagatedLabels.of(adjacency, at, labels, splits, num_classes, reach)

    def warnings(self) -> list[str]:
        seeds = self.target.seeds.node_ids(self.target.counted_rows)
        silent = self.silent_nodes(self.output.node_type, seeds, "the training nodes")
        if self.output.table is not None:
            self.trees  # noqa: B018  # fitted first, which may find that one column decides
        warnings = super().warnings()
        return [*warnings, *audit(self.env.bundle, self.config, self.target), *silent]

    def build_loader(self, split: str) -> NeighborLoader | WholeGraphLoader | None:
        rows, positions = self.target.seeds, self.target.splits[split]
        if rows.name is None:
            columns = {self.output.label: "y"}
            return self.neighbor_loader(split, positions, rows.node_type, columns)
        plan = self._row_plan(split)
        return self.neighbor_loader(split, positions, rows.node_type, plan=plan)

    def _row_plan(self, split: str) -> RowPlan:
        target, labels = self.target, self.target.batch_columns
        if split == "train":
            return RowPlan(target.seeds, labels, gaps=target.gaps(self.config))
        end = target.end_of_graph(self.config, split)
        return RowPlan(target.seeds, labels, as_of=end)

    def diagnostics(self) -> Sequence[Described]:
        rows, output = self.target.seeds, self.output
        diagnostics = super().diagnostics()
        has_dates = rows.name is not None and rows.time is not None and rows.time_unit is not None
        if not has_dates or rows.num_rows * output.num_outputs > MAX_GATHERED:
            return diagnostics
        assert rows.time is not None
        problem: Any = output.problem
        metrics = own_metrics(self.build_metrics())
        periods = (output.num_outputs, problem, metrics, rows.time, self.target.weights)
        return [*diagnostics, MetricsOverTime(*periods)]

    def guesses(self, split: str, asked: np.ndarray) -> Mapping[str, np.ndarray]:
        """For nodes, the classes of the training nodes around them. For rows, mean and last of the
        entity's earlier labels, and LightGBM.
        """
        rows = self._rows(split, asked)
        names = [] if self.trees is None else [TREES]
        if self.target.seeds.name is None:
            labels = self._propagated()
            around = {} if labels is None else {"label_propagation": labels.predicted(asked)}
            return around | self.rungs(names, self.model, rows)
        size = max(self.target.seeds.num_rows, len(asked)) * self.output.num_outputs
        if rows.times is not None and size <= MAX_GATHERED:
            names = [ENTITY_MEAN, LAST_LABEL, *names]
        return self.rungs(names, self.model, rows)

    @cached_property
    def why_no_trees(self) -> str | None:
        target = self.target
        if (reason := super().why_no_trees) is not None or target.seeds.name is not None:
            return reason
        if target.arguments.blend is False:
            return "task.args.blend is false"
        return target.why_no_blend(self.config) or target.why_no_trees(self.env.bundle)

    def max_fitted_rows(self, num_columns: int) -> int:
        if self.target.seeds.name is not None:
            return super().max_fitted_rows(num_columns)
        return self.target.max_fitted_rows(num_columns)

    def _rows(self, split: str, positions: np.ndarray) -> NodeRows:
        """Nodes and latest times of rows at these positions.

        Half of the training rows end as far before their time as the graph ends before test rows.
        """
        seeds, times = self.target.seeds, None
        is_timed = seeds.name is not None or self.config.sampling.temporal is not None
        if seeds.time is not None and is_timed:
            key = batch_key(self.config.seed, split, 0, 0)
            times = self._row_plan(split).times(positions, key)
        return NodeRows(seeds.node_ids(positions), times)

    def rungs(self, names: Collection[str], model: Any, rows: NodeRows) -> dict[str, np.ndarray]:
        values = super().rungs(names, model, rows)
        if {ENTITY_MEAN, LAST_LABEL} & set(names):
            assert rows.times is not None
            guesses = self._earlier_labels.guesses(rows.nodes, rows.times, self.constant_prediction)
            values |= {name: self.of_labels(each) for name, each in guesses.items()}
        return {name: values[name] for name in names}

    def row_ids(self, positions: np.ndarray) -> Mapping[str, Any]:
        seeds, node_type = self.target.seeds, self.output.node_type
        ids = {"id": self.env.bundle.take_ids(node_type, seeds.node_ids(positions))}
        times = {} if seeds.time is None else {"time": np.asarray(seeds.time)[positions]}
        return ids | times

    def fitted_histories(self, bundle: Bundle) -> Iterable[HistorySpec]:
        target, seeds, train = self.target, self.target.seeds, self.target.counted_rows
        output = target.output
        is_timed = self._rows("train", train[:1]).times is not None
        times = np.asarray(seeds.time)[train] if is_timed else None
        spec = fit_history(
            bundle,
            seeds.node_type,
            target.arguments.feature,
            seeds.node_ids(train),
            times,
            window_as_time(seeds.window, seeds.time_unit, f"{seeds.place}.window"),
            self.max_age(seeds.time_unit),
            edge_features=(target.arguments.edge_feature or EDGE_ATTR,),
            num_windows=1 if output.problem == "multi_class" else output.num_outputs,
            labels=self.table_labels if target.arguments.past_labels else None,
        )
        if self._past is not None and times is not None:
            counts = self._past.columns(seeds.node_ids(train), times)[:, 0]
            if outgrows(counts, times):
                spec = replace(spec, left_out=(*spec.left_out, self.past_columns[0].name))
        if seeds.name is not None:
            history = self.history_of(bundle, spec)
            spec = self.narrowed(history, train, self._rows("train", train))
        yield spec

    @cached_property
    def _past(self) -> PastLabels | None:
        """Labels of earlier rows that LightGBM reads, if the model does."""
        found = find_past_labels(self.spec, self.env.bundle)
        return None if found is None else found[1]

    @cached_property
    def past_columns(self) -> list[HistoryColumn]:
        """Descriptions of the columns of `PastLabels.columns`."""
        return PastLabels.describe(self.table_labels.table, self.table_labels.names)

    def past_in_units(self, columns: np.ndarray) -> np.ndarray:
        """Columns of past labels as numbers of labels, times and labels."""
        assert self.spec.relative_time is not None
        found = columns.astype(np.float64)
        found[:, 0] = np.expm1(found[:, 0]).round()
        found[:, 1] *= self.spec.relative_time.span
        if (scale := self.output.scale) is not None:
            both = found[:, 2:].reshape(len(found), 2, -1) * scale.std + scale.mean
            found[:, 2:] = both.reshape(len(found), -1)
        return np.where((found[:, :1] != 0) | (np.arange(found.shape[1]) == 0), found, np.nan)

    def tree_columns(self, model: Any, rows: NodeRows) -> np.ndarray:
        """History columns of entities, and their past labels."""
        (history,) = self.histories
        columns = history.columns(rows.nodes, rows.times)
        if self._past is None:
            return columns
        assert rows.times is not None
        past = self._past.columns(rows.nodes, rows.times)
        if self.past_columns[0].name in history.spec.left_out:  # without their number
            past[past[:, 0] == 0] = np.nan
            past[:, 0] = np.nan
        return np.concatenate([columns, past], axis=1)

    @property
    def described_columns(self) -> list[tuple[str, HistoryColumn]]:
        (history,) = self.histories
        past = [] if self._past is None else self.past_columns
        return [(self.output.node_type, each) for each in (*history.described, *past)]

    def in_units(self, columns: np.ndarray) -> np.ndarray:
        if self._past is None:
            return columns
        num = len(self.histories[0].names)
        past = self.past_in_units(columns[:, num:])
        return np.concatenate([columns[:, :num], past], axis=1)

    def row_columns(self, rows: np.ndarray, split: str) -> np.ndarray:
        return self.tree_columns(self.model, self._rows(split, rows))

    @property
    def columns_without_time(self) -> Mapping[int, str]:
        is_table = self.target.seeds.name is not None  # columns of nodes may well be decisive
        described = self.histories[0].described if is_table else ()
        return {i: each.name for i, each in enumerate(described) if each.is_own}

    @cached_property
    def _earlier_labels(self) -> PastLabels:
        """Earlier labels of entities, as probabilities of classes or numbers."""
        labels, output = self.table_labels, self.output
        if labels.rows is None:
            warn(
                f"the graph has no training table {output.table!r} with {output.label!r}. The "
                "model reads labels of earlier rows, and predicts worse without."
            )
        if output.num_scores < output.num_outputs:  # two classes
            labels = replace(labels, scores=np.concatenate([1 - labels.scores, labels.scores], 1))
        return labels.of(lambda entities, _: entities)

    @cached_property
    def table_labels(self) -> TableLabels:
        output, bundle = self.output, self.env.bundle
        names = [output.label]
        if output.num_scores > 1:
            names = [f"{output.label}={name}" for name in output.shown_classes]
        table = output.table or ""
        rows = bundle.training_tables.get(table)
        if rows is None or output.label not in rows.columns or rows.time is None:
            none = np.empty((0, len(names)))
            return TableLabels(None, none[:, 0].astype(np.int64), none, None, table, names)
        labels, weights = bundle.row_column(rows, output.label), bundle.row_weights(rows)
        known = np.flatnonzero(has_label(labels))
        scores = replace(output, scale=None).scores(np.asarray(labels[known])).astype(np.float64)
        weights = None if weights is None else weights[known]
        return TableLabels(rows, known, scores, weights, table, names)

    def groups(self, rows: np.ndarray) -> np.ndarray:
        return self.target.seeds.node_ids(rows)

    def prepare_evaluation(self, split: str) -> None:
        """In training, also weighs the labels around validation nodes by the encoder's logits,
        which are kept for the evaluation.
        """
        super().prepare_evaluation(split)
        labels, is_chosen = self._labels_of(self.model), self.output.blend is not None
        if labels is None or split != "val" or "train" not in self._loaders or is_chosen:
            return
        around = self._propagated()
        assert around is not None  # as for the driver, which gave the model its labels
        labels.reset()
        limit, num_batches = self.config.training.num_val_batches, 0
        if (loader := self.loader(split)) is not None:
            num_batches = min(loader.num_batches, limit or loader.num_batches)
        recorded, self._recorded = self._recorded, None
        self._judged = run_and_sync_errors(lambda: list(self.evaluate(split, num_batches)))
        self._recorded = recorded
        none = torch.empty(0, self.output.num_outputs)
        read = read_together([x for each in self._judged for x in (each.ids, each.prediction)])
        nodes = torch.cat([none[:, 0].long(), *read[::2]])
        logits = torch.cat([none, *(rows.float() for rows in read[1::2])])
        nodes, order = gather_rows(nodes).sort()
        classes = torch.from_numpy(self.target.labels[nodes.numpy()])
        labels.weigh(around, gather_rows(logits)[order], nodes, classes)
        for chosen in (labels.weights, labels.reach):  # may differ in the last bit by node
            chosen.copy_(broadcast(chosen))

    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        judged, self._judged = self._judged, []
        for each in judged:
            logits = self.evaluated(each.ids, each.prediction, partial(_nodes_of, each.ids))
            predicted = logits, None
            yield self._evaluated(each.index, each.ids, predicted, each.target, each.row_weights)
        if not judged:
            yield from super().evaluate(split, num_batches)

    def score_weights(self) -> tuple[float, float] | None:
        labels = self._labels_of(self.model)
        is_part = self.blend is None or GNN in self.blend.shares
        if labels is None or not labels.is_used or not is_part:
            return None
        _, of_labels, of_encoder = labels.weights.tolist()
        return of_encoder, of_labels

    def predict(self, batch: NodeBatch) -> tuple[Any, Tensor | None]:
        embeddings = None
        if "embeddings" in self.objective.needs:
            prediction, embeddings = self.model(batch, with_embeddings=True)
        else:
            prediction = self.model(batch)
        if not self.model.training:
            prediction = self.evaluated(batch.input_id, prediction, lambda: seeds_of(batch))
        return self._checked(prediction), embeddings

    def predict_exactly(
        self, rows: np.ndarray, every: Mapping[str, Tensor], loader: Any
    ) -> tuple[Any, Tensor | None]:
        nodes = self.target.seeds.node_ids(rows)
        of_type = every[self.output.node_type]
        moved = copied(torch.from_numpy(nodes), of_type.device)
        embeddings = of_type[moved].to(self.env.device)
        prediction = self.model.readout(embeddings)
        positions, of_rows = torch.from_numpy(rows), NodeRows(nodes, None)
        evaluated = self.evaluated(positions, prediction, lambda: of_rows)
        return evaluated, embeddings

    def evaluated_gnn(self, outputs: Tensor, rows_of: Callable[[], NodeRows]) -> Tensor:
        labels = self._labels_of(self.model)
        if labels is None or not labels.is_used:
            return outputs
        return self.outputs_of_gnn(self.model, outputs, rows_of())

    def outputs_of_gnn(self, model: nn.Module, outputs: Tensor, rows: NodeRows) -> Tensor:
        """Adds the classes of training nodes around the nodes."""
        labels = self._labels_of(model)
        if labels is None or not labels.is_used:
            return outputs
        around = self._propagated(int(labels.reach))
        return outputs if around is None else labels(outputs, rows.nodes, around)

    def _labels_of(self, model: nn.Module) -> LabelScores | None:
        return model.labels if isinstance(model, NodePredictor) else None


def _nodes_of(ids: Tensor) -> NodeRows:
    return NodeRows(ids.cpu().numpy(), None)


def seeds_of(batch: NodeBatch) -> NodeRows:
    """The seeds of a batch, with their times, if it has times."""
    nodes, index = batch.nodes[batch.node_type], batch.seed_index
    times = None if nodes.seed_time is None else nodes.seed_time[index].cpu().numpy()
    return NodeRows(nodes.n_id[index].cpu().numpy(), times)
