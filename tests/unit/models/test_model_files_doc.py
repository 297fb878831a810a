"""The contract of docs/model-files.md: the weights have the names that the page lists."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from raygnn import models

PAGE = (Path(__file__).parents[3] / "docs" / "model-files.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
TYPES: dict[str, Any] = {
    "edge_types": [("user", "buys", "item"), ("item", "rev_buys", "user")],
    "num_nodes": {"user": 3, "item": 4},
}
NAMES = [name for name in models.__all__ if not name.endswith("ncoder")]


def test_each_encoder_has_a_row():
    assert set(NAMES) <= set(ROWS)


@pytest.mark.parametrize("name", NAMES)
def test_layers_have_the_names_of_the_page(name):
    kind = getattr(models, name)
    listed = set(re.findall(r"`([^`]+)`", ROWS[name])) - {"conv"}
    if name == "GINE":
        listed |= set(re.findall(r"`([^`]+)`", ROWS["GIN"]))
    patterns = {text.replace("TYPE", "*").replace("<src___rel___dst>", "<*>") for text in listed}
    found = {
        match.group(1)
        for encoder in built(kind)
        for key in encoder.state_dict()
        if (match := re.match(r"layers\.\d+\.(.*)", key))
    }
    assert all(any(fnmatchcase(key, pattern) for pattern in patterns) for key in found)
    assert all(any(fnmatchcase(key, pattern) for key in found) for pattern in patterns)


def built(kind: Any) -> list[Any]:
    """Encoders of a class that have all of its weights among them."""
    if issubclass(kind, models.HeteroEncoder):
        return [kind({"user": 4}, 8, num_layers=2, **TYPES)]
    edges = {"edge_dim": 2} if kind.reads_edge_features else {}
    return [kind(4, 3, 8, norm="batch", **edges), kind(4, 3, 8, **edges)]


def test_what_stands_beside_the_layers_has_the_names_of_the_page():
    encoder = models.GCN(
        4, 3, 8, norm="batch", residual=True, jump="lstm", num_layers=2, input_projection=True
    )
    parts = {key.split(".")[0] for key in encoder.state_dict()}
    assert parts == {"layers", "norms", "residuals", "input_projection", "jump", "head"}
    assert all(f"`{part}." in PAGE for part in parts)
    hetero = models.HGT({"user": 4}, 3, 8, norm="layer", **TYPES).state_dict()
    for name in ("inputs.projections.user.weight", "inputs.tables.item.rows.weight"):
        assert name in hetero
    assert {"norms.0.user.weight", "heads.item.bias"} <= hetero.keys()
