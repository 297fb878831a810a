"""Units of the times that temporal sampling compares with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import DataError


class HasColumns(Protocol):
    """A bundle, or what sampling sees of one."""

    @property
    def node_types(self) -> Sequence[str]: ...

    @property
    def edge_types(self) -> Sequence[EdgeType]: ...

    def columns(self, type_: str | EdgeType) -> Mapping[str, ColumnInfo]: ...


def check_time_units(
    graph: HasColumns, column: str, others: Mapping[str, str | None] = MappingProxyType({})
) -> None:
    """Checks that the times of all node and edge types are of one unit.

    Args:
        column: of the times.
        others: units of further times, by a name for messages.
    Raises:
        DataError: they are not.
    """
    types = {name: name for name in graph.node_types}
    named = types | {edge_type_name(edge_type): edge_type for edge_type in graph.edge_types}
    found = {name: graph.columns(type_).get(column) for name, type_ in named.items()}
    units = {name: info.unit for name, info in found.items() if info is not None} | dict(others)
    if len(set(units.values())) > 1:
        shown = ", ".join(f"{name} {unit or 'plain numbers'}" for name, unit in units.items())
        raise DataError(
            f"sampling.temporal.column={column!r} is invalid: times of different units would be "
            f"compared ({shown}). Write all of them as timestamps of one unit, or as numbers."
        )
