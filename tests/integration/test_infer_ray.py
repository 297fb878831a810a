"""Inference in two workers of Ray writes the files of one process."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import raygnn.infer
import raygnn.train
from raygnn.runtime import launch_inference
from tests.errors import raises
from tests.folders import contents
from tests.small_runs import small_bundle, small_config

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    small_bundle(folder)
    uri = str(folder / "tables")
    config = small_config(folder, scaling__num_workers=0, data__uri=uri, training__eval="exact")
    raygnn.train.fit(config)
    return folder / "run"


def test_two_workers_write_the_files_of_one_process(run, tmp_path, monkeypatch):
    monkeypatch.chdir(run.parent)  # workers run elsewhere, and relative paths still mean the same
    written, handler = {}, signal.getsignal(signal.SIGINT)
    for workers in (0, 2):
        args = {"rows_per_file": 70, "chunk_size": 500}
        overrides = ["--data.uri", "tables", "--scaling.num_workers", str(workers)]
        raygnn.infer.predict("run", tmp_path / str(workers), overrides, **args)
        written[workers] = contents(tmp_path / str(workers), "*.parquet")
    assert signal.getsignal(signal.SIGINT) is handler  # Ctrl-C means what it did before
    assert len(written[0]) == 5
    assert written[0] == written[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]
    assert sorted(p.name for p in (tmp_path / "2").iterdir()) == ["_manifest.json", "node"]


def test_two_workers_write_rows_to_one_file(run, tmp_path, monkeypatch):
    monkeypatch.delattr(launch_inference, "_run_in_process")
    ids = np.arange(3, 140)
    np.savetxt(tmp_path / "rows.csv", ids, "%d", header="id", comments="")
    arguments = [str(run), "--data.uri", str(run.with_name("tables")), "--scaling.num_workers", "2"]
    arguments += ["--rows", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "out.csv")]
    assert raygnn.infer.main([*arguments, "--rows-per-file", "70"]) == 0
    expected = raygnn.load(str(run)).predict(str(run.with_name("tables")), rows={"id": ids})
    assert pd.read_csv(tmp_path / "out.csv").id.tolist() == ids.tolist()
    found = pd.read_csv(tmp_path / "out.csv").probability
    assert np.allclose(found, expected["probability"], atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "rows.csv"]


def test_too_many_workers_are_told(run, tmp_path):
    overrides = ["--data.uri", str(run.with_name("tables")), "--scaling.num_workers", "3"]
    with raises("cluster-no-room", 2):
        raygnn.infer.predict(run, tmp_path / "out", overrides)
    assert not list(tmp_path.iterdir())
