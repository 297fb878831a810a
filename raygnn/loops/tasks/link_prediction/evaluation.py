"""Evaluation of links: ranks among all nodes, baselines, and ranks by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, product
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from raygnn.data.bundle import Bundle
from raygnn.data.links.dated_links import DatedLinks
from raygnn.data.links.supervision import KnownLinks, SupervisionEdges
from raygnn.loops.baselines import Baselines, own_metrics
from raygnn.loops.evaluation import evaluate
from raygnn.loops.task import EvalOutput
from raygnn.loops.tasks.link_prediction.scoring import LinkScoring
from raygnn.loops.tasks.link_prediction.target import LinkTarget
from raygnn.metrics import FullRanking, Links, SumMetric
from raygnn.metrics.diagnostics import Diagnostic, sums_by_bin
from raygnn.metrics.full_ranking import ScoreAll
from raygnn.metrics.sampled_ranking import exact_means, exact_state, sampled_ranks
from raygnn.models.decoders import Decoder, InnerProduct
from raygnn.models.linear_recommenders import ease, ials
from raygnn.models.link_factors import MAX_RANK, LinkBasis, LinkFactors, SpectralFilter
from raygnn.sampling.link_loader import LinkLoader


class RowsAtTime(NamedTuple):
    """Embeddings of the rows of (anchor, time, targets) of one time.

    Attributes:
        positions: int64 [num_rows], ascending, among the rows of the split.
        anchors: [num_rows, channels].
        targets: [num_targets, channels], of all targets.
        known: links that rank last, [num_rows, num_targets], if any do.
    """

    positions: np.ndarray
    anchors: Tensor
    targets: Tensor
    known: sparse.csr_matrix | None = None


class FullRankingEvaluation(SumMetric):
    """Ranks batches among embeddings of all targets, computed once per evaluation. `ks`: see
    `FullRanking`.
    """

    name = "full_ranking"
    problems = ("link_prediction",)

    def __init__(self, bundle: Bundle, num_candidates: int, ks: Sequence[int] | None) -> None:
        super().__init__(num_candidates, "link_prediction")
        self._bundle = bundle
        self._ranking = FullRanking(num_candidates, ks)
        self.ks = self._ranking.ks

    def prepare(
        self,
        target: LinkTarget,
        decoder: Decoder,
        split: str,
        rows: Mapping[str, Tensor] | Sequence[RowsAtTime],
    ) -> None:
        """Prepares an evaluation with embeddings on the device, of all nodes or as of times."""
        self._at_times: Sequence[RowsAtTime] = ()
        if isinstance(rows, Mapping):
            self._anchors, self._candidates = (rows[name] for name in target.node_types)
        else:
            self._at_times = rows
        self._decoder = decoder
        self._positives = target.splits[split]
        if target.by_time:
            self._known = KnownLinks.of_rows(self._positives)
        else:
            self._known = target.known(self._bundle, split)
        self._is_one_type = target.is_one_type and not target.by_time

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        links = target.cpu().numpy()
        rows = self._positives.row_of(links)
        rows = rows[self._positives.indptr[rows] == links]
        if not self._at_times:
            anchors = torch.from_numpy(self._positives.anchors[rows]).to(self._anchors.device)
            return self._rank(rows, self._anchors[anchors], self._candidates)
        states = []
        for positions, anchors, targets, known in self._at_times:
            chosen = rows[np.isin(rows, positions)]
            places = np.searchsorted(positions, chosen)
            queries = anchors[torch.from_numpy(places).to(anchors.device)]
            last = None if known is None else torch.from_numpy(known[places].toarray() > 0)
            states.append(self._rank(chosen, queries, targets, last))
        return torch.stack(states).sum(0)  # exact: see `FullRanking`

    def _rank(
        self, rows: np.ndarray, queries: Tensor, candidates: Tensor, last: Tensor | None = None
    ) -> Tensor:
        """Ranks the links of rows; `last` marks targets that rank last, [num_rows, num_targets]."""
        anchors = self._positives.anchors[rows]
        positives = _rows_of(self._positives.indptr, self._positives.targets, rows)
        relations = self._positives.relations
        relations = None if relations is None else relations[rows]
        known_rows = rows if self._known.by_row else anchors
        known = Links(*(torch.from_numpy(part) for part in self._known.rows(known_rows, relations)))
        if self._is_one_type and relations is None:
            known = _with_themselves(known, anchors)
        score_all = self._decoder.score_all
        if relations is not None:
            relation = torch.from_numpy(relations).to(candidates.device)
            score_all = partial(score_all, relation=relation)
        if last is not None:
            score_all = partial(_with_last, queries, candidates, last.to(queries.device), score_all)
            queries, candidates = (
                torch.arange(len(each), device=each.device) for each in (queries, candidates)
            )
        # Scores in half precision would be tied where their order is what is measured.
        with torch.autocast(queries.device.type, enabled=False):
            state = self._ranking.update(queries, candidates, positives, known, score_all)
        return state.cpu()

    def compute(self, state: Tensor) -> dict[str, float]:
        return self._ranking.compute(state)


def _with_last(
    queries: Tensor,
    candidates: Tensor,
    last: Tensor,
    score_all: ScoreAll,
    query: Tensor,
    candidate: Tensor,
) -> Tensor:
    """Scores by position of queries and candidates; -inf for those that rank last."""
    scores = score_all(queries[query], candidates[candidate])
    return scores.masked_fill(last[query.unsqueeze(1), candidate], -torch.inf)


def _with_themselves(known: Links, anchors: np.ndarray) -> Links:
    """Adds each anchor to its own row, so that it is not its own candidate.

    With several relations, some may link a node to itself, so all nodes compete as is usual for
    knowledge graphs.
    """
    ends = known.indptr[1:].numpy()
    targets = np.insert(known.targets.numpy(), ends, anchors)
    indptr = known.indptr + torch.arange(len(known.indptr))
    return Links(indptr, torch.from_numpy(targets))


def _rows_of(indptr: np.ndarray, targets: np.ndarray, rows: np.ndarray) -> Links:
    counts = indptr[rows + 1] - indptr[rows]
    bounds = np.concatenate([[0], np.cumsum(counts)])
    places = np.repeat(indptr[rows] - bounds[:-1], counts) + np.arange(bounds[-1])
    return Links(torch.from_numpy(bounds), torch.from_numpy(targets[places].astype(np.int64)))


def link_baselines(
    target: LinkTarget,
    loader: LinkLoader,
    num_nodes: tuple[int, int],
    split: str,
    num_batches: int | None,
    metrics: Sequence[Any],
) -> Baselines:
    """Metrics of baselines on the evaluation links of a split, with the model's candidates.

    `popularity` scores a target by its training links of the relation. `ease` and `ials` recommend
    targets from training links, in a transductive test also from validation links, for two node
    types, one relation and graphs that take a few seconds. `chance` is the expectation of random
    scores. Only raygnn's own metrics are computed. Collective: all ranks must call.
    """
    metrics = own_metrics(metrics)
    guesses = {"popularity": _popularity(target, num_nodes)}
    if _is_small(target, num_nodes):
        links = _links_before(target, split)
        guesses["ease"] = InnerProduct(num_nodes[1]), ease(*links, num_nodes)
        guesses["ials"] = InnerProduct(num_nodes[1]), ials(*links, num_nodes)
    num_candidates = _num_candidates(loader)
    chance = _Chance(num_candidates, metrics)
    judged = {}
    for name, (decoder, rows) in guesses.items():
        task: Any = _GuessTask(target, loader, decoder, rows, metrics)
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


# A few seconds of one processor, and 200 MB.
_MOST_TARGETS, _MOST_PAIRS = 5_000, 50_000_000


def _is_small(target: LinkTarget, num_nodes: tuple[int, int]) -> bool:
    num_anchors, num_targets = num_nodes
    is_one_relation = len(target.edge_types) == 1 and target.node_types[0] != target.node_types[1]
    is_small = num_targets <= _MOST_TARGETS and num_anchors * num_targets <= _MOST_PAIRS
    return is_one_relation and is_small and target.splits["train"].num_links > 0


def _links_before(target: LinkTarget, split: str) -> tuple[np.ndarray, np.ndarray]:
    """int64 [num_links] each: anchors and targets of the links known in a split."""
    is_transductive = target.arguments.test_messages == "transductive"
    names = ("train", "val") if split == "test" and is_transductive else ("train",)
    ends = [_ends(target.splits[name]) for name in names]
    anchors, targets = (np.concatenate(part).astype(np.int64) for part in zip(*ends, strict=True))
    return anchors, targets


def _num_candidates(loader: LinkLoader) -> int:
    candidate = loader.without_neighborhood(0).links.candidate
    assert candidate is not None
    return candidate.shape[1]


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


def _popularity(
    target: LinkTarget, num_nodes: tuple[int, int]
) -> tuple[Decoder, tuple[Tensor, Tensor]]:
    train, num_relations = target.splits["train"], len(target.edge_types)
    relation = np.zeros(train.num_anchors, np.int64)
    if train.relations is not None:
        relation = train.relations
    cell = np.repeat(relation, np.diff(train.indptr)) + num_relations * train.targets
    counts = np.bincount(cell, minlength=num_relations * num_nodes[1])
    rows = counts.reshape(num_nodes[1], num_relations).astype(np.float32)
    # The rows of anchors are not read.
    anchors = torch.zeros(num_nodes[0], num_relations)
    return _Popularity(num_relations, num_relations), (anchors, torch.from_numpy(rows))


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
        rows: tuple[Tensor, Tensor],
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
            batch = self._loader.without_neighborhood(index)
            scores = self._scoring.evaluation_scores(self.model, batch.links, self._rows)
            weight, links = len(scores.positive), batch.links.position
            yield EvalOutput(index, links, 0.0, weight, scores.compared(), links)


#: See `SpectralFilter`.
_POWERS, _ANCHOR_POWERS = (0.25, 0.5), (0.25, 0.5)
_RANKS, _ARE_RESCALED = (128, MAX_RANK), (False, True)
_PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
#: Later links of an anchor after which a link counts about half.
_RECENCIES = (10.0, 30.0)
#: Parts of the time of known links that are half-lives.
_HALF_LIVES = (4, 12, 36)
#: Weights of closed-form scores relative to those of the encoder, in standard deviations.
_RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
#: Weight of an encoder that does not improve the ranking: it orders targets without links.
_LEAST = 1 / 1024
_JUDGED_SCORES = 25_000_000  # three of them are in memory at a time: 300 MB
_K = 20


class JudgedRows:
    """NDCG@20 of validation links among all targets, of some anchors, or of rows of one time.

    All ranks compute the same.

    Args:
        rows: int64 [num_judged], positions in the rows of anchors that are judged.
        positives: links of each judged row.
        known: other links of each; they are no candidates.
        earlier: of a row with a time, links known then, [num_judged, num_targets].
    """

    def __init__(
        self,
        rows: np.ndarray,
        positives: Links,
        known: Links,
        num_targets: int,
        earlier: sparse.csr_matrix | None = None,
    ) -> None:
        self._rows, self._num_targets = torch.from_numpy(rows), num_targets
        self._positives = positives.keys(num_targets)
        masked = known.keys(num_targets)
        masked = masked[~torch.isin(masked, self._positives, assume_unique=True)]
        self._masked, self._masked_if_hidden = masked, masked
        if earlier is not None:
            indptr, targets = earlier.indptr.astype(np.int64), earlier.indices.astype(np.int64)
            links = Links(torch.from_numpy(indptr), torch.from_numpy(targets))
            self._masked_if_hidden = torch.cat([masked, links.keys(num_targets)])

    @classmethod
    def of_anchors(cls, target: LinkTarget, bundle: Bundle) -> JudgedRows:
        links, num_targets = target.splits["val"], bundle.num_nodes(target.node_types[1])
        rows = _some(links.num_anchors, num_targets)
        anchors = links.anchors[rows]
        known = Links(
            *(torch.from_numpy(part) for part in target.known(bundle, "val").rows(anchors))
        )
        return cls(anchors, _rows_of(links.indptr, links.targets, rows), known, num_targets)

    @classmethod
    def at_times(
        cls, target: LinkTarget, num_targets: int, dated: DatedLinks, rows_of: Sequence[np.ndarray]
    ) -> list[JudgedRows]:
        """Judges the validation rows of each time; see `RowsAtTime.positions`."""
        links, times, judged = target.splits["val"], target.times("val"), []
        of_rows = KnownLinks.of_rows(links)
        for positions in rows_of:
            rows = _some(len(positions), num_targets * len(rows_of))
            chosen = positions[rows]
            known = Links(*(torch.from_numpy(part) for part in of_rows.rows(chosen)))
            positives = _rows_of(links.indptr, links.targets, chosen)
            earlier = dated.as_of(times[positions[0]])[links.anchors[chosen]]
            judged.append(cls(rows, positives, known, num_targets, earlier))
        return judged

    def scores(self, anchors: Tensor, targets: Tensor) -> Tensor:
        """[num_judged, num_targets], from rows of anchors and of all targets on the CPU."""
        return anchors[self._rows] @ targets.T

    def ndcg(self, scores: Tensor, *, hides_known: bool = False) -> Tensor:
        """float64 [num_judged]. Overwrites `scores`."""
        k = min(_K, self._num_targets)
        scores.view(-1)[self._masked_if_hidden if hides_known else self._masked] = -torch.inf
        first = torch.arange(len(scores)).unsqueeze(1) * self._num_targets
        best = scores.topk(k)
        is_hit = torch.isin(best.indices + first, self._positives) & ~best.values.isneginf()
        gains = 1 / torch.arange(2, k + 2, dtype=torch.float64).log2()
        num_positives = torch.bincount(self._positives // self._num_targets, minlength=len(scores))
        return (is_hit * gains).sum(dim=1) / gains.cumsum(0)[num_positives.clamp(max=k) - 1]


def _some(num_rows: int, num_targets: int) -> np.ndarray:
    num = min(num_rows, max(_JUDGED_SCORES // num_targets, 1))
    return np.linspace(0, num_rows - 1, num).astype(np.int64)


def choose_filter(
    judged: Sequence[JudgedRows],
    bases: Callable[[SpectralFilter], Sequence[LinkBasis]],
    span: float = 0.0,
) -> SpectralFilter:
    """The filter with the best ranking of validation links by closed-form rows alone.

    The second power of anchors is tried with the best power of targets only.

    Args:
        bases: of each of `judged`, by settings.
        span: time of the known links, of rows with times. How links age, and whether known ones are
            hidden, is chosen first. The order of an anchor's links counts if it improves the
            ranking by a standard error.
    """
    factors = LinkFactors()
    factors.weights.copy_(torch.tensor([0.0, 1.0]))
    ndcg: dict[SpectralFilter, Tensor] = {}

    def best(choices: Iterable[SpectralFilter]) -> SpectralFilter:
        judged_choices = list(choices)
        for _, of_one_basis in groupby(judged_choices, lambda choice: choice.of_basis):
            group = list(of_one_basis)
            of_judged = bases(group[0])
            for choice in group:
                factors.filter.copy_(torch.tensor(choice))
                of_links = _scores(judged, map(factors.rows, of_judged))
                ndcg[choice] = _ndcg(judged, of_links, choice)
        return max(judged_choices, key=mean_ndcg)

    def mean_ndcg(choice: SpectralFilter) -> float:
        return float(ndcg[choice].mean())

    settings = SpectralFilter()
    if span:
        half_lives = [0.0, *(float(np.float32(span / part)) for part in _HALF_LIVES)]
        pairs = product(half_lives, (False, True))
        settings = best(settings._replace(half_life=h, hides_known=hides) for h, hides in pairs)
    elif any(basis.num_later is not None for basis in bases(settings)):
        recent = best(settings._replace(recency=recency) for recency in (0.0, *_RECENCIES))
        if _is_better(ndcg[recent], ndcg[settings]):
            settings = recent

    def of_powers(powers: Iterable[float], anchor_power: float) -> Iterator[SpectralFilter]:
        for power, rank, penalty, is_rescaled in product(powers, _RANKS, _PENALTIES, _ARE_RESCALED):
            yield settings._replace(
                power=power,
                rank=rank,
                penalty=penalty,
                is_rescaled=is_rescaled,
                anchor_power=anchor_power,
            )

    first = best(of_powers(_POWERS, _ANCHOR_POWERS[0]))
    second = best(of_powers([first.power], _ANCHOR_POWERS[1]))
    return max(first, second, key=mean_ndcg)


def choose_weights(
    factors: LinkFactors,
    judged: Sequence[JudgedRows],
    encoded: Sequence[tuple[Tensor, Tensor]],
    bases: Sequence[LinkBasis],
) -> None:
    """Sets the weights by the ranking of validation links.

    The encoder alone may get all the weight. If it improves the ranking by less than a standard
    error, it gets only so much that it orders targets without links, whose other rows are zero.

    Args:
        encoded: for each of `judged`, the encoder's rows of anchors and of all targets.
    """
    factors.weights.copy_(torch.tensor([1.0, 1.0]))
    of_encoder = list(_scores(judged, encoded))
    of_links = list(_scores(judged, map(factors.rows, bases)))
    scale = _spread(of_encoder[0]) / max(_spread(of_links[0]), 1e-12)

    def judge(weights: tuple[float, float]) -> Tensor:
        pairs = zip(of_encoder, of_links, strict=True)
        sums = (
            (weights[1] * closed_form).add_(own, alpha=weights[0]) for own, closed_form in pairs
        )
        return _ndcg(judged, sums, factors.settings)

    choices = [(_LEAST, scale), *((1.0, ratio * scale) for ratio in (0.0, *_RATIOS))]
    ndcg = [judge(weights) for weights in choices]
    best = max(range(len(choices)), key=lambda i: float(ndcg[i].mean()))
    is_better = _is_better(ndcg[best], ndcg[0])
    factors.weights.copy_(torch.tensor(choices[best if is_better else 0]))


def _is_better(ndcg: Tensor, other: Tensor) -> bool:
    """Whether it exceeds the other by more than a standard error."""
    gain = ndcg - other
    return float(gain.mean()) > float(gain.std()) / len(gain) ** 0.5


def _scores(
    judged: Sequence[JudgedRows], rows: Iterable[tuple[Tensor, Tensor]]
) -> Iterator[Tensor]:
    return (part.scores(*of_part) for part, of_part in zip(judged, rows, strict=True))


def _ndcg(
    judged: Sequence[JudgedRows], scores: Iterable[Tensor], settings: SpectralFilter
) -> Tensor:
    """float64 [num_judged]. Overwrites `scores`."""
    hides = bool(settings.hides_known)
    parts = zip(judged, scores, strict=True)
    return torch.cat([part.ndcg(of_part, hides_known=hides) for part, of_part in parts])


def _spread(scores: Tensor) -> float:
    """Standard deviation of the scores of an anchor, on average."""
    return float(scores.std(dim=1).mean())


#: Training links of a target at which the next group begins.
_BOUNDS = (1, 2, 6, 21, 101, 1001)
_HITS_AT = 10


class RanksByGroup(Diagnostic):
    """Mean reciprocal rank and hits of links, by group of links.

    Args:
        group_of: int64 [num_links], group of each link of the split.
    """

    problems = ("link_prediction",)

    def __init__(
        self, num_outputs: int, name: str, group_of: np.ndarray, groups: Sequence[str]
    ) -> None:
        super().__init__(num_outputs, "link_prediction")
        self.name = name
        self._group_of, self._groups = torch.from_numpy(group_of), list(groups)

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        ranks = sampled_ranks(prediction).cpu()
        groups = self._group_of[target.cpu()]
        return sums_by_bin(groups, len(self._groups), 1 / ranks, (ranks <= _HITS_AT).double())

    def _of_state(self, state: Tensor) -> dict[str, Any]:
        """Of groups with links. No `hits@10` if every link would be a hit."""
        sums = state.view(3, -1)
        has_links = sums[0] > 0
        links, reciprocal, hits = sums[:, has_links]
        groups = {
            "groups": [g for g, has in zip(self._groups, has_links.tolist(), strict=True) if has],
            "links": links.long().tolist(),
            "mrr": (reciprocal / links).tolist(),
        }
        if self.num_outputs > _HITS_AT:
            groups[f"hits@{_HITS_AT}"] = (hits / links).tolist()
        return groups


def ranks_by_group(
    num_outputs: int, train: SupervisionEdges, judged: SupervisionEdges
) -> list[Diagnostic]:
    """Ranks by the target's number of training links, and by which ends have training links.

    Between nodes of one type, a training link counts for both ends.
    """
    anchor_degree, target_degree = _degrees(train, judged)
    by_degree = np.searchsorted(_BOUNDS, target_degree, side="right")
    warmth = 2 * (anchor_degree == 0) + (target_degree == 0)
    names = ("both warm", "cold target", "cold anchor", "both cold")
    return [
        RanksByGroup(num_outputs, "ranks_by_degree", by_degree, _names(_BOUNDS)),
        RanksByGroup(num_outputs, "ranks_by_warmth", warmth, names),
    ]


def _degrees(train: SupervisionEdges, judged: SupervisionEdges) -> tuple[np.ndarray, np.ndarray]:
    """int64 [num_links] each: training links of the anchor and of the target of evaluated links."""
    anchors, targets = _ends(judged)
    own_anchors, own_targets = _ends(train)
    num_nodes = 1 + max(int(ends.max(initial=0)) for ends in (anchors, targets, *_ends(train)))
    of_anchors = np.bincount(own_anchors, minlength=num_nodes)
    of_targets = np.bincount(own_targets, minlength=num_nodes)
    if train.anchor_type == train.target_type:
        of_anchors = of_targets = of_anchors + of_targets
    return of_anchors[anchors], of_targets[targets]


def _ends(links: SupervisionEdges) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(links.anchors, np.diff(links.indptr)), np.asarray(links.targets)


def _names(bounds: Sequence[int]) -> list[str]:
    ends = [
        f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"
        for low, high in zip((0, *bounds[:-1]), bounds, strict=True)
    ]
    return [*ends, f"{bounds[-1]:,} and more"]
