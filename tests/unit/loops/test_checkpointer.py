"""Whatever is saved, and whatever fails meanwhile: pointers hold, and no more stays than asked."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

from raygnn.config import load_config
from raygnn.data import filesystem
from raygnn.data.filesystem import absolute, delete, join, write_bytes
from raygnn.errors import CheckpointError
from raygnn.loops.callback_list import CallbackList
from raygnn.loops.context import ProcessContext
from raygnn.loops.early_stopping import BestTracker, BestWeights
from raygnn.loops.position import Position
from raygnn.outputs.checkpoints import store as store_module
from raygnn.outputs.checkpoints.checkpointer import Checkpointer
from raygnn.outputs.checkpoints.names import Retention
from raygnn.outputs.checkpoints.store import CheckpointStore
from raygnn.outputs.run_start import open_run_folder
from raygnn.parallel.sharded_tables import ShardedTables
from tests.errors import raises


class _Engine:
    """What a checkpointer looks at of an engine: a weight, a position, and what is the best."""

    def __init__(self, mode: str = "min", width: int = 1) -> None:
        self.position = Position()
        self.best = BestWeights(BestTracker("val/loss", mode))
        self.callbacks = CallbackList(self, [])
        self.loaded = SimpleNamespace(saved_yaml=lambda: "")
        module = nn.Linear(width, 1)
        optimizer = SGD(module.parameters())
        tables = ShardedTables(module)
        self.optimization = SimpleNamespace(module=module, optimizer=optimizer, tables=tables)
        self.task = SimpleNamespace(spec=None)

    def state_dict(self) -> dict[str, Any]:
        weights, position = self.optimization.module.state_dict(), self.position.state_dict()
        return {"model": weights, "position": position, "best": self.best.tracker.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.best.tracker.best = Position(**state["position"]), state["best"]


def _checkpointer(uri: str, **settings: Any) -> Checkpointer:
    storage_path, _, name = absolute(uri).rpartition("/")
    run = {"storage_path": storage_path}
    folder = open_run_folder(load_config({"run": run}), name)
    config = load_config({"checkpoint": settings}).config
    return Checkpointer(folder, ProcessContext(use_gpu=False), config.checkpoint)


@contextmanager
def _failing_at(operation: int | None) -> Iterator[None]:
    """Lets the so manieth operation on the storage fail, and all after it."""
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(uri: str, *args: Any) -> Any:
            nonlocal count
            count += 1
            if operation is not None and count > operation:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), uri)
            return function(uri, *args)

        return call

    names = ("write_bytes", "delete")
    fakes = {name: counted(getattr(store_module, name)) for name in names}
    conditional = counted(filesystem.write_if_unchanged)  # manifest and pointers
    with (
        patch.multiple(store_module, **fakes),
        patch.object(filesystem, "write_if_unchanged", conditional),
    ):
        yield


@settings(max_examples=25)
@given(
    saves=st.lists(
        st.tuples(st.none() | st.integers(-5, 5), st.none() | st.integers(0, 9)),
        min_size=1,
        max_size=12,
    ),
    policy=st.sampled_from(["all", "best", "last"]),
    last=st.integers(1, 3),
    best=st.integers(1, 3),
    mode=st.sampled_from(["min", "max"]),
)
def test_pointers_hold_and_no_more_stays_than_asked(
    saves: list[tuple[int | None, int | None]], policy: str, last: int, best: int, mode: str
) -> None:
    """Each save may have a score, and may fail at some operation: then the run starts again."""
    asked = {"policy": policy, "keep": {"last": last, "best": best}}
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(join(folder, "checkpoints"))
        checkpointer, engine = _checkpointer(folder, **asked), _Engine(mode)
        finished: list[str] = []
        scores: dict[str, float] = {}
        for score, fails_at in saves:
            engine.position = Position(step=engine.position.step + 1)
            report = {} if score is None else {"val/loss": float(score)}
            improved = score is not None and engine.best.tracker.improves(float(score))
            before = set(store.names())
            try:
                with _failing_at(fails_at):
                    checkpointer(engine, report, improved)
            except CheckpointError:
                checkpointer, engine = _checkpointer(folder, **asked), _Engine(mode)
                checkpointer.restore(engine, "auto")
            new = [name for name in store.names() if name not in before]
            finished += new
            scores |= {name: float(score) for name in new if score is not None}
            _assert_pointers_hold(store, finished, scores, policy, mode)
            if fails_at is None:
                assert len(new) == 1
                assert set(store.names()) == _expected(finished, scores, policy, last, best, mode)


def _assert_pointers_hold(
    store: CheckpointStore, finished: list[str], scores: dict[str, float], policy: str, mode: str
) -> None:
    assert store.pointer("last") == (finished[-1] if finished else None)
    ranked = _ranked(finished, scores, mode) if policy != "last" else []
    assert store.pointer("best") == (ranked[0] if ranked else None)
    for name in (*finished[-1:], *ranked[:1]):
        store.verify(name)


def _expected(
    finished: list[str], scores: dict[str, float], policy: str, last: int, best: int, mode: str
) -> set[str]:
    if policy == "all":
        return set(finished)
    ranked = _ranked(finished, scores, mode) if policy == "best" else []
    return {*finished[-last:], *ranked[:best]}


def _ranked(finished: list[str], scores: dict[str, float], mode: str) -> list[str]:
    sign = 1.0 if mode == "min" else -1.0
    return sorted((n for n in finished if n in scores), key=lambda n: sign * scores[n])


def _saved(folder: str, **settings: Any) -> CheckpointStore:
    _checkpointer(folder, **settings)(_Engine(), {"val/loss": 1.0}, True)
    return CheckpointStore(join(folder, "checkpoints"))


@pytest.mark.parametrize("resume", ["must", "last"])
def test_nothing_to_go_on_from_is_an_error_where_there_must_be(tmp_path, resume):
    with raises("resume-no-checkpoint", f"checkpoint.resume='{resume}'"):
        _checkpointer(str(tmp_path)).restore(_Engine(), resume)


def test_no_best_checkpoint_is_an_error_where_there_must_be(tmp_path):
    _saved(str(tmp_path), policy="last")
    with raises("resume-no-best"):
        _checkpointer(str(tmp_path)).restore(_Engine(), "best")


@pytest.mark.parametrize("resume", ["best", "uri"])
def test_a_named_checkpoint_that_is_damaged_is_told_with_a_remedy(tmp_path, resume):
    store = _saved(str(tmp_path / "one"))
    (name,) = store.names()
    write_bytes(join(store.uri, name, "state.pt"), b"damaged")
    folder, target = (
        (tmp_path / "one", "best") if resume == "best" else (tmp_path, join(store.uri, name))
    )
    with raises("resume-unreadable", "state.pt", "[checkpoint-damaged]"):
        _checkpointer(str(folder)).restore(_Engine(), target)
    delete(join(store.uri, name, "manifest.json"))
    with raises("resume-unreadable", "never finished"):
        _checkpointer(str(folder)).restore(_Engine(), target)


def test_a_checkpoint_of_another_model_names_the_weights(tmp_path):
    store = _saved(str(tmp_path))
    with raises("resume-other-model", "weight", "[1, 1]", "[1, 2]"):
        _checkpointer(str(tmp_path)).restore(_Engine(width=2), "auto")
    other = _Engine()
    other.optimization.module = nn.Sequential(nn.Linear(1, 1))
    uri = join(store.uri, store.names()[0])
    with raises("resume-other-model", "0.weight", "0.bias", "the model has no weight"):
        _checkpointer(str(tmp_path / "other")).restore(other, uri)


_SCORES = {"a": 3.0, "b": 1.0, "c": 2.0}


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention("all"), "abcd"),
        (Retention("last"), "d"),
        (Retention("last", last=2), "cd"),
        (Retention("last", last=9), "abcd"),
        (Retention("best"), "bd"),
        (Retention("best", mode="max"), "ad"),
        (Retention("best", best=2), "bcd"),
        (Retention("best", last=2, best=2), "bcd"),
        (Retention("best", best=9), "abcd"),
    ],
)
def test_what_stays(retention: Retention, kept: str) -> None:
    obsolete = retention.obsolete(list("abcd"), _SCORES, needed=())
    assert set("abcd") - set(obsolete) == set(kept)


def test_what_a_pointer_names_stays_under_any_policy() -> None:
    for policy in ("all", "best", "last", "none"):
        assert "a" not in Retention(policy).obsolete(list("abcd"), _SCORES, needed={"a"})


def test_of_equal_scores_the_first_is_the_best() -> None:
    scores = dict.fromkeys("abc", 1.0)
    assert Retention("best").obsolete(list("abcd"), scores, needed=()) == ["b", "c"]
