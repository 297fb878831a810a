"""Generators: pure functions of arguments and seed, with the structure that they promise."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, LogisticRegression

from raygnn.data.tables.graph_tables import GraphTables
from raygnn.documents import parse_yaml
from raygnn.prepare.synthetic import GENERATORS, synthetic_problems, synthetic_tables
from raygnn.prepare.synthetic.draws import (
    draw_bits,
    draw_integers,
    draw_normal,
    draw_permutation,
    draw_uniform,
)
from tests.errors import error_cases, raises
from tests.generated import SMALL

EDGE = ("node", "to", "node")


def ends(tables: GraphTables, edge_type: tuple[str, str, str] = EDGE) -> tuple[np.ndarray, ...]:
    edges = tables.edges[edge_type]
    return tuple(edges.table.column(name).to_numpy() for name in (edges.source, edges.target))


def matrix(column: pa.ChunkedArray) -> np.ndarray:
    flat = np.frombuffer(column.combine_chunks().buffers()[1], np.float32)
    return flat.reshape(len(column), -1)


def all_columns(tables: GraphTables) -> list[pa.Table]:
    return [part.table for part in (*tables.nodes.values(), *tables.edges.values())]


def test_draws_are_golden() -> None:
    assert draw_bits(0, "a", 0, 2).tolist() == [14179009069275656369, 10443419574614846231]
    assert draw_bits(-1, "edges", 5, 7).tolist() == [891049765102440598, 7031844512496237015]


def test_draws_do_not_depend_on_how_many_are_taken() -> None:
    assert np.array_equal(draw_uniform(3, "s", 1 << 19)[:100], draw_uniform(3, "s", 100))
    assert np.array_equal(draw_bits(3, "s", 7, 9), draw_bits(3, "s", 0, 9)[7:])


def test_draws_have_their_distribution() -> None:
    uniform, normal = draw_uniform(0, "u", 20_000), draw_normal(0, "n", (100, 201))
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    counts = np.bincount(draw_integers(1, "i", 20_000, 7), minlength=7)
    assert counts.min() > 2600
    assert np.array_equal(np.sort(draw_permutation(0, "p", 100)), np.arange(100))


@pytest.mark.parametrize("name", GENERATORS)
def test_equal_arguments_give_equal_graphs(name: str) -> None:
    first, second = (synthetic_tables(name, **SMALL[name]) for _ in range(2))
    other = synthetic_tables(name, **SMALL[name], seed=1)
    for a, b, c in zip(*map(all_columns, (first, second, other)), strict=True):
        assert a.equals(b)
        assert not a.equals(c)


@given(
    num_nodes=st.integers(2, 60),
    num_classes=st.integers(2, 6),
    avg_degree=st.floats(0, 8),
    homophily=st.floats(0, 1),
    seed=st.integers(-5, 1 << 70),
)
@settings(max_examples=30)
def test_planted_partition_is_a_simple_undirected_graph(**args: object) -> None:
    tables = synthetic_tables("planted_partition", **args)
    source, target = ends(tables)
    pairs = set(zip(source.tolist(), target.tolist(), strict=True))
    assert len(pairs) == len(source)
    assert all(a != b and (b, a) in pairs for a, b in pairs)
    labels = tables.nodes["node"].table.column("y").to_numpy()
    sizes = np.bincount(labels)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("homophily", [0.0, 0.3, 1.0])
def test_planted_partition_has_the_homophily_and_degree_asked_for(homophily: float) -> None:
    tables = synthetic_tables(
        "planted_partition", num_nodes=3000, avg_degree=10.0, homophily=homophily
    )
    source, target = ends(tables)
    labels = tables.nodes["node"].table.column("y").to_numpy()
    assert abs((labels[source] == labels[target]).mean() - homophily) < 0.02
    assert abs(len(source) / 3000 - 10) < 0.3


@pytest.mark.parametrize(("num_classes", "rare"), [(2, 0.02), (4, 0.1), (3, 0.0), (2, 0.5)])
def test_planted_partition_has_a_rare_community(num_classes: int, rare: float) -> None:
    tables = synthetic_tables(
        "planted_partition", num_nodes=1000, num_classes=num_classes, rare=rare
    )
    counts = np.bincount(tables.nodes["node"].table["y"], minlength=num_classes)
    assert counts[-1] == round(1000 * rare)
    assert counts[:-1].max() - counts[:-1].min() <= num_classes


def test_planted_partition_needs_the_graph() -> None:
    """Features alone classify 55-75 %; averaged over neighbors, the same model is far better."""
    tables = synthetic_tables("planted_partition", num_nodes=2000)
    table = tables.nodes["node"].table
    features, labels = matrix(table.column("x")), table.column("y").to_numpy()
    is_train = np.array(table.column("split").to_pylist()) == "train"
    source, target = ends(tables)
    means = np.zeros_like(features)
    np.add.at(means, target, features[source])
    means /= np.maximum(np.bincount(target, minlength=len(means)), 1)[:, None]

    def accuracy(inputs: np.ndarray) -> float:
        model = LogisticRegression(max_iter=1000).fit(inputs[is_train], labels[is_train])
        return float(model.score(inputs[~is_train], labels[~is_train]))

    assert 0.55 < accuracy(features) < 0.75
    assert accuracy(np.hstack([features, means])) > 0.85


@given(
    num_nodes=st.integers(2, 70),
    num_edges=st.integers(0, 100),
    a=st.floats(0.01, 0.89),
    seed=st.integers(0, 9),
)
@settings(max_examples=30)
def test_rmat_edges_are_in_range_and_no_loops(
    num_nodes: int, num_edges: int, a: float, seed: int
) -> None:
    tables = synthetic_tables(
        "rmat", num_nodes=num_nodes, num_edges=num_edges, a=a, b=0.05, c=0.04, seed=seed
    )
    source, target = ends(tables)
    assert len(source) == num_edges
    assert (source != target).all()
    assert not len(source) or min(source.min(), target.min()) >= 0
    assert max(source.max(initial=0), target.max(initial=0)) < num_nodes


def test_rmat_degrees_are_skewed_and_prefixes_stable() -> None:
    tables = synthetic_tables("rmat", num_nodes=4000, num_edges=40_000)
    source, target = ends(tables)
    degrees = np.sort(np.bincount(target, minlength=4000))
    assert degrees[-40:].sum() > 8 * degrees.mean() * 40
    shorter = ends(synthetic_tables("rmat", num_nodes=4000, num_edges=100))
    assert np.array_equal(shorter[0], source[:100])
    assert np.array_equal(shorter[1], target[:100])


def test_rmat_quadrants_have_their_shares() -> None:
    from raygnn.prepare.synthetic.node_graphs import draw_rmat_edges

    source, target = draw_rmat_edges(1 << 12, 50_000, 0.5, 0.3, 0.1, 0)
    quadrant = (source >> 11) * 2 + (target >> 11)
    shares = np.bincount(quadrant, minlength=4) / 50_000
    assert np.abs(shares - [0.5, 0.3, 0.1, 0.1]).max() < 0.01


def test_rmat_leaves_out_features_and_labels() -> None:
    tables = synthetic_tables("rmat", num_nodes=20, num_edges=5, num_features=0, num_classes=0)
    node = tables.nodes["node"]
    assert node.table.column_names == ["id", "split"]
    assert not node.features
    assert not node.labels


def columns_of(tables: GraphTables, node_type: str) -> np.ndarray:
    node = tables.nodes[node_type]
    return np.stack([node.table.column(name).to_numpy() for name in node.features["x"]], axis=1)


def codes_of(tables: GraphTables, node_type: str, label: str) -> np.ndarray:
    names = tables.nodes[node_type].table.column(label).to_pylist()
    return np.array([int(name.removeprefix("category_")) for name in names])


def test_shop_has_raw_tables() -> None:
    tables = synthetic_tables("shop")
    for node_type, count in (("user", 3000), ("item", 1000)):
        ids = tables.nodes[node_type].table.column(f"{node_type}_id").to_pylist()
        numbers = [int(id_.removeprefix(f"{node_type}-")) for id_ in ids]
        assert len(set(ids)) == count
        assert max(numbers) > 2 * count  # gaps
        spread = columns_of(tables, node_type).std(axis=0)
        assert spread.max() > 50_000 * spread.min()
    tastes, items = codes_of(tables, "user", "taste"), codes_of(tables, "item", "category")
    assert np.bincount(tastes).tolist() == [500] * 6
    split = tables.nodes["user"].table.column("split").to_pylist()
    assert abs(split.count("train") / 3000 - 0.3) < 0.03

    scaled = columns_of(tables, "item")
    scaled = (scaled - scaled.mean(axis=0)) / scaled.std(axis=0)
    model = LogisticRegression(max_iter=1000)
    assert model.fit(scaled[::2], items[::2]).score(scaled[1::2], items[1::2]) > 0.97
    noise = columns_of(tables, "user")
    noise = (noise - noise.mean(axis=0)) / noise.std(axis=0)
    assert model.fit(noise[::2], tastes[::2]).score(noise[1::2], tastes[1::2]) < 0.25


@pytest.mark.parametrize("seed", [0, 1])
def test_shop_sells_by_taste_and_cold_items_late(seed: int) -> None:
    tables = synthetic_tables("shop", seed=seed)
    edges = tables.edges["user", "buys", "item"].table
    assert edges.num_rows == 40_000
    row = {
        node_type: {
            name: i
            for i, name in enumerate(
                tables.nodes[node_type].table.column(f"{node_type}_id").to_pylist()
            )
        }
        for node_type in ("user", "item")
    }
    user = np.array([row["user"][name] for name in edges.column("source").to_pylist()])
    item = np.array([row["item"][name] for name in edges.column("target").to_pylist()])
    tastes, categories = codes_of(tables, "user", "taste"), codes_of(tables, "item", "category")
    # four fifths by taste, and a sixth of the others by chance
    assert abs((tastes[user] == categories[item]).mean() - (0.8 + 0.2 / 6)) < 0.01

    time = edges.column("time").to_numpy().astype("datetime64[s]").astype(np.int64)
    year = np.int64(365 * 24 * 3600)
    assert time.max() - time.min() > 0.99 * year
    is_early = time < 1_700_000_000 + 0.9 * year
    sold_early, sold = np.unique(item[is_early]), np.unique(item)
    assert 880 < len(sold_early) <= 900
    assert len(sold) - len(sold_early) > 80
    assert np.bincount(item).max() > 1.6 * 40


def test_shop_of_cold_categories_is_still_drawn() -> None:
    """With fewer items than would leave a warm one in each category."""
    tables = synthetic_tables(
        "shop", num_users=9, num_items=4, num_categories=4, num_purchases=50, cold=0.5
    )
    edges = tables.edges["user", "buys", "item"].table
    known = set(tables.nodes["item"].table.column("item_id").to_pylist())
    assert set(edges.column("target").to_pylist()) <= known


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_prices_of_houses_have_the_r2_that_is_promised(seed: int) -> None:
    tables = synthetic_tables("houses", seed=seed)
    table = tables.nodes["house"].table
    size, price = table.column("size").to_numpy(), table.column("price").to_numpy()
    source, target = ends(tables, ("house", "near", "house"))
    around = np.bincount(target, size[source]) / np.bincount(target)
    assert np.bincount(target).tolist() == [6] * 3000
    assert abs(price.mean() - 250_000) < 10_000
    own = LinearRegression().fit(size[:, None], price).score(size[:, None], price)
    both = np.stack([size, around], axis=1)
    assert abs(own - 0.65) < 0.02
    assert abs(LinearRegression().fit(both, price).score(both, price) - 0.99) < 0.002


@pytest.mark.parametrize(
    ("text", "message"),
    error_cases(
        """
planted-partition: {}
    synthetic-generator-unknown | data.synthetic.type= | Did you mean planted_partition
zzz: {}
    synthetic-generator-unknown | planted_partition, rmat
rmat: {num_node: 3}
    config-unknown-key | data.synthetic.num_node=3 | Did you mean num_nodes?
rmat: {num_nodes: 1}
    config-range | num_nodes=1 | at least 2
rmat: {num_nodes: "9"}
    config-type | num_nodes='9' | a whole number
rmat: {num_nodes: true}
    config-type | num_nodes=True | a whole number
rmat: {seed: null}
    config-type | seed=None | a whole number
rmat: {noise: .nan}
    config-range | noise=nan | finite
rmat: {a: 0.5, b: 0.3, c: 0.2}
    synthetic-rmat-shares | 0.01
planted_partition: {homophily: 1.5}
    config-range | homophily=1.5 | at most 1
ratings: {classes: 1}
    config-type | classes=1 | true or false
"""
    ),
)
def test_wrong_arguments_are_named(text: str, message: tuple[str, ...]) -> None:
    ((name, args),) = parse_yaml(text).value.items()
    with raises(*message):
        synthetic_tables(name, **args)


def test_all_problems_are_reported_at_once() -> None:
    assert len(synthetic_problems("rmat", num_nodes=0, num_edges=-1, x=1)) == 3
    assert synthetic_problems("rmat", num_nodes=2) == []
