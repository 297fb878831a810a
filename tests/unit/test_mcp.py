"""`raygnn mcp`: the tools that an agent finds, and the path from tables to predictions by them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raygnn.mcp import build_server
from tests.errors import raises

mcp = pytest.importorskip("mcp")


def _ask(server: Any, asks: Callable[[Any], Awaitable[Any]]) -> Any:
    async def session() -> Any:
        async with mcp.Client(server) as client:
            return await asks(client)

    return asyncio.run(session())


async def _call(client: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    text = result.content[0].text
    assert not result.is_error, text
    return json.loads(text)


def test_an_agent_finds_tools_with_described_arguments() -> None:
    async def asks(client: Any) -> Any:
        for tool, reason in (("status", "is not a run"), ("report", "has not finished")):
            refused = await _call(client, tool, run="runs/nowhere")
            assert refused["exit_status"] == 2
            assert reason in refused["output"]
        return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in _ask(build_server(), asks)}
    assert [*tools] == ["draft", "labels", "train", "status", "report", "predict"]
    assert all(len(tool.description) > 60 for tool in tools.values())
    assert tools["predict"].input_schema["required"] == ["run", "tables", "out"]


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    with raises("mcp-missing", "pip install"):
        build_server()


@pytest.mark.slow
def test_an_agent_gets_from_tables_to_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    when = pd.Timestamp("2023-01-01") + pd.to_timedelta(np.sort(rng.integers(0, 300, 3000)), "D")
    (tmp_path / "store").mkdir()
    customers = pd.DataFrame({"customer_id": np.arange(200), "age": rng.integers(18, 90, 200)})
    customers.to_csv("store/customers.csv", index=False)
    orders = {"order_id": np.arange(3000), "customer_id": rng.integers(0, 200, 3000) ** 2 // 200}
    pd.DataFrame({**orders, "ordered": when}).to_csv("store/orders.csv", index=False)
    pd.DataFrame({"id": [1, 2], "time": ["2023-10-20"] * 2}).to_csv("rows.csv", index=False)

    async def asks(client: Any) -> None:
        drafted = await _call(client, "draft", tables="store")
        assert drafted["exit_status"] == 0, drafted["output"]
        question = {"predict": "count(orders) over 14d > 0", "entity": "customers", "every": "14d"}
        dates = {"val": "2023-08-01", "test": "2023-09-15"}
        asked = await _call(client, "labels", tables="store", name="soon", **question, **dates)
        assert asked["exit_status"] == 0, asked["output"]
        question["predict"] = [question["predict"], "exists(orders) over 28d"]
        active = {"active": "60d"}
        asked = await _call(
            client, "labels", tables="store", name="two", options=active, **question, **dates
        )
        assert asked["exit_status"] == 0, asked["output"]
        assert asked["sql"].count(" AS label_") == 2
        assert "recent AS" in asked["sql"]
        wrong = await _call(client, "train", config="store/soon.yaml", name="a", overrides={"x": 1})
        assert wrong["exit_status"] == 2
        assert "config-unknown-key" in wrong["output"]
        few = {"training.max_steps": 5, "scaling.num_workers": 0}
        run = (await _call(client, "train", config="store/soon.yaml", name="a", overrides=few))[
            "run"
        ]
        assert run == "runs/a"
        while (found := await _call(client, "status", run=run)).get("exit_status") is None:
            time.sleep(0.5)
        assert (found["exit_status"], found["status"]) == (0, "finished"), found["output"]
        report = await _call(client, "report", run=run)
        assert 0 < report["test/loss"] < 1
        assert report["verdict"]
        wanted = {"tables": "store", "rows": "rows.csv", "out": "answers.csv"}
        answered = await _call(client, "predict", run=run, **wanted)
        assert answered["exit_status"] == 0, answered["output"]

    command = [sys.executable, "-m", "raygnn", "mcp"]
    parameters = mcp.StdioServerParameters(command=command[0], args=command[1:], env={**os.environ})
    _ask(parameters, asks)
    assert pd.read_csv("answers.csv")["id"].tolist() == [1, 2]
