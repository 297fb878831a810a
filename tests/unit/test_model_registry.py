"""Versions and aliases of registered models: atomic changes, rollbacks, and what is refused."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.checksums import dump_record
from raygnn.data.filesystem import absolute
from raygnn.errors import RunError
from raygnn.outputs.model_registry import RegisteredModel, resolved, split_name
from tests.errors import raises

VERSIONS = [f"{number:016x}" for number in range(3)]


def registered(folder: Path) -> RegisteredModel:
    """A model with three versions, whose files are texts."""
    model = RegisteredModel(str(folder / "orders"))
    for version in VERSIONS:
        run = folder / f"run-{version}"
        run.mkdir()
        for name in ("model.safetensors", "model.json", "config.yaml", "metrics.json"):
            (run / name).write_text(f"{name} of {version}")
        for _ in range(2):  # adding it again changes nothing
            model.add(str(run), str(run), version)
    return model


@pytest.fixture
def model(tmp_path: Path) -> RegisteredModel:
    return registered(tmp_path)


def test_an_alias_names_the_folder_of_a_version(model, monkeypatch):
    assert model.versions() == VERSIONS
    model.set_alias("champion", VERSIONS[1])
    folder = Path(resolved(f"{model.uri}@champion"))
    assert (folder / "model.json").read_text() == f"model.json of {VERSIONS[1]}"
    monkeypatch.setenv("RAYGNN_MODELS", str(Path(model.uri).parent))
    assert resolved("orders@champion") == str(folder)
    assert model.aliases() == {"champion": VERSIONS[1]}
    assert resolved("runs/orders") == "runs/orders"


def test_models_of_mlflow_need_mlflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with raises("registry-mlflow", "models:/orders@champion", "not installed"):
        resolved("models:/orders@champion")


@pytest.fixture(scope="module")
def lasting_model(tmp_path_factory: pytest.TempPathFactory) -> RegisteredModel:
    return registered(tmp_path_factory.mktemp("models"))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([*VERSIONS, "back"]), max_size=8))
def test_rollbacks_take_changes_back_one_by_one(lasting_model, steps):
    model, stack = lasting_model, list[str]()
    Path(model.uri, "a.alias.json").unlink(missing_ok=True)
    for step in steps:
        if step != "back":
            model.set_alias("a", step)
            stack += [] if stack[-1:] == [step] else [step]
        elif len(stack) > 1:
            stack.pop()
            assert model.rollback("a") == stack[-1]
        else:
            with pytest.raises(RunError):
                model.rollback("a")
    assert [change.version for change in model.history("a")][-1:] == stack[-1:]
    assert model.aliases() == ({"a": stack[-1]} if stack else {})


def test_a_killed_change_leaves_the_alias_as_it_was(model, monkeypatch):
    model.set_alias("champion", VERSIONS[0])

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            model.set_alias("champion", VERSIONS[1])
    assert model.current("champion") == VERSIONS[0]
    model.set_alias("champion", VERSIONS[1])
    assert model.current("champion") == VERSIONS[1]


def test_changes_of_several_writers_are_all_in_the_history(model):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: model.set_alias("a", VERSIONS[i % 3]), range(24)))
    versions = [change.version for change in model.history("a")]
    assert set(versions) == set(VERSIONS)
    assert all(one != other for one, other in pairwise(versions))


def test_a_version_without_its_seal_is_not_there(model):
    Path(model.uri, VERSIONS[2], "version.json").unlink()
    assert model.versions() == VERSIONS[:2]
    with raises("registry-version", VERSIONS[2]):
        model.set_alias("champion", VERSIONS[2])


def test_damage_is_refused(model):
    model.set_alias("champion", VERSIONS[0])
    Path(model.uri, VERSIONS[0], "model.json").write_text(f"model.json of {VERSIONS[1]}")
    with raises("registry-damaged", "model.json"):
        resolved(f"{model.uri}@champion")
    alias = Path(model.uri, "champion.alias.json")
    alias.write_text(alias.read_text().replace(VERSIONS[0], VERSIONS[1]))
    with raises("registry-damaged"):
        model.current("champion")


@pytest.mark.parametrize(
    "changes",
    [
        [{"version": "../../elsewhere", "action": "set"}],
        [{"version": VERSIONS[0], "action": "rollback"}],
        [{"version": VERSIONS[0], "action": "delete"}],
    ],
)
def test_an_alias_that_someone_else_wrote_is_refused(model, changes):
    content = {"format": "raygnn/model-alias", "version": 1}
    content["changes"] = [{**change, "time": "2024-01-01"} for change in changes]
    Path(model.uri, "champion.alias.json").write_text(dump_record(json.loads(json.dumps(content))))
    with raises("registry-damaged"):
        model.current("champion")


def test_names():
    assert split_name("a/b/orders@champion") == (absolute("a/b/orders"), "champion")
    assert split_name("gs://bucket/orders@a") == ("gs://bucket/orders", "a")
    assert split_name("orders") == (absolute("models/orders"), None)
    assert [split_name(name) for name in ("", "a@", "@a", "a b", "a@1", "..")] == [None] * 6
