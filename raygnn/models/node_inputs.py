"""Inputs of encoders: projected features and learned rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.errors import ConfigError, DataError
from raygnn.models.sparse_input import Features, ProjectedRows, apply_linear, formed

#: Gives the rows of int64 [num_nodes] dense ids.
RowSource = Callable[[Tensor], Tensor]

_DRAWN_TOGETHER = 16


class EmbeddingTable(nn.Module):
    """A learned row per node of a type.

    Rows start with unit length on average. A table built within `rows_shared` has the rows of one
    share, which start like those of the complete table. Other rows are read through `lent`.

    Args:
        num_nodes: nodes of the type in the whole graph.
        channels: width of a row.
        sparse: gradients are sparse and contain only the rows read. The optimizer must support
            them, such as SparseAdam or SGD without momentum.
    Attributes:
        share: the stored rows; None stores all.
    """

    def __init__(self, num_nodes: int, channels: int, *, sparse: bool = False) -> None:
        super().__init__()
        self.num_nodes, self.share = num_nodes, share_of_built()
        self._lent: RowSource | None = None
        std = channels**-0.5
        if self.share is None:
            self.rows = nn.Embedding(num_nodes, channels, sparse=sparse)
            nn.init.normal_(self.rows.weight, std=std)
            return
        held = torch.empty(self.share.num_held(num_nodes), channels)
        self.rows = nn.Embedding(len(held), channels, sparse=sparse, _weight=held)
        _draw_share(held, num_nodes, self.share, 1.0)  # as torch draws a whole table
        _draw_share(held, num_nodes, self.share, std)

    @property
    def sparse(self) -> bool:
        return self.rows.sparse

    @contextmanager
    def lent(self, rows_of: RowSource) -> Iterator[None]:
        """Context in which rows come from `rows_of`, a function of int64 [num_nodes] dense ids."""
        self._lent = rows_of
        try:
            yield
        finally:
            self._lent = None

    def forward(self, n_id: Tensor) -> Tensor:
        """Looks up rows, [num_nodes, channels], of int64 [num_nodes] dense ids.

        Raises a ConfigError if the table has a share of the rows, and no others are lent.
        """
        if self._lent is not None:
            return self._lent(n_id)
        if self.share is not None:
            raise ConfigError(
                "scaling.shard='embeddings' is invalid: the model was called outside of a step and "
                "of an evaluation, where a worker has only its share of the rows. Set it to none, "
                "or call the model in another hook. [shard-rows-elsewhere]"
            )
        out: Tensor = self.rows(n_id)
        return out


@torch.no_grad()
def _draw_share(held: Tensor, num_rows: int, share: RowShare, std: float) -> None:
    """Fills a share with the normal numbers that the complete table would start with.

    torch draws 16 numbers at a time and the rest differently, so only the last piece may have a
    remainder.
    """
    channels, place = held.shape[1], 0
    blocks = share.blocks(num_rows)
    if len(blocks) > 1 and (blocks[-1][1] - blocks[-1][0]) * channels < _DRAWN_TOGETHER:
        blocks[-2:] = [(blocks[-2][0], blocks[-1][1])]
    for first, last in blocks:
        drawn = torch.empty(last - first, channels).normal_(std=std)
        ids = torch.arange(first, last)
        own = drawn[share.owner(ids) == share.rank]
        held[place : place + len(own)] = own
        place += len(own)


class NodeInputs(nn.Module):
    """Maps the nodes of every type to rows of one width.

    Args:
        in_channels: width of the features, by node type.
        num_nodes: nodes in the whole graph, by node type. Types without features get an
            `EmbeddingTable` of that size.
        channels: width of the rows.
        sparse: see `EmbeddingTable`.
    """

    def __init__(
        self,
        in_channels: Mapping[str, int],
        num_nodes: Mapping[str, int],
        channels: int,
        *,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        self.channels = channels
        self.in_channels = dict(in_channels)
        self.node_types = list(dict.fromkeys([*in_channels, *num_nodes]))
        self.projections = ModuleDict(
            {name: nn.Linear(width, channels) for name, width in in_channels.items()}
        )
        self.tables = ModuleDict(
            {
                name: EmbeddingTable(num_nodes[name], channels, sparse=sparse)
                for name in self.node_types
                if name not in in_channels
            }
        )

    def forward(self, x: Mapping[str, Features]) -> dict[str, Tensor]:
        """Projects features and looks up ids: [num_nodes, channels] for every node type.

        Args:
            x: by node type, [num_nodes, in_channels] features, also sparse, or int64 [num_nodes]
                dense ids of a type with a table. Types may be missing.
        Raises:
            DataError: the input does not fit its type.
        """
        return {name: formed(rows) for name, rows in self.unformed(x).items()}

    def unformed(self, x: Mapping[str, Features]) -> dict[str, Tensor | ProjectedRows]:
        for name, rows in x.items():
            self._check(name, rows)
        return {name: self._rows(name, x.get(name)) for name in self.node_types}

    def _rows(self, name: str, rows: Features | None) -> Tensor | ProjectedRows:
        if rows is None:
            return next(self.parameters()).new_zeros(0, self.channels)
        if name in self.tables:
            out: Tensor = self.tables[name](rows)
            return out
        projection = self.projections[name]
        if not isinstance(rows, Tensor):
            return apply_linear(projection, rows)
        rows = rows.to(projection.weight.dtype)
        if rows.shape[1] > self.channels:
            return apply_linear(projection, rows)
        return ProjectedRows(rows, projection)

    def _check(self, name: str, rows: Features) -> None:
        if name not in self.node_types:
            raise DataError(
                f"node type {name!r} is unknown to the model. It was built for "
                f"{', '.join(self.node_types)}. [model-node-type-unknown]"
            )
        got = f"{rows.dtype} of shape {list(rows.shape)}"
        if name in self.tables:
            if len(rows.shape) != 1 or rows.dtype != torch.int64:
                raise DataError(
                    f"node type {name!r} has no features in this model: it needs the nodes' dense "
                    f"ids (n_id), int64 of one dimension, and was given {got}. [model-node-input]"
                )
        elif len(rows.shape) != 2 or rows.shape[1] != self.in_channels[name]:
            raise DataError(
                f"node type {name!r} needs features [num_nodes, {self.in_channels[name]}] and was "
                f"given {got}. [model-node-input]"
            )


#: Rows of a block. Nodes whose ids are near often are wanted together: blocks spread them.
BLOCK_ROWS = 1024


@dataclass(frozen=True)
class RowShare:
    """The rows of one rank: of w ranks, rank r stores the blocks r, r + w, r + 2 w, ...

    A rank's blocks are concatenated, so a row has a position among its owner's rows.
    """

    rank: int
    world_size: int
    block_rows: int = field(default_factory=lambda: BLOCK_ROWS)

    def blocks(self, num_rows: int) -> list[tuple[int, int]]:
        """(first, last + 1) row of every block of all ranks, in order."""
        return [
            (first, min(first + self.block_rows, num_rows))
            for first in range(0, num_rows, self.block_rows)
        ]

    def own_blocks(self, num_rows: int) -> list[tuple[int, int]]:
        return self.blocks(num_rows)[self.rank :: self.world_size]

    def num_held(self, num_rows: int) -> int:
        return sum(last - first for first, last in self.own_blocks(num_rows))

    def ids(self, num_rows: int) -> Tensor:
        """int64 [num_held], ids of this rank's rows, by position."""
        none = torch.empty(0, dtype=torch.int64)
        return torch.cat([none, *(torch.arange(*block) for block in self.own_blocks(num_rows))])

    def owner(self, ids: Tensor) -> Tensor:
        """Rank that stores each row; int64 like `ids`."""
        return ids.div(self.block_rows, rounding_mode="floor") % self.world_size

    def place(self, ids: Tensor) -> Tensor:
        """Position of each row among its owner's rows; int64 like `ids`."""
        per_turn = self.block_rows * self.world_size
        turn = ids.div(per_turn, rounding_mode="floor")
        return turn * self.block_rows + ids % self.block_rows


_built: RowShare | None = None


@contextmanager
def rows_shared(share: RowShare | None) -> Iterator[None]:
    """Context in which new tables store the rows of a share; None stores all."""
    global _built
    before, _built = _built, share
    try:
        yield
    finally:
        _built = before


def share_of_built() -> RowShare | None:
    return _built
