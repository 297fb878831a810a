"""Functions that torch.compile goes around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function


def apply_eagerly(function: type[Function], *args: Any) -> Any:
    """Applies an autograd function over edges, in compiled models too as it is."""
    return _apply(function, args)


def break_graphs() -> None:
    """Lets torch.compile break its graphs at `apply_eagerly`; called before it compiles.

    The functions are single kernels, and the size of the transpose in their backward passes depends
    on data: torch traced into them only to give up somewhere, at places that differed from batch to
    batch and from one Python to the next, and sometimes by an error.
    """
    global _apply
    _apply = torch.compiler.disable(_applied)


def _applied(function: type[Function], args: tuple[Any, ...]) -> Any:
    return function.apply(*args)


_apply: Callable[[type[Function], tuple[Any, ...]], Any] = _applied
