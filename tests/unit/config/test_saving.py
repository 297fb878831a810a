"""What is saved, what tells runs apart, and that secrets stay out of both and of messages."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from raygnn.config import ConfigError, load_config
from tests.errors import raises

SECRET = "hunter2-very-secret"


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{seed: 3, model: GCN, early_stopping: null, losses: [mse], run: {name: '1e-3'}}",
        "{training: {max_time_s: 1e-3, log_every: {steps: 2, samples: 5}}}",
        "{data: {synthetic: {type: rmat, num_nodes: 5, a: 0.5}, splits: {type: per_class}}}",
        "{data: {splits: {type: temporal, timestamps: [2024-01-01, 2025-01-01]}}}",
        "{sampling: {fanouts: {a__b__c: [3, -1]}}, callbacks: [{on_log: p.f}, p.C]}",
        "{lr_scheduler: {type: StepLR, args: {step_size: 3}, interval: epoch}}",
        "{run: {name: $${x}.y}, job_name: 'on', scaling: {use_gpu: false}}",
    ],
)
def test_a_saved_config_loads_equal(text: str) -> None:
    text = text.replace("$${x}", "x")
    loaded = load_config(text, allow_modules=["p"])
    again = load_config(loaded.saved_yaml(), allow_modules=["p"])
    assert again.config == loaded.config
    assert again.saved == loaded.saved
    assert again.fingerprint() == loaded.fingerprint()


def test_all_defaults_and_overrides_are_saved() -> None:
    saved = load_config("job_name: x${seed}", ["--seed", "5"]).saved
    assert saved["job_name"] == "x5"
    assert saved["seed"] == 5
    assert saved["training"]["max_epochs"] == 100
    assert saved["model"] == {
        "type": "GraphSAGE",
        "args": {},
        "interaction": None,
        "relative_time": "auto",
    }


def test_the_environment_is_saved_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", SECRET)
    monkeypatch.setenv("MODEL", "GCN")
    text = (
        "{data: {uri: 's3://${env:WHERE}/x'}, model: '${env:MODEL}', job_name: '${data.uri}', "
        "loggers: [{type: wandb, args: {mode: '${env:WHERE}'}}], run: {name: '$${x}'}}"
    ).replace(", run: {name: '$${x}'}", "")
    loaded = load_config(text)
    assert loaded.config.data.uri == f"s3://{SECRET}/x"
    assert loaded.saved["data"]["uri"] == "s3://${env:WHERE}/x"
    assert loaded.saved["job_name"] == "s3://${env:WHERE}/x"
    assert loaded.saved["model"]["type"] == "${env:MODEL}"
    assert loaded.saved["loggers"][0]["args"]["mode"] == "${env:WHERE}"
    assert SECRET not in loaded.saved_yaml()
    assert load_config(loaded.saved_yaml()).config == loaded.config


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("seed", "hunter2-hunter2", "seed='${env:WHERE}' is invalid"),
        ("run.name", "a/hunter2", "run.name='${env:WHERE}' is invalid"),
        ("scaling", "{hunter2: 3}", "scaling.***='${env:WHERE}' is invalid"),
        ("sampling.fanouts", "[hunter2]", "sampling.fanouts.0='${env:WHERE}' is invalid"),
        ("loggers", "[{type: hunter2}]", "loggers.0.type='${env:WHERE}' is invalid"),
        ("task.args", "{hunter2: 1}", "task.args.***='${env:WHERE}' is invalid"),
    ],
)
def test_errors_show_the_name_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, key: str, value: str, shown: str
) -> None:
    monkeypatch.setenv("WHERE", value)
    with pytest.raises(ConfigError) as caught:
        load_config("{}", [f"--{key}", "${env:WHERE}"]).check_arguments()
    assert shown in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_literal_reference_survives_saving() -> None:
    loaded = load_config("task: {args: {label: 'a$${seed}'}}")
    assert loaded.config.task.args["label"] == "a${seed}"
    assert load_config(loaded.saved_yaml()).config == loaded.config


def test_environment_of_whole_lists_and_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANOUTS", "[3, 4]")
    loaded = load_config("sampling: {fanouts: '${env:FANOUTS}'}")
    assert loaded.config.sampling.fanouts == [3, 4]
    assert loaded.saved["sampling"]["fanouts"] == "${env:FANOUTS}"


@pytest.mark.parametrize(
    ("override", "changes"),
    [
        ("--seed=1", True),
        ("--model.args.dropout=0.5", True),
        ("--loader.batch_size=512", True),
        ("--training.validate_every={steps: 7}", True),
        ("--scaling.num_workers=3", True),
        ("--run.name=other", False),
        ("--run.overwrite=true", False),
        ("--job_name=other", False),
        ("--scaling.timeout_s=5", False),
        ("--scaling.max_failures=0", False),
        ("--loader.num_threads=3", False),
        ("--loader.val.prefetch_batches=3", False),
        ("--loggers=[]", False),
        ("--profiler={active: 2}", False),
        ("--training.log_every={steps: 1}", False),
        ("--training.max_epochs=7", False),
        ("--training.max_steps=7", False),
        ("--early_stopping.patience=7", False),
        ("--early_stopping.min_delta=7", True),
        ("--checkpoint.resume=must", False),
        ("--data.cache_dir=/elsewhere", False),
        ("--training.global_batch_size=1024", False),
        ("--training.accumulate_grad_batches=1", False),
    ],
)
def test_what_tells_runs_apart(override: str, changes: bool) -> None:
    plain = load_config("{}").fingerprint()
    assert (load_config("{}", [override]).fingerprint() != plain) is changes


def test_other_workers_with_the_same_global_batch_are_the_same_run() -> None:
    text = "{loader: {batch_size: 8}, training: {global_batch_size: 64}}"
    prints = {
        load_config(text, [f"--scaling.num_workers={n}"]).fingerprint() for n in (0, 1, 2, 4, 8)
    }
    assert len(prints) == 1


def test_no_secret_is_saved() -> None:
    loaded = load_config(
        {
            "data": {"uri": f"s3://key:{SECRET}@host/x"},
            "loggers": [{"type": "wandb", "args": {"api_key": SecretStr(SECRET)}}],
            "task": {"args": {"label": SecretStr(f"{SECRET}-2"), "again": f"x{SECRET}-2"}},
        }
    )
    assert loaded.config.task.args["label"] == f"{SECRET}-2"
    assert loaded.saved["task"]["args"] == {"label": "***", "again": "x***"}
    assert SECRET not in repr(loaded)
    assert SECRET in str(loaded.config.loggers)
    assert SECRET not in loaded.saved_yaml()


@pytest.mark.parametrize(
    "text",
    [
        f"data: {{uri: 's3://u:{SECRET}@h/x', type: a.B}}",
        f"data: {{uri: x, type: 'https://u:{SECRET}@h'}}",
        f"dat: 's3://u:{SECRET}@h/x'",
        f"loggers: [{{type: wandb, args: {{api_key: {SECRET}}}, password: {SECRET}}}]",
        f"password: {SECRET}",
        f"secret: {{a: {{b: {SECRET}}}}}",
        f"loggers: [{{type: nope, args: {{api_key: {SECRET}}}}}]",
        "seed: ${env:TOKEN_IN_ENV}",
        "early_stopping: {monitor: 'test/${env:TOKEN_IN_ENV}'}",
        "model: ${env:TOKEN_IN_ENV}",
        "checkpoint: {monitor: 'val/${env:TOKEN_IN_ENV}'}",
    ],
)
def test_no_secret_is_told(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_IN_ENV", SECRET)
    with pytest.raises(ConfigError) as caught:
        load_config(text)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_no_secret_object_is_told() -> None:
    with raises("config-type", "seed='***'"):
        load_config({"seed": SecretStr(SECRET)})


def test_no_secret_of_an_override_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("{}", [f"--data.urii=s3://u:{SECRET}@h/x", f"--api_key={SECRET}"])
    assert SECRET not in str(caught.value)
