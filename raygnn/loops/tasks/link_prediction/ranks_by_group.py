"""Where links rank badly: by how often their target is linked to in training, and cold or warm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raygnn.data.links.supervision import SupervisionEdges
from raygnn.metrics.diagnostics import Diagnostic, sums_by_bin
from raygnn.metrics.sampled_ranking import sampled_ranks

#: Training links of a target at which the next group begins.
_BOUNDS = (1, 2, 6, 21, 101, 1001)
_HITS_AT = 10


class RanksByGroup(Diagnostic):
    """Mean reciprocal rank and hits of links, by group of links.

    Args:
        num_outputs: candidates that each link is ranked among, itself included.
        name: in `metrics.json`.
        group_of: int64 [num_links], the group of each link of the split.
        groups: the groups' names.
    """

    problems = ("link_prediction",)

    def __init__(
        self, num_outputs: int, name: str, group_of: np.ndarray, groups: Sequence[str]
    ) -> None:
        super().__init__(num_outputs, "link_prediction")
        self.name = name
        self._group_of, self._groups = torch.from_numpy(group_of), list(groups)

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Sums, by group: links, reciprocal ranks, hits.

        Args:
            prediction: scores as `sampled_ranks` takes them.
            target: int64 [num_links], positions among the links of the split.
        """
        ranks = sampled_ranks(prediction).cpu()
        groups = self._group_of[target.cpu()]
        return sums_by_bin(groups, len(self._groups), 1 / ranks, (ranks <= _HITS_AT).double())

    def _of_state(self, state: Tensor) -> dict[str, Any]:
        """By group that has links: `groups`, `links`, the means `mrr` and `hits@10`.

        Hits are left out where every link would be one.
        """
        sums = state.view(3, -1)
        has_links = sums[0] > 0
        links, reciprocal, hits = sums[:, has_links]
        found = {
            "groups": [g for g, has in zip(self._groups, has_links.tolist(), strict=True) if has],
            "links": links.long().tolist(),
            "mrr": (reciprocal / links).tolist(),
        }
        if self.num_outputs > _HITS_AT:
            found[f"hits@{_HITS_AT}"] = (hits / links).tolist()
        return found


def ranks_by_group(
    num_outputs: int, train: SupervisionEdges, judged: SupervisionEdges
) -> list[Diagnostic]:
    """Ranks by training links of the target, and by which ends have training links at all.

    Between nodes of one type a training link counts for both of its ends.
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
    """int64 [num_links] each: training links of the anchor and of the target of judged links."""
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
    """0, 1, 2 to 5, ..., 1,001 and more."""
    ends = [
        f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"
        for low, high in zip((0, *bounds[:-1]), bounds, strict=True)
    ]
    return [*ends, f"{bounds[-1]:,} and more"]
