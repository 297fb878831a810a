"""Arguments of components, and the generated pages and schemas that describe them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic_core import PydanticUndefined

from docs import agents, arguments
from docs import config_reference as reference
from raygnn import schema as schema_command
from raygnn.config import Config
from raygnn.config.registry import SLOTS
from raygnn.config.section import Section, meanings, sections_in
from raygnn.config_schema import OWN_SLOTS, config_json_schema, describe
from raygnn.documents import parse_yaml
from raygnn.loops.tasks.link_prediction.target import LinkTargetArguments
from raygnn.loops.tasks.node_classification.target import NodeTargetArguments
from tests.errors import error_cases, raises
from tests.unit.prepare.test_questions import GRAPH

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


def test_the_committed_page_of_keys_is_what_the_generator_writes() -> None:
    committed = reference.PATH.read_text(encoding="utf-8")
    assert committed == reference.reference(), "run python -m docs.config_reference"


def _meanings(section: type[Section]) -> Iterator[tuple[str, Any]]:
    known = meanings(section)
    for name, field in section.model_fields.items():
        yield f"{section.__name__}.{name}", field.description or known.get(name)
        for inner in sections_in(field.annotation):
            yield from _meanings(inner)


def test_every_key_is_described_in_one_line() -> None:
    for name, meaning in _meanings(Config):
        assert meaning, name
        assert meaning.endswith("."), name
        assert "\n" not in meaning, name


@pytest.mark.parametrize("decoder", ["distmult", {"type": "distmult"}])
def test_a_decoder_may_be_a_name_alone(decoder):
    assert LinkTargetArguments.of({"decoder": decoder}).decoder.type == "distmult"


def test_what_is_left_out_has_its_default():
    assert LinkTargetArguments.of({"full_ranking": [5]}).full_ranking == [5]
    assert LinkTargetArguments.of({"disjoint_train_ratio": 0}) == LinkTargetArguments()
    assert NodeTargetArguments.of({"label": "y"}) == NodeTargetArguments(label="y")


@pytest.mark.parametrize(
    ("text", "message"),
    error_cases(
        """
labels: "no"
    config-type | task.args.labels='no' | true or false
disjoint_train_ratio: "0.3"
    config-type | disjoint_train_ratio='0.3' | a number
num_random_negatives: true
    config-type | num_random_negatives=True | a whole number
max_labels_per_anchor: x
    config-type | max_labels_per_anchor='x' | a whole number
edge_type: 5
    config-type | edge_type=5
decoder: {}
    config-required | task.args.decoder.type
decoder: null
    config-type | decoder=None | a mapping
num_random_negatives: -1
    task-argument-range | num_random_negatives=-1 | at least 0 or one of: all
num_random_negatives_eval: 0
    task-argument-range | greater than 0
disjoint_train_ratio: 1.0
    task-argument-range | less than 1
negatives: hard
    task-argument-choice | uniform, degree
seeds: nodes
    task-argument-choice | links, anchors
full_ranking: [0]
    task-full-ranking | full_ranking=[0]
{num_random_negatives: all, logq_correction: true}
    task-all-negatives | num_random_negatives='all' | logq_correction
{num_random_negatives: all, negatives: degree}
    task-all-negatives | negatives
num_random_negatives: most
    config-type | 'most'
num_random_negative: 3
    task-argument-unknown | Did you mean num_random_negatives? | edge_type
"""
    ),
)
def test_links_of_other_types_are_told(text, message):
    with raises(*message):
        LinkTargetArguments.of(parse_yaml(text).value)


def test_all_mistakes_are_told_at_once():
    with raises("config-type", "label=['y']", "feature=5"):
        NodeTargetArguments.of({"label": ["y"], "feature": 5})


def test_the_files_are_up_to_date() -> None:
    for path, text in ((agents.AGENTS, agents.agents()), (agents.LLMS, agents.llms())):
        assert path.read_text(encoding="utf-8") == text, "run python -m docs.agents"


def _schema(what: str, capsys: pytest.CaptureFixture[str]) -> jsonschema.Draft202012Validator:
    assert schema_command.main([what]) == 0
    content = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content)


def test_the_schema_of_configs_knows_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    validator = _schema("config", capsys)
    for path in CONFIGS:
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
