"""A run that begins with the weights of another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import raygnn.train
from tests.errors import raises
from tests.small_runs import small_config, trained_weights


def _config(folder: Path, tables: str, **changes) -> dict:
    config = small_config(folder, scaling__num_workers=0, data__uri=tables, **changes)
    config["training"]["max_epochs"] = 1
    return config


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, small_tables: str) -> dict:
    config = _config(tmp_path_factory.mktemp("first"), small_tables)
    raygnn.train.fit(config)
    return config


def _uri(config: dict) -> str:
    return f"{config['run']['storage_path']}/{config['run']['name']}"


def test_frozen_weights_stay_as_they_were_loaded(tmp_path, small_tables, first):
    source = {"uri": _uri(first), "freeze": ["encoder.module.layers.0.*"]}
    second = _config(tmp_path, small_tables, checkpoint__init_from=source)
    raygnn.train.fit(second)
    before, after = trained_weights(first), trained_weights(second)
    same = {name: torch.equal(before[name], after[name]) for name in before}
    assert all(value for name, value in same.items() if name.startswith("encoder.module.layers.0."))
    assert not all(
        value for name, value in same.items() if name.startswith("encoder.module.layers.1.")
    )


def test_a_checkpoint_is_a_source_too(tmp_path, small_tables, first):
    checkpoints = Path(_uri(first)) / "checkpoints"
    name = next(path for path in checkpoints.iterdir() if path.is_dir())
    config = _config(tmp_path, small_tables, checkpoint__init_from={"uri": str(name)})
    assert raygnn.train.fit(config).metrics["epoch"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"uri": "nowhere"}, ("run-source-missing",)),
        ({"uri": "/usr"}, ("init-nothing-there", "model.safetensors")),
        ({"include": ["decoder.*"]}, ("init-no-weights",)),
        ({"freeze": ["decoder.*"]}, ("init-freeze",)),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, small_tables, first, changes, message):
    source = {"uri": _uri(first), **changes}
    with raises(*message):
        raygnn.train.fit(_config(tmp_path, small_tables, checkpoint__init_from=source))


@pytest.mark.parametrize("kept", [0, 100])
def test_a_damaged_source_is_named(tmp_path, small_tables, first, kept):
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes((Path(_uri(first)) / "model.safetensors").read_bytes()[:kept])
    with raises("init-damaged", "damaged.safetensors"):
        raygnn.train.fit(
            _config(tmp_path, small_tables, checkpoint__init_from={"uri": str(damaged)})
        )


def test_other_shapes_and_names_are_refused_or_left_out(tmp_path, small_tables, first):
    wider = {"model__args": {"hidden_channels": 16}}
    source = {"uri": _uri(first)}
    with raises("init-weights-shape"):
        raygnn.train.fit(_config(tmp_path, small_tables, checkpoint__init_from=source, **wider))
    headed = {"model__args": {"hidden_channels": 8, "out_channels": 3}}
    with raises("init-weights-missing", "head"):
        raygnn.train.fit(
            _config(tmp_path / "h", small_tables, checkpoint__init_from=source, **headed)
        )
    lenient = {**source, "strict": False}
    config = _config(tmp_path / "lenient", small_tables, checkpoint__init_from=lenient, **headed)
    assert raygnn.train.fit(config).metrics["epoch"] == 1
