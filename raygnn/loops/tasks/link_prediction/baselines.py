"""Simple recommenders that a link model is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raygnn.data.bundle import Bundle
from raygnn.loops.baselines import Baselines, own_metrics
from raygnn.loops.evaluation import evaluate
from raygnn.loops.task import EvalOutput
from raygnn.loops.tasks.link_prediction.evaluation import (
    SCORES_AT_A_TIME,
    FullRankingEvaluation,
    RowsAtTime,
    ends_of_links,
)
from raygnn.loops.tasks.link_prediction.scoring import LinkScoring
from raygnn.loops.tasks.link_prediction.target import LinkTarget
from raygnn.losses import LinkScores
from raygnn.metrics import SumMetric
from raygnn.metrics.sampled_ranking import exact_means, exact_state
from raygnn.models.decoders import Decoder, InnerProduct
from raygnn.recommender.choice import TREND_HALF_LIVES, JudgedRows, spread_evenly
from raygnn.recommender.known_links import LinkHistory
from raygnn.recommender.peers import PeersInTime, RowScores, ease_weights, ials, link_matrix
from raygnn.sampling.batch import BatchLinks
from raygnn.sampling.link_loader import LinkLoader
from raygnn.sampling.negatives import NONE

# A few seconds of one processor, and 200 MB.
_MOST_TARGETS, _MOST_PAIRS, _MOST_LINKS = 5_000, 50_000_000, 2_000_000
#: Penalties that validation chooses from.
_EASE_PENALTIES, _IALS_PENALTIES = (30.0, 100.0, 300.0, 1000.0), (1.0, 10.0, 30.0)

#: Validation rows that choose settings, and their scores.
_MOST_JUDGED, _MOST_SCORES = 1500, 25_000_000

Factors = tuple[Any, Tensor]  # of anchors, by index, and of targets
Fit = Callable[[str], tuple[Decoder, Factors]]
RowFits = Sequence[Callable[[str], RowScores]]


class LinkBaselines:
    """Simple recommenders of a link task. They know the links that a model knows in a split, and
    validation chooses their settings, once.

    `popularity` scores a target by its links of the relation; `recent_popularity`, of links with
    times, by those whose weight halves with age. `ease` and `ials` recommend targets from links,
    for two node types, one relation and graphs that take a few seconds. `chance` is the expectation
    of random scores.

    For rows of (anchor, time), they know the links until each row's time, and validation also
    chooses whether known targets rank last. `own_targets` ranks targets by the anchor's own links.

    Args:
        history: links with times that rows of (anchor, time) know, if there are any.
    """

    def __init__(
        self, target: LinkTarget, bundle: Bundle, history: LinkHistory | None = None
    ) -> None:
        self._target, self._bundle, self._history = target, bundle, history
        anchor_type, target_type = target.node_types
        self._num_nodes = bundle.num_nodes(anchor_type), bundle.num_nodes(target_type)
        self._chosen: dict[str, Any] = {}

    def judge(
        self, loader: LinkLoader, split: str, num_batches: int | None, metrics: Sequence[Any]
    ) -> Baselines:
        """Metrics on the evaluation links of a split, with the model's candidates. Only raygnn's
        own metrics are computed. Collective: all ranks must call.
        """
        metrics = own_metrics(metrics)
        candidate = loader.with_dense_ids(0).links.candidate
        assert candidate is not None
        num_candidates = candidate.shape[1]
        chance = _Chance(num_candidates, metrics)
        judged = {}
        for name, task in self._tasks(loader, split, metrics):
            of_guess = evaluate(task, split, num_batches, [*metrics, chance])
            judged[name] = {key.removeprefix(f"{split}/"): value for key, value in of_guess.items()}
            del judged[name]["loss"]
            judged["chance"] = {
                key.removeprefix("chance/"): judged[name].pop(key)
                for key in list(judged[name])
                if key.startswith("chance/")
            }
        num_links = loader.num_examples
        if num_batches is not None:
            num_links = min(num_links, num_batches * loader.batch_size)
        return Baselines(judged, num_links, (num_links,), (num_candidates,))

    def _tasks(
        self, loader: LinkLoader, split: str, metrics: Sequence[Any]
    ) -> Iterator[tuple[str, Any]]:
        if self._history is not None and len(self._target.edge_types) == 1:
            for name, fits in self._guesses_in_time():
                scores = self._best_in_time(name, fits, split)
                yield name, _RowGuessTask(self._target, loader, scores, self._num_nodes[1], metrics)
            return
        for name, fit in self._guesses():
            yield name, _GuessTask(self._target, loader, *fit(split), metrics)

    def _guesses(self) -> Iterator[tuple[str, Fit]]:
        yield "popularity", self._popularity
        target, (_, num_targets) = self._target, self._num_nodes
        train = target.splits["train"]
        is_one_relation = (
            len(target.edge_types) == 1 and target.node_types[0] != target.node_types[1]
        )
        if not (is_one_relation and train.num_links and target.splits["val"].num_links):
            return
        if train.times is not None:
            yield "recent_popularity", partial(self._best, "recent", self._recent, TREND_HALF_LIVES)
        num_pairs = train.num_anchors * num_targets
        if num_targets <= _MOST_TARGETS and num_pairs <= _MOST_PAIRS:
            yield "ease", partial(self._best, "ease", self._ease, _EASE_PENALTIES)
        if train.num_links <= _MOST_LINKS:
            yield "ials", partial(self._best, "ials", self._ials, _IALS_PENALTIES)

    def _best(
        self, name: str, fit: Callable[[str, float], Factors], choices: Sequence[float], split: str
    ) -> tuple[Decoder, Factors]:
        """Rows of a split with the setting that ranks validation links best."""
        if name not in self._chosen:
            val, num_targets = self._target.splits["val"], self._num_nodes[1]
            if self._target.by_time:
                judged = JudgedRows.of_rows(val, self._judged_rows, num_targets)
            else:
                known = self._target.known(self._bundle, "val")
                judged = JudgedRows.of_anchors(val, known, num_targets)
            best = -1.0
            for choice in choices:
                factors = fit("val", choice)
                ndcg = float(judged.ndcg(judged.scores(*factors)).mean())
                if ndcg > best:
                    best, self._chosen[name] = ndcg, (choice, factors)
        choice, factors = self._chosen[name]
        if self._splits_before(split) != self._splits_before("val"):
            factors = fit(split, choice)
        return InnerProduct(self._num_nodes[1]), factors

    @property
    def _judged_rows(self) -> np.ndarray:
        """Positions of the validation rows of (anchor, time) that choose settings."""
        most = min(_MOST_JUDGED, _MOST_SCORES // self._num_nodes[1])
        return spread_evenly(self._target.splits["val"].num_anchors, most)

    def _guesses_in_time(self) -> Iterator[tuple[str, RowFits]]:
        """By name, functions that score the rows of a split, one for each setting."""
        assert self._history is not None
        target, num_links = self._target, len(self._history.anchors)

        def ranks(method: Callable[..., RowScores], *settings: float) -> RowFits:
            return [partial(self._scores_of, method, setting) for setting in settings]

        def by_label(split: str) -> RowScores:
            _, (_, counts) = self._popularity(split)
            return lambda rows: counts.T.expand(len(rows), -1).clone()

        yield "popularity", [by_label, *ranks(PeersInTime.popularity, 0.0)]
        has_val = target.splits["val"].num_links > 0
        end = target.times("val").min() if has_val else target.times("train").max()
        span = self._history.as_of(end).span
        half_lives = [span / part for part in TREND_HALF_LIVES if span]
        yield "own_targets", ranks(PeersInTime.own_targets, 0.0, *half_lives[:3])
        if half_lives:
            yield "recent_popularity", ranks(PeersInTime.popularity, *half_lives)
        if target.is_one_type or num_links > _MOST_LINKS:
            return
        if self._num_nodes[1] <= _MOST_TARGETS:
            yield "ease", ranks(PeersInTime.ease, *_EASE_PENALTIES)
        yield "ials", ranks(PeersInTime.ials, *_IALS_PENALTIES)

    def _best_in_time(self, name: str, fits: RowFits, split: str) -> RowScores:
        """Scores of the rows of a split, with the setting that ranks validation rows best, and
        known targets last if that is better.
        """
        val, rows = self._target.splits["val"], self._judged_rows
        if not len(rows):
            self._chosen[name] = len(fits) // 2, False
        if name not in self._chosen:
            known = self._peers("val").known(rows)
            judged = JudgedRows.of_rows(val, rows, self._num_nodes[1], known)
            found = (fit("val")(rows) for fit in fits)
            ndcg = {
                (number, hides): float(judged.ndcg(scores.clone(), hides_known=hides).mean())
                for number, scores in enumerate(found)
                for hides in (False, True)
            }
            self._chosen[name] = max(ndcg, key=ndcg.__getitem__)
        number, hides = self._chosen[name]
        scores = fits[number](split)
        return self._peers(split).known_last(scores) if hides else scores

    def _scores_of(self, method: Callable[..., RowScores], setting: float, split: str) -> RowScores:
        return method(self._peers(split), setting)

    def _peers(self, split: str) -> PeersInTime:
        assert self._history is not None
        anchors = np.asarray(self._target.splits[split].anchors)
        return PeersInTime(self._history, anchors, self._target.times(split))

    def _ease(self, split: str, l2: float) -> Factors:
        links = link_matrix(*self._links_before(split), self._num_nodes)
        rows = _ScoredRows(lambda rows: torch.from_numpy(links[rows].toarray()))
        return rows, ease_weights(links, l2)

    def _ials(self, split: str, l2: float) -> Factors:
        return ials(*self._links_before(split), self._num_nodes, l2=l2)

    def _recent(self, split: str, part: float) -> Factors:
        known = [self._target.splits[name] for name in self._splits_before(split)]
        times = np.concatenate([edges.times for edges in known if edges.times is not None])
        age = (times.max() - times).astype(np.float64)
        weights = 0.5 ** (age * part / max(age.max(), 1e-12))
        targets = np.concatenate([edges.targets for edges in known])
        counts = np.bincount(targets, weights, self._num_nodes[1]).astype(np.float32)
        return torch.ones(self._num_nodes[0], 1), torch.from_numpy(counts).unsqueeze(1)

    def _splits_before(self, split: str) -> tuple[str, ...]:
        """Splits whose links a model knows in a split."""
        is_transductive = self._target.arguments.test_messages == "transductive"
        return ("train", "val") if split == "test" and is_transductive else ("train",)

    def _links_before(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """int64 [num_links] each: anchors and targets of the links known in a split."""
        ends = [ends_of_links(self._target.splits[name]) for name in self._splits_before(split)]
        anchors, targets = (
            np.concatenate(part).astype(np.int64) for part in zip(*ends, strict=True)
        )
        return anchors, targets

    def _popularity(self, split: str) -> tuple[Decoder, Factors]:
        num_relations, num_targets = len(self._target.edge_types), self._num_nodes[1]
        counts = np.zeros(num_relations * num_targets, np.int64)
        for name in self._splits_before(split):
            edges = self._target.splits[name]
            relation = np.zeros(edges.num_anchors, np.int64)
            if edges.relations is not None:
                relation = edges.relations
            cell = np.repeat(relation, np.diff(edges.indptr)) + num_relations * edges.targets
            counts += np.bincount(cell, minlength=len(counts))
        rows = counts.reshape(num_targets, num_relations).astype(np.float32)
        # The rows of anchors are not read.
        anchors = torch.zeros(self._num_nodes[0], num_relations)
        return _Popularity(num_relations, num_relations), (anchors, torch.from_numpy(rows))


class _ScoredRows:
    """Rows of anchors, [num_rows, num_targets], such as scores, computed when they are read."""

    device = torch.device("cpu")

    def __init__(self, scores: RowScores) -> None:
        self._scores = scores

    def __getitem__(self, index: Tensor) -> Tensor:
        return self._scores(index.numpy())


class _Given(Decoder):
    """Scores by target, of rows with the scores of all targets. Rows of targets are their ids."""

    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        return anchor_rows.gather(1, target_rows).squeeze(1)

    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        return anchor_rows[:, candidate_rows.squeeze(1)]  # a copy: the caller may write to it


class _Chance(SumMetric):
    """The expectation of other metrics for random scores. Links may differ in their candidates."""

    name = "chance"
    problems = ("link_prediction",)

    def __init__(self, num_candidates: int, metrics: Sequence[Any]) -> None:
        super().__init__(num_candidates + 1, "link_prediction")
        self._names = {metric.name for metric in metrics}
        self._ks = [k for metric in metrics if metric.name == "hits" for k in metric.ks]

    def update(self, prediction: Tensor, target: Tensor | None = None) -> Tensor:
        num = (prediction != -torch.inf).sum(dim=1, keepdim=True).double()
        ranks = torch.arange(1, self.num_outputs + 1, dtype=torch.float64)
        reciprocal = (1 / ranks).cumsum(0)[num.long() - 1] / num
        hits = num.new_tensor(self._ks).minimum(num) / num
        return exact_state(torch.cat([num / self.num_outputs, reciprocal, hits], dim=1))

    def compute(self, state: Tensor) -> dict[str, float]:
        share, reciprocal, *hits = exact_means(state)
        found = {"auc": 0.5, "ap": 1 / (share * self.num_outputs), "mrr": reciprocal}
        found = {name: value for name, value in found.items() if name in self._names}
        found |= {f"hits@{k}": value for k, value in zip(self._ks, hits, strict=True)}
        return {f"chance/{name}": value for name, value in found.items()}


class _Popularity(Decoder):
    """Scores a target by its row alone: [num_relations], numbers of training links."""

    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        return target_rows[torch.arange(len(target_rows)), relation]

    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        scores = candidate_rows.T[relation]
        return scores.expand(len(anchor_rows), -1).clone()  # the caller may write to it


class _GuessTask:
    """A task for `evaluate` that scores links with given rows, on the CPU.

    Args:
        rows: of all anchors and of all targets; with one node type, those of targets.
    """

    def __init__(
        self,
        target: LinkTarget,
        loader: LinkLoader,
        decoder: Decoder,
        rows: Factors,
        metrics: Sequence[Any],
    ) -> None:
        self._target, self._loader = target, loader
        self.model = decoder
        self._rows = dict(zip(target.node_types, rows, strict=True))
        self._scoring = LinkScoring(target.node_types)
        self._rankings = [m for m in metrics if isinstance(m, FullRankingEvaluation)]

    def loader(self, split: str) -> LinkLoader:
        return self._loader

    def prepare_evaluation(self, split: str) -> None:
        for ranking in self._rankings:
            ranking.prepare(self._target, self.model, split, self._rows)

    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        for index in range(self._loader.rank, num_batches, self._loader.world_size):
            batch = self._loader.with_dense_ids(index)
            scores = self._scores(batch.links)
            weight, links = len(scores.positive), batch.links.position
            yield EvalOutput(index, links, 0.0, weight, scores.compared(), links)

    def _scores(self, links: BatchLinks) -> LinkScores:
        return self._scoring.evaluation_scores(self.model, links, self._rows)


class _RowGuessTask(_GuessTask):
    """Scores links of rows of (anchor, time)."""

    def __init__(
        self,
        target: LinkTarget,
        loader: LinkLoader,
        scores: RowScores,
        num_targets: int,
        metrics: Sequence[Any],
    ) -> None:
        every = torch.arange(num_targets).unsqueeze(1)
        super().__init__(target, loader, _Given(1), (_ScoredRows(scores), every), metrics)
        self._row_scores, self._every = scores, every

    def prepare_evaluation(self, split: str) -> None:
        self._links = self._target.splits[split]
        rows = np.arange(self._links.num_anchors)
        for ranking in self._rankings:
            at_times = [RowsAtTime(rows, _ScoredRows(self._row_scores), self._every)]
            ranking.prepare(self._target, self.model, split, at_times)

    def _scores(self, links: BatchLinks) -> LinkScores:
        assert links.candidate is not None
        candidates = links.random.id[links.candidate.clamp(min=0)]
        compared = torch.cat([links.id[1].unsqueeze(1), candidates], dim=1)
        rows, number = np.unique(self._links.row_of(links.position.numpy()), return_inverse=True)
        found = torch.empty(compared.shape)
        step = max(1, SCORES_AT_A_TIME // len(self._every))
        for first in range(0, len(rows), step):
            scores = self._row_scores(rows[first : first + step])
            chosen = torch.from_numpy((number >= first) & (number < first + step))
            own = torch.from_numpy(number)[chosen] - first
            found[chosen] = scores[own.unsqueeze(1), compared[chosen]]
        found = found.clamp(min=torch.finfo(found.dtype).min)  # -inf would be no candidate
        mask = links.candidate == NONE
        return LinkScores(positive=found[:, 0], candidate=found[:, 1:], mask=mask)
