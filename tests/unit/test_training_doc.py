"""Each YAML block of these pages is a config that loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raygnn.config import load_config

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("training", "neighborhoods", "models", "losses", "scaling", "link-prediction")
BLOCKS = [
    block
    for page in PAGES
    for block in re.findall(r"```yaml\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.partition(":")[0])
def test_a_block_loads(block, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(block)
    load_config(str(path), allow_modules=["my_pkg"])
