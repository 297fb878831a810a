"""Which rows of a table a rank holds, where they are sharded: blocks, dealt out in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

#: Rows of a block. Nodes whose ids are near often are wanted together: blocks spread them.
BLOCK_ROWS = 1024


@dataclass(frozen=True)
class RowShare:
    """The rows of one rank: of w ranks, rank r holds the blocks r, r + w, r + 2 w, ...

    The blocks of a rank lie one after the other, so a row has a place among those that its owner
    holds.
    """

    rank: int
    world_size: int
    block_rows: int = BLOCK_ROWS

    def blocks(self, num_rows: int) -> list[tuple[int, int]]:
        """(first, last + 1) row of every block of all ranks, in order."""
        return [
            (first, min(first + self.block_rows, num_rows))
            for first in range(0, num_rows, self.block_rows)
        ]

    def own_blocks(self, num_rows: int) -> list[tuple[int, int]]:
        """(first, last + 1) row of each block of this rank."""
        return self.blocks(num_rows)[self.rank :: self.world_size]

    def num_held(self, num_rows: int) -> int:
        """Rows that this rank holds of a table of `num_rows`."""
        return sum(last - first for first, last in self.own_blocks(num_rows))

    def ids(self, num_rows: int) -> Tensor:
        """int64 [num_held], the rows that this rank holds, by their places."""
        none = torch.empty(0, dtype=torch.int64)
        return torch.cat([none, *(torch.arange(*block) for block in self.own_blocks(num_rows))])

    def owner(self, ids: Tensor) -> Tensor:
        """Which rank holds each row; int64 like `ids`."""
        return ids.div(self.block_rows, rounding_mode="floor") % self.world_size

    def place(self, ids: Tensor) -> Tensor:
        """Where each row lies among those that its owner holds; int64 like `ids`."""
        per_turn = self.block_rows * self.world_size
        turn = ids.div(per_turn, rounding_mode="floor")
        return turn * self.block_rows + ids % self.block_rows


_built: RowShare | None = None


@contextmanager
def rows_shared(share: RowShare | None) -> Iterator[None]:
    """While it lasts, tables that are built hold the rows of a share; None builds them whole."""
    global _built
    before, _built = _built, share
    try:
        yield
    finally:
        _built = before


def share_of_built() -> RowShare | None:
    """What tables that are built now hold; see `rows_shared`."""
    return _built
