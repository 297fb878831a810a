"""Effects of the columns that each rung of a blend reads on the prediction of a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.data.history_spec import HistoryColumn
from raygnn.inference.explain.inputs import short_name
from raygnn.loops.blend import CONSTANT, GNN, LAST_LABEL, TREES, Share
from raygnn.loops.boosted_trees import BoostedTrees
from raygnn.loops.task import Task
from raygnn.loops.tasks.blended_task import BlendedTask, TreeRow
from raygnn.loops.tasks.node_classification.target import NodeOutput


@dataclass(frozen=True)
class Fact:
    """A column that a part of the model reads, and what it does to a prediction.

    Attributes:
        part: the rung.
        node_type: whose rows have the column.
        described: the column.
        element: its position in a list column.
        effect: what the column adds to the prediction: to the logit of the class less the mean of
            the other classes, or to the predicted number.
        kept: it is one of the most important of its part.
    """

    part: str
    node_type: str
    described: HistoryColumn
    element: int | None
    effect: float
    kept: bool = False

    @property
    def column(self) -> str:
        return short_name(self.described)


Scores = TypeVar("Scores", np.ndarray, Tensor)


def margin(scores: Scores, label: int | None, problem: str) -> Scores:
    """Scores of a class less the mean of other classes, over the last dimension; those of one of
    several labels, and numbers, as they are.

    Args:
        scores: [..., num_outputs].
        label: the class or label; None for a number.
    """
    if label is None or problem != "multi_class":
        return scores[..., label or 0]
    num_others = scores.shape[-1] - 1
    return scores[..., label] - (scores.sum(-1) - scores[..., label]) / num_others


class RowRungs:
    """The rungs of a blend on one row.

    Args:
        values: predictions of rungs beside the GNN, [1, num_outputs] by name.
        row: what LightGBM reads; None if it has no share.
    """

    def __init__(
        self, task: BlendedTask[Any], values: Mapping[str, np.ndarray], row: TreeRow | None
    ) -> None:
        assert task.blend is not None
        self._task, self.blend, self._values, self._row = task, task.blend, values, row

    @property
    def described(self) -> Sequence[tuple[str, HistoryColumn]]:
        """The columns that LightGBM reads, with their node types."""
        return [] if self._row is None else self._row.described

    @cached_property
    def values(self) -> dict[str, dict[str, float]]:
        """Numbers of the row by node type and name of the column."""
        found: dict[str, dict[str, float]] = {}
        if self._row is not None:
            numbers = self._row.in_units.tolist()
            for (node_type, column), number in zip(self.described, numbers, strict=True):
                found.setdefault(node_type, {})[column.name] = number
        if self._task.output.num_outputs <= 2:  # a number, or the share of the second class
            for name, rows in self._values.items():
                if name != TREES:
                    node_type, column = self._of_labels(name)
                    found.setdefault(node_type, {})[column.name] = float(rows[0, -1])
        return found

    def _of_labels(self, rung: str) -> tuple[str, HistoryColumn]:
        """The column that mean or latest of the earlier labels predicts by."""
        output = self._task.output
        assert isinstance(output, NodeOutput)
        what = "last" if rung == LAST_LABEL else "mean"
        table = output.table or output.node_type
        return output.node_type, HistoryColumn(f"earlier {output.label}", table, what)

    @cached_property
    def _contributions(self) -> np.ndarray:
        """[num_models, num_outputs, num_columns + 1]; see `BoostedTrees.contributions`."""
        assert self._task.trees is not None
        assert self._row is not None
        return self._task.trees.contributions(self._row.columns)[:, 0]

    def predict(self, outputs: Tensor | None, kept: np.ndarray | None = None) -> Tensor:
        """The model's prediction, [1, num_outputs] in the unit of the GNN's outputs.

        Args:
            outputs: of the GNN; None if it has no share.
            kept: bool [num_columns], columns that LightGBM reads; the others add nothing. None
                reads all.
        """
        values = dict(self._values)
        if self._row is not None and kept is not None:
            chosen = self._contributions[..., np.append(kept, True)].sum(axis=2)[:, None]
            found = BoostedTrees.combined(chosen, self._task.output.problem)
            values[TREES] = self._task.of_labels(found)
        if outputs is None:
            outputs = torch.zeros(1, self._task.output.num_outputs)
        return self._task.blended(outputs, lambda _: values)

    def parts(self, outputs: Tensor | None) -> dict[str, tuple[float, np.ndarray]]:
        """Weight and calibrated scores [num_outputs] of each rung."""
        shares = self.blend.shares
        values = {**self._values, CONSTANT: self._task.constant[None]}
        if outputs is not None:
            values[GNN] = self._task.output.in_units(outputs).double().cpu().numpy()
        scores = self._task.rung_scores(
            {name: rows for name, rows in values.items() if name in shares}
        )
        return {
            name: (share.weight, share.calibrated(scores[name][0]))
            for name, share in shares.items()
        }

    def facts(self, label: int | None, num_kept: int) -> Iterator[Fact]:
        """Effects of LightGBM, and of mean and latest of the earlier labels, on a prediction.

        Args:
            label: the predicted class or label; None for a number.
            num_kept: columns to keep.
        """
        for name, share in self.blend.shares.items():
            if name in (GNN, CONSTANT):
                continue
            if name == TREES:
                yield from self._of_trees(share, label, num_kept)
                continue
            default = self._task.of_labels(self._task.constant_prediction[None])
            rows = np.concatenate([self._values[name], default])
            scores = share.part(self._task.rung_scores({name: rows})[name])
            ours, typical = (margin(each, label, self._task.output.problem) for each in scores)
            effect = ours - typical
            node_type, described = self._of_labels(name)
            yield Fact(name, node_type, described, None, float(effect), kept=True)

    def _of_trees(self, share: Share, label: int | None, num_kept: int) -> Iterator[Fact]:
        raw = self._contributions[..., :-1].mean(axis=0)
        effects = share.weight * share.scale * margin(raw.T, label, self._task.output.problem)
        order = np.argsort(-np.abs(effects), kind="stable")
        kept = set(order[:num_kept][effects[order[:num_kept]] != 0].tolist())
        for i in order.tolist():
            (node_type, column), effect = self.described[i], float(effects[i])
            yield Fact(TREES, node_type, column, None, effect, kept=i in kept)

    def kept_columns(self, facts: Sequence[Fact]) -> np.ndarray:
        """bool [num_columns], whether LightGBM's column is kept."""
        kept = {(f.node_type, f.described) for f in facts if f.part == TREES and f.kept}
        return np.array([each in kept for each in self.described], bool)


def rungs_of_row(task: Task, model: nn.Module, rows: Any) -> RowRungs | None:
    """The rungs of the only row of some rows (see `Task.completed`); None if encoder and head
    predict alone.
    """
    if not isinstance(task, BlendedTask) or task.blend is None:
        return None
    names = [name for name in task.blend.shares if name not in (GNN, CONSTANT)]
    row = task.tree_row(model, rows) if TREES in names else None
    return RowRungs(task, task.rungs(names, model, rows), row)
