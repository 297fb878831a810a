"""Packages of others that wait until something of them is used.

PyG imports its `datasets` with itself, and these import pandas and parts of language models:
0.3 s and 30 MB of each worker, for what it never touches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

_PACKAGES = frozenset({"torch_geometric.datasets"})


class _OnUse(MetaPathFinder):
    """Finds what Python would, and has it run when an attribute of it is first asked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _PACKAGES else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def install_lazy_imports() -> None:
    """Lets the packages wait, where they are not imported yet."""
    sys.meta_path.insert(0, _OnUse())
