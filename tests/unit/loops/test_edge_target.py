"""What edge and link prediction find to learn, what they refuse, and factors of labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.splits import Splits
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, edge_rows, node_rows
from raygnn.inference.job import check_no_new_nodes
from raygnn.loops.tasks.edge_prediction.label_factors import LabelFactors
from raygnn.loops.tasks.edge_prediction.target import EdgeOutput, EdgeTarget, EdgeTargetArguments
from raygnn.loops.tasks.link_prediction.target import LinkTarget, LinkTargetArguments
from raygnn.loops.tasks.link_prediction.task import _cold_share
from tests.errors import raises
from tests.graph_writer import ingest_tables

RATES, TAGS, PAYS = ("user", "rates", "film"), ("user", "tags", "film"), ("user", "pays", "user")
STARS = np.array([1, 2, 3, 4, 5, 1, 2, 3, 4, 5], np.float32)
WORDS = pa.array(["yes", "no", "yes", "no", "yes", "no", "yes", "no", None, "yes"])


def _edges(**given: Any) -> EdgeRows:
    return edge_rows(np.arange(10) % 5, np.arange(10) % 4, **given)


def _bundle(
    folder: Path,
    edges: dict[EdgeType, EdgeRows],
    label_edges: dict[tuple[EdgeType, str], EdgeRows] | None = None,
    feature_dtype: Any = None,
) -> Bundle:
    nodes = {
        name: node_rows(np.arange(6), {"x": np.ones((6, 2), np.float32)})
        for name in ("user", "film")
    }
    tables = GraphTables(nodes, edges, label_edges=label_edges or {})
    return ingest_tables(folder, tables, reverse_edges=True, feature_dtype=feature_dtype)


def _find(bundle: Bundle, **args: Any) -> EdgeTarget:
    split = {"type": "hash", "fractions": [1.0, 0.0, 0.0]}
    content = {"data": {"uri": "unread", "splits": split}, "task": "edge_prediction"}
    config = load_config(content).config
    return EdgeTarget.find(bundle, config, EdgeTargetArguments.of(args))


def test_the_only_labelled_edges_are_found_and_read(tmp_path):
    features = {"price": np.arange(10, dtype=np.float32), "copy": np.stack([STARS * 0, STARS], 1)}
    rates = _edges(features=features, labels={"stars": STARS})
    bundle = _bundle(tmp_path, {RATES: rates, TAGS: _edges()})
    target = _find(bundle)
    # `copy` holds the label, so no default reads it.
    known = target.output.factorized
    assert target.output == EdgeOutput(
        RATES,
        inputs=("price",),
        label="stars",
        problem="regression",
        num_outputs=1,
        factorized=known,
    )
    assert target.output.num_known(bundle) == (6, 6)
    other = replace(target.output, factorized=((6, "0"), known[1]))
    assert other.num_known(bundle) == (0, 6)
    assert _find(bundle, factorize=False).output.num_known(bundle) == (0, 0)
    lines = list(target.summary(bundle))
    assert "copy" in lines[1]
    assert _find(bundle, inputs=[]).output.inputs == ()
    with raises("task-edge-input-label", "copy"):
        _find(bundle, inputs=["price", "copy"])
    with raises("task-edge-inputs", "cost"):
        _find(bundle, inputs=["cost"])
    reverse = _find(bundle, edge_type="film__rev_rates__user").output
    assert reverse.ends == ("film", "user")


def test_classes_and_unlabelled_edges(tmp_path):
    bundle = _bundle(tmp_path, {PAYS: _edges(labels={"ok": WORDS})})
    target = _find(bundle)
    assert (target.output.problem, target.output.class_names) == ("multi_class", ("no", "yes"))
    assert len(target.splits.train) == 9
    assert target.label_counts().counts == (4, 5)


def test_label_edges_are_found_too(tmp_path):
    labels = {(RATES, "positive"): _edges(labels={"stars": STARS})}
    bundle = _bundle(tmp_path, {RATES: _edges()}, labels)
    output = _find(bundle).output
    assert (output.edge_type, output.label_edges) == (RATES, True)
    with raises("task-no-labels"):
        _find(bundle, label_edges=False)
    with raises("task-edge-inputs", "label edges"):
        _find(bundle, inputs=["price"])


def test_message_edges_come_before_label_edges(tmp_path):
    labels = {(RATES, "positive"): _edges(labels={"stars": STARS})}
    bundle = _bundle(tmp_path, {RATES: _edges(labels={"stars": STARS})}, labels)
    assert not _find(bundle).output.label_edges
    assert _find(bundle, label_edges=True).output.label_edges


def test_what_is_open_is_named(tmp_path):
    both = {RATES: _edges(labels={"stars": STARS, "ok": WORDS}), TAGS: _edges(labels={"ok": WORDS})}
    bundle = _bundle(tmp_path, both)
    with raises("task-edge-type-missing", "user__rates__film", "user__tags__film"):
        _find(bundle)
    with raises("labels-unknown", "stars", "ok"):
        _find(bundle, edge_type="user__rates__film")
    assert _find(bundle, edge_type="user__rates__film", label="ok").output.label == "ok"
    with raises("task-edge-type-unknown", "user__sees__film"):
        _find(bundle, edge_type="user__sees__film")


def test_graphs_without_labels_of_edges_are_refused(tmp_path):
    with raises("task-no-labels"):
        _find(_bundle(tmp_path, {RATES: _edges()}))


@pytest.mark.parametrize(
    ("section", "id"),
    [
        ({"sampling": {"type": "full", "fanouts": [-1]}}, "sampling-links-sampler"),
        ({"data": {"uri": "g", "splits": {"type": "per_class"}}}, "split-links-per-class"),
        ({"sampling": {"temporal": {}}}, "links-no-times"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, section, id):
    bundle = _bundle(tmp_path, {RATES: _edges(labels={"stars": STARS})})
    with raises(id):
        content = {"data": {"uri": "g"}, "task": "edge_prediction", **section}
        EdgeTarget.find(bundle, load_config(content).config, EdgeTargetArguments())


def test_predictions_of_edges_are_not_of_new_nodes():
    check_no_new_nodes(None)
    with raises("infer-new-nodes-edges", "rows"):
        check_no_new_nodes("rows")


_BUYS, _SOLD = ("user", "buys", "item"), ("item", "rev_buys", "user")
_FOLLOWS = ("user", "follows", "user")


def _find_links(folder: Path, *edge_types: EdgeType, reverse_edges: bool = False) -> list[str]:
    rng = np.random.default_rng(0)
    nodes = {name: node_rows(np.arange(30)) for name in ("user", "item")}
    edges = {edge_type: edge_rows(*rng.integers(0, 30, (2, 200))) for edge_type in edge_types}
    bundle = ingest_tables(folder, GraphTables(nodes, edges), reverse_edges=reverse_edges)
    splits = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
    task = {"type": "link_prediction"}
    config = load_config({"data": {"uri": "unread", "splits": splits}, "task": task}).config
    found = LinkTarget.find(bundle, config, LinkTargetArguments())
    return [edge_type_name(edge_type) for edge_type in found.edge_types]


@pytest.mark.parametrize("order", [(_BUYS, _SOLD), (_SOLD, _BUYS)])
def test_a_type_is_chosen_over_its_reverse(tmp_path: Path, order: tuple[EdgeType, ...]) -> None:
    assert _find_links(tmp_path, *order) == ["user__buys__item"]


@pytest.mark.parametrize("edge_type", [_BUYS, _FOLLOWS])
def test_reverses_that_the_config_adds_are_not_chosen(tmp_path: Path, edge_type: EdgeType) -> None:
    assert _find_links(tmp_path, edge_type, reverse_edges=True) == [edge_type_name(edge_type)]


def test_of_two_types_one_has_to_be_named(tmp_path: Path) -> None:
    with raises("task-edge-type-missing", "user__buys__item", "user__follows__user"):
        _find_links(tmp_path, _BUYS, _FOLLOWS, reverse_edges=True)


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


def _split(num: int) -> Splits:
    order = np.random.default_rng(1).permutation(num)
    return Splits(*(np.sort(part) for part in np.split(order, [num * 8 // 10, num * 9 // 10])))


def _errors(found: LabelFactors, labels: np.ndarray, splits: Splits) -> tuple[float, float, float]:
    """Root mean squared errors on test edges: of the start, of biases, of the mean."""
    sources, targets = (
        rows[of[splits.test]] for rows, of in zip(found.rows, found.ends, strict=True)
    )
    start = found.mean + sources[:, 0] + targets[:, 0] + (sources * targets)[:, 1:].sum(axis=1)
    guesses = (start, found.by_biases(splits.test), found.mean)
    return tuple(np.sqrt(np.square(each - labels[splits.test]).mean()) for each in guesses)


@pytest.mark.parametrize("is_low_rank", [True, False])
def test_factors_are_used_where_they_help(is_low_rank):
    rng = np.random.default_rng(0)
    ends = np.stack([rng.integers(0, 150, 9000), rng.integers(0, 100, 9000)])
    bias, factors = rng.normal(size=150), (rng.normal(size=(150, 2)), rng.normal(size=(100, 2)))
    labels = 3 + bias[ends[0]] + rng.normal(0, 0.5, 9000)
    if is_low_rank:
        labels += (factors[0][ends[0]] * factors[1][ends[1]]).sum(axis=1)
    splits = _split(9000)
    start, biases, mean = _errors(
        LabelFactors.fit(ends, labels, (150, 100), splits), labels, splits
    )
    assert biases < 0.9 * mean
    assert start < 0.65 if is_low_rank else start == pytest.approx(biases, abs=0.02)
    assert start < 0.55 or is_low_rank


def test_noise_is_not_learned_by_heart():
    rng = np.random.default_rng(0)
    ends, labels = rng.integers(0, 60, (2, 3000)), rng.normal(size=3000)
    splits = _split(3000)
    found = LabelFactors.fit(ends, labels, (60, 60), splits)
    start, _, mean = _errors(found, labels, splits)
    assert start == pytest.approx(mean, rel=0.05)
    held_out = np.corrcoef(found.held_out[splits.train], labels[splits.train])[0, 1]
    assert abs(held_out) < 4 / np.sqrt(len(splits.train))


def test_parallel_edges_and_reverses_do_not_reveal_a_label():
    rng = np.random.default_rng(0)
    ends, labels = rng.integers(0, 300, (2, 1000)), rng.normal(size=1000)
    twice, both = np.concatenate([ends, ends[::-1]], axis=1), np.tile(labels, 2)
    splits = Splits(np.arange(2000), np.arange(0), np.arange(0))
    found = LabelFactors.fit(twice, both, (300, 300), splits)
    assert abs(np.corrcoef(found.held_out, both)[0, 1]) < 4 / np.sqrt(1000)
