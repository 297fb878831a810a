"""What raygnn prints: lines, JSON, warnings only, and the live view of a terminal."""

from __future__ import annotations

import io
import json
import math
import re
import time
from typing import Any

import pytest
from rich.console import Console

from raygnn import console
from raygnn.console import (
    Event,
    LineLimit,
    announced,
    label_lines,
    pass_on,
    print_json,
    print_nothing,
    print_text,
    printing,
    prints_lines,
    say,
    send_to_driver,
    warn,
)
from raygnn.live_view import live_view
from raygnn.outputs.estimate import describe_estimate


def test_json_is_an_object_a_line_with_nulls_for_what_is_not_finite(capsys):
    with printing(print_json):
        say("epoch 1", "step", metrics={"train/loss": math.nan, "lr": 0.1}, epoch=1)
        say("", "progress", epoch=1)
        warn("few steps")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.pop("time")[-6:] for line in lines] == ["+00:00", "+00:00"]
    assert lines == [
        {
            "event": "step",
            "text": "epoch 1",
            "metrics": {"train/loss": None, "lr": 0.1},
            "epoch": 1,
        },
        {"event": "warning", "text": "warning: few steps"},
    ]


def test_quiet_prints_warnings_only(capsys):
    with printing(print_nothing):
        assert not prints_lines()
        say("epoch 1")
        warn("few steps")
    say("epoch 2")
    assert capsys.readouterr().out == "[raygnn] warning: few steps\n[raygnn] epoch 2\n"


def test_what_a_worker_sends_is_printed_by_its_driver(capsys):
    label_lines("trial-1")
    try:
        with printing(send_to_driver):
            say("epoch 1", "step", epoch=1, metrics={"lr": math.inf})
    finally:
        label_lines("")
    sent = capsys.readouterr().out.splitlines()
    seen: list[Event] = []
    with printing(seen.append):
        pass_on(sent[0])
        pass_on("[raygnn trial-2] a line [of a worker] that prints lines")
    values = {"epoch": 1, "metrics": {"lr": None}}
    assert seen == [
        Event("step", "epoch 1", "trial-1", values),
        Event("message", "a line [of a worker] that prints lines", "trial-2"),
    ]
    with printing(print_text):
        pass_on("[raygnn trial-2] warning: a line")
    assert capsys.readouterr().out == "[raygnn trial-2] warning: a line\n"


def test_validations_print_a_line_a_second_and_the_last_one(monkeypatch):
    clock, lines = [0.0], []
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    limit = LineLimit(lambda event: lines.append(event.text))
    for number in range(1, 11):
        limit.print(Event("validation", f"epoch {number}"))
        limit.print(Event("step", "a step"))
        clock[0] += 0.25
    limit.print(Event("end", "stopped"))
    assert lines == ["epoch 1", "epoch 5", "epoch 9", "epoch 10", "stopped"]


def test_trials_print_the_same_warning_once(monkeypatch, capsys):
    monkeypatch.setattr(console, "_warnings_of_trials", set())
    for trial in ("trial-1", "trial-2"):
        print_text(Event("message", "epoch 1", trial))
        print_text(Event("warning", "warning: few steps", trial))
    print_text(Event("warning", "warning: few steps"))
    warning = "warning: few steps\n"
    assert capsys.readouterr().out == f"[raygnn trial-1] {warning}[raygnn] {warning}"


def test_slow_work_is_announced_once(capsys):
    with announced("slow work", after_s=0.01):
        time.sleep(0.2)
    with announced("fast work", after_s=60):
        pass
    assert capsys.readouterr().out == "[raygnn] slow work\n"


START = {"monitor": "val/mrr", "mode": "max", "steps_per_epoch": 10}


def _at(step: int, **values: Any) -> dict[str, Any]:
    epoch = 1 + (step - 1) // 10 if step else 1
    found = {"epoch": epoch, "epochs": 3, "step": step, "steps": 30}
    return {
        **found,
        "epoch_step": step - 10 * (epoch - 1),
        "time_s": 2.0 * step,
        "stop_s": None,
        **values,
    }


def _drawn(*events: Event, width: int = 100) -> str:
    """The last picture and all lines."""
    out = io.StringIO()
    with live_view(Console(file=out, force_terminal=True, width=width, height=40)) as printer:
        for event in events:
            printer(event)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())


def test_the_live_view_shows_bars_best_and_baselines():
    events = [
        Event("message", "[bold]graph[/bold]"),
        Event("start", "training on 2 workers", values={**START, **_at(0, left_s=None)}),
        Event("baseline", "a", values={"baseline": "random", "metrics": {"val/mrr": 0.01}}),
        Event("validation", "first", values={**_at(10, left_s=40.0), "metrics": {"val/mrr": 0.5}}),
        Event("warning", "warning: x", "trial-1"),
        Event("validation", "second", values={**_at(20, left_s=20.0), "metrics": {"val/mrr": 0.4}}),
        Event(
            "step",
            "not shown",
            values={**_at(25, left_s=10.0), "metrics": {"perf/seeds_per_s": 1e4, "lr": 0.125}},
        ),
    ]
    shown = _drawn(*events)
    last = shown[shown.rindex("epoch  ") :]
    assert re.search(r"epoch +3/3 .* 50 s so far, 10 s left", last)
    assert re.search(r"step +5/10 ", last)
    assert "10k seeds/s" in last
    assert re.search(r"metric +last +best \(epoch 1\) +random", last)
    assert re.search(r"val/mrr +0\.4 +0\.5 +0\.01", last)
    assert re.search(r"lr +0\.125", last)
    assert "[bold]graph[/bold]\n" in shown
    assert "trial-1 warning: x" in shown
    assert "first" in shown
    assert "not shown" not in shown


@pytest.mark.parametrize(
    ("width", "shown"),
    [(100, ["entity_mean", "lightgbm", "last_label"]), (70, ["entity_mean", "lightgbm"])],
)
def test_the_live_view_has_the_strongest_baselines_that_fit(width, shown):
    metrics = {"val/average_precision": 0.25}
    names = ["majority", "stratified", "last_label", "lightgbm", "entity_mean"]  # by strength
    last = _drawn(
        Event("start", "", values={**START, **_at(0, left_s=None), "monitor": next(iter(metrics))}),
        *(Event("baseline", "", values={"baseline": n, "metrics": metrics}) for n in names),
        Event("validation", "", values={**_at(10, left_s=40.0), "metrics": metrics}),
        width=width,
    ).split("metric ")[-1]
    head, row = last.splitlines()[:2]
    assert head.replace("best (epoch 1)", "").split()[1:] == shown
    assert row.split() == ["val/average_precision", "0.25", "0.25"] + ["0.25"] * len(shown)
    assert len(row.rstrip()) <= width


def test_without_a_limit_the_live_view_promises_nothing():
    values = {**_at(7, left_s=None), "epochs": None, "steps": None, "phase": "validation"}
    shown = _drawn(
        Event("start", "", values={**START, **values}), Event("progress", "", values=values)
    )
    last = shown[shown.rindex("epoch  ") :]
    assert "14 s so far" in last
    assert "left" not in last
    assert "validation" in last


def test_lines_after_training_stand_below_the_last_picture():
    end = Event("end", "stopped", values=_at(30, left_s=0.0))
    start = Event("start", "", values={**START, **_at(0, left_s=None)})
    guess = Event("baseline", "baseline x", values={"baseline": "x", "metrics": {}})
    shown = _drawn(start, guess, end, Event("test", "test: 1"), guess)
    assert shown.index("30/3") if "30/3" in shown else shown.index("3/3") < shown.index("test: 1")
    assert shown.count("baseline x") == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "at most about 10 min (30,000 steps of 18 ms, 15 validations of 2 s), and 600MB of "),
        ({"stops_early": False}, "takes about 10 min"),
        ({"time_s": None}, "takes at most about 18 ms a step, and"),
        ({"workers": 2, "cuda_memory_bytes": 3e9}, "600MB and 3GB of its GPU of memory in each w"),
    ],
)
def test_an_estimate_is_a_line(changes, text):
    values = {
        "step_s": 0.018,
        "validation_s": 2.0,
        "test_s": 2.0,
        "steps": 30_000,
        "validations": 15,
        "time_s": 570.0,
        "memory_bytes": 6e8,
        "cuda_memory_bytes": None,
        "workers": 1,
        "stops_early": True,
    }
    assert text in describe_estimate(values | changes)
