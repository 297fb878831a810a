"""What the page of arguments and the JSON Schema say of raygnn's own components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic_core import PydanticUndefined

from docs import arguments
from raygnn.config.registry import SLOTS
from raygnn.config_schema import OWN_SLOTS, config_json_schema, describe
from raygnn.documents import parse_yaml

EXAMPLES = sorted(Path(__file__).parents[3].glob("examples/**/*.yaml"))
CONFIGS = [path for path in EXAMPLES if path.name != "tables.yaml"]


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(config_json_schema())


def test_the_committed_page_is_what_the_generator_writes() -> None:
    page = arguments.PAGE.read_text(encoding="utf-8")
    assert page == arguments.page(), "run python -m docs.arguments"


@pytest.mark.parametrize("slot", OWN_SLOTS)
def test_every_component_and_argument_is_described(slot: str) -> None:
    components = list(describe(slot))
    assert [each.name for each in components] == [*SLOTS[slot].names]
    for component in components:
        assert component.summary.endswith("."), component.name
        for argument in component.arguments:
            assert argument.meaning.endswith("."), (component.name, argument.name)
            assert argument.annotation is not None, (component.name, argument.name)


def test_a_default_is_that_of_the_most_derived_class() -> None:
    defaults = {
        component.name: {a.name: a.default for a in component.arguments}
        for component in describe("model")
    }
    assert defaults["GAT"]["activation"] == "relu"
    assert defaults["SimpleHGN"]["activation"] == "elu"
    assert defaults["GINE"]["edge_dim"] is PydanticUndefined
    assert defaults["GAT"]["edge_dim"] is None


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_schema_holds_for_the_examples(path: Path, schema: Any) -> None:
    schema.validate(parse_yaml(path.read_text(encoding="utf-8")).value)


@pytest.mark.parametrize(
    "text",
    [
        "model: GAT",
        "model: {type: GAT, args: {num_heads: 4, norm: null}}",
        "model: {type: GAT, args: {num_heads: {__type: my_pkg.Four}}}",
        "model: {type: my_pkg.Model, args: {anything: 1}}",
        "task: {type: link_prediction, args: {edge_type: [a__b__c]}}",
        "task: {type: link_prediction, args: {decoder: distmult}}",
        "task: {type: link_prediction, args: {decoder: {type: complex, args: {num_relations: 3}}}}",
        "losses: [{type: margin, args: {margin: 1}, weight: 2.0}, bpr]",
        "loggers: [{type: wandb, args: {project: p, entity: e}}]",
        "metrics: [{type: hits, args: {ks: [1, 3]}}, mrr]",
    ],
)
def test_the_schema_takes(text: str, schema: Any) -> None:
    schema.validate(parse_yaml(text).value)


@pytest.mark.parametrize(
    "text",
    [
        "model: {type: GAT, args: {num_head: 4}}",
        "model: {type: GCN, args: {num_heads: 4}}",
        "model: {type: GAT, args: {num_heads: four}}",
        "task: {type: node_classification, args: {edge_type: a__b__c}}",
        "task: {type: link_prediction, args: {decoder: {type: distmult, args: {a: 1}}}}",
        "losses: [{type: margin, args: {temperature: 1}}]",
        "loggers: [{type: mlflow, args: {project: p}}]",
        "metrics: [{type: hits, args: {ks: 3}}]",
    ],
)
def test_the_schema_refuses(text: str, schema: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(parse_yaml(text).value)
