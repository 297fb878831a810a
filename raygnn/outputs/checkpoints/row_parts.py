"""Learned rows in checkpoints: each rank writes those that it holds, and any share is read back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from raygnn.models.node_inputs import RowShare
from raygnn.parallel.sharded_tables import ShardedTables

#: Keys from an engine's state down to a tensor.
Path = tuple[str | int, ...]
Rows = dict[Path, Tensor]

#: Where a state says, by path, what was taken: name of the table, all of its rows, of a block.
LAYOUT = "rows"


def take_rows(state: dict[str, Any], tables: ShardedTables, optimizer: Optimizer) -> Rows:
    """Takes this rank's rows out of an engine's state, which then says what is missing."""
    rows: Rows = {}
    layout: dict[Path, tuple[str, int, int]] = {}
    held = {name: len(weight) for name, weight in tables.weights.items()}
    for path, name in list(_paths(state, tables, optimizer, held)):
        rows[path] = _section(state, path).pop(path[-1])
        layout[path] = name, tables.num_rows[name], tables.share_of(name).block_rows
    if layout:
        state[LAYOUT] = layout
    return rows


def keep_held_rows(state: dict[str, Any], tables: ShardedTables, optimizer: Optimizer) -> None:
    """Leaves this rank's rows only in a state that has all of them."""
    for path, name in list(_paths(state, tables, optimizer, tables.num_rows)):
        section = _section(state, path)
        section[path[-1]] = section[path[-1]][tables.share_of(name).ids(tables.num_rows[name])]


def put_rows(
    state: dict[str, Any],
    read: Callable[[int], Rows],
    world_size: int,
    tables: ShardedTables | None = None,
) -> None:
    """Puts rows into a state that they were taken from, one rank's file in memory at a time.

    Args:
        read: what a rank has written, by its number.
        world_size: how many ranks have.
        tables: of which this rank's rows are wanted; of others all rows.
    """
    layout = state.pop(LAYOUT)
    names = frozenset() if tables is None else tables.names
    wanted = {
        path: tables.share_of(name) if tables is not None and name in names else None
        for path, (name, *_) in layout.items()
    }
    for rank in range(world_size):
        written = {path: RowShare(rank, world_size, block) for path, (*_, block) in layout.items()}
        here = [path for path in layout if _may_overlap(written[path], wanted[path])]
        rows = read(rank) if here else {}
        for path in here:
            _copy(rows[path], written[path], state, path, layout[path][1], wanted[path])


def _may_overlap(written: RowShare, wanted: RowShare | None) -> bool:
    if wanted is None or written == wanted:
        return True
    return (written.world_size, written.block_rows) != (wanted.world_size, wanted.block_rows)


def _copy(
    rows: Tensor,
    written: RowShare,
    state: dict[str, Any],
    path: Path,
    num_rows: int,
    wanted: RowShare | None,
) -> None:
    places = written.ids(num_rows)
    num_kept = num_rows
    if wanted is not None:
        is_own = wanted.owner(places) == wanted.rank
        places, rows = wanted.place(places[is_own]), rows[is_own]
        num_kept = wanted.num_held(num_rows)
    section = _section(state, path)
    if path[-1] not in section:
        section[path[-1]] = rows.new_zeros(num_kept, *rows.shape[1:])
    section[path[-1]][places] = rows


def _paths(
    state: dict[str, Any], tables: ShardedTables, optimizer: Optimizer, sizes: Mapping[str, int]
) -> Iterator[tuple[Path, str]]:
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    index = {id(weight): i for i, weight in enumerate(weights)}
    for name, weight in tables.weights.items():
        kept = state["optimizer"]["state"].get(index.get(id(weight)), {})
        places: list[Path] = [("model", name), ("best", "weights", name), ("average", name)]
        places += [("optimizer", "state", index[id(weight)], key) for key in kept]
        for path in places:
            value = (_section(state, path) or {}).get(path[-1])
            if isinstance(value, Tensor) and value.shape[:1] == (sizes[name],):
                yield path, name


def _section(state: Any, path: Path) -> Any:
    for key in path[:-1]:
        state = state[key]
    return state
