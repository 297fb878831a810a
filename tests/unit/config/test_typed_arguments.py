"""Arguments of the built-in tasks are of the types and ranges that they declare."""

from __future__ import annotations

import pytest

from raygnn.documents import parse_yaml
from raygnn.loops.tasks.link_prediction.target import LinkTargetArguments
from raygnn.loops.tasks.node_classification.target import NodeTargetArguments
from tests.errors import error_cases, raises


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
