"""Loggers, against stand-ins of the services' packages: no network, and no extra is installed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

import raygnn.train
from raygnn.loops.callbacks import Callback
from raygnn.outputs.loggers import flat_config
from tests.errors import raises
from tests.event_files import read_events
from tests.small_runs import run_rank, small_config
from tests.user_code import FailOnce, PlainPyG


class FakeWandBRun:
    """Refuses what Weights & Biases would drop."""

    def __init__(self, id: str, step: int) -> None:
        self.id, self.step = id, step
        self.rows: dict[int, dict[str, float]] = {}
        self.exit_code: int | None = None

    def log(self, metrics: dict[str, float], step: int) -> None:
        assert step >= self.step
        self.step = step
        self.rows.setdefault(step, {}).update(metrics)

    def finish(self, exit_code: int = 0) -> None:
        self.exit_code = exit_code


class FakeWandB:
    def __init__(self) -> None:
        self.runs: dict[str, FakeWandBRun] = {}
        self.arguments: list[dict[str, Any]] = []

    def init(self, **arguments: Any) -> FakeWandBRun:
        self.arguments.append(arguments)
        name = arguments["id"] or f"run-{len(self.runs)}"
        before = self.runs.get(name)
        run = FakeWandBRun(name, before.step + 1 if before else 0)
        run.rows = before.rows if before else {}
        self.runs[name] = run
        return run


class FakeMLflow:
    """Keeps every value it is given, and refuses what a server would."""

    def __init__(self) -> None:
        self.values: list[tuple[str, int, float]] = []
        self.params: dict[str, str] = {}
        self.calls: list[tuple[str, Any]] = []

    def set_tracking_uri(self, uri: str) -> None:
        self.calls.append(("set_tracking_uri", uri))

    def set_experiment(self, name: str) -> None:
        self.calls.append(("set_experiment", name))

    def start_run(self, **arguments: Any) -> Any:
        self.calls.append(("start_run", arguments))
        return SimpleNamespace(info=SimpleNamespace(run_id="id-1"))

    def log_params(self, params: dict[str, str]) -> None:
        assert 0 < len(params) <= 100
        assert not set(params) & set(self.params)
        self.params.update(params)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        assert not any("@" in name for name in metrics)
        self.values += [(name, step, value) for name, value in metrics.items()]

    def end_run(self, status: str) -> None:
        self.calls.append(("end_run", status))

    def MlflowClient(self) -> FakeMLflow:  # noqa: N802 - their name
        return self

    def get_run(self, run_id: str) -> Any:
        latest = {name: value for name, _, value in self.values}
        return SimpleNamespace(data=SimpleNamespace(metrics=latest))

    def get_metric_history(self, run_id: str, key: str) -> list[Any]:
        return [SimpleNamespace(step=step) for name, step, _ in self.values if name == key]


class NoisyModel(PlainPyG, Callback):
    """Comes before the loggers, and logs an odd name and a value that is no number."""

    def on_log(self, engine: Any, metrics: dict[str, float]) -> None:
        metrics |= {"train/hits@10": 0.5, "train/nan": float("nan")}


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandB:
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMLflow:
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return fake


def _config(folder: Any, loggers: list[Any]) -> dict[str, Any]:
    return small_config(
        folder,
        scaling__num_workers=0,
        loader={"batch_size": 40, "eval_batch_size": 100},
        training={"max_steps": 6, "log_every": {"steps": 1}, "validate_every": {"steps": 2}},
        checkpoint={"every": {"steps": 2}},
        loggers=loggers,
        callbacks=["tests.user_code.FailOnce"],
    )


def _fail_and_go_on(config: dict[str, Any], bundle_path: str, step: int) -> None:
    FailOnce.steps[:] = [step]
    with raises("run-rank-failed", "went away"):
        run_rank(config, bundle_path)
    run_rank(config, bundle_path)


def test_several_loggers_get_the_same(wandb, mlflow, small_bundle_path, tmp_path):
    loggers = [
        "tensorboard",
        {"type": "wandb", "args": {"project": "graphs", "mode": "offline"}},
        {"type": "mlflow", "args": {"experiment": "graphs", "tracking_uri": "file:runs"}},
    ]
    metrics = run_rank(_config(tmp_path, loggers), small_bundle_path)
    (run,) = wandb.runs.values()
    assert sorted(run.rows) == [1, 2, 3, 4, 5, 6]
    assert run.rows[6]["test/accuracy"] == metrics["test/accuracy"]
    assert run.exit_code == 0
    (arguments,) = wandb.arguments
    assert arguments["project"] == "graphs"
    assert arguments["mode"] == "offline"
    assert arguments["name"] == "run"
    assert arguments["config"]["sampling"]["fanouts"] == [4, 3]

    assert ("test/accuracy", 6, metrics["test/accuracy"]) in mlflow.values
    rows = {(name, step, value) for step, row in run.rows.items() for name, value in row.items()}
    assert set(mlflow.values) == rows
    assert mlflow.params["sampling.fanouts"] == "[4, 3]"
    assert mlflow.calls == [
        ("set_tracking_uri", "file:runs"),
        ("set_experiment", "graphs"),
        ("start_run", {"run_name": "run"}),
        ("end_run", "FINISHED"),
    ]
    assert len(list((tmp_path / "run" / "logs").iterdir())) == 1


def test_a_resumed_run_goes_on_in_wandb(wandb, small_bundle_path, tmp_path):
    _fail_and_go_on(_config(tmp_path, ["wandb"]), small_bundle_path, step=5)
    (run,) = wandb.runs.values()
    assert sorted(run.rows) == [1, 2, 3, 4, 5, 6]
    assert [arguments["id"] for arguments in wandb.arguments] == [None, run.id]


def test_a_failed_run_is_told_to_wandb(wandb, small_bundle_path, tmp_path):
    FailOnce.steps[:] = [3]
    with raises("run-rank-failed", "went away"):
        run_rank(_config(tmp_path, ["wandb"]), small_bundle_path)
    (run,) = wandb.runs.values()
    assert run.exit_code == 1


def test_a_resumed_run_logs_no_step_twice_to_mlflow(mlflow, small_bundle_path, tmp_path):
    _fail_and_go_on(_config(tmp_path, ["mlflow"]), small_bundle_path, step=5)
    places = [(name, step) for name, step, _ in mlflow.values]
    assert len(places) == len(set(places))
    assert {step for name, step in places if name == "train/loss"} == {1, 2, 3, 4, 5, 6}
    assert ("start_run", {"run_id": "id-1"}) in mlflow.calls
    assert [status for call, status in mlflow.calls if call == "end_run"] == ["FAILED", "FINISHED"]


def test_odd_names_and_values_reach_no_service(mlflow, small_bundle_path, tmp_path):
    config = _config(tmp_path, ["mlflow"])
    config["callbacks"] = []
    config["model"] = {"type": f"{__name__}.NoisyModel"}
    run_rank(config, small_bundle_path)
    names = {name for name, _, _ in mlflow.values}
    assert "train/hits_10" in names
    assert "train/nan" not in names


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_an_extra_that_is_missing_is_named(name, monkeypatch, small_bundle_path, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    with raises("logger-not-installed", f"pip install {name}"):
        run_rank(_config(tmp_path, [name]), small_bundle_path)
    # A launch reports it before it opens tables.
    config = {**_config(tmp_path, [name]), "data": {"uri": str(tmp_path / "no_tables")}}
    with raises("logger-not-installed", f"pip install {name}"):
        raygnn.train.fit(config, allow_modules=["tests"])


def test_hyperparameters_go_to_tensorboard_with_the_test_metrics(small_bundle_path, tmp_path):
    metrics = run_rank(_config(tmp_path, ["tensorboard"]), small_bundle_path)
    (file,) = (tmp_path / "run" / "logs").iterdir()
    data = {
        value.tag: HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for event in read_events(file.read_bytes())
        for value in event.summary.value
        if value.tag.startswith("_hparams_/")
    }
    chosen = data["_hparams_/session_start_info"].session_start_info.hparams
    assert chosen["model.args.dropout"].number_value == 0.3
    assert chosen["model.type"].string_value == "GraphSAGE"
    assert chosen["deterministic"].bool_value is True
    told = {info.name.tag for info in data["_hparams_/experiment"].experiment.metric_infos}
    assert told == {name for name in metrics if name.startswith("test/")}


def test_a_config_becomes_one_level():
    config = {
        "seed": 0,
        "data": {"uri": None, "args": {}, "undirected": False},
        "sampling": {"fanouts": [15, 10]},
        "losses": [{"type": "mse", "weight": 0.5}],
        "callbacks": [],
    }
    assert flat_config(config) == {
        "seed": 0,
        "data.undirected": False,
        "sampling.fanouts": "[15, 10]",
        "losses.0.type": "mse",
        "losses.0.weight": 0.5,
    }
