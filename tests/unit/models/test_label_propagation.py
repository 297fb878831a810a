"""Classes of nodes from the labels around them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from raygnn.data.splits import Splits
from raygnn.loops.tasks.exact_encoding import both_ways
from raygnn.models.label_propagation import LabelScores, PropagatedLabels
from raygnn.sampling.stores import LocalGraphStore
from tests.small_graph import SmallGraph

NUM_CLASSES = 3


def _edges(labels: np.ndarray, homophily: float, rng: np.random.Generator) -> sparse.csr_matrix:
    """A tree: each node has an edge to an earlier one, of its class with a probability."""
    ends = []
    for node in range(1, len(labels)):
        same = np.flatnonzero(labels[:node] == labels[node])
        alike = len(same) and rng.random() < homophily
        ends.append((node, rng.choice(same) if alike else rng.integers(node)))
    rows, columns = np.array(ends).T
    edges = sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), (len(labels),) * 2)
    return (edges + edges.T).tocsr()


def _thirds(num_nodes: int, rng: np.random.Generator) -> Splits:
    order = rng.permutation(num_nodes)
    return Splits(
        *(np.sort(part) for part in np.split(order, [num_nodes // 2, num_nodes * 3 // 4]))
    )


def test_nodes_of_a_graph_whose_neighbors_are_alike_are_classified() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(NUM_CLASSES, size=2_000)
    splits = _thirds(len(labels), rng)
    found = PropagatedLabels.of(_edges(labels, 0.9, rng), 0, labels, splits, NUM_CLASSES)
    test = np.asarray(splits.test)
    assert (found.predicted(test).argmax(axis=1) == labels[test]).mean() > 0.75


def test_random_labels_are_at_chance_also_for_training_nodes() -> None:
    """In a tree, a label returns to its node over each of its edges."""
    rng = np.random.default_rng(1)
    labels = rng.integers(NUM_CLASSES, size=6_000)
    splits = _thirds(len(labels), rng)
    found = PropagatedLabels.of(_edges(labels, 0.0, rng), 0, labels, splits, NUM_CLASSES)
    for nodes in (splits.train, splits.test):
        right = found.rows[nodes].argmax(axis=1) == labels[nodes]
        assert abs(right.mean() - 1 / NUM_CLASSES) < 4 * (2 / 9 / len(nodes)) ** 0.5


def test_labels_of_validation_and_test_nodes_reach_no_row() -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(NUM_CLASSES, size=300)
    parts = _thirds(len(labels), rng)
    splits = Splits(parts.train, np.empty(0, np.int64), parts.test)  # validation chooses how far
    edges = _edges(labels, 0.5, rng)
    other = labels.copy()
    for held_out in (parts.val, parts.test):
        other[held_out] = (labels[held_out] + 1) % NUM_CLASSES
    one, two = (
        PropagatedLabels.of(edges, 0, each, splits, NUM_CLASSES) for each in (labels, other)
    )
    assert np.array_equal(one.rows, two.rows)


def test_edges_of_all_types_count_in_both_directions() -> None:
    graph = SmallGraph(
        {"paper": 3, "author": 2},
        {
            ("paper", "cites", "paper"): (np.array([0, 0]), np.array([1, 2])),
            ("author", "writes", "paper"): (np.array([1, 1]), np.array([0, 2])),
        },
    )
    edges, first = both_ways(LocalGraphStore(graph.bundle))
    assert first == {"paper": 0, "author": 3}
    expected = np.zeros((5, 5))
    expected[[0, 0, 0, 2], [1, 2, 4, 4]] = 1
    assert np.array_equal(edges.toarray(), expected + expected.T)


@pytest.mark.parametrize("helps", [True, False])
def test_validation_weighs_labels_only_if_they_help(helps: bool) -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(NUM_CLASSES, size=1_000)
    splits = _thirds(len(labels), rng)
    edges = _edges(labels, 0.9 if helps else 0.0, rng)
    scores = LabelScores()
    around = PropagatedLabels.of(edges, 0, labels, splits, NUM_CLASSES)
    val = torch.from_numpy(np.asarray(splits.val))
    classes = torch.from_numpy(labels)[val]
    noise = torch.from_numpy(rng.normal(0, 0.5, (len(val), NUM_CLASSES)))
    logits = torch.nn.functional.one_hot(classes) + noise
    scores.weigh(around, logits, val, classes)
    assert scores.is_used is helps
    combined = scores(logits, val, around)
    if not helps:
        assert torch.equal(combined, logits)
        return
    again = PropagatedLabels.of(edges, 0, labels, splits, NUM_CLASSES, int(scores.reach))
    assert np.array_equal(again.rows, around.rows)
    right, by_encoder = ((each.argmax(1) == classes).double().mean() for each in (combined, logits))
    assert right > by_encoder


def test_weights_of_a_release_without_labels_load() -> None:
    scores = LabelScores()
    model = torch.nn.ModuleDict({"encoder": torch.nn.Linear(2, 2), "labels": scores})
    older = {n: tensor + 1 for n, tensor in model.state_dict().items() if "labels" not in n}
    model.load_state_dict(older)
    assert torch.equal(model["encoder"].weight, older["encoder.weight"])
    assert not scores.is_used
