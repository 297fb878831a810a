"""AGENTS.md, llms.txt and the schemas that programs read."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from docs import agents
from raygnn import schema
from raygnn.documents import parse_yaml
from tests.unit.prepare.test_questions import GRAPH

ROOT = Path(__file__).parents[2]


def test_the_files_are_up_to_date() -> None:
    for path, text in ((agents.AGENTS, agents.agents()), (agents.LLMS, agents.llms())):
        assert path.read_text(encoding="utf-8") == text, "run python -m docs.agents"


def _schema(what: str, capsys: pytest.CaptureFixture[str]) -> jsonschema.Draft202012Validator:
    assert schema.main([what]) == 0
    content = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content)


def test_the_schema_of_configs_knows_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    validator = _schema("config", capsys)
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        content = parse_yaml(path.read_text(encoding="utf-8")).value
        assert not list(validator.iter_errors(content)), path
        assert list(validator.iter_errors({**content, "sede": 1})), path


def test_the_schema_of_graphs_knows_their_keys(capsys: pytest.CaptureFixture[str]) -> None:
    validator = _schema("graph", capsys)
    graph = parse_yaml(GRAPH).value
    rows = {"files": ["a.parquet"], "node_type": "users", "node": "id", "labels": {"y": "label"}}
    graph["training_tables"] = {"churn": rows}
    features = {"x": ["age", {"column": "note", "transform": "text"}]}
    graph["node_types"]["users"]["features"] = features
    assert not list(validator.iter_errors(graph))
    graph["node_types"]["users"]["idd"] = "user_id"
    assert len(list(validator.iter_errors(graph))) == 1
