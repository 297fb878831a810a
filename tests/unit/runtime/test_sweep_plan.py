"""The configs of trials: the sweep's, with what was drawn, checked anew."""

from __future__ import annotations

import numpy as np
import pytest

import raygnn.train
from raygnn.config import load_config, source
from raygnn.runtime.sweep_plan import load_sweep
from tests.errors import raises

CONFIG = {
    "sampling": {"fanouts": [5, 5]},
    "model": {"type": "GraphSAGE", "args": {"num_layers": 2, "hidden_channels": 8}},
    "loader": {"batch_size": 16, "eval_batch_size": "${loader.batch_size}"},
    "run": {"name": "sweep", "storage_path": "${env:SWEEPS}"},
    "tune": {
        "num_samples": 3,
        "space": {
            "optimizer.args.lr": {"grid": [0.1, 0.01]},
            "sampling.fanouts": {"grid": [[5, 5], [5, 5, 5]]},
            "loader.batch_size": {"randint": [8, 32]},
        },
    },
}


@pytest.fixture
def plan(monkeypatch):
    monkeypatch.setenv("SWEEPS", "/sweeps")
    return load_sweep(CONFIG, ["--seed", "3"])


def _trial(plan, **values):
    drawn = {path.replace("__", "."): value for path, value in values.items()}
    return plan.trial_config(drawn, name="trial-00000", storage_path="/sweeps/sweep")


def test_a_trial_has_its_values_and_overrides_and_references_follow(plan):
    trial = _trial(plan, optimizer__args__lr=np.float64(1e-05), loader__batch_size=np.int64(24))
    assert trial.config.optimizer.args["lr"] == 1e-05
    assert trial.config.loader.batch_size == trial.config.loader.eval_batch_size == 24
    assert trial.config.seed == 3
    assert trial.config.tune is None
    assert (trial.config.run.name, trial.config.run.storage_path) == (
        "trial-00000",
        "/sweeps/sweep",
    )


def test_a_trial_keeps_to_its_own_folder(monkeypatch):
    monkeypatch.setenv("SWEEPS", "/sweeps")
    given = {"overwrite": True, "model_uri": "/models", "logs_uri": "/logs"}
    shared = load_sweep({**CONFIG, "run": {**CONFIG["run"], **given}})
    drawn = {"optimizer.args.lr": 0.1}
    run = shared.trial_config(drawn, name="trial-00000", storage_path="/sweeps/sweep").config.run
    assert (run.overwrite, run.model_uri, run.logs_uri) == (False, None, None)
    best = shared.trial_config(drawn, name=None, storage_path="/sweeps").config.run
    assert best.model_uri == "/models"


def test_a_process_without_the_environment_makes_the_same_trial(plan, monkeypatch):
    before = _trial(plan, seed=1)
    monkeypatch.delenv("SWEEPS")
    assert _trial(plan, seed=1).config == before.config


def test_an_invalid_combination_is_told_with_its_place(plan):
    with raises("model-layers-hops", 3):
        _trial(plan, sampling__fanouts=[5, 5, 5])


def test_grids_multiply_the_number_of_trials(plan):
    assert plan.num_trials == 3 * 2 * 2


def test_a_run_and_a_sweep_are_told_apart(plan):
    with raises("sweep-no-space"):
        load_sweep({"seed": 1})
    with raises("sweep-as-run"):
        raygnn.train.fit(CONFIG)


def test_a_sweep_and_its_runs_have_fingerprints_of_their_own(plan):
    trial, other = _trial(plan, seed=1), _trial(plan, seed=2)
    prints = {c.fingerprint() for c in (plan.loaded, trial, other)}
    assert len(prints) == 3
    without = {key: value for key, value in CONFIG.items() if key != "tune"}
    alone = load_config(without, ["--seed", "1"])
    assert alone.fingerprint() == trial.fingerprint()


def test_the_source_of_a_sweep_is_read_once(monkeypatch, tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("seed: 7\ntune: {space: {seed: {choice: [1, 2]}}}\n")
    parse, texts = source.parse_yaml, []
    monkeypatch.setattr(source, "parse_yaml", lambda text: (texts.append(text), parse(text))[1])
    shared = load_sweep(str(path), ["--job_name", "many"])
    assert texts == [path.read_text()]
    assert shared.source["seed"] == 7
    assert "job_name" not in shared.source
