"""`--json` of all commands: lines by the schema, and the result last."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

from raygnn.__main__ import COMMANDS, command_module, main
from raygnn.json_output import RESULTS, line_json_schema


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
