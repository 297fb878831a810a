"""What commands print: lines for people, and JSON."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

from raygnn import console
from raygnn.__main__ import COMMANDS, command_module, main
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
from raygnn.json_output import RESULTS, line_json_schema
from raygnn.outputs.estimate import describe_estimate


def test_json_is_an_object_a_line_with_nulls_for_what_is_not_finite(capsys):
    with printing(print_json):
        say("epoch 1", "step", metrics={"train/loss": math.nan, "lr": 0.1}, epoch=1)
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


def _result(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    try:
        status = main([*arguments, "--json"])
    except SystemExit as stop:
        pytest.fail(f"it ended with {stop}")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line in lines:
        jsonschema.validate(line, line_json_schema())
    result = lines.pop()
    assert "result" not in {line["event"] for line in lines}
    assert (result.pop("event"), result.pop("text"), result.pop("exit_status")) == (
        "result",
        "",
        status,
    )
    result.pop("time")
    assert result.keys() <= {*RESULTS[arguments[0]], "error", "ids"}
    assert ("error" in result) == (status != 0)
    return {"texts": [line["text"] for line in lines], **result}


def test_all_commands_have_the_option_and_described_results() -> None:
    assert [*RESULTS] == [*COMMANDS]
    for name in COMMANDS.keys() - {"version"}:
        assert hasattr(command_module(name).main, "__wrapped__"), name


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    pd.DataFrame({"user_id": range(30), "age": range(20, 50)}).to_csv(
        tmp_path / "users.csv", index=False
    )
    days = pd.date_range("2024-01-01", periods=300, freq="8h").strftime("%Y-%m-%d %H:%M")
    orders = {"order_id": range(300), "user_id": [i * i % 30 for i in range(300)], "at": days}
    pd.DataFrame(orders).to_csv(tmp_path / "orders.csv", index=False)
    return tmp_path


def test_values_come_last(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb")
    drafted = _result(capsys, "prepare", "draft", str(shop))
    assert drafted["config"] == f"{shop}/train.yaml"
    assert any("orders.user_id -> users" in text for text in drafted["texts"])
    assert "prepare labels" in drafted["question"]
    times = ["--every", "10d", "--val", "2024-03-01", "--test", "2024-03-20", "--name", "soon"]
    question = ["--predict", "count(orders) over 10d", "--for", "users"]
    asked = _result(capsys, "prepare", "labels", str(shop), *question, *times)
    assert (asked["table"], asked["config"]) == ("soon", f"{shop}/soon.yaml")
    assert asked["sql"] in "\n".join(asked["texts"])
    wrong = _result(capsys, "prepare", "labels", str(shop), *question, *times)
    assert wrong["ids"] == ["labels-name-taken"]
    assert "--overwrite" in wrong["error"]
    schema = _result(capsys, "schema", "graph")
    assert json.loads(schema["texts"][0]) == schema["schema"]


def test_wrong_options_are_errors_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "required" in _result(capsys, "report")["error"]
    assert _result(capsys, "version")["version"]
    assert _result(capsys, "train", "nowhere.yaml")["ids"]
    before = sys.stdout
    assert _result(capsys, "models", "list")["models"] == []
    assert sys.stdout is before
