"""Baselines of links: how often a target is linked to in training, and chance."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raygnn.loops.baselines import Baselines, own_metrics
from raygnn.loops.evaluation import evaluate
from raygnn.loops.task import EvalOutput
from raygnn.loops.tasks.link_prediction.full_ranking import FullRankingEvaluation
from raygnn.loops.tasks.link_prediction.scoring import LinkScoring
from raygnn.loops.tasks.link_prediction.target import LinkTarget
from raygnn.models.decoders import Decoder
from raygnn.sampling.link_loader import LinkLoader


def link_baselines(
    target: LinkTarget,
    loader: LinkLoader,
    num_nodes: tuple[int, int],
    split: str,
    num_batches: int | None,
    metrics: Sequence[Any],
) -> Baselines:
    """Metrics of guesses on the evaluation links of a split, among the candidates of the model.

    `popularity` scores a target by its links in training, of the relation that is asked for.
    `chance` is what random scores give on average: a rank is any of those that there are.
    Collective: all ranks must call.

    Args:
        num_nodes: of the anchor type and of the target type.
        metrics: those of raygnn are judged, others are left out.
    """
    metrics = own_metrics(metrics)
    task: Any = _PopularityTask(target, loader, num_nodes, metrics)
    judged = evaluate(task, split, num_batches, metrics)
    found = {name.removeprefix(f"{split}/"): value for name, value in judged.items()}
    del found["loss"]
    num_candidates = _num_candidates(loader)
    num_links = loader.num_examples
    if num_batches is not None:
        num_links = min(num_links, num_batches * loader.batch_size)
    guesses = {"popularity": found, "chance": _by_chance(found, num_candidates)}
    return Baselines(guesses, num_links, (num_links,), (num_candidates,))


def _num_candidates(loader: LinkLoader) -> int:
    """What each link competes with: as many for all."""
    candidate = loader.without_neighborhood(0).links.candidate
    assert candidate is not None
    return candidate.shape[1]


def _by_chance(names: Collection[str], num_candidates: int) -> dict[str, float]:
    """Expected metrics of random scores among candidates that are as many for each link."""
    num_ranks = num_candidates + 1
    found = {"auc": 0.5, "ap": 1 / num_ranks}
    found["mrr"] = float((1 / np.arange(1, num_ranks + 1)).mean())
    found |= {
        name: int(name.removeprefix("hits@")) / num_ranks
        for name in names
        if name.startswith("hits@")
    }
    return {name: found[name] for name in names if name in found}


class _Popularity(Decoder):
    """Scores a target by its row alone: [num_relations], links in training."""

    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        return target_rows[torch.arange(len(target_rows)), relation]

    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        scores = candidate_rows.T[relation]
        return scores.expand(len(anchor_rows), -1).clone()  # which the caller may write to


class _PopularityTask:
    """What `evaluate` reads of a task: links scored by popularity, on the CPU.

    Args:
        num_nodes: of the anchor type and of the target type.
    """

    def __init__(
        self,
        target: LinkTarget,
        loader: LinkLoader,
        num_nodes: tuple[int, int],
        metrics: Sequence[Any],
    ) -> None:
        self._target, self._loader, self._num_nodes = target, loader, num_nodes
        num_relations = len(target.edge_types)
        self.model = _Popularity(num_relations, num_relations)
        self._scoring = LinkScoring(target.node_types)
        self._rankings = [m for m in metrics if isinstance(m, FullRankingEvaluation)]

    def loader(self, split: str) -> LinkLoader:
        return self._loader

    def prepare_evaluation(self, split: str) -> None:
        """Counts the links of training by target and relation."""
        anchor_type, target_type = self._target.node_types
        train, num_relations = self._target.splits["train"], self.model.num_relations
        relation = np.zeros(train.num_anchors, np.int64)
        if train.relations is not None:
            relation = train.relations
        cell = np.repeat(relation, np.diff(train.indptr)) + num_relations * train.targets
        num_anchors, num_targets = self._num_nodes
        counts = np.bincount(cell, minlength=num_relations * num_targets)
        # The rows of anchors are not read; where both are of one type there is one table.
        self._rows = {anchor_type: torch.zeros(num_anchors, num_relations)}
        rows = counts.reshape(num_targets, num_relations).astype(np.float32)
        self._rows[target_type] = torch.from_numpy(rows)
        for ranking in self._rankings:
            ranking.prepare(self._target, self.model, split, self._rows)

    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        for index in range(self._loader.rank, num_batches, self._loader.world_size):
            batch = self._loader.without_neighborhood(index)
            scores = self._scoring.evaluation_scores(self.model, batch.links, self._rows)
            prediction = torch.cat([scores.positive.unsqueeze(1), scores.candidate], dim=1)
            weight, links = len(scores.positive), batch.links.position
            yield EvalOutput(index, links, 0.0, weight, prediction, links)
