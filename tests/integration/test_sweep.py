"""Sweeps over Ray Train: trials that are stopped, fail, are interrupted, and go on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray
import torch
import yaml
from ray.util.placement_group import placement_group
from torch_geometric.data import Data

import raygnn.train
import raygnn.tune
from raygnn.config import load_config
from raygnn.data.bundle_record import RECORD_NAME
from raygnn.runtime.sweep import free_places_of_trials, held_places
from tests.errors import raises
from tests.linger import Linger
from tests.small_runs import small_config
from tests.wait_until import wait_until

GRAPH = {
    "type": "planted_partition",
    "num_nodes": 300,
    "num_classes": 3,
    "num_features": 8,
    "seed": 1,
}


def _config(folder: Path, **changes) -> dict:
    settings = {
        "scaling__num_workers": 2,
        "data__synthetic": GRAPH,
        "data__cache_dir": str(folder / "cache"),
        "training__max_epochs": 4,
        "model__args": {"hidden_channels": 8, "num_layers": 2},
        "tune__metric": "val/accuracy",
        "tune__mode": "max",
    }
    return small_config(folder, **{**settings, **changes})


def _adam(lr: float) -> dict:
    return {"type": "Adam", "args": {"lr": lr}}


@pytest.mark.ray
@pytest.mark.cluster
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("ray_session")
def test_asha_stops_a_trial_and_the_next_one_starts(tmp_path, capsys):
    config = _config(
        tmp_path,
        tune__scheduler={"type": "asha", "grace_period": 2, "reduction_factor": 2},
        tune__space={"optimizer": {"grid": [_adam(0.05), _adam(1e-6), "Adma", _adam(0.04)]}},
        # An epoch takes no time: the trial would be through before it is told to stop.
        callbacks=[{"type": "tests.user_code.WaitsToBeStopped"}],
    )
    grid = raygnn.tune.sweep(config, allow_modules=["tests"])
    out, err = capsys.readouterr()
    assert "[raygnn] trial-00002 failed: --optimizer: optimizer.type='Adma' is invalid" in out
    assert "[raygnn] trial-00001 stopped early at validation 2: best val/accuracy" in out
    assert "Traceback" not in err
    assert len((out + err).splitlines()) <= 30
    assert out.count("ingest: wrote bundle") == 1
    assert _most_at_a_time(out) == 1  # two CPUs are one trial of two workers
    assert len(grid) == 4
    assert grid.num_errors == 1

    folder = tmp_path / "run"
    trials = json.loads((folder / "trials.json").read_text())["trials"]
    by_name = {trial["trial"]: trial for trial in trials}
    status = [by_name[f"trial-{n:05d}"]["status"] for n in range(4)]
    assert status == ["finished", "stopped early", "failed", "finished"]
    assert by_name["trial-00001"]["num_validations"] == 2
    assert "optimizer.type='Adma' is invalid" in by_name["trial-00002"]["error"]
    assert "optimizer.type='Adma'" in (folder / "trial-00002" / "error.txt").read_text()
    assert trials[0]["best"] >= trials[1]["best"] > trials[2]["best"]
    assert "rank  trial" in out

    # The best config is a config, and each trial a whole run with logs of its own.
    best = load_config(folder / "best.yaml", allow_modules=["tests"]).config
    assert best.optimizer.args["lr"] == trials[0]["values"]["optimizer"]["args"]["lr"]
    assert (best.run.name, best.run.storage_path, best.tune) == (None, str(tmp_path), None)
    best_folder = folder / trials[0]["trial"]
    assert json.loads((best_folder / "metrics.json").read_text())["num_workers"] == 2
    result = grid.get_best_result(scope="all")
    assert Path(result.path) == best_folder
    assert list(result.metrics_dataframe["validation"]) == [1, 2, 3, 4]
    assert Path(result.metrics["checkpoint_path"]).is_dir()
    events = next(best_folder.glob("events.out.tfevents*")).read_bytes()
    assert b"_hparams_" in events
    assert b"optimizer/args/lr" in events

    # It trains as it is, under a name of its own, to what the trial came to.
    trained = raygnn.train.fit(folder / "best.yaml", allow_modules=["tests"])
    assert Path(trained.path).parent == tmp_path
    assert trained.metrics_dataframe["val/accuracy"].max() == pytest.approx(trials[0]["best"])


def _hash_split(share: float) -> dict:
    return {"type": "hash", "fractions": [share, 0.2, round(0.8 - share, 1)]}


def _most_at_a_time(out: str) -> int:
    """The greatest number of trials that ran together, by the lines of their starts and ends."""
    running, most = 0, 0
    for line in out.splitlines():
        if re.search(r"trial-\d+ started: ", line):
            running += 1
        elif re.search(r"trial-\d+ (ended after|stopped early|failed)", line):
            running -= 1
        most = max(most, running)
    assert running == 0
    return most


@pytest.mark.ray
@pytest.mark.cluster
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("ray_session")
def test_two_trials_at_a_time(tmp_path, capsys):
    config = _config(
        tmp_path,
        scaling__num_workers=1,
        tune__num_samples=3,
        tune__max_concurrent_trials=2,
        tune__scheduler="median_stopping",
        callbacks=[
            {"type": "tests.user_code.WaitsForAnother", "args": {"folder": str(tmp_path / "met")}}
        ],
        tune__space={
            "optimizer.args.lr": {"loguniform": [0.001, 0.05]},
            "loader.batch_size": {"randint": [16, 32]},
        },
    )
    assert len(raygnn.tune.sweep(config, allow_modules=["tests"])) == 3
    assert _most_at_a_time(capsys.readouterr().out) == 2
    trials = json.loads((tmp_path / "run" / "trials.json").read_text())["trials"]
    assert {trial["status"] for trial in trials} <= {"finished", "stopped early"}
    assert len({trial["values"]["optimizer.args.lr"] for trial in trials}) == 3


@pytest.mark.ray
@pytest.mark.cluster
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("ray_session")
def test_a_graph_given_as_an_object_is_swept_over_keys_of_data(tmp_path, capsys):
    num_nodes = 200
    generator = torch.Generator().manual_seed(0)
    graph = Data(
        x=torch.randn(num_nodes, 4, generator=generator),
        y=torch.arange(num_nodes) % 3,
        edge_index=torch.randint(num_nodes, (2, 800), generator=generator),
    )
    config = _config(
        tmp_path,
        data={"cache_dir": str(tmp_path / "cache")},
        training__max_epochs=1,
        scaling__num_workers=1,
        tune__space={
            "data.undirected": {"choice": [True]},
            "data.splits": {"grid": [_hash_split(0.5), _hash_split(0.6)]},
        },
    )
    raygnn.tune.sweep(config, data=graph)
    trials = json.loads((tmp_path / "run" / "trials.json").read_text())["trials"]
    assert [trial["status"] for trial in trials] == ["finished", "finished"], trials
    # One for the sweep, and one for both of its trials: splits only select from it.
    assert len(list((tmp_path / "cache" / "bundles").glob(f"*/{RECORD_NAME}"))) == 2
    assert capsys.readouterr().out.count("ingest: wrote bundle") == 1


@pytest.mark.ray
@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("ray_session")
def test_without_a_space_the_time_is_stated_before_the_first_trial(tmp_path, capsys):
    pytest.importorskip("optuna")
    raygnn.tune.sweep(_config(tmp_path, scaling__num_workers=0, tune__num_samples=2))
    lines = capsys.readouterr().out.splitlines()
    (stated,) = (n for n, line in enumerate(lines) if "2 trials take about " in line)
    started = [n for n, line in enumerate(lines) if " started: optimizer.args.lr " in line]
    assert stated < min(started)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_too_few_cpus_for_a_trial_are_told_at_once(tmp_path):
    space = {"optimizer.args.lr": {"choice": [0.1]}}
    config = _config(tmp_path, scaling__num_workers=9, tune__space=space)
    with raises("cluster-no-room", "scaling.num_workers=9", 2):
        raygnn.tune.sweep(config)
    config = _config(tmp_path, tune__max_concurrent_trials=2, tune__space=space)
    with raises("sweep-no-room", "max_concurrent_trials=2", 1):
        raygnn.tune.sweep(config)
    assert not (tmp_path / "cache").exists()  # before there is a graph
    assert not (tmp_path / "run").exists()


@pytest.mark.ray
@pytest.mark.cluster
@pytest.mark.usefixtures("ray_session")
def test_a_metric_that_no_trial_logs_ends_the_sweep(tmp_path):
    # A callback of the user's own may log what it likes: the name cannot be checked before.
    callbacks = [{"type": "tests.user_code.WaitsToBeStopped"}]
    space = {"optimizer.args.lr": {"choice": [0.1]}}
    config = _config(tmp_path, tune__metric="val/acuracy", tune__space=space, callbacks=callbacks)
    with raises("sweep-metric-unknown", "Did you mean val/accuracy?"):
        raygnn.tune.sweep(config, allow_modules=["tests"])


class HoldsPlaces:
    """Has a placement group that nobody knows of, as a controller whose workers still start."""

    def __init__(self) -> None:
        self._places = placement_group([{"CPU": 1}])
        ray.get(self._places.ready())

    def is_there(self) -> bool:
        return True


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_places_of_a_dead_controller_are_freed():
    before = held_places()
    holder = ray.remote(num_cpus=0)(HoldsPlaces).remote()
    assert ray.get(holder.is_there.remote())
    ray.kill(holder)
    wait_until(lambda: any(held_places()[place] for place in held_places().keys() - before.keys()))
    free_places_of_trials(before)
    assert held_places().keys() <= before.keys()  # Ray may have freed those of earlier trials


@pytest.mark.ray
@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_an_interrupted_sweep_goes_on(tmp_path):
    marker = tmp_path / "marker"
    config = _config(
        tmp_path / "sweeps",
        tune__space={"optimizer.args.lr": {"uniform": [0.01, 0.05]}},
        tune__num_samples=2,
        tune__searcher="optuna",
        training__max_epochs=10,
        callbacks=[Linger.entry(marker, step_s=3)],
    )
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "raygnn.tune", str(path), "--allow-module", "tests"]
    environment = {**os.environ, "RAY_ADDRESS": "local", "PYTHONUNBUFFERED": "1"}
    sweep = tmp_path / "sweeps" / "run"
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        told = (tmp_path / "log").read_text
        wait_until(lambda: 10 in _num_rows(sweep).values(), process, told)
        marker.touch()  # the first trial is through, and the second one shall not be
        wait_until(lambda: sum(_num_rows(sweep).values()) >= 12, process, told)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130
        log.seek(0)
        printed = log.read()
    assert "stopped by SIGINT. Start it again with run.name 'run' to resume" in printed
    assert "Tuner.restore" not in printed
    before = _num_rows(sweep)
    marker.unlink()
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming the sweep" in done.stdout
    unfinished = min(before, key=lambda name: before[name])
    starts = json.loads((sweep / unfinished / "run.json").read_text())["starts"]
    assert starts[-1]["resumed_from"].startswith("step-")
    # Each line is ours, those of a trial's workers carry its name, and the table comes last.
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert [line for line in lines if not line.startswith("[raygnn")] == []
    of_trials = [n for n, line in enumerate(lines) if line.startswith("[raygnn trial-")]
    (table,) = [n for n, line in enumerate(lines) if line.startswith("[raygnn] rank  trial")]
    assert max(of_trials, default=-1) < table
    assert min(before.values()) < 10
    assert _num_rows(sweep) == dict.fromkeys(before, 10)
    trials = json.loads((sweep / "trials.json").read_text())["trials"]
    assert [trial["status"] for trial in trials] == ["finished", "finished"]
    # A finished sweep is not run again.
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "has finished" in again.stderr


def _num_rows(sweep: Path) -> dict[str, int]:
    """Validations of each trial that has validated."""
    return {
        history.parent.name: len(history.read_text().splitlines())
        for history in sweep.glob("trial-*/history.jsonl")
    }
