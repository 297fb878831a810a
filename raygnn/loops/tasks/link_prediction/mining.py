"""Mining of hard negatives: for each anchor of training the non-links that the model scores high.

Source: ANCE (Xiong et al., ICLR 2021), with an exact search in the place of an approximate one.
"""

from __future__ import annotations

import copy
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from raygnn.data.links.supervision import KnownLinks, SupervisionEdges
from raygnn.models.decoders import Decoder
from raygnn.models.exact import RowComputation
from raygnn.models.top_k import top_k
from raygnn.sampling.mined_negatives import NONE

#: Negatives that are kept of each anchor. A batch draws few of them: the very first are often
#: links that the training split does not know.
NUM_MINED = 100
_ANCHORS_AT_A_TIME = 1024


def mine(
    links: SupervisionEdges,
    known: KnownLinks,
    decoder: Decoder,
    rows: tuple[Tensor, Tensor],
    k: int,
    compute: RowComputation,
) -> Tensor:
    """Finds the k targets of highest score of each anchor that it is not known to be linked to.

    Collective where `compute` is.

    Args:
        known: links that are not negatives.
        rows: embeddings of all anchors and of all targets, on one device.
        k: at most the number of targets.
    Returns:
        int32 [num_anchors, k], dense ids, best first; `NONE` where fewer are not linked to.
    Raises:
        DataError: a score is not a number.
    """
    of_anchors, of_targets = rows
    in_float64 = copy.deepcopy(decoder).double()

    def of_range(first: int, last: int) -> Tensor:
        anchors = links.anchors[first:last]
        relations = None if links.relations is None else links.relations[first:last]
        scores = in_float64.score_all
        if relations is not None:
            on_device = torch.from_numpy(relations).to(of_targets.device)
            scores = partial(scores, relation=on_device)

        def left_out(start: int, stop: int) -> Tensor:
            found = known.mask(anchors, np.arange(start, stop), relations)
            return torch.from_numpy(found).to(of_targets.device)

        best, ids = top_k(
            of_anchors[torch.from_numpy(anchors)],
            lambda start, stop: of_targets[start:stop],
            len(of_targets),
            k,
            scores,
            left_out,
        )
        mined = ids.masked_fill(best.isneginf(), NONE).to(torch.int32).cpu()
        return mined.view(torch.float32)  # the bits: what ranks share is rows of float32

    ends = [*range(0, links.num_anchors, _ANCHORS_AT_A_TIME), links.num_anchors]
    chunks = list(pairwise(ends))
    return compute(chunks, of_range, k, "mined negatives").view(torch.int32)
