"""Presampling with Ray Data, and training on its files in workers of Ray Train."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import raygnn.train
from raygnn.config import load_config
from raygnn.data.tables.graph_tables import write_tables
from raygnn.prepare.synthetic import synthetic_tables
from raygnn.presample import presample
from raygnn.runtime import presample_on_ray
from raygnn.runtime.data_source import open_bundle
from tests.errors import raises
from tests.faults.outcome import assert_equal_outcomes
from tests.folders import contents
from tests.rank_pool import RankPool
from tests.small_runs import run_rank, small_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("ray_session"),
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\.data\.context"),
]


def test_files_of_ray_data_are_the_same_and_its_workers_train_on_them(
    small_tables: str, tmp_path: Path, ranks: RankPool
) -> None:
    data = {"uri": small_tables, "cache_dir": str(tmp_path / "c")}
    on_ray = small_config(tmp_path / "stored", data=data, scaling__num_workers=2)
    live = small_config(tmp_path / "live", data=data, scaling__num_workers=2)
    presample(on_ray, tmp_path / "there", num_epochs=2)
    presample(on_ray, tmp_path / "here", ["--scaling.num_workers", "0"], num_epochs=2)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    stored = ["--data.mode", "presampled", "--data.samples", str(tmp_path / "there")]
    raygnn.train.fit(on_ray, stored)
    ranks.run(run_rank, 2, live, str(open_bundle(load_config(live), None).path))
    assert_equal_outcomes(tmp_path / "stored" / "run", tmp_path / "live" / "run")


def test_a_folder_that_a_node_does_not_see_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = synthetic_tables(
        "planted_partition", num_nodes=60, num_classes=3, avg_degree=6, num_features=5
    )
    data = {"uri": write_tables(tables, str(tmp_path / "tables")), "cache_dir": str(tmp_path / "c")}
    config = small_config(tmp_path, data=data, scaling__num_workers=1)
    # The plan is not written, so it is nowhere to be seen.
    monkeypatch.setattr("raygnn.runtime.presample.save_plan", lambda uri, plan: None)
    with raises("presample-not-shared", tmp_path / "samples"):
        presample(config, tmp_path / "samples", num_epochs=1)
    assert not presample_on_ray._opened


def test_what_a_task_raises_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> int:
        raise ZeroDivisionError("of a task")

    monkeypatch.setattr(presample_on_ray, "write_file", broken)
    monkeypatch.setattr(presample_on_ray, "_loaders", lambda job: {})
    file = {"name": "train/x.parquet", "split": "train", "epoch": 0, "first": 0, "last": 1}
    rows = {name: np.array([value]) for name, value in file.items()}
    job = SimpleNamespace(uri=str(tmp_path), plan=None)
    done = presample_on_ray._write_files(rows, cast(Any, job))
    error = presample_on_ray._failure(pickle.loads(done["error"][0]), done["name"][0])
    with raises("presample-failed", "train/x.parquet", "ZeroDivisionError"):
        raise error
