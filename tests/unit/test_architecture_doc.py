"""The page that shows where things are names what is there; no imports go in circles."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]


def test_every_path_exists():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:\w+/)+\w+(?:\.py)?)`", text)
    assert len(named) > 20
    missing = [
        name for name in named if not any((ROOT / top / name).exists() for top in (".", "raygnn"))
    ]
    assert not missing


def test_no_imports_go_in_circles():
    """Not even those that only a type checker follows, which import-linter leaves out."""
    graph = grimp.build_graph("raygnn", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported).prepare()
