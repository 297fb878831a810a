"""Arguments of the built-in tasks are of the types that their dataclasses declare."""

from __future__ import annotations

import pytest

from raygnn.config import ConfigError
from raygnn.loops.tasks.link_prediction.target import LinkTargetArguments
from raygnn.loops.tasks.node_classification.target import NodeTargetArguments


@pytest.mark.parametrize("decoder", ["distmult", {"type": "distmult"}])
def test_a_decoder_may_be_a_name_alone(decoder):
    assert LinkTargetArguments.of({"decoder": decoder}).decoder.type == "distmult"


def test_what_is_left_out_has_its_default():
    assert LinkTargetArguments.of({"full_ranking": [5]}).full_ranking == [5]
    assert LinkTargetArguments.of({"disjoint_train_ratio": 0}) == LinkTargetArguments()
    assert NodeTargetArguments.of({"label": "y"}) == NodeTargetArguments(label="y")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {"labels": "no"},
            r"task\.args\.labels='no' is invalid: it must be true or false\. Set true",
        ),
        ({"disjoint_train_ratio": "0.3"}, r"disjoint_train_ratio='0\.3' .* must be a number\."),
        ({"num_random_negatives": True}, r"num_random_negatives=True .* must be a whole number"),
        ({"max_labels_per_anchor": "x"}, r"max_labels_per_anchor='x' .* must be a whole number"),
        ({"edge_type": 5}, r"edge_type=5 is invalid: it must be a text or a list"),
        ({"decoder": {}}, r"decoder=\{\} is invalid: it must be a mapping with type\. Set type"),
        ({"decoder": None}, r"decoder=None is invalid: it must be a mapping"),
        (
            {"num_random_negative": 3},
            r"Did you mean num_random_negatives\? Set one of: edge_type, ",
        ),
    ],
)
def test_links_of_other_types_are_told(args, message):
    with pytest.raises(ConfigError, match=message):
        LinkTargetArguments.of(args)


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError, match=r"label=\['y'\] .*\n.*feature=5 is invalid"):
        NodeTargetArguments.of({"label": ["y"], "feature": 5})
