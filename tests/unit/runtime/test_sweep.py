"""Sweeps: configs of trials, Ray Tune's objects, lines, the ranked table, and what is freed."""

from __future__ import annotations

import json
import math
import sys
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from ray import cloudpickle
from ray.exceptions import ActorDiedError
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter

import raygnn.train
from raygnn import documents
from raygnn.config import load_config
from raygnn.errors import ConfigError
from raygnn.runtime import sweep
from raygnn.runtime.sweep import ReportValidations
from raygnn.runtime.sweep_plan import TIME_ATTRIBUTE, load_sweep, scheduler, search_space, searcher
from raygnn.runtime.sweep_progress import SweepProgress, TrialRow, as_json, best_value, rank, table
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
    run = trial.config.run
    assert (run.name, run.storage_path) == ("trial-00000", "/sweeps/sweep")


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


def test_the_number_of_trials_and_what_is_no_trial_and_no_sweep(plan):
    assert plan.num_trials == 3 * 2 * 2
    with raises("model-layers-hops", 3):
        _trial(plan, sampling__fanouts=[5, 5, 5])
    with raises("sweep-as-run"):
        raygnn.train.fit(CONFIG)


def test_without_a_space_the_first_trial_is_the_config_and_others_vary_it() -> None:
    alone = {key: value for key, value in CONFIG.items() if key not in ("tune", "run")}
    alone["model"] = {"type": "GraphSAGE", "args": {"hidden_channels": 8}}
    alone["early_stopping"] = {"monitor": "val/accuracy", "mode": "max"}
    plan = load_sweep(alone, ["--tune.num_samples", "4"])
    assert plan.num_trials == 4
    assert plan.watched == ("val/accuracy", "max")
    plan = plan.with_space(plan.loaded)
    found = searcher(plan, 1)
    found.set_search_properties("val/accuracy", "max", search_space(plan.section))
    drawn = []
    for name in ("a", "b", "c", "d"):
        drawn.append(found.suggest(name))
        found.on_trial_complete(name, {"val/accuracy": 0.5})
    assert drawn[0] == {
        "optimizer.args.lr": 0.005,
        "model.args.hidden_channels": 8,
        "model.args.dropout": 0.0,
        "sampling.fanouts": [5, 5],
    }
    assert len({values["optimizer.args.lr"] for values in drawn}) == 4
    for values in drawn:  # each is a config
        trial = plan.trial_config(values, name=None, storage_path="runs").config
        assert trial.optimizer.args["weight_decay"] == 1e-6
        assert trial.sampling.fanouts == values["sampling.fanouts"]
    hops = {"default": [5, 5], "paper__cites__paper": [5, 0]}
    unread = load_sweep({**alone, "sampling": {"fanouts": hops}})
    deeper = unread.with_space(unread.loaded).section.space["sampling.fanouts"].choice[1]
    assert deeper == {"default": [5, 5, 2], "paper__cites__paper": [5, 0, 0]}
    assert isinstance(scheduler(plan.section), MedianStoppingRule)
    with raises("sweep-workers", "scaling.num_workers=0"):
        load_sweep(alone, ["--scaling.num_workers", "0"])
    written = load_sweep({**alone, "scaling": {"num_workers": 0}})  # by raygnn prepare
    assert written.loaded.config.scaling.num_workers == 1
    trial = written.trial_config({}, name="trial", storage_path="runs")
    assert trial.config.scaling.num_workers == 1


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
    parse, texts = documents.parse_yaml, []
    monkeypatch.setattr(documents, "parse_yaml", lambda text: (texts.append(text), parse(text))[1])
    shared = load_sweep(str(path), ["--job_name", "many"])
    assert texts.count(path.read_text()) == 1
    assert shared.source["seed"] == 7
    assert "job_name" not in shared.source


def _section(**tune):
    tune.setdefault("space", {"seed": {"choice": [1, 2]}})
    return load_config({"tune": tune}).config.tune


def test_each_kind_of_parameter_becomes_its_domain():
    space = search_space(
        _section(
            space={
                "optimizer.args.lr": {"loguniform": [1e-4, 1e-1]},
                "model.args.dropout": {"uniform": [0, 0.5]},
                "loader.batch_size": {"randint": [16, 19]},
                "seed": {"choice": [3]},
                "sampling.fanouts": {"grid": [[1], [2]]},
            }
        )
    )
    lrs = [space["optimizer.args.lr"].sample() for _ in range(300)]
    assert 1e-4 <= min(lrs) < 1e-3 < 1e-2 < max(lrs) <= 1e-1
    assert all(0 <= space["model.args.dropout"].sample() <= 0.5 for _ in range(20))
    assert {space["loader.batch_size"].sample() for _ in range(99)} == {16, 17, 18}
    assert space["seed"].sample() == 3
    assert space["sampling.fanouts"] == {"grid_search": [[1], [2]]}


def test_schedulers_count_validations():
    asha = scheduler(_section(scheduler="asha"))
    assert isinstance(asha, AsyncHyperBandScheduler)
    assert asha._time_attr == TIME_ATTRIBUTE
    median = scheduler(_section(scheduler="median_stopping"))
    assert isinstance(median, MedianStoppingRule)
    assert median._time_attr == TIME_ATTRIBUTE
    assert isinstance(scheduler(_section()), FIFOScheduler)


def test_searchers_limit_the_trials_at_a_time(monkeypatch):
    def plan(kind):
        return load_sweep({"tune": {"searcher": kind, "space": {"seed": {"choice": [1, 2]}}}})

    random = searcher(plan("random"), 3)
    assert isinstance(random, BasicVariantGenerator)
    assert random.max_concurrent == 3
    limited = searcher(plan("optuna"), 3)
    assert isinstance(limited, ConcurrencyLimiter)
    assert limited.max_concurrent == 3
    monkeypatch.setitem(sys.modules, "optuna", None)
    with raises("sweep-optuna-missing"):
        searcher(plan("optuna"), 3)


ROWS = [
    TrialRow("trial-00000", {"lr": 0.1, "model": "GCN"}, "finished", 0.5, 8),
    TrialRow("trial-00001", {"lr": 0.01, "model": "GAT"}, "failed", None, 0, "it broke"),
    TrialRow("trial-00002", {"lr": 0.02, "model": "GCN"}, "stopped early", 0.25, 2),
]


def test_rank_puts_the_best_first_and_failures_last():
    assert [row.name[-1] for row in rank(ROWS, "min")] == ["2", "0", "1"]
    assert [row.name[-1] for row in rank(ROWS, "max")] == ["0", "2", "1"]


def test_best_value_leaves_out_what_is_no_number():
    assert best_value([0.3, math.nan, None, 0.1, math.inf], "min") == 0.1
    assert best_value([0.3, math.nan, 0.1, math.inf], "max") == 0.3
    assert best_value([math.nan, None], "max") is None


def test_the_table_has_a_line_per_trial_and_json_the_same():
    lines = table(rank(ROWS, "min"), "val/loss")
    assert lines[0].split() == ["rank", "trial", "val/loss", "validations", "lr", "model", "status"]
    assert lines[1].split() == ["1", "trial-00002", "0.25", "2", "0.02", "GCN", "stopped", "early"]
    assert lines[3].endswith("failed: it broke")
    assert table([], "val/loss") == []
    content = json.loads(as_json(rank(ROWS, "min"), "val/loss", "min"))
    assert content["trials"][0]["values"] == {"lr": 0.02, "model": "GCN"}
    assert content["trials"][2]["error"] == "it broke"


class _Trial(SimpleNamespace):
    """A trial as Tune has it when it calls its callbacks."""

    def __str__(self) -> str:
        return self.name


_LAST_LINE = "last line (see error.txt in the trial's folder)"


@pytest.mark.parametrize(
    ("error", "is_pickled", "told"),
    [
        (ConfigError("lr is invalid:\nset less."), True, "lr is invalid: set less."),
        (ValueError("first line\nlast line"), True, _LAST_LINE),
        (ValueError("first line\nlast line"), False, _LAST_LINE),
    ],
)
def test_a_failed_trial_says_why_in_a_line(capsys, tmp_path, error, is_pickled, told) -> None:
    text, pickled = tmp_path / "error.txt", tmp_path / "error.pkl"
    text.write_text(f"Failure # 1\n{error}\n")
    pickled.write_bytes(cloudpickle.dumps(error))
    trial = _Trial(name="trial-00002", error_file=text)
    trial.pickled_error_file = pickled if is_pickled else None
    SweepProgress("val/loss", "min", 2, 1).on_trial_error(1, [trial], trial)
    assert capsys.readouterr().out == f"[raygnn] trial-00002 failed: {told}\n"


def test_a_sweep_prints_a_validation_a_minute(capsys, monkeypatch) -> None:
    clock = [1000.0]
    now = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr("raygnn.runtime.sweep_progress.time", now)
    progress = SweepProgress("val/loss", "min", 2, 1)
    for number in range(1, 14):  # two minutes, and a validation each 10 s
        result = {"val/loss": 1 / number, TIME_ATTRIBUTE: number}
        progress.on_trial_result(number, [], "trial-00000", result)
        clock[0] += 10
    assert capsys.readouterr().out.splitlines() == [
        "[raygnn] trial-00000 validation 1: val/loss 1",
        "[raygnn] trial-00000 validation 7: val/loss 0.14286",
        "[raygnn] trial-00000 validation 13: val/loss 0.076923",
    ]


def test_a_trial_that_the_scheduler_stops_says_at_which_validation(capsys, monkeypatch) -> None:
    progress = SweepProgress("val/loss", "min", 2, 1)
    progress._next_s = math.inf
    clock = [0.0]
    monkeypatch.setattr(
        "raygnn.runtime.sweep_progress.time", SimpleNamespace(monotonic=lambda: clock[0])
    )
    trials = []
    for name, is_stopped in (("trial-00000", True), ("trial-00001", False)):
        result = {"val/loss": 0.5, TIME_ATTRIBUTE: 2, "done": is_stopped}
        best = {"val/loss": {"min": 0.5}}
        trial = _Trial(name=name, config={}, last_result=result, metric_analysis=best)
        trial.is_finished = lambda: True
        trials.append(trial)
        progress.on_trial_start(1, trials, trial)
        clock[0] += 90
        progress.on_trial_result(2, trials, trial, result)
        progress.on_trial_complete(2, trials, trial)
    assert capsys.readouterr().out.splitlines() == [
        "[raygnn] trial-00000 started: ",
        "[raygnn] trial-00000 stopped early at validation 2 in 1 min 30 s "
        "(1 of 2 trials are left, about 1 min 30 s): best val/loss 0.5",
        "[raygnn] trial-00001 started: ",
        "[raygnn] trial-00001 ended after 2 validations in 1 min 30 s: best val/loss 0.5",
    ]


@pytest.mark.parametrize("queue", [None, ActorDiedError()])
def test_validations_are_handed_on_and_checkpoints_alone_are_not(queue) -> None:
    """Also where the queue has ended with its trial."""
    with (
        patch.object(TuneReportCallback, "__init__", lambda self: None),
        patch.object(TuneReportCallback, "after_report", side_effect=queue) as reported,
    ):
        callback = ReportValidations()
        callback.after_report(None, [{"val/loss": 1.0}], None)
        callback.after_report(None, [{}], None)
    reported.assert_called_once_with(None, [{"val/loss": 1.0}], None)


_OLD, _NEW, _OTHER = ("a" * 36, "b" * 36, "c" * 36)


@pytest.mark.parametrize(
    ("looks", "freed"),
    [
        ([{_OLD: True, _NEW: False}, {_OLD: True, _NEW: True}, {_OLD: True}], [_NEW]),
        ([{_OTHER: False}], []),
    ],
)
def test_places_are_freed_once_their_controller_is_dead(monkeypatch, looks, freed) -> None:
    removed: list[str] = []
    monkeypatch.setattr(sweep, "held_places", lambda: looks.pop(0) if looks[1:] else looks[0])
    monkeypatch.setattr(
        sweep, "remove_placement_group", lambda group: removed.append(group.id.hex())
    )
    monkeypatch.setattr(sweep, "_WITHIN_S", 1.0)
    sweep.free_places_of_trials({_OLD: True})
    assert removed == freed
