"""Where a config is read from, and what it is by default."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from pydantic import SecretStr, ValidationError

from raygnn.config import Component, Config, load_config, schema
from raygnn.config.source import read_source
from tests.errors import raises

YAML = "seed: 7\nmodel: GCN\n"


def test_a_path_and_its_text_and_a_mapping_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(YAML)
    with fsspec.open("memory://configs/a.yaml", "wt") as file:
        file.write(YAML)
    configs = [
        load_config(path),
        load_config(str(path)),
        load_config(YAML),
        load_config({"seed": 7, "model": "GCN"}),
        load_config("{seed: 7, model: GCN}"),
        load_config(f"file://{path}"),
        load_config("memory://configs/a.yaml"),
    ]
    assert all(loaded.config == configs[0].config for loaded in configs)
    assert configs[0].config.seed == 7


def test_an_empty_config_has_all_defaults() -> None:
    config = load_config("\n").config
    assert config == Config()
    assert config.optimizer == Component(type="Adam", args={"lr": 0.005, "weight_decay": 1e-6})
    assert config.early_stopping is not None
    assert (config.early_stopping.monitor, config.early_stopping.patience) == (None, 3)
    assert config.training.validate_every is None
    assert config.sampling.fanouts == [15, 10]
    assert config.checkpoint.policy == "best"
    assert [logger.type for logger in config.loggers] == ["tensorboard"]


def test_a_config_is_frozen() -> None:
    config = load_config("seed: 1").config
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 2  # type: ignore[misc]


def test_a_config_object_is_a_source() -> None:
    assert load_config(Config(seed=3)).config.seed == 3


def test_a_loaded_config_travels_to_workers() -> None:
    loaded = load_config(YAML, allow_modules=["my_pkg"])
    assert pickle.loads(pickle.dumps(loaded)) == loaded


def test_python_values_become_plain() -> None:
    loaded = load_config(
        {
            "seed": np.int64(3),
            "sampling": {"fanouts": (3, 4)},
            "run": {"storage_path": Path("some") / "where"},
            "model": {"type": "GCN", "args": {"dropout": np.float32(0.5)}},
            "task": {"type": "node_classification", "args": {"label": SecretStr("y")}},
        }
    )
    assert loaded.config.seed == 3
    assert loaded.config.sampling.fanouts == [3, 4]
    assert loaded.config.run.storage_path == "some/where"
    assert loaded.config.model.args == {"dropout": 0.5}
    assert loaded.config.task.args == {"label": "y"}


def test_an_object_in_a_mapping_is_refused() -> None:
    with raises("config-not-plain", "model.args.act", "function"):
        load_config({"model": {"type": "GCN", "args": {"act": load_config}}})


def test_aliases_do_not_change_together() -> None:
    text = "sampling: {fanouts: &f [3, 4]}\nmodel: {type: GCN, args: {x: *f}}\n"
    config = load_config(text, ["--sampling.fanouts.0", "9"]).config
    assert config.model.args["x"] == [3, 4]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", ("config-unreadable",)),
        ("nowhere.yaml", ("config-unreadable", "nowhere.yaml")),
        ("/", ("config-unreadable",)),
        ("memory://no/such.yaml", ("config-unreadable",)),
        ("nope://x/y.yaml", ("config-unreadable", "nope")),
        ("- 1\n- 2\n", ("config-not-mapping", "line 1", "list")),
        ("seed: 1\n\tx: 2\n", ("document-syntax", "line 2")),
    ],
)
def test_what_cannot_be_read(source: str, message: str) -> None:
    with raises(*message):
        load_config(source)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xff\xfe\x00seed")
    with raises("config-unreadable"):
        load_config(path)


def test_a_path_of_bytes() -> None:
    with raises("config-unreadable"):
        load_config(b"config.yaml")  # type: ignore[arg-type]


def test_an_unreadable_uri_hides_its_credentials() -> None:
    with raises("config-unreadable", "nope://***@host/x") as caught:
        load_config("nope://user:secret@host/x")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("module", ["my-pkg", "", "a..b", "os;x"])
def test_allowed_modules_are_names(module: str) -> None:
    with raises("command-allow-module"):
        load_config("seed: 1", allow_modules=[module])


def test_one_allowed_module_may_be_a_text() -> None:
    assert load_config("seed: 1", allow_modules="my_pkg").allow_modules == ("my_pkg",)


def test_a_text_that_looks_like_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOB", "0123")
    config = load_config("job_name: ${env:JOB}", ["--run.name", "2024"]).config
    assert (config.job_name, config.run.name) == ("0123", "2024")


def test_whole_numbers_may_be_written_as_floats() -> None:
    config = load_config("training: {max_samples: 1e6, max_time_s: 60}").config
    assert config.training.max_samples == 1_000_000
    assert isinstance(config.training.max_samples, int)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer: {args: {lr: 0.1}}", {"lr": 0.1, "weight_decay": 1e-6}),
        ("optimizer: {type: Adam, args: {lr: 0.1}}", {"lr": 0.1}),
        ("optimizer: SGD", {}),
        ("optimizer: Adam", {}),
    ],
)
def test_arguments_without_a_type_join_the_defaults(text: str, expected: dict[str, Any]) -> None:
    assert load_config(text).config.optimizer.args == expected


def test_null_is_a_value() -> None:
    config = load_config("early_stopping: {patience: 5}", ["--early_stopping", "null"]).config
    assert config.early_stopping is None


@pytest.mark.parametrize(
    ("split", "plan"), [("train", (8, 2, 9)), ("val", (16, 2, None)), ("test", (32, 5, None))]
)
def test_loaders_of_the_splits(split: str, plan: tuple[int, int, int | None]) -> None:
    config = load_config(
        "loader: {batch_size: 8, eval_batch_size: 16, num_threads: 2, "
        "train: {prefetch_batches: 9}, test: {batch_size: 32, num_threads: 5}}"
    ).config
    made = config.loader_plan(split)
    assert (made.batch_size, made.num_threads, made.prefetch_batches) == plan


@pytest.mark.parametrize(
    ("overrides", "num_validations"), [((), 1), (("--run.name", "2024"), 2)], ids=["", "guessed"]
)
def test_a_config_is_validated_once(
    monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], num_validations: int
) -> None:
    """Once more only where an override's type was guessed wrong."""
    load_config("seed: 0")  # the defaults, once a process
    validated: list[dict[str, Any]] = []
    fill = schema.fill_dependent_defaults
    monkeypatch.setattr(
        schema, "fill_dependent_defaults", lambda value: (validated.append(value), fill(value))[1]
    )
    load_config("seed: 1", overrides)
    assert len(validated) == num_validations


def test_an_override_of_a_default_changes_no_later_config() -> None:
    changed = load_config({}, ["--loggers.0.type", "wandb"])
    assert changed.config.loggers[0].type == "wandb"
    assert load_config({}).config.loggers[0].type == "tensorboard"
    assert load_config({}, ["--loggers.0.args", "{}"]).config.loggers[0].type == "tensorboard"


def test_a_source_that_was_read_is_not_changed() -> None:
    read = read_source("seed: 1\nmodel: {args: {num_layers: 2}}")
    load_config(read, ["--seed", "2", "--model.args.hidden_channels", "8"])
    assert read.value == {"seed": 1, "model": {"args": {"num_layers": 2}}}
