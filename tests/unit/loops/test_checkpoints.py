from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
import torch

from raygnn.data.filesystem import delete, join, write_bytes, write_text
from raygnn.errors import CheckpointError
from raygnn.outputs.checkpoints.store import CheckpointStore, encode, gather_files, rank_file
from raygnn.outputs.model_export import write_model
from tests.errors import raises

ONE, TWO, THREE = (f"step-000000000{step}-0000{step}-ab-cd" for step in (1, 2, 3))


def _save(store: CheckpointStore, name: str, value: float) -> None:
    parts = {"state.pt": encode({"weights": torch.full((3,), value)})}
    parts[rank_file(0)] = encode({"rank": 0})
    store.write_parts(name, parts)
    store.finish(name, gather_files(parts), world_size=1)


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    if request.param == "memory":
        fs = fsspec.filesystem("memory")
        if fs.exists("/checkpoints"):
            fs.rm("/checkpoints", recursive=True)
        return CheckpointStore("memory://checkpoints")
    return CheckpointStore(str(tmp_path / "checkpoints"))


def test_what_is_saved_is_loaded(store):
    _save(store, ONE, 2.0)
    state, rank_state = store.load(ONE, rank=0)
    assert torch.equal(state["weights"], torch.full((3,), 2.0))
    assert rank_state == {"rank": 0}


def test_no_checkpoint_is_no_error(store):
    assert store.names() == []
    assert store.newest_valid([]) == (None, {})
    assert store.pointer("best") is None


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("manifest.json", None, "never finished"),
        ("manifest.json", "not json", "[checkpoint-manifest]"),
        ("manifest.json", '{"files": {}, "format": "raygnn/checkpoint-v1"}', "world_size"),
        (
            "manifest.json",
            '{"files": {}, "world_size": 1, "format": "raygnn/checkpoint-v9"}',
            "raygnn/checkpoint-v9, not raygnn/checkpoint-v1 [checkpoint-format]",
        ),
        ("state.pt", "damaged", "state.pt is damaged"),
        ("rank-0.pt", None, "rank-0.pt is missing"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_passed_over(store, file, content, reason):
    _save(store, ONE, 1.0)
    _save(store, TWO, 2.0)
    uri = join(store.uri, TWO, file)
    delete(uri) if content is None else write_text(uri, content)
    name, passed_over = store.newest_valid(store.names())
    assert (name, list(passed_over)) == (ONE, [TWO])
    assert reason in passed_over[TWO]
    with pytest.raises(CheckpointError) as raised:
        store.load(TWO, rank=0)
    assert str(raised.value) == passed_over[TWO]


def test_all_damaged_is_a_failure_and_not_a_start_from_zero(store):
    _save(store, ONE, 1.0)
    write_bytes(join(store.uri, ONE, "state.pt"), b"damaged")
    with raises("checkpoint-none-valid"):
        store.newest_valid(store.names())


def test_an_object_that_must_be_unpickled_is_never_loaded(store):
    parts = {"state.pt": encode({"path": Path("x")})}
    store.write_parts(ONE, parts)
    store.finish(ONE, gather_files(parts), world_size=1)
    with raises("checkpoint-not-a-state"):
        store.load(ONE, rank=0)


def test_the_order_is_that_of_writing_and_not_of_steps(store):
    """A run that went back to an earlier checkpoint writes lower steps later."""
    later = "step-0000000001-00004-ef-01"
    for name in (later, THREE, ONE, TWO):
        _save(store, name, 1.0)
    assert store.names() == [ONE, TWO, THREE, later]


def test_folders_of_others_are_none_of_the_store(store):
    write_text(join(store.uri, "mine", "notes.txt"), "keep")
    _save(store, ONE, 1.0)
    assert store.names() == [ONE]


def test_a_removed_checkpoint_is_gone(store):
    _save(store, ONE, 1.0)
    _save(store, TWO, 1.0)
    store.remove(ONE)
    assert store.names() == [TWO]
    store.remove(ONE)


@pytest.mark.parametrize("damaged", ["[]", "{}", '{"checkpoint": 1}', "null", '{"checkpoint": "s'])
def test_a_pointer_names_one_checkpoint_or_none(store, damaged):
    write_text(join(store.uri, "best.json"), damaged)
    assert store.pointer("best") is None
    store.point("best", ONE)
    assert store.pointer("best") == ONE
    store.point("best", None)
    assert store.pointer("best") is None


def test_equal_weights_make_the_same_model_file(tmp_path):
    weights = {f"layers.{i}.weight": torch.full((2, 3), float(i)) for i in range(5)}
    files = set()
    for i, order in enumerate([sorted(weights), sorted(weights, reverse=True)] * 8):
        named = {name: weights[name] for name in order}
        uri = write_model(named, str(tmp_path / str(i)), "model: {}\n", None)
        files.add(Path(uri).read_bytes())
    assert len(files) == 1
