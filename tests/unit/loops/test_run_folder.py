"""What a start finds under its name: nothing, a run that resumes, or one that is in the way."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from raygnn.config import LoadedConfig, load_config
from raygnn.data import filesystem
from raygnn.data.filesystem import read_text
from raygnn.errors import PreemptedError, RunError
from raygnn.outputs import run_folder, run_start
from raygnn.outputs.run_folder import RunFolder, RunStatus
from raygnn.outputs.run_start import check_run_folder, open_run_folder
from tests.errors import raises


def _load(folder: Path, *overrides: str) -> LoadedConfig:
    config = {"run": {"name": "run", "storage_path": str(folder)}, "training": {"max_epochs": 4}}
    return load_config(config, overrides)


def _started(folder: Path, *overrides: str) -> RunFolder:
    """A run whose workers have started, as its folder shows it."""
    run = open_run_folder(_load(folder, *overrides), "run")
    run.record_start(resumed_from=None, step=0, num_workers=1)
    return run


def _finished(folder: Path, reason: str, *overrides: str) -> None:
    run = _started(folder, *overrides)
    (folder / "run" / "checkpoints").mkdir()
    (folder / "run" / "checkpoints" / "last.json").write_text("{}")
    run.write_state(RunStatus.FINISHED, _load(folder, *overrides), reason)


def test_a_folder_whose_workers_never_started_is_taken_over(tmp_path: Path) -> None:
    refused = open_run_folder(_load(tmp_path, "--optimizer.args.lr=0.5"), "run")
    mended = open_run_folder(_load(tmp_path), "run")
    assert not refused.is_this_start()
    assert mended.is_this_start()
    with raises("resume-no-run", "must", "run"):
        open_run_folder(_load(tmp_path, "--checkpoint.resume=must"), "run")


def test_a_signal_stops_a_run_that_is_running(tmp_path: Path) -> None:
    unstarted = open_run_folder(_load(tmp_path, "--optimizer.args.lr=0.5"), "run")
    with pytest.raises(KeyboardInterrupt), unstarted.stop_recorded():
        raise KeyboardInterrupt
    assert unstarted.read_state()["status"] == "stopped"
    run = _started(tmp_path)  # taken over, although with another config
    with pytest.raises(PreemptedError), run.stop_recorded():
        raise PreemptedError("stopped", "SIGTERM", id="run-stopped")
    assert run.read_state()["status"] == "stopped"
    run.record_start(resumed_from="step-4", step=4, num_workers=1)
    assert run.read_state()["status"] == "running"
    run.write_state(RunStatus.FINISHED, _load(tmp_path))
    with pytest.raises(KeyboardInterrupt), run.stop_recorded():
        raise KeyboardInterrupt
    assert run.read_state()["status"] == "finished"


def test_another_config_is_told_by_the_keys_that_differ(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LR_THERE", "0.25")
    _started(
        tmp_path,
        "--optimizer.args.lr=${env:LR_THERE}",
        "--sampling.fanouts=[4]",
        "--model.args.api_key=there",
        "--scaling.num_workers=2",
        "--loader.batch_size=8",
    )
    other = _load(tmp_path, "--model.args.api_key=here", "--loader.batch_size=8")
    with pytest.raises(RunError) as raised:
        check_run_folder(other, "run")
    assert str(raised.value) == (
        "run.name='run' is invalid: an unfinished run of another config is there: "
        "sampling.fanouts is [4] there and [15, 10] here; "
        "optimizer.args.lr is '${env:LR_THERE}' there and 0.005 here; "
        "training.global_batch_size is 16 there and 8 here. "
        "Set run.overwrite to true to replace it, or another run.name. [run-other-config]"
    )


def test_a_run_of_an_earlier_commit_resumes_unless_it_used_a_removed_key(tmp_path: Path) -> None:
    _started(tmp_path)
    state, config = (tmp_path / "run" / name for name in ("run.json", "config.yaml"))
    state.write_text(json.dumps({**json.loads(state.read_text()), "fingerprint": "of other keys"}))
    recorded = Path(__file__).parents[1] / "config" / "saved_by_an_earlier_commit.yaml"
    text = recorded.read_text().replace("storage_path: runs", f"storage_path: {tmp_path}")
    config.write_text(text)
    assert load_config(text).config == _load(tmp_path).config
    assert not check_run_folder(_load(tmp_path), "run").is_this_start()
    used = text.replace("direction: in", "direction: out")
    with raises("config-key-removed", "sampling.direction='out'", "reverse_edges"):
        load_config(used)
    config.write_text(used)
    with raises("run-other-config"):
        check_run_folder(_load(tmp_path), "run")


@pytest.mark.parametrize(
    ("reason", "limit", "old", "larger"),
    [
        ("training.max_epochs=4", "training.max_epochs", 4, ["5"]),
        ("training.max_steps=7", "training.max_steps", 7, ["8", "null"]),
        ("early stopping: val/loss has not improved", "early_stopping.patience", 3, ["9"]),
    ],
)
def test_a_finished_run_trains_on_when_the_limit_that_ended_it_is_raised(
    tmp_path: Path, reason: str, limit: str, old: int, larger: list[str]
) -> None:
    before = f"--{limit}={old}"
    _finished(tmp_path, reason, before)
    for same_or_less in (before, f"--{limit}=1"):
        with raises("run-finished", limit, old):
            check_run_folder(_load(tmp_path, same_or_less), "run")
    for value in larger:
        assert not check_run_folder(_load(tmp_path, f"--{limit}={value}"), "run").is_this_start()
    never = _load(tmp_path, f"--{limit}={larger[0]}", "--checkpoint.resume=never")
    with raises("resume-never"):
        check_run_folder(never, "run")
    # Another limit than the one that ended it would end it at once.
    with raises("run-finished", limit, old):
        check_run_folder(_load(tmp_path, before, "--training.max_samples=10000"), "run")


def test_a_finished_run_without_checkpoints_or_of_another_config_stays(tmp_path: Path) -> None:
    _finished(tmp_path, "training.max_epochs=4")
    other = _load(tmp_path, "--training.max_epochs=9", "--seed=3")
    with raises("run-other-config", 0, 3):
        check_run_folder(other, "run")
    (tmp_path / "run" / "checkpoints" / "last.json").unlink()
    with raises("run-finished"):
        check_run_folder(_load(tmp_path, "--training.max_epochs=9"), "run")


def test_a_start_waits_for_what_an_older_one_writes_and_then_has_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = _started(tmp_path)
    waits = threading.Event()
    monkeypatch.setattr(run_folder, "say", lambda text: waits.set())
    with ThreadPoolExecutor(1) as pool:
        with older.held():
            starting = pool.submit(open_run_folder, _load(tmp_path), "run")
            assert waits.wait(20)  # it has looked, and found the lock taken
            assert not starting.done()
            older.write("metrics.json", "older")
            assert older.is_this_start()
        newer = starting.result(20)
    assert newer.is_this_start()
    for write in (
        lambda: older.write("metrics.json", "late"),
        lambda: older.write_state(RunStatus.FINISHED, _load(tmp_path)),
        lambda: older.record_start(resumed_from=None, step=1, num_workers=1),
        older.forget_failure,
    ):
        with raises("run-started-again"):
            write()
    assert (tmp_path / "run" / "metrics.json").read_text() == "older"
    assert newer.is_this_start()


@pytest.mark.parametrize("overwrite", ["false", "true"])
def test_what_an_older_start_would_write_waits_for_a_newer_one_and_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: str
) -> None:
    older = _started(tmp_path)
    waits, claim = threading.Event(), run_start._claim
    monkeypatch.setattr(run_folder, "say", lambda text: waits.set())

    def claim_slowly(*args: Any) -> bool:
        writing.append(pool.submit(older.write, "metrics.json", "late"))
        assert waits.wait(20)
        return claim(*args)

    monkeypatch.setattr(run_start, "_claim", claim_slowly)
    writing: list[Future[None]] = []
    with ThreadPoolExecutor(1) as pool:
        newer = open_run_folder(_load(tmp_path, "--run.overwrite", overwrite), "run")
        with raises("run-started-again"):
            writing[0].result(20)
    assert newer.is_this_start()
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_the_lock_of_a_start_that_was_killed_is_free(tmp_path: Path) -> None:
    older = _started(tmp_path)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        with older.held():
            os.write(theirs, b"held")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.read(ours, 4) == b"held"
    os.waitpid(child, 0)
    assert open_run_folder(_load(tmp_path), "run").is_this_start()


@pytest.mark.parametrize("overwrite", ["false", "true"])
def test_a_start_that_dies_between_lock_and_state_leaves_the_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: str
) -> None:
    if overwrite == "true":
        _started(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "write_if_unchanged", _die)
        with pytest.raises(KeyboardInterrupt):
            open_run_folder(_load(tmp_path, "--run.overwrite", overwrite), "run")
    left = [path.name for path in (tmp_path / "run").iterdir()]
    assert left == ["run.lock"]
    for again in ("false", "true"):
        assert open_run_folder(_load(tmp_path, "--run.overwrite", again), "run").is_this_start()


def _die(*args: Any) -> None:
    raise KeyboardInterrupt


class _Generations:
    """A store whose objects have generations, and in which a newer start may come in between."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._generations: dict[str, int] = {}
        self._write = filesystem.write_bytes
        self.before_write: Callable[[], Any] | None = None
        for name in ("generation", "write_if_unchanged"):
            patch.setattr(filesystem, name, getattr(self, name))

    def generation(self, uri: str) -> int:
        return self._generations.get(uri, 0)

    def write_if_unchanged(self, uri: str, content: bytes, version: int) -> None:
        between, self.before_write = self.before_write, None
        if between is not None:
            between()
        if self.generation(uri) != version:
            raise FileExistsError(uri)
        self._generations[uri] = version + 1
        self._write(uri, content)


def _in_memory(*overrides: str) -> LoadedConfig:
    fs = fsspec.filesystem("memory")
    if not overrides and fs.exists("/runs"):
        fs.rm("/runs", recursive=True)
    return _load(Path("-"), "--run.storage_path=memory://runs", *overrides)


def test_on_a_store_with_generations_a_write_is_refused_that_a_newer_start_overtook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, loaded = _Generations(monkeypatch), _in_memory()
    older = open_run_folder(loaded, "run")
    older.record_start(resumed_from=None, step=0, num_workers=1)
    newer: list[RunFolder] = []
    # Looked, then overtaken, then written: the state that was looked at is not there any more.
    store.before_write = lambda: newer.append(open_run_folder(loaded, "run"))
    with raises("run-started-again"):
        older.write_state(RunStatus.FINISHED, loaded)
    assert newer[0].is_this_start()
    state = newer[0].read_state()
    assert (state["status"], len(state["starts"])) == ("running", 1)


def test_on_a_store_with_generations_the_newer_of_two_results_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, loaded = _Generations(monkeypatch), _in_memory()
    older = open_run_folder(loaded, "run")

    def overtake() -> None:
        open_run_folder(loaded, "run").write_metrics({"of": "newer"})

    store.before_write = overtake
    with raises("run-started-again"):
        older.write_metrics({"of": "older"})
    assert json.loads(read_text(older.metrics_uri))["of"] == "newer"


def test_of_two_claims_at_a_time_the_later_one_has_the_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, loaded = _Generations(monkeypatch), _in_memory()
    first: list[RunFolder] = []
    store.before_write = lambda: first.append(open_run_folder(loaded, "run"))
    second = open_run_folder(loaded, "run")
    assert second.is_this_start()
    assert not first[0].is_this_start()


def test_the_lineage_of_an_overwritten_run_begins_anew(tmp_path: Path) -> None:
    older = _started(tmp_path)
    assert older.read_lineage() is None  # all that is in the folder is of this run
    newer = open_run_folder(_load(tmp_path, "--run.overwrite=true"), "run")
    assert newer.read_lineage() == {newer.attempt}
    newest = open_run_folder(_load(tmp_path), "run")
    assert newest.read_lineage() == {newer.attempt, newest.attempt}
