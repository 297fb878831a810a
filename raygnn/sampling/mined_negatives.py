"""Hard negatives that the model itself has scored high, drawn anew for each batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raygnn.data.hashing import splitmix64_array
from raygnn.sampling.rng import BatchKey, chain_key, text_key

#: In the place of a negative, where an anchor has fewer targets that it is not linked to.
NONE = -1


@dataclass(frozen=True)
class MinedNegatives:
    """The targets of highest score that an anchor is not linked to, by anchor.

    Attributes:
        targets: int32 or int64 [num_anchors, k], dense ids, best first, `NONE` behind the last; a
            row for each of the anchors of the supervision edges.
        num_drawn: of an anchor in a batch, at most k.
    """

    targets: np.ndarray
    num_drawn: int

    def draw(self, rows: np.ndarray, key: BatchKey) -> tuple[np.ndarray, np.ndarray]:
        """Draws negatives of some anchors, uniformly and without replacement.

        Args:
            rows: int64 [num_rows], anchors by their position in the supervision edges.
            key: of the batch. What an anchor draws depends on it and on the anchor alone.
        Returns:
            int64 dense ids, and int64 positions in `rows` of their anchors, ascending.
        """
        num_columns = self.targets.shape[1]
        cells = rows[:, None] * num_columns + np.arange(num_columns)
        draws = splitmix64_array(cells.ravel(), chain_key(key, text_key("mined negatives")))
        offered = self.targets[rows]
        order = np.where(offered == NONE, np.uint64(2**64 - 1), draws.reshape(cells.shape))
        columns = np.argsort(order, axis=1, kind="stable")[:, : self.num_drawn]
        drawn = np.take_along_axis(offered, columns, axis=1).astype(np.int64)
        which = np.nonzero(drawn != NONE)
        return drawn[which], which[0]
