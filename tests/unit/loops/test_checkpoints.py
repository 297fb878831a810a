from __future__ import annotations

import json
import pickle
from pathlib import Path

import fsspec
import pytest
import torch

from raygnn.errors import CheckpointError
from raygnn.loops.checkpoints import CheckpointStore, Retention


def _save(store: CheckpointStore, name: str, value: float) -> None:
    store.save(name, {"weights": torch.full((3,), value)}, {"rank": 0})


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    if request.param == "memory":
        fs = fsspec.filesystem("memory")
        if fs.exists("/checkpoints"):
            fs.rm("/checkpoints", recursive=True)
        return CheckpointStore("memory://checkpoints")
    return CheckpointStore(str(tmp_path / "checkpoints"))


def test_what_is_saved_is_loaded(store):
    _save(store, "step-1", 2.0)
    state, rank_state = store.load("step-1", rank=0)
    assert torch.equal(state["weights"], torch.full((3,), 2.0))
    assert rank_state == {"rank": 0}


def test_no_checkpoint_is_no_error(store):
    assert store.newest_valid() == (None, [])
    assert store.pointer("best") is None


def test_a_folder_without_manifest_is_passed_over(store):
    _save(store, "step-1", 1.0)
    _save(store, "step-2", 2.0)
    store._fs.rm_file(store.path_of("step-2") + "/manifest.json")
    name, messages = store.newest_valid()
    assert name == "step-1"
    assert len(messages) == 1
    assert "never finished" in messages[0]


def test_a_damaged_file_is_passed_over_with_its_name(store):
    _save(store, "step-1", 1.0)
    _save(store, "step-2", 2.0)
    store._fs.pipe_file(store.path_of("step-2") + "/state.pt", b"damaged")
    name, messages = store.newest_valid()
    assert name == "step-1"
    assert "state.pt is damaged" in messages[0]


def test_a_missing_file_is_named(store):
    _save(store, "step-1", 1.0)
    store._fs.rm_file(store.path_of("step-1") + "/rank-0.pt")
    with pytest.raises(CheckpointError, match=r"rank-0\.pt is missing"):
        store.verify("step-1")


def test_all_damaged_is_a_failure_and_not_a_start_from_zero(store):
    _save(store, "step-1", 1.0)
    store._fs.pipe_file(store.path_of("step-1") + "/state.pt", b"damaged")
    with pytest.raises(CheckpointError, match="No checkpoint of this run can be read"):
        store.newest_valid()


def test_a_foreign_manifest_is_refused(store):
    _save(store, "step-1", 1.0)
    manifest = store.path_of("step-1") + "/manifest.json"
    store._fs.pipe_file(manifest, b"not json")
    with pytest.raises(CheckpointError, match="not a checkpoint's manifest"):
        store.verify("step-1")
    content = {"format": "raygnn/checkpoint-v9", "files": {}, "world_size": 1}
    store._fs.pipe_file(manifest, json.dumps(content).encode())
    with pytest.raises(CheckpointError, match="checkpoint-v9"):
        store.verify("step-1")


def test_an_object_that_must_be_unpickled_is_never_loaded(store):
    store.save("step-1", {"path": Path("x")}, {})
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        store.load("step-1", rank=0)


def test_pruning_keeps_the_newest_and_the_best(store):
    for step in range(1, 5):
        _save(store, f"step-{step}", step)
    store.point("best", "step-2")
    store.prune(Retention("best", keep_last_n=1))
    assert store.names() == ["step-2", "step-4"]


@pytest.mark.parametrize(
    ("policy", "keep_last_n", "kept"),
    [("all", 1, "abcd"), ("last", 1, "d"), ("last", 2, "cd"), ("best", 1, "ad")],
)
def test_retention_decides_by_policy(policy, keep_last_n, kept):
    obsolete = Retention(policy, keep_last_n).obsolete(list("abcd"), best="a")
    assert set("abcd") - set(obsolete) == set(kept)


def test_a_folder_that_cannot_be_written_names_the_rank(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CheckpointError, match="failed on rank 0"):
        CheckpointStore(str(tmp_path / "file")).save("step-1", {}, {})
