"""Losses of one small run, pinned: a change of sampling, models or engine shows here.

If they move on purpose, run the test, read what it found, and say in the commit why.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import raygnn.train
from tests.small_runs import small_config

GOLDEN = {
    "GraphSAGE": [[1.1375597, 0.4285102], [1.0542327, 0.4277128]],
    "GCN": [[1.0853239, 0.3533568], [1.0823128, 0.3424919]],
}


@pytest.mark.parametrize("model", GOLDEN)
def test_losses_are_those_of_the_day_they_were_pinned(
    small_tables: str, tmp_path: Path, model: str
):
    data = {"uri": small_tables}
    config = small_config(tmp_path, scaling__num_workers=0, model__type=model, data=data)
    raygnn.train.fit(config)
    rows = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    found = [[json.loads(row)[name] for name in ("train/loss", "val/loss")] for row in rows]
    assert found == [pytest.approx(row, rel=1e-4) for row in GOLDEN[model]]
