from __future__ import annotations

from collections import Counter
from pathlib import Path

import fsspec
import pytest
from tensorboardX import SummaryWriter

from raygnn.data.filesystem import open_fs
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from raygnn.outputs.event_files import (
    PREFIX,
    EventWriter,
    drop_events_from,
    read_events,
)
from tests.small_runs import run_rank, small_config


class KilledError(BaseException):
    """Stands for the death of the process."""


class KillAt(Callback):
    """Dies before a step as long as a file is there."""

    def __init__(self, step: int, marker: str) -> None:
        self._step, self._marker = step, Path(marker)

    def on_train_step_start(self, engine: Engine) -> None:
        if self._marker.exists() and engine.position.step == self._step:
            raise KilledError


def _scalars(logs_uri: str) -> dict[tuple[str, int], float]:
    """Every scalar of a folder, as a reader who knows nothing of purging sees it."""
    fs, root = open_fs(logs_uri)
    found: list[tuple[tuple[str, int], float]] = []
    for path in sorted(fs.ls(root, detail=False)):
        assert path.rsplit("/", 1)[-1].startswith(PREFIX)
        for event, _ in read_events(fs.cat_file(path)):
            found += [((v.tag, event.step), v.simple_value) for v in event.summary.value]
    counts = Counter(key for key, _ in found)
    assert set(counts.values()) <= {1}, [key for key, count in counts.items() if count > 1]
    return dict(found)


def _write(folder: Path) -> Path:
    with SummaryWriter(str(folder)) as writer:
        for step in (1, 2, 3):
            writer.add_scalar("train/loss", step / 2, step)
        writer.add_scalar("test/loss", 0.25, 3)
    (path,) = folder.iterdir()
    return path


def test_events_of_a_step_and_later_are_dropped(tmp_path):
    _write(tmp_path)
    (tmp_path / "trace.pt.trace.json").write_text("{}")
    assert drop_events_from(str(tmp_path), 3) == 2
    (tmp_path / "trace.pt.trace.json").unlink()
    assert _scalars(str(tmp_path)) == {("train/loss", 1): 0.5, ("train/loss", 2): 1.0}
    assert drop_events_from(str(tmp_path), 3) == 0


def test_what_is_written_after_training_is_dropped_at_any_step(tmp_path):
    _write(tmp_path)
    assert drop_events_from(str(tmp_path), 4) == 1
    assert ("train/loss", 3) in _scalars(str(tmp_path))


def test_curves_have_the_names_of_their_metrics(tmp_path, caplog):
    writer = EventWriter(str(tmp_path), purge_step=None)
    with caplog.at_level("INFO"):
        writer.add_scalars({"val/full_recall@20": 0.5, "train/loss/a b": 2}, 3)
    writer.close()
    assert _scalars(str(tmp_path)) == {("val/full_recall@20", 3): 0.5, ("train/loss/a b", 3): 2.0}
    assert not caplog.records


def test_a_folder_that_is_not_there_has_no_events(tmp_path):
    assert drop_events_from(str(tmp_path / "none"), 0) == 0


@pytest.mark.parametrize("damage", ["cut", "garbled"])
def test_reading_ends_at_a_damaged_record(tmp_path, damage):
    content = _write(tmp_path).read_bytes()
    records = [record for _, record in read_events(content)]
    assert b"".join(records) == content
    whole = b"".join(records[:2])
    third = records[2]
    third = third[:-1] if damage == "cut" else third[:12] + b"\xff" * (len(third) - 12)
    assert [record for _, record in read_events(whole + third)] == records[:2]


@pytest.mark.parametrize("where", ["local", "memory"])
def test_a_resumed_run_has_the_steps_of_a_straight_one(small_bundle_path, tmp_path, where):
    def config(name: str, logs: str | None) -> dict:
        killer = {"type": f"{__name__}.KillAt", "args": {"step": 5, "marker": str(marker)}}
        return small_config(
            tmp_path,
            scaling__num_workers=0,
            loader={"batch_size": 40, "eval_batch_size": 100},
            training={
                "max_steps": 8,
                "log_every": {"steps": 1},
                "validate_every": {"steps": 4},
                "validate_at_start": True,
            },
            checkpoint={"every": {"steps": 3}, "policy": "last"},
            callbacks=[killer],
            loggers=["tensorboard"],
            run__name=name,
            run__logs_uri=logs,
        )

    marker = tmp_path / "kill"
    logs = "memory://event-logs" if where == "memory" else str(tmp_path / "logs")
    if where == "memory" and fsspec.filesystem("memory").exists("/event-logs"):
        fsspec.filesystem("memory").rm("/event-logs", recursive=True)
    run_rank(config("straight", None), small_bundle_path)
    marker.touch()
    for _ in range(2):  # the second goes on from a checkpoint, and dies again
        with pytest.raises(KilledError):
            run_rank(config("killed", logs), small_bundle_path)
    marker.unlink()
    metrics = run_rank(config("killed", logs), small_bundle_path)
    assert metrics["restarts"] == 2
    assert metrics["resumed_from"].startswith("step-0000000003-")

    straight, resumed = _scalars(str(tmp_path / "straight" / "logs")), _scalars(logs)
    assert set(resumed) == set(straight)
    assert {step for tag, step in resumed if tag == "train/grad_norm"} == set(range(1, 9))
    for key, value in resumed.items():
        if not key[0].startswith("perf/"):
            assert value == straight[key], key
