"""Every command and request of docs/serving.md works as it stands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.serve")  # an extra
from fastapi.testclient import TestClient

import raygnn
import raygnn.serve
from raygnn.serving.answers import Answers
from raygnn.serving.app import build_app
from raygnn.serving.messages import Answer, Question
from tests.errors import assert_reports

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text("utf-8")


def test_each_command_starts_a_server(monkeypatch):
    started = []

    def start(*given: Any, **options: Any) -> raygnn.serve.Server:
        started.append((given, options))
        raise KeyboardInterrupt

    monkeypatch.setattr(raygnn.serve, "start", start)
    monkeypatch.setenv("RAYGNN_SERVE_TOKEN", "0" * 64)
    commands = re.findall(r"^raygnn serve (\S.*)$", PAGE, re.MULTILINE)
    assert [raygnn.serve.main(shlex.split(command)) for command in commands] == [130] * 4
    (first, _), (second, options), (_, growing), (_, open_to_all) = started
    assert first == ("runs/papers", "graph", [])
    assert second == ("runs/shop", "shop", [])
    assert options["precomputed"]
    assert (growing["follow"], growing["record"]) == ("log", "answers.jsonl")
    assert open_to_all["host"] == "0.0.0.0"
    assert (options["num_replicas"], options["port"]) == (2, 8080)


def test_each_request_is_answered(node_model):
    answers = Answers(raygnn.load(node_model.run), node_model.plain_graph, precomputed=True)

    async def ask(question: Question) -> Answer:
        return answers.answer([question])[0]

    async def is_alive() -> None:
        pass

    client = TestClient(build_app(ask, is_alive))
    requests = re.findall(r"^curl http://127\.0\.0\.1:8000(\S+)(?: --json '(.*)')?$", PAGE, re.M)
    assert len(requests) == PAGE.count("\ncurl ") == 10
    for path, body in requests:
        if path == "/events":  # of a server that follows a log: unit/serving/test_event_intake.py
            continue
        if body:
            content = _of_model(body)
            found = client.post(path, json=content)
            assert found.json()["rows"], path
        else:
            found = client.get(path)
        assert found.status_code == 200, path


def _of_model(body: str) -> dict[str, Any]:
    """A request of the page in the ids, types and columns of the model's graph."""
    names = {
        "paper-7": "n007",
        "paper-1": "n001",
        "paper__cites__paper": "node__to__node",
        '"paper"': '"node"',
        "paper_id": "id",
        '"year": 2024, "embedding": [0.2, -0.1]': '"x": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]',
        '"src"': '"source"',
        '"dst"': '"target"',
    }
    for name, own in names.items():
        body = body.replace(name, own)
    content: dict[str, Any] = json.loads(body)
    return content


def test_the_page_names_every_option():
    options = {
        name for action in raygnn.serve.build_parser()._actions for name in action.option_strings
    }
    missing = [name for name in options - {"-h", "--help", "--allow-module"} if name not in PAGE]
    assert not missing


@pytest.mark.parametrize(
    ("command", "id"),
    [
        ("--graph graph", "command-model-missing"),
        ("run", "serve-graph-missing"),
        ("run --graph graph --port 0", "serve-option"),
        ("run --graph graph --replicas 0", "serve-option"),
        ("run --graph graph --host 0.0.0.0", "serve-no-token"),
        ("run --graph graph --host :: ", "serve-no-token"),
        ("run --graph graph --token short", "serve-token"),
        ("run --graph graph --host 0.0.0.0 --no-auth", "model-config-missing"),
        ("run --graph graph --host ::1", "model-config-missing"),
        ("nosuch --graph graph", "model-config-missing"),
    ],
)
def test_wrong_commands_are_refused_before_ray_starts(command, id, capsys):
    assert raygnn.serve.main(shlex.split(command)) == 2
    assert_reports(capsys.readouterr().err.strip(), id)
