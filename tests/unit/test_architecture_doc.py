"""The page that shows where things are names what is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_path_exists():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:\w+/)+\w+(?:\.py)?)`", text)
    assert len(named) > 20
    missing = [
        name for name in named if not any((ROOT / top / name).exists() for top in (".", "raygnn"))
    ]
    assert not missing
