from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor


class TensorRecord:
    """Base of dataclasses with tensors, also in dictionaries and nested records."""

    def apply(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The record with each tensor changed once; the record itself if no tensor changes."""
        changed: dict[int, Tensor] = {}

        def change_once(tensor: Tensor) -> Tensor:
            if id(tensor) not in changed:
                changed[id(tensor)] = change(tensor)
            return changed[id(tensor)]

        done: Self = _apply(self, change_once)
        return done

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        return self.apply(lambda tensor: tensor.to(device, non_blocking=non_blocking))


def _apply(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        parts = {key: _apply(part, change) for key, part in value.items()}
        return value if all(parts[key] is value[key] for key in value) else parts
    if isinstance(value, tuple):
        members = tuple(_apply(part, change) for part in value)
        return value if all(x is y for x, y in zip(members, value, strict=True)) else members
    if isinstance(value, TensorRecord):
        assert is_dataclass(value)
        names = [field.name for field in fields(value)]
        changed = {name: _apply(getattr(value, name), change) for name in names}
        is_same = all(changed[name] is getattr(value, name) for name in names)
        return value if is_same else replace(value, **changed)
    return value
