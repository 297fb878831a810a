"""What a driver shows of what its workers print, and of workers that failed."""

from __future__ import annotations

import json
import sys
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import ray._private.worker
from ray._private import ray_logging
from ray._private.ray_constants import LOG_PREFIX_EVENT_SUMMARY
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from raygnn.console import EVENT_START, label_lines, print_json, printing, say, warn
from raygnn.errors import LostRankError
from raygnn.runtime.ray_workers import Failures, describe_failures
from raygnn.runtime.worker_lines import drain_worker_lines, show_held_lines, show_worker_lines

_CORE = "[2026-11-22 08:09:40,903 E 19512 19539] core_worker.cc:2465: Actor with class name: "


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is left to Ray's own printing, on a terminal."""
    monkeypatch.setattr("raygnn.runtime.worker_lines._is_terminal", lambda stream: True)
    dispatcher = ray_logging.WorkerStandardStreamDispatcher()
    monkeypatch.setattr(ray_logging, "global_worker_stdstream_dispatcher", dispatcher)
    left: list[dict[str, Any]] = []
    dispatcher.add_handler("ray_print_logs", left.append)
    monkeypatch.setattr(
        "ray._private.worker.print_to_stdstream", lambda batch, ignore_prefix: left.append(batch)
    )
    show_worker_lines()
    show_worker_lines()  # a second run in the same process
    assert len(dispatcher.handlers) == 1
    return left


def _emit(*lines: str, actor: str = "RayTrainWorker", is_err: bool = False) -> None:
    pid = {"TrainController": 6}.get(actor, 7)
    batch = {"lines": list(lines), "actor_name": actor, "pid": pid, "is_err": is_err}
    ray_logging.global_worker_stdstream_dispatcher.emit(batch)


def test_our_lines_are_shown_as_they_are_and_others_as_ray_shows_them(printed, capsys) -> None:
    _emit("[raygnn] epoch 1", "a print of the user's", "[raygnn trial-00001] warning: x")
    assert capsys.readouterr().out == "[raygnn] epoch 1\n[raygnn trial-00001] warning: x\n"
    assert [batch["lines"] for batch in printed] == [["a print of the user's"]]
    _emit("worker 3 died", actor="TrainController", is_err=True)
    assert printed[-1]["lines"] == ["worker 3 died"]


def test_noise_of_ray_is_kept_for_a_run_that_fails(printed, capsys) -> None:
    _emit(_CORE + "'PreemptionWatcher'", actor="TrainController", is_err=True)
    _emit("Traceback (most recent call last):", actor="PlacementGroupCleaner", is_err=True)
    assert (printed, *capsys.readouterr()) == ([], "", "")
    show_held_lines()
    err = capsys.readouterr().err
    assert "(TrainController) [2026-11-22" in err
    assert "(PlacementGroupCleaner) Traceback" in err
    show_held_lines()
    assert capsys.readouterr().err == ""


def _emit_of_raylet(line: str) -> None:
    """As Ray does with messages that raylets publish."""
    batch = {"lines": [line], "pid": "raylet", "is_err": False}
    ray._private.worker.print_to_stdstream(batch, ignore_prefix=False)


def test_a_raylets_warning_of_many_processes_is_noise_and_its_errors_are_not(printed, capsys):
    many = "WARNING: 8 PYTHON worker processes have been started on node: 547b with address: 10.0.0"
    _emit_of_raylet(many)
    _emit_of_raylet("A worker died or was killed while executing a task")
    assert [batch["lines"] for batch in printed] == [
        ["A worker died or was killed while executing a task"]
    ]
    assert capsys.readouterr().out == ""
    show_held_lines()
    assert capsys.readouterr().err == f"Ray's own messages:\n(raylet) {many}\n"


_TRACE = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    f()"]
_DIED = "The actor is dead because its worker process has died."
_REQUEST = "Failed to send resource request for train-7. If this"
_SHUTDOWN = "Graceful shutdown of backend failed. This is expected if one of the workers"
_TRAINING = "Error in training function:"
_CONTROL = "Error in control loop iteration: [Errno 2] Failed to open local file"
_NO_FILE = "FileNotFoundError: [Errno 2] Failed to open 'run/checkpoint_manager_snapshot.json'"


@pytest.mark.parametrize(
    ("record", "others"),
    [
        ([_REQUEST, *_TRACE, "ray.exceptions.GetTimeoutError: Get timed out"], []),
        ([_SHUTDOWN, *_TRACE, "ray.exceptions.ActorDiedError: It died.", "\tpid: 7", _DIED], []),
        ([_TRAINING, *_TRACE, "raygnn.errors.LostRankError: Rank 1 lost another rank"], [""]),
        ([_CONTROL, *_TRACE, _NO_FILE], []),
        ([], [_REQUEST, *_TRACE, "ValueError: no such autoscaler"]),
        ([], [_TRAINING, *_TRACE, "ValueError: a mistake"]),
    ],
)
@pytest.mark.parametrize("cut", [1, 2, 5])
def test_records_of_expected_errors_are_noise_and_others_are_shown(
    printed, capsys, record, others, cut
) -> None:
    """Also where a record comes in two batches, and one of another process between them."""
    lines = ["before", *record, *others, "after", _DIED]
    _emit(*lines[:cut], actor="TrainController", is_err=True)
    _emit("of another process")
    _emit(*lines[cut:], actor="TrainController", is_err=True)
    shown = [line for batch in printed for line in batch["lines"] if "another process" not in line]
    assert shown == ["before", *others, "after", _DIED]
    assert capsys.readouterr().err == ""
    show_held_lines()
    held = [f"(TrainController) {line}" for line in record]
    assert capsys.readouterr().err.splitlines() == (["Ray's own messages:", *held] if held else [])


def test_a_record_whose_end_has_not_come_is_shown_where_the_run_fails(printed, capsys) -> None:
    _emit(_REQUEST, *_TRACE, actor="TrainController", is_err=True)
    show_held_lines()
    assert capsys.readouterr().err.splitlines() == ["Ray's own messages:", _REQUEST, *_TRACE]


def _dropped_exit(monkeypatch, capsys) -> list[str]:
    """What Python prints where a signal's handler raises SystemExit within a callback."""

    class Thing:
        pass

    def ends(reference: weakref.ref) -> None:
        sys.exit(1)

    thing = Thing()
    reference = weakref.ref(thing, ends)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    del thing
    assert reference() is None
    return capsys.readouterr().err.splitlines()


def test_an_exit_that_python_ignores_is_noise(printed, capsys, monkeypatch) -> None:
    lines = _dropped_exit(monkeypatch, capsys)
    assert len(lines) > 3
    _emit("before", *lines, "after", is_err=True)
    assert [line for batch in printed for line in batch["lines"]] == ["before", "after"]
    show_held_lines()
    assert "(RayTrainWorker) SystemExit" in capsys.readouterr().err
    others = [*lines[:-1], "ValueError: x"]
    _emit(*others, is_err=True)
    assert printed[-1]["lines"] == others


def test_draining_waits_for_all_that_was_printed_before(printed, capsys) -> None:
    class Node:
        """An actor, whose node reads a worker's file after the actor's in the first round."""

        def __init__(self) -> None:
            self.mark = SimpleNamespace(remote=self._mark)
            self._later = ["[raygnn] the last line of a worker"]

        def _mark(self, text: str) -> None:
            def read() -> None:
                _emit(text, actor="_StopRequests")
                _emit(*self._later)
                self._later = []

            threading.Thread(target=read).start()

    drain_worker_lines(Node())
    assert capsys.readouterr().out == "[raygnn] the last line of a worker\n"
    assert printed == []


def test_without_output_of_workers_nothing_is_waited_for(monkeypatch) -> None:
    empty = ray_logging.WorkerStandardStreamDispatcher()
    monkeypatch.setattr(ray_logging, "global_worker_stdstream_dispatcher", empty)
    monkeypatch.setattr("ray._private.worker.print_to_stdstream", print)
    show_worker_lines()
    assert empty.handlers == []
    drain_worker_lines(None)  # has no mark to call


def test_trials_print_warnings_only_with_their_name(capsys) -> None:
    label_lines("trial-00003")
    try:
        say("epoch 1")
        warn("few seeds")
    finally:
        label_lines("")
    say("epoch 2")
    shown = "[raygnn trial-00003] warning: few seeds\n[raygnn] epoch 2\n"
    assert capsys.readouterr().out == shown


@pytest.fixture
def in_file(printed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raygnn.runtime.worker_lines._is_terminal", lambda stream: False)


def test_in_a_file_lines_of_workers_have_no_prefix_and_no_colors(in_file, printed, capsys) -> None:
    _emit("\x1b[32mgreen\x1b[0m words [repeated 2x]")
    with printing(print_json):
        _emit("of the user's")
    first, second = capsys.readouterr().out.splitlines()
    assert first == "green words [repeated 2x]"
    found = json.loads(second)
    assert (found["event"], found["text"]) == ("print", "of the user's")
    assert found["source"] == "RayTrainWorker 7"
    _emit("worker 3 died", actor="TrainController", is_err=True)
    assert capsys.readouterr().err == "worker 3 died\n"
    assert printed == []


def test_the_log_of_the_autoscaler_is_not_shown(in_file, capsys, monkeypatch) -> None:
    monkeypatch.setattr("ray.autoscaler.v2.utils.cached_is_autoscaler_v2", False)
    text = f"2026-11-23 INFO -- {LOG_PREFIX_EVENT_SUMMARY}Adding 1 node(s)."
    lines = ["======== Autoscaler status", text]
    batch = {"lines": lines, "pid": "autoscaler", "is_err": False}
    ray_logging.global_worker_stdstream_dispatcher.emit(batch)
    shown = capsys.readouterr().out
    assert shown.endswith("Adding 1 node(s).\n")
    assert "Autoscaler status" not in shown


def _death() -> Exception:
    """As Ray Train reports a worker that was killed."""
    context = ActorDiedErrorContext(
        error_message="The actor is dead because its worker process has died.",
        actor_id=bytes(16),
        class_name="RayTrainWorker",
        pid=4711,
        node_ip_address="10.0.0.7",
    )
    return WorkerHealthCheckFailedError("The health check failed.", ActorDiedError(context))


def _lost() -> LostRankError:
    return LostRankError("Rank 0 lost another rank.", id="run-rank-lost")


def test_the_dead_rank_is_named_and_not_those_that_wait_for_it() -> None:
    assert describe_failures({0: _lost(), 1: _death()}) == [
        "rank 1 died (process 4711 on 10.0.0.7)"
    ]
    assert describe_failures({0: _lost()}) == [f"rank 0 failed: {_lost()}"]
    assert describe_failures({2: ValueError("a\nb")}) == ["rank 2 failed: b"]


@pytest.mark.parametrize(("max_failures", "num_lines"), [(-1, 3), (1, 1), (0, 0)])
def test_a_restart_is_a_warning_and_the_end_is_left_to_the_driver(
    capsys, max_failures, num_lines
) -> None:
    failures = Failures("Training", "trial-1", max_failures)
    for _ in range(3):
        failures.after_exception(None, {1: _death()})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == num_lines
    for line in lines:
        event = json.loads(line.removeprefix(EVENT_START))
        assert (event["kind"], event["label"]) == ("warning", "trial-1")
        text = "warning: rank 1 died (process 4711 on 10.0.0.7). Training starts again with new "
        assert event["text"] == text + "workers"
