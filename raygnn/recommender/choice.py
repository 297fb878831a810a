"""Settings of the regression and weights of a blend, by the ranking of validation links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from raygnn.data.links.supervision import KnownLinks, SupervisionEdges
from raygnn.metrics import Links
from raygnn.recommender.known_links import LinkHistory
from raygnn.recommender.regression import RANKS, AnchorRows, LinkBasis, RegressionSettings

#: See `RegressionSettings`.
_POWERS = (0.25, 0.5)
_PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_RECENCIES = (2.0, 10.0, 30.0)
#: Parts of the time of known links that are half-lives.
_HALF_LIVES, TREND_HALF_LIVES = (4, 12, 36), (4, 12, 36, 108, 324)
#: Weights of the trend relative to those of the regression, in standard deviations.
_TRENDS = (0.1, 0.3, 1.0, 3.0, 10.0)
#: Weights of the regression relative to those of the encoder, in standard deviations.
_RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
#: Weight of an encoder that does not improve the ranking: it orders targets with equal scores.
_LEAST = 1 / 1024
_JUDGED_SCORES = 25_000_000  # three of them are in memory at a time: 300 MB
#: Rows that judge every setting; the best settings are judged by all rows.
_FEW_ROWS, _NUM_FINALISTS = 500, 4
_K = 20


class JudgedRows:
    """NDCG@20 of validation links among all targets, of some anchors, or of rows of one time.

    All ranks compute the same.

    Args:
        rows: int64 [num_judged], positions in the rows of anchors that are judged.
        positives: links of each judged row.
        known: other links of each; they are no candidates.
        earlier: of a row with a time, links known then, [num_judged, num_targets].
        anchors: int64, of rows with a time, dense ids of all anchors at this time.
    """

    def __init__(
        self,
        rows: np.ndarray,
        positives: Links,
        known: Links,
        num_targets: int,
        earlier: sparse.csr_matrix | None = None,
        anchors: np.ndarray | None = None,
    ) -> None:
        self._rows, self._num_targets, self.anchors = rows, num_targets, anchors
        self._links, self._known, self._earlier = positives, known, earlier
        self._positives = positives.keys(num_targets)
        masked = known.keys(num_targets)
        masked = masked[~torch.isin(masked, self._positives, assume_unique=True)]
        self._masked, self._masked_if_hidden = masked, masked
        if earlier is not None:
            indptr, targets = earlier.indptr.astype(np.int64), earlier.indices.astype(np.int64)
            links = Links(torch.from_numpy(indptr), torch.from_numpy(targets))
            self._masked_if_hidden = torch.cat([masked, links.keys(num_targets)])

    @classmethod
    def of_anchors(cls, links: SupervisionEdges, known: KnownLinks, num_targets: int) -> JudgedRows:
        rows = spread_evenly(links.num_anchors, _JUDGED_SCORES // num_targets)
        anchors = links.anchors[rows]
        masked = Links(*(torch.from_numpy(part) for part in known.rows(anchors)))
        return cls(anchors, links_of_rows(links, rows), masked, num_targets)

    @classmethod
    def of_rows(
        cls,
        links: SupervisionEdges,
        rows: np.ndarray,
        num_targets: int,
        earlier: sparse.csr_matrix | None = None,
    ) -> JudgedRows:
        """Judges rows of (anchor, time) of any times, by rows of their anchors."""
        known = Links(*(torch.from_numpy(part) for part in KnownLinks.of_rows(links).rows(rows)))
        positives = links_of_rows(links, rows)
        return cls(links.anchors[rows], positives, known, num_targets, earlier)

    @classmethod
    def at_times(
        cls,
        links: SupervisionEdges,
        histories: Sequence[LinkHistory],
        rows_of: Sequence[np.ndarray],
    ) -> list[JudgedRows]:
        """Judges the validation rows of each time, whose positions `rows_of` contains."""
        judged, of_rows = [], KnownLinks.of_rows(links)
        for history, positions in zip(histories, rows_of, strict=True):
            num_targets = history.num_nodes[1]
            rows = spread_evenly(len(positions), _JUDGED_SCORES // (num_targets * len(rows_of)))
            chosen, anchors = positions[rows], links.anchors[positions]
            known = Links(*(torch.from_numpy(part) for part in of_rows.rows(chosen)))
            earlier = history.matrix()[links.anchors[chosen]]
            positives = links_of_rows(links, chosen)
            judged.append(cls(rows, positives, known, num_targets, earlier, anchors))
        return judged

    def __len__(self) -> int:
        return len(self._rows)

    def some(self, number: int) -> JudgedRows:
        """At most so many of the rows."""
        chosen = spread_evenly(len(self), number)
        return JudgedRows(
            self._rows[chosen],
            _chosen(self._links, chosen),
            _chosen(self._known, chosen),
            self._num_targets,
            None if self._earlier is None else self._earlier[chosen],
            self.anchors,
        )

    def scores(self, anchors: Tensor | AnchorRows, targets: Tensor) -> Tensor:
        """[num_judged, num_targets], from rows of anchors and of all targets on the CPU."""
        return anchors[torch.from_numpy(self._rows)] @ targets.T

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


def links_of_rows(edges: SupervisionEdges, rows: np.ndarray) -> Links:
    """The links of some rows."""
    indptr, targets = (torch.from_numpy(np.asarray(part)) for part in (edges.indptr, edges.targets))
    return _chosen(Links(indptr, targets), rows)


def _chosen(links: Links, rows: np.ndarray) -> Links:
    indptr, targets = links.indptr.numpy(), links.targets.numpy()
    counts = indptr[rows + 1] - indptr[rows]
    bounds = np.concatenate([[0], np.cumsum(counts)])
    positions = np.repeat(indptr[rows] - bounds[:-1], counts) + np.arange(bounds[-1])
    return Links(torch.from_numpy(bounds), torch.from_numpy(targets[positions].astype(np.int64)))


def spread_evenly(num_rows: int, number: int) -> np.ndarray:
    return np.linspace(0, num_rows - 1, min(num_rows, max(number, 1))).astype(np.int64)


class _Search:
    """NDCG@20 of settings."""

    def __init__(self, judged: Sequence[JudgedRows], histories: Sequence[LinkHistory]) -> None:
        self._judged, self._histories = judged, histories
        self._few = [part.some(_FEW_ROWS // len(judged)) for part in judged]
        self._bases: dict[tuple[float, ...], list[LinkBasis]] = {}
        self._of_few: dict[RegressionSettings, float] = {}
        self._ndcg: dict[RegressionSettings, Tensor] = {}

    def best(self, choices: Iterable[RegressionSettings]) -> RegressionSettings:
        """The best of some settings. Few rows judge each, and all rows the best of these."""
        finalists = sorted(dict.fromkeys(choices), key=self._judge_few, reverse=True)
        return max(finalists[:_NUM_FINALISTS], key=lambda choice: float(self._judge(choice).mean()))

    def improved(
        self, settings: RegressionSettings, choices: Iterable[RegressionSettings]
    ) -> RegressionSettings:
        """The best of some other settings if it is better by a standard error."""
        best = self.best([settings, *choices])
        return best if _is_better(self._judge(best), self._judge(settings)) else settings

    def tuned(self, starts: Iterable[RegressionSettings]) -> RegressionSettings:
        """The best penalty and normalization of scores of some other settings.

        The penalty moves to its next value as long as few rows are ranked better.
        """
        visited: list[RegressionSettings] = []
        for start, is_rescaled in product(starts, (False, True)):
            best = start._replace(is_rescaled=is_rescaled)
            nearby = [best]
            while nearby:
                visited += nearby
                best = max([best, *nearby], key=self._judge_few)
                nearby = [each for each in _neighbors(best) if each not in visited]
        return self.best(visited)

    def spread(self, settings: RegressionSettings) -> float:
        (scores, *_) = self._scores(self._few, settings)
        return float(scores.std(dim=1).mean())

    def _judge_few(self, settings: RegressionSettings) -> float:
        if settings not in self._of_few:
            ndcg = _ndcg(self._few, self._scores(self._few, settings), settings)
            self._of_few[settings] = float(ndcg.mean())
        return self._of_few[settings]

    def _judge(self, settings: RegressionSettings) -> Tensor:
        if settings not in self._ndcg:
            scores = self._scores(self._judged, settings)
            self._ndcg[settings] = _ndcg(self._judged, scores, settings)
        return self._ndcg[settings]

    def _scores(
        self, judged: Sequence[JudgedRows], settings: RegressionSettings
    ) -> Iterator[Tensor]:
        key = settings.of_basis
        if key not in self._bases:
            if settings.max_rank > RANKS[0]:
                self._bases.clear()  # frees memory
            pairs = zip(self._histories, self._judged, strict=True)
            self._bases[key] = [LinkBasis.of(history, settings, p.anchors) for history, p in pairs]
        return _scores(judged, (basis.rows(settings) for basis in self._bases[key]))


def _neighbors(settings: RegressionSettings) -> list[RegressionSettings]:
    """Settings with the next penalties."""
    position = _PENALTIES.index(settings.penalty)
    penalties = _PENALTIES[max(position - 1, 0) : position + 2]
    return [settings._replace(penalty=penalty) for penalty in penalties]


def choose_settings(
    judged: Sequence[JudgedRows], histories: Sequence[LinkHistory]
) -> RegressionSettings:
    """The settings with the best ranking of validation links by the regression alone.

    First, whether links count less if they are old or followed by others, and whether known targets
    are hidden; then the powers, penalty and normalization; more directions while these rank better;
    and the trend. What leaves out or adds information has to improve the ranking by a standard
    error.
    """
    search, settings = _Search(judged, histories), RegressionSettings()
    span = histories[0].span
    half_lives = [float(np.float32(span / part)) for part in _HALF_LIVES] if span else []
    if judged[0].anchors is not None:
        pairs = product([0.0, *half_lives], (False, True))
        settings = search.best(settings._replace(half_life=h, hides_known=x) for h, x in pairs)
    else:
        if histories[0].num_later is not None:
            recent = [settings._replace(recency=recency) for recency in _RECENCIES]
            settings = search.improved(settings, recent)
        aged = [settings._replace(half_life=half_life) for half_life in half_lives]
        settings = search.improved(settings, aged)
    settings = search.tuned(
        settings._replace(power=power, anchor_power=anchor_power)
        for power, anchor_power in product(_POWERS, _POWERS)
    )
    for fewer, more in (RANKS[:1], RANKS[1:2]), (RANKS[1:2], (RANKS[2] // 2, RANKS[2])):
        if settings.rank in fewer and min(histories[0].num_nodes) > settings.rank:
            tuned = search.tuned(settings._replace(rank=rank) for rank in more)
            settings = search.best([settings, tuned])
    if span:
        spread = search.spread(settings)
        trends = [
            settings._replace(
                trend=float(np.float32(weight * spread / spread_of)), trend_half_life=half_life
            )
            for half_life in (float(np.float32(span / part)) for part in TREND_HALF_LIVES)
            if (spread_of := float(histories[0].popularity(half_life).std())) > 0
            for weight in _TRENDS
        ]
        settings = search.improved(settings, trends)
    return settings


def choose_weights(
    judged: Sequence[JudgedRows],
    encoded: Sequence[tuple[Tensor, Tensor]],
    rows: Sequence[tuple[AnchorRows, Tensor]],
    settings: RegressionSettings,
) -> tuple[tuple[float, float], float]:
    """The weights of encoder and regression, by the ranking of validation links.

    If the regression alone is better than the encoder alone, it has all the weight, unless a blend
    is better by a standard error. Otherwise a blend has it, unless the encoder is better by a
    standard error. Beside the regression alone, the encoder has so much weight that it orders
    targets with equal scores.

    Args:
        encoded: for each of `judged`, the encoder's rows of anchors and of all targets.
        rows: those of the regression.
    Returns:
        The weights, and the NDCG@20 of the encoder alone.
    """
    of_encoder, of_links = list(_scores(judged, encoded)), list(_scores(judged, rows))
    scale = _spread(of_encoder[0]) / max(_spread(of_links[0]), 1e-12)

    def judge(weights: tuple[float, float]) -> Tensor:
        pairs = zip(of_encoder, of_links, strict=True)
        sums = (
            (weights[1] * closed_form).add_(own, alpha=weights[0]) for own, closed_form in pairs
        )
        return _ndcg(judged, sums, settings)

    regression, encoder = (_LEAST, scale), (1.0, 0.0)
    blends = [(1.0, ratio * scale) for ratio in _RATIOS]
    ndcg = {weights: judge(weights) for weights in (regression, encoder, *blends)}
    means = {weights: float(each.mean()) for weights, each in ndcg.items()}
    blend = max(blends, key=means.__getitem__)
    if means[regression] > means[encoder]:
        chosen = blend if _is_better(ndcg[blend], ndcg[regression]) else regression
    else:
        chosen = encoder if _is_better(ndcg[encoder], ndcg[blend]) else blend
    return chosen, means[encoder]


def _is_better(ndcg: Tensor, other: Tensor) -> bool:
    """Whether it exceeds the other by more than a standard error."""
    gain = ndcg - other
    return float(gain.mean()) > float(gain.std()) / len(gain) ** 0.5


def _scores(
    judged: Sequence[JudgedRows], rows: Iterable[tuple[Tensor | AnchorRows, Tensor]]
) -> Iterator[Tensor]:
    return (part.scores(*of_part) for part, of_part in zip(judged, rows, strict=True))


def _ndcg(
    judged: Sequence[JudgedRows], scores: Iterable[Tensor], settings: RegressionSettings
) -> Tensor:
    """float64 [num_judged]. Overwrites `scores`."""
    hides = bool(settings.hides_known)
    parts = zip(judged, scores, strict=True)
    return torch.cat([part.ndcg(of_part, hides_known=hides) for part, of_part in parts])


def _spread(scores: Tensor) -> float:
    """Standard deviation of the scores of an anchor, on average."""
    return float(scores.std(dim=1).mean())
