"""Which share of a link batch takes no messages by default."""

from __future__ import annotations

import pytest

from raygnn.config import load_config
from raygnn.loops.tasks.link_prediction.target import LinkTargetArguments
from raygnn.loops.tasks.link_prediction.task import _cold_share

HASH = {"type": "hash", "fractions": [0.8, 0.1, 0.1]}
TEMPORAL = {"type": "temporal", "quantiles": [0.8, 0.9]}


@pytest.mark.parametrize(
    ("splits", "given", "share"),
    [
        (None, None, 0.0),
        (HASH, None, 0.0),
        (TEMPORAL, None, 0.1),
        (TEMPORAL, 0, 0),
        (HASH, 0.3, 0.3),
    ],
)
def test_new_nodes_are_expected_of_temporal_splits(splits, given, share):
    loaded = load_config({"data": {"uri": "x", "splits": splits}}, [])
    arguments = LinkTargetArguments.of({} if given is None else {"cold_share": given})
    assert _cold_share(arguments, loaded) == share
