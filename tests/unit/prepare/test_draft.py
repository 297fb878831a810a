"""Drafts of graph.yaml: keys, references, roles, and what is left to a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from raygnn.config import load_config
from raygnn.data.convert.draft import draft, write_draft
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.manifest import Manifest
from raygnn.prepare import main
from tests.errors import raises

RNG = np.random.default_rng(0)
USERS = [f"u{i}" for i in range(200)]
SKUS = [f"item {i}" for i in range(50)]


def write(folder: Path, name: str, **columns: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        pa.csv.write_csv(pa.table(columns), path)
    else:
        pq.write_table(pa.table(columns), path)


def some(values: list, num: int) -> list:
    return [values[i] for i in RNG.integers(0, len(values), num)]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Three tables in three layouts, and one that joins them."""
    write(
        tmp_path,
        "customers.csv",
        customer_id=USERS,
        age=[*range(199), None],
        country=some(["de", "fr", "it"], 200),
        full_name=[f"name {i}" for i in range(200)],
        split=some(["train", "val", "test"], 200),
        segment=some(["a", "b"], 200),
    )
    brands = {"id": [7, 8, 9], "founded": [1950.0, 1980.0, 2000.0]}
    write(tmp_path, "brands.parquet", **brands)
    for part in range(2):
        skus = SKUS[part * 25 : part * 25 + 25]
        price = RNG.lognormal(size=25)
        columns = {"sku": skus, "price": price, "brand_id": some([7, 8, 9], 25)}
        write(tmp_path, f"items/part-{part}.parquet", **columns)
    write(
        tmp_path,
        "purchases.csv",
        order_id=list(range(1000)),
        sku=some(SKUS, 1000),
        customer=some(USERS, 1000),
        bought=pa.array(RNG.integers(0, 10**9, 1000), pa.timestamp("s")),
        amount=RNG.random(1000),
    )
    return tmp_path


def test_a_shop_is_drafted_as_it_is_meant(shop: Path) -> None:
    text, _, made = draft(str(shop))
    graph = Manifest.parse(text)
    assert not made
    assert {name: table.id for name, table in graph.node_types.items()} == {
        "brands": "id",
        "customers": "customer_id",
        "items": "sku",
    }
    customers = graph.node_types["customers"]
    columns = [column.column for column in customers.features["x"].columns]
    assert columns == ["age", "country"]
    assert "full_name is left out" in text
    assert customers.split == "split"
    assert customers.labels["segment"].columns == ("segment",)
    assert graph.node_types["items"].files == ("items/*.parquet",)
    edges = {table.type: table for table in graph.edge_types}
    assert set(edges) == {("items", "brand", "brands"), ("items", "purchases", "customers")}
    bought = edges["items", "purchases", "customers"]
    assert (bought.source, bought.target, bought.time.column) == ("sku", "customer", "bought")
    assert [column.column for column in bought.features["edge_attr"].columns] == ["amount"]


def test_a_draft_is_ingested_as_it_is(shop: Path, tmp_path: Path) -> None:
    assert main(["draft", str(shop)]) == 0
    bundle = ingest(str(shop), cache_dir=tmp_path / "cache")
    assert bundle.num_nodes("customers") == 200
    assert bundle.num_edges(("items", "purchases", "customers")) == 1000


def test_a_graph_yaml_is_replaced_only_on_demand(shop: Path, capsys: Any) -> None:
    (shop / "graph.yaml").write_text("mine")
    assert main(["draft", str(shop)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (shop / "graph.yaml").read_text() == "mine"
    assert main(["draft", str(shop), "--overwrite"]) == 0


def test_nodes_without_a_table_get_one(tmp_path: Path) -> None:
    write(tmp_path, "ratings.csv", userId=[1, 1, 5], movieId=[3, 4, 3], rating=[1.0, 2.0, 3.5])
    (uri, *_), _, notes = write_draft(str(tmp_path))
    graph = Manifest.load(uri)
    assert [table.type for table in graph.edge_types] == [("user", "ratings", "movie")]
    ids = pq.read_table(tmp_path / "_drafted/user_ids.parquet").column("id").to_pylist()
    assert ids == [1, 5]
    assert any("user_ids.parquet" in note for note in notes)
    ingest(str(tmp_path), cache_dir=tmp_path / "cache")
    assert Manifest.load(write_draft(str(tmp_path), overwrite=True).written[0]) == graph


@pytest.mark.parametrize("ends", [("src", "dst"), ("from", "to"), ("source", "target")])
@pytest.mark.parametrize("is_swapped", [False, True])
def test_an_edge_list_is_one_type_of_nodes(tmp_path: Path, ends, is_swapped: bool) -> None:
    columns = {ends[0]: [0, 1, 2], ends[1]: [1, 2, 0]}
    write(tmp_path, "follows.csv", **dict(reversed(columns.items()) if is_swapped else columns))
    graph = Manifest.load(write_draft(str(tmp_path)).written[0])
    (edges,) = graph.edge_types
    assert edges.type == ("node", "follows", "node")
    assert (edges.source, edges.target) == ends


def test_numbers_refer_to_keys_that_they_are_called_after(tmp_path: Path) -> None:
    write(tmp_path, "papers.csv", paper_id=list(range(50)), year=[2000 + i % 9 for i in range(50)])
    write(tmp_path, "venues.csv", venue_id=list(range(9)), rank=[0.5] * 9)
    write(
        tmp_path,
        "accepted.csv",
        paper=list(range(50)),
        venue=[i % 9 for i in range(50)],
        pages=[i % 9 for i in range(50)],
    )
    graph = Manifest.parse(draft(str(tmp_path))[0])
    (edges,) = graph.edge_types
    assert edges.type == ("papers", "accepted", "venues")
    assert [column.column for column in edges.features["edge_attr"].columns] == ["pages"]


def test_a_reference_within_a_table_is_an_edge(tmp_path: Path) -> None:
    write(tmp_path, "people.csv", id=["a", "b", "c"], grade=["b", "c", None], size=[1, 2, 2])
    graph = Manifest.parse(draft(str(tmp_path))[0])
    assert not graph.edge_types  # `grade` says nothing of people
    boss = ["b", "c", "c"]
    write(tmp_path, "people.csv", id=["a", "b", "c"], people_boss=boss, size=[1, 2, 2])
    graph = Manifest.parse(draft(str(tmp_path))[0])
    assert [table.type for table in graph.edge_types] == [("people", "people_boss", "people")]


@pytest.mark.parametrize(
    "managers",
    [
        [None, 1, 1, 2, 2],
        [None, 1.0, 1.0, 2.0, 2.0],  # as pandas writes them
        ["", "1", "1", "2", "2"],
    ],
)
def test_a_column_with_gaps_gets_a_table_of_its_edges(tmp_path: Path, managers: list) -> None:
    write(tmp_path, "employees.csv", employee_id=[1, 2, 3, 4, 5], manager_id=managers)
    (uri, *_), _, notes = write_draft(str(tmp_path))
    (edges,) = Manifest.load(uri).edge_types
    assert edges.type == ("employees", "manager", "employees")
    assert edges.files == ("_drafted/employees_manager_id.parquet",)
    assert any("manager_id has gaps" in note for note in notes)
    bundle = ingest(str(tmp_path), cache_dir=tmp_path / "cache")
    csc = bundle.csc(edges.type)
    # Both ways: the manager of each, then those whom each manages.
    assert csc.indptr.tolist() == [0, 2, 5, 6, 7, 8]
    assert csc.indices.tolist() == [1, 2, 0, 3, 4, 0, 1, 1]
    assert any("messages go both ways" in note for note in notes)


def test_numbers_with_gaps_refer_whatever_they_are_called(tmp_path: Path) -> None:
    keys = np.sort(RNG.choice(10**6, 100, replace=False))
    write(tmp_path, "customers.csv", customer_no=keys, age=RNG.integers(18, 80, 100))
    orders = {"order_no": RNG.choice(10**6, 300, replace=False), "buyer": RNG.choice(keys, 300)}
    write(tmp_path, "orders.csv", **orders, level=RNG.integers(0, 9, 300))
    rows = np.arange(600) % 300
    items = {"order_no": orders["order_no"][rows], "sku": some(SKUS, 600), "qty": rows % 3}
    write(tmp_path, "order_items_0.csv", **items)
    write(tmp_path, "products.csv", sku=SKUS, price=RNG.random(50))
    graph = Manifest.parse(draft(str(tmp_path))[0])
    assert {table.id for table in graph.node_types.values()} == {"customer_no", "order_no", "sku"}
    found = {(table.type[0], table.type[2]): table.target for table in graph.edge_types}
    assert len(found) == 2
    assert found["orders", "products"] == "sku"
    assert found["orders", "customers"] == "buyer"


def test_numbers_that_any_key_has_do_not_refer(tmp_path: Path) -> None:
    write(tmp_path, "items.csv", id=list(range(100)), stock=[i % 40 for i in range(100)])
    text, notes, _ = draft(str(tmp_path))
    assert not Manifest.parse(text).edge_types
    assert any("there are no edges" in note for note in notes)


@pytest.mark.parametrize(
    ("tables", "id"),
    [
        ({}, "prepare-no-tables"),
        ({"a.csv": {"x": [1.5, 1.5]}}, "prepare-no-nodes"),
    ],
)
def test_a_folder_without_nodes_is_refused(tmp_path: Path, tables, id: str) -> None:
    for name, columns in tables.items():
        write(tmp_path, name, **columns)
    with raises(id):
        draft(str(tmp_path))


def _insurance(folder: Path) -> list[str]:
    """Tables with the errors of an export; gives the printed lines of their draft."""
    ids = [*range(10_000, 12_000, 10), 10_070]
    tags = some(["a", "b", "c", "a;b", "b;c", "c;a", "b;a", "a;b;c"], 201)
    write(folder, "customers.csv", customer_no=ids, tags=tags)
    holders = some([f"{i:08d}" for i in ids], 300)
    policies = {"policy_no": [f"P{i}" for i in range(300)], "holder": holders}
    sums = [f"EUR {i * 7:,}" for i in range(300)]
    read = {"sum": sums, "renewed": [f"{1 + i % 12}/{1 + i % 28}/2024" for i in range(300)]}
    read["paid"] = [f"{i / 8:.2f} {['EUR', 'USD'][i % 2]}" for i in range(300)]
    read["due"] = [f"{1 + i % 12}/{1 + i % 9}/2024" for i in range(300)]
    read["bonus"] = [f"{i * 1.5:.2f}".replace(".", ",") for i in range(300)]
    since = [f"{1 + i % 28}.{1 + i % 12}.1999" for i in range(300)]
    columns = {**read, "tenant": ["EU-1"] * 300, "since": since}
    write(folder, "policies.parquet", **policies, sold_by=some(["B1", "B2"], 300), **columns)
    write(folder, "brokers.csv", code=["B1", "B2"], size=[1.0, 2.0])
    claims = {"claim_no": list(range(2000)), "policy": ["P999", *some(policies["policy_no"], 1999)]}
    brokers = [None, None, None, *some(["B1", "B2"], 1997)]
    columns = {"broker": brokers, "fraud": some([0, 1], 2000)}
    columns["filed"] = [f"{1 + i % 28:02d}/{1 + i % 12:02d}/2023 9:05" for i in range(2000)]
    write(folder, "claims.csv", **claims, **columns)
    write(folder, "prices.csv", day=some([1, 2, 3], 50), price=RNG.random(50))
    return draft(str(folder))[1]


@pytest.mark.parametrize(
    "expected",
    [
        "prices.csv is left out: it refers to no table that is taken",
        "customers: customer_no: 1 row repeats an id",
        "policies: holder: one of policies.parquet and customers has ids as text",
        "policies: sum is read with format: decimal_point; its numbers are others with decimal_",
        "policies: paid is left out: it holds numbers of several units (EUR, USD)",
        "policies: due is left out: it holds dates as 05/06/2024, of May or of June",
        "policies: tenant is left out: it holds 'EU-1' in all rows",
        "[policies, claims, brokers]: policy: 1 of 2,000 rows name no policies",
        "[policies, claims, brokers]: broker: 3 of 2,000 rows name no brokers",
        "[policies, claims, brokers]: claim_no is left out: each row has another value",
        "no labels: to predict a column (as claims.fraud), take it out of the features",
    ],
)
def test_what_is_left_out_is_said(tmp_path: Path, expected: str) -> None:
    assert [note for note in _insurance(tmp_path) if expected in note]


def test_numbers_that_are_ids_with_zeros_elsewhere_are_said(tmp_path: Path) -> None:
    ids = [f"{i:08d}" for i in range(10_000, 40_000, 10)]
    write(tmp_path, "clients.parquet", client_no=ids, age=some([20, 30, 40], 3000))
    write(tmp_path, "shops.csv", shop=["s1", "s2"], size=[1.5, 2.5])
    visits = {
        "client": some(list(range(10_000, 40_000, 10)), 5000),
        "shop": some(["s1", "s2"], 5000),
    }
    write(tmp_path, "visits.csv", visit=[f"v{i}" for i in range(5000)], **visits)
    text, notes, _ = draft(str(tmp_path))
    expected = "client: one of visits.csv and clients has ids as text"
    assert [note for note in notes if expected in note]
    assert "column: client" not in text
    write_draft(str(tmp_path))
    copy = pq.read_table(tmp_path / "_drafted" / "visits.parquet")
    assert copy.column("client").to_pylist() == [f"{i:08d}" for i in visits["client"]]
    bundle = ingest(str(tmp_path), cache_dir=tmp_path / "cache")
    assert bundle.num_edges(("clients", "visits", "shops")) == 5000


def test_what_others_refer_to_are_ids_whatever_they_are_called(tmp_path: Path) -> None:
    badges = [f"{i * 37 % 9973:05d}" for i in range(1, 301)]
    write(tmp_path, "drivers.csv", badge=badges, wage=[float(i) for i in range(300)])
    write(tmp_path, "depots.csv", depot_id=["A", "B", "C"], docks=[1, 2, 3])
    drivers = [None, *some([int(badge) for badge in badges], 999)]
    depots = {name: some(["A", "B", "C"], 1000) for name in ("origin_depot", "last_depot", "hub")}
    trips = {"trip_no": [f"T{i}" for i in range(1000)], "driver": drivers, **depots}
    write(tmp_path, "trips.csv", **trips)
    graph = Manifest.load(write_draft(str(tmp_path)).written[0])
    assert graph.node_types["drivers"].id == "badge"
    # Rows with more than three references are nodes, with an edge for each.
    assert graph.node_types["trips"].id == "trip_no"
    assert {table.type for table in graph.edge_types} == {
        ("trips", "driver", "drivers"),
        *(("trips", name, "depots") for name in depots),
    }
    assert _config(tmp_path, "--overwrite")["args"]["edge_type"].startswith("trips__")
    write(tmp_path, "trips.csv", **{k: v for k, v in trips.items() if k != "last_depot"})
    graph, notes = Manifest.parse((found := draft(str(tmp_path)))[0]), found[1]
    assert "trips" not in graph.node_types
    assert any("as a node type with id: trip_no they would have an edge" in n for n in notes)


def test_every_doubt_is_printed_and_the_rest_is_ingested(tmp_path: Path, capsys: Any) -> None:
    _insurance(tmp_path)
    assert main(["draft", str(tmp_path)]) == 0
    text, printed = (tmp_path / "graph.yaml").read_text(), capsys.readouterr().out
    assert printed.count("  ? ") == text.count("# ? ") > 6
    assert '{column: tags, transform: multi_hot, separator: ";"}' in text
    assert "{column: since, transform: auto}" in text
    assert "{column: sum, transform: auto, format: decimal_point}" in text
    assert "{column: bonus, transform: auto, format: decimal_comma}" in text
    assert "{column: renewed, transform: auto, format: month_first}" in text
    assert "    time: {column: filed, format: day_first}\n" in text
    bundle = ingest(str(tmp_path), IngestOptions(on_error="drop"), tmp_path / "cache")
    assert bundle.num_nodes("customers") == 200
    assert bundle.num_edges(("policies", "claims", "brokers")) == 1997
    holders = bundle.csc(("policies", "holder", "customers"))
    assert len(holders.indices) == 300


def _config(folder: Path, *options: str) -> dict[str, Any]:
    """What the drafted config says, once raygnn has read it."""
    assert main(["draft", str(folder), *options]) == 0
    config = load_config(str(folder / "train.yaml")).config
    assert config.data.uri == str(folder)
    assert config.scaling.num_workers == 0
    splits = config.data.splits
    return {
        "task": config.task.type,
        "args": config.task.args,
        "model": config.model.type,
        "splits": splits and splits.type,
        "temporal": config.sampling.temporal is not None,
        "on_error": config.data.on_error,
    }


def test_the_drafted_config_learns_what_there_is(shop: Path, tmp_path: Path) -> None:
    labels = {"task": "node_classification", "args": {"target": "customers"}, "splits": None}
    rest = {"model": "Hetero", "temporal": False, "on_error": "fail"}
    assert _config(shop) == {**labels, **rest}
    customers = pa.csv.read_csv(shop / "customers.csv")
    pa.csv.write_csv(customers.drop_columns(["split", "segment"]), shop / "customers.csv")
    args = {"edge_type": "items__purchases__customers"}
    links = {"task": "link_prediction", "args": args, "splits": "temporal"}
    assert _config(shop, "--overwrite") == {**links, **rest, "temporal": True}
    folder = tmp_path / "follows"
    write(folder, "follows.csv", **{"from": [1, 2, 3], "to": [2, 3, 1]})
    args = {"edge_type": "node__follows__node"}
    found = _config(folder)
    assert found == {**links, **rest, "args": args, "splits": "hash", "temporal": False}
    write(folder, "people.csv", id=[1, 2, 3], size=[1.0, 2.0, 3.0], label=["a", "b", "b"])
    found = _config(folder, "--overwrite")
    expected = {**labels, **rest, "args": {"target": "people"}, "splits": "hash"}
    assert found == {**expected, "model": "GraphSAGE"}


def test_the_drafted_config_leaves_out_what_the_draft_has_counted(tmp_path: Path) -> None:
    _insurance(tmp_path)
    assert _config(tmp_path)["on_error"] == "drop"


def test_a_config_that_is_there_is_kept(shop: Path, capsys: Any) -> None:
    (shop / "train.yaml").write_text("mine")
    assert main(["draft", str(shop)]) == 0
    assert (shop / "train.yaml").read_text() == "mine"
    assert "train.yaml, to look" not in capsys.readouterr().out
    assert _config(shop, "--overwrite")["model"] == "Hetero"


def test_nodes_without_edges_get_no_config(tmp_path: Path) -> None:
    write(tmp_path, "people.csv", id=[1, 2], size=[1.0, 2.0])
    assert write_draft(str(tmp_path)).config is None
    assert not (tmp_path / "train.yaml").exists()
