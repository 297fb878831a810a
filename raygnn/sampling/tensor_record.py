from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor


class TensorRecord:
    """Base of dataclasses with tensors, also in dictionaries and nested records."""

    def apply(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The record with each tensor changed once; the record itself if no tensor changes."""
        done: Self = _apply(self, Tensor, change, {})
        return done

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Copies the tensors to a device, and computes the values of `StoredRows` there."""
        return self.apply(lambda tensor: tensor.to(device, non_blocking=non_blocking)).computed()

    def computed(self) -> Self:
        """The record with values in place of `StoredRows`, whose data are on the device."""
        done: Self = _apply(self, StoredRows, StoredRows.values, {})
        return done


@dataclass(frozen=True)
class DeviceColumn:
    """Inputs from which a device computes rows of a column.

    Attributes:
        rows: the column as stored, on the device; None where its rows travel with each batch.
        affine: float32 [*row_shape], shift, factor and offset, on the device: x becomes
            (x - shift) * factor + offset. None leaves the values.
    """

    rows: Tensor | None
    affine: tuple[Tensor, ...] | None


@dataclass(frozen=True, kw_only=True)
class StoredRows(TensorRecord):
    """Rows of a column that a device widens and standardizes, bit for bit as the host would.

    Attributes:
        data: the rows as stored, [num_rows, *row_shape]; int64 [num_rows], their ids, where the
            device holds the column.
        width: of a row.
        keep: bool [width]: the other elements become 0. None keeps all.
    """

    data: Tensor
    column: DeviceColumn
    width: int
    keep: Tensor | None = None

    def __getitem__(self, chosen: Tensor) -> StoredRows:
        return replace(self, data=self.data[chosen])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return len(self.data), self.width

    def values(self) -> Tensor:
        """The rows as models read them."""
        held, affine = self.column.rows, self.column.affine
        rows = self.data if held is None else held.index_select(0, self.data)
        if affine is not None or rows.dtype in (torch.float16, torch.bfloat16):
            rows = rows.float()
        if affine is not None:
            # Not addcmul: a device would round once where the host rounds twice.
            shift, factor, offset = affine
            rows = (rows - shift).mul_(factor).add_(offset)
        return rows if self.keep is None else rows * self.keep


#: Fields of a batch that no kernel reads.
_UNREAD = frozenset({"index", "key", "num_added_edges", "copy"})


def layout_of(value: Any) -> Hashable:
    """The sizes and types of a record's tensors, and its numbers: equal for equal kernels."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, TensorRecord):
        assert is_dataclass(value)
        names = (field.name for field in fields(value) if field.name not in _UNREAD)
        return type(value), *(layout_of(getattr(value, name)) for name in names)
    if isinstance(value, dict):
        return tuple((key, layout_of(part)) for key, part in value.items())
    if isinstance(value, tuple | list):
        return tuple(map(layout_of, value))
    return id(value) if isinstance(value, DeviceColumn) else value


def moved(tensor: Tensor, memory: Tensor) -> Tensor:
    """The same view of other memory."""
    offset, storage = tensor.storage_offset(), memory.untyped_storage()
    return tensor.new_empty(0).set_(storage, offset, tensor.shape, tensor.stride())


def _apply(value: Any, kind: type, change: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    if isinstance(value, dict):
        parts = {key: _apply(part, kind, change, done) for key, part in value.items()}
        return value if all(parts[key] is value[key] for key in value) else parts
    if isinstance(value, tuple):
        members = tuple(_apply(part, kind, change, done) for part in value)
        return value if all(x is y for x, y in zip(members, value, strict=True)) else members
    if not isinstance(value, Tensor | TensorRecord):
        return value
    if id(value) not in done:
        result: Any = value
        if isinstance(value, kind):
            result = change(value)
        elif isinstance(value, TensorRecord):
            assert is_dataclass(value)
            parts = {field.name: getattr(value, field.name) for field in fields(value)}
            changed = _apply(parts, kind, change, done)
            result = value if changed is parts else replace(value, **changed)
        done[id(value)] = result
    return done[id(value)]
