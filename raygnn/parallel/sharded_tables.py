"""Learned rows that are sharded over ranks: fetched for a step, updated by their owners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from raygnn.errors import TrainingError
from raygnn.models.node_inputs import EmbeddingTable, NodeInputs, RowShare
from raygnn.parallel import collectives
from raygnn.parallel.shared_rows import SharedRows

#: Dense ids of nodes, by node type.
NodeIds = dict[str, Tensor]


class ShardedTables:
    """The sharded tables of a module, possibly none.

    A step reads rows of few nodes from many owners. Before its first forward pass, each rank
    requests the rows of all its micro-batches together. After the last backward pass, gradients
    return the same way, and the owner, which alone has the optimizer state of a row, updates it. An
    evaluation may read any row, so all rows are written to a file.

    Attributes:
        names: names of their parameters in the module's state.
    """

    def __init__(self, module: nn.Module) -> None:
        self._tables = {
            f"{path}.tables.{node_type}.rows.weight".lstrip("."): _ShardedTable(node_type, table)
            for path, inputs in module.named_modules()
            if isinstance(inputs, NodeInputs)
            for node_type, table in inputs.tables.items()
            if isinstance(table, EmbeddingTable) and table.share is not None
        }
        self._lent = ExitStack()

    def __bool__(self) -> bool:
        return bool(self._tables)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tables)

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        return {name: table.weight for name, table in self._tables.items()}

    @property
    def num_rows(self) -> dict[str, int]:
        return {name: table.num_rows for name, table in self._tables.items()}

    def share_of(self, name: str) -> RowShare:
        return self._tables[name].share

    @property
    def num_elsewhere(self) -> int:
        """Number of learned parameters on other ranks."""
        tables = self._tables.values()
        return sum((t.num_rows - len(t.weight)) * t.weight.shape[1] for t in tables)

    def fetch(self, batches: Sequence[NodeIds]) -> None:
        """Lends the rows of this rank's micro-batches until `reduce`.

        Collective: all ranks must call, once per step, also without micro-batches.
        """
        for table in self._tables.values():
            ids_of_type = [ids[table.node_type] for ids in batches if table.node_type in ids]
            self._lent.enter_context(table.fetched(ids_of_type))

    def reduce(self, *, zero: bool) -> None:
        """Leaves the sum over all ranks in `.grad` of this rank's rows, and takes back lent rows.

        Collective: all ranks must call.
        """
        for table in self._tables.values():
            table.reduce(zero=zero)
        self._lent.close()

    @contextmanager
    def whole(self, scratch: Path) -> Iterator[dict[str, Tensor]]:
        """Context in which every rank reads all rows, from files in `scratch` that the host maps.

        Yields rows by parameter name, float32 [num_nodes, channels]. Collective: all ranks must
        enter it.
        """
        if not self._tables:
            yield {}
            return
        shared = SharedRows(scratch)
        with ExitStack() as lent:
            yield {
                name: lent.enter_context(table.mapped(shared))
                for name, table in self._tables.items()
            }


@dataclass(frozen=True)
class _Fetched:
    """Rows of a step and their owners.

    Attributes:
        rows: [num_fetched, channels], by owner; they receive the gradients.
        asked: number of rows that this rank requested from each rank.
        places: positions of rows that others requested from this rank, by rank.
    """

    rows: Tensor
    asked: list[int]
    places: Tensor
    answered: list[int]


class _ShardedTable:
    def __init__(self, node_type: str, table: EmbeddingTable) -> None:
        assert table.share is not None
        self.node_type = node_type
        self.share = table.share
        self.num_rows = table.num_nodes
        self._table = table
        self._fetched: _Fetched | None = None

    @property
    def weight(self) -> nn.Parameter:
        weight = self._table.rows.weight
        assert isinstance(weight, nn.Parameter)
        return weight

    @contextmanager
    def fetched(self, batches: Sequence[Tensor]) -> Iterator[None]:
        weight = self.weight
        none = torch.empty(0, dtype=torch.int64)
        wanted = torch.cat([none, *(ids.cpu() for ids in batches)]).unique()
        owner = self.share.owner(wanted)
        order = owner.argsort(stable=True)
        num_requested = torch.bincount(owner, minlength=self.share.world_size).tolist()
        ids, answered = collectives.exchange_rows(wanted[order], num_requested)
        places = self.share.place(ids).to(weight.device)
        rows = collectives.send_rows(weight.detach()[places], answered, num_requested)
        rows.requires_grad_(weight.requires_grad)
        position = torch.empty_like(order)
        position[order] = torch.arange(len(order))
        wanted, position = wanted.to(weight.device), position.to(weight.device)
        fenced = torch.cat([wanted, wanted.new_tensor([-1])])

        def rows_of(n_id: Tensor) -> Tensor:
            positions = torch.searchsorted(wanted, n_id)
            # Beyond the last one, an id is compared with one that it is not.
            if not torch.equal(fenced[positions], n_id):
                raise TrainingError(
                    "scaling.shard='embeddings' is invalid: the task reads rows of nodes of type "
                    f"{self.node_type!r} that are not in its batch, so they are not fetched. Put "
                    "these nodes into the batch, or set it to none. [shard-rows-unfetched]"
                )
            return functional.embedding(position[positions], rows)

        self._fetched = _Fetched(rows, num_requested, places, answered)
        try:
            with self._table.lent(rows_of):
                yield
        finally:
            self._fetched = None

    def reduce(self, *, zero: bool) -> None:
        weight, fetched = self.weight, self._fetched
        if fetched is None or not weight.requires_grad:
            return
        grad = fetched.rows.grad
        grad = torch.zeros_like(fetched.rows) if grad is None or zero else grad
        sums = collectives.send_rows(grad, fetched.asked, fetched.answered)
        if self._table.sparse:
            index = fetched.places.unsqueeze(0)
            weight.grad = torch.sparse_coo_tensor(index, sums, weight.shape).coalesce()
        else:
            weight.grad = torch.zeros_like(weight).index_add_(0, fetched.places, sums)

    @contextmanager
    def mapped(self, shared: SharedRows) -> Iterator[Tensor]:
        weight = self.weight

        def own(first: int, last: int) -> Tensor:
            place = int(self.share.place(torch.tensor(first)))
            return weight.detach()[place : place + last - first].float().cpu()

        channels, what = weight.shape[1], f"learned rows of {self.node_type}"
        rows = shared(self.share.blocks(self.num_rows), own, channels, what)

        def rows_of(n_id: Tensor) -> Tensor:
            return rows[n_id.cpu()].to(weight)

        with self._table.lent(rows_of):
            yield rows


def node_ids(batch: Any) -> NodeIds:
    """Nodes that a micro-batch reads, by type; in a joint batch, of all its parts."""
    parts = getattr(batch, "batches", {"": batch}).values()
    by_type: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, nodes in part.nodes.items():
            by_type.setdefault(name, []).append(nodes.n_id)
    return {name: torch.cat(ids) for name, ids in by_type.items()}
