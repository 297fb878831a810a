"""Presampling with Ray Data, and training on its files in workers of Ray Train."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

import raygnn.train
from raygnn.config import load_config
from raygnn.data.tables.graph_tables import write_tables
from raygnn.prepare.synthetic import synthetic_tables
from raygnn.presample import presample
from raygnn.runtime import presample as presampling
from raygnn.runtime import ray_tasks
from raygnn.runtime.data_source import open_bundle
from raygnn.sampling import stored_samples
from raygnn.sampling.sample_record import SampleFile
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
    monkeypatch.setattr("raygnn.sampling.sample_record.save_plan", lambda uri, plan: None)
    with raises("presample-not-shared", tmp_path / "samples"):
        presample(config, tmp_path / "samples", num_epochs=1)
    assert not presampling._opened


def test_what_a_task_raises_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> int:
        raise ZeroDivisionError("of a task")

    monkeypatch.setattr(stored_samples, "write_file", broken)
    monkeypatch.setattr(presampling, "_loaders", lambda job: {})

    def run_here(fn: Any, items: dict[int, Any]) -> list[tuple[int, ray_tasks.Outcome]]:
        return [(number, ray_tasks._outcome(fn, item)) for number, item in items.items()]

    monkeypatch.setattr(presampling, "run_in_ray_data", run_here)
    job = presampling._Job(*cast(Any, (None, None, None, str(tmp_path), None)))
    with raises("presample-failed", "train/epoch-00000", "ZeroDivisionError"):
        list(presampling._write_on_ray(job, [SampleFile("train", 0, 0, 1)]))
