"""History columns and past labels against slow references, and what they must not depend on."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raygnn.data.added_rows import AddedRows, RowReader
from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.checksums import type_adapter
from raygnn.data.extended_bundle import ExtendedBundle
from raygnn.data.extended_history import ExtendedHistory
from raygnn.data.fit_history import _left_out, fit_history
from raygnn.data.growth import Growth
from raygnn.data.history import History
from raygnn.data.history_spec import HistoryColumn, HistorySpec
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.past_labels import PastLabels, TableLabels
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows
from raygnn.data.time_units import is_clock
from tests.graph_writer import ingest_tables

_USERS, _SHOPS = 6, 4
_LAGS = ((14.0, 7.0), (20.0, 17.0))


def _orders(num_orders: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "user": rng.integers(0, _USERS - 1, num_orders),  # the last has none
        "shop": rng.integers(0, _SHOPS, num_orders),
        "day": rng.integers(0, 40, num_orders),
        "amount": rng.normal(1000, 1, num_orders).astype(np.float32),
    }


def _bundle(folder: Path, orders: dict[str, np.ndarray], times: str = "edges") -> Bundle:
    rng, ids = np.random.default_rng(1), np.arange(len(orders["day"]))
    of_nodes = {"time": orders["day"]} if times != "edges" else {}
    of_edges = {"time": orders["day"]} if times == "edges" else {}
    nodes = {
        "user": node_rows(np.arange(_USERS), {"x": rng.random((_USERS, 2), np.float32)}),
        "shop": node_rows(np.arange(_SHOPS), {"x": np.arange(_SHOPS, dtype=np.float32)[:, None]}),
        "order": node_rows(ids, {"x": orders["amount"][:, None]}, **of_nodes),
    }
    edges = {
        ("order", "by", "user"): edge_rows(ids, orders["user"], **of_edges),
        ("order", "at", "shop"): edge_rows(ids, orders["shop"], **of_edges),
    }
    return ingest_tables(folder, GraphTables(nodes, edges), reverse_edges=True)


def _spec(bundle: Bundle, max_age: float | None = None) -> HistorySpec:
    rng = np.random.default_rng(2)
    rows = rng.integers(0, _USERS, 900), rng.integers(0, 40, 900)
    spec = fit_history(bundle, "user", "x", *rows, window=7, max_age=max_age)
    # Lags are chosen for dates only.
    return replace(spec, events=tuple(replace(each, lags=_LAGS) for each in spec.events))


def _asked() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.integers(0, _USERS, 80), rng.integers(0, 45, 80)


def _expected(
    orders: dict[str, np.ndarray], name: str, node: int, time: int, max_age: float | None
) -> float | None:
    """The value of a column of a user's orders, from the definition."""
    by, _, what = name.partition(" ")
    by, _, shop = by.partition("=")
    known = (orders["user"] == node) & (orders["day"] <= time)
    if max_age is not None:
        known &= orders["day"] >= time - max_age
    if what[-1].isdigit():
        first, _, last = what.rpartition(" to ")
        known &= orders["day"] > time - float((first or last).split()[-1])
        if first:
            known &= orders["day"] <= time - float(last)
    found = np.flatnonzero(known)
    found = found[np.argsort(orders["day"][found], kind="stable")]
    days = orders["day"][found]
    distinct = np.unique(days)
    values = orders["amount"].astype(np.float64) if by == "order.x" else orders["shop"] * 1.0
    values = values[found]
    gap, nan = np.diff(distinct), np.nan
    match what.split()[0], what.split()[1] if " " in what else "":
        case "count", _:
            return np.count_nonzero(values == float(shop)) if shop else len(found)
        case "distinct", _:
            return len(np.unique(values))
        case "times", _:
            return len(distinct)
        case "since", "last":
            return time - distinct[-1] if len(found) else nan
        case "since", "the":
            return time - distinct[-2] if len(distinct) > 1 else nan
        case "since", "first":
            return time - distinct[0] if len(found) else nan
        case "gap", "mean":
            return gap.mean() if len(gap) else nan
        case "gap", "std":
            return gap.std() if len(gap) > 1 else nan
        case "mean", _:
            return values.mean() if len(found) else nan
        case "sum", _:
            return values.sum()
        case "last", _:
            return values[-1] if len(found) else nan
    return None


@pytest.mark.parametrize("times", ["edges", "nodes"])
@pytest.mark.parametrize("max_age", [None, 12])
def test_columns_equal_their_definition(tmp_path: Path, times: str, max_age: float | None) -> None:
    orders = _orders(150)
    bundle = _bundle(tmp_path, orders, times)
    history = History(bundle, _spec(bundle, max_age))
    nodes, asked = _asked()
    found = history.columns(nodes, asked)
    compared = set()
    for i, name in enumerate(history.names):
        by = name.partition(" ")[0].partition("=")[0]
        if by not in ("order", "order.x", "order.shop.x", "order.shop.id"):
            continue
        for row, (node, time) in enumerate(zip(nodes, asked, strict=True)):
            expected = _expected(orders, name, node, time, max_age)
            assert expected is not None, name
            assert found[row, i] == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True), name
        compared.add(name)
    assert {"order.x sum all", "order.x sum 7", "order.x mean all", "order gap std"} <= compared
    assert {"order since the one before", "order.x last", "order.shop.x last"} <= compared
    assert {"order.shop.id last", "order.shop.id=1 count all"} <= compared
    assert {"order count 14 to 7", "order.x sum 20 to 17"} <= compared
    categories = {name for i, name in enumerate(history.names) if i in history.categorical}
    assert categories == {"order.shop.id last"}


def test_other_ends_have_the_columns_of_their_own_history(tmp_path: Path) -> None:
    orders = _orders(150)
    bundle = _bundle(tmp_path, orders)
    history = History(bundle, _spec(bundle))
    nodes, asked = _asked()
    found = history.columns(nodes, asked)
    position = history.names.index("order.shop: order count all")
    for row, (node, time) in enumerate(zip(nodes, asked, strict=True)):
        own = np.flatnonzero((orders["user"] == node) & (orders["day"] <= time))
        if not len(own):
            assert np.isnan(found[row, position])
            continue
        shop = orders["shop"][max(own, key=lambda i: (orders["day"][i], i))]
        known = (orders["shop"] == shop) & (orders["day"] <= time)
        assert found[row, position] == known.sum()


def test_both_people_of_a_loan_have_the_events_of_their_other_loans(tmp_path: Path) -> None:
    """A loan knows the reminders of all loans that its borrower and its guarantor take part in."""
    rng, loans, reminders = np.random.default_rng(5), np.arange(60), np.arange(400)
    people = {role: rng.integers(0, 12, len(loans)) for role in ("borrower", "guarantor")}
    loan, day = rng.integers(0, len(loans), len(reminders)), rng.integers(0, 40, len(reminders))
    nodes = {
        "person": node_rows(np.arange(12), {"x": rng.random((12, 1), np.float32)}),
        "loan": node_rows(loans, time=loans % 20),
        "reminder": node_rows(reminders, time=day),
    }
    edges = {("loan", role, "person"): edge_rows(loans, people[role]) for role in people}
    edges["reminder", "about", "loan"] = edge_rows(reminders, loan, time=day)
    bundle = ingest_tables(tmp_path, GraphTables(nodes, edges), reverse_edges=True)
    asked = rng.integers(0, len(loans), 90), rng.integers(0, 40, 90)
    history = History(bundle, fit_history(bundle, "loan", "x", *asked))
    assert len(set(history.names)) == len(history.names)
    found = history.columns(*asked)
    for role, through in ((a, b) for a in people for b in people):
        name = f"{role}: reminder by about of {through} count all"
        column = found[:, history.names.index(name)]
        for row, (node, time) in enumerate(zip(*asked, strict=True)):
            is_own = people[through][loan] == people[role][node]
            known = is_own & (np.maximum(day, loan % 20) <= time)
            assert column[row] == np.count_nonzero(known)


@pytest.mark.parametrize("is_same", [True, False])
def test_events_that_refer_to_the_entity_themselves_are_read_once(
    tmp_path: Path, is_same: bool
) -> None:
    """Tests of a stay name the patient of the stay, or who paid for them."""
    rng, stays, tests = np.random.default_rng(6), np.arange(80), np.arange(300)
    patient, stay = rng.integers(0, 20, len(stays)), rng.integers(0, len(stays), len(tests))
    payer = patient[stay] if is_same else rng.integers(0, 20, len(tests))
    nodes = {
        "patient": node_rows(np.arange(20), {"x": rng.random((20, 1), np.float32)}),
        "stay": node_rows(stays, time=stays % 20),
        "test": node_rows(tests, {"x": rng.random((300, 1), np.float32)}, time=20 + tests % 20),
    }
    edges = {
        ("stay", "of", "patient"): edge_rows(stays, patient),
        ("test", "during", "stay"): edge_rows(tests, stay),
        ("test", "for", "patient"): edge_rows(tests, payer),
    }
    bundle = ingest_tables(tmp_path, GraphTables(nodes, edges), reverse_edges=True)
    spec = fit_history(bundle, "patient", "x", np.arange(20), np.full(20, 30))
    paths = {tuple(relation for _, relation, _ in events.path) for events in spec.events}
    assert {("of",), ("for",)} <= paths
    assert (("during", "of") in paths) is not is_same


def test_few_ends_are_categories_by_id_in_any_order_of_their_table(tmp_path: Path) -> None:
    rng, days = np.random.default_rng(0), np.arange(200) // 4
    user, shop = rng.integers(0, _USERS, 200), rng.integers(0, _SHOPS, 200)

    def history(name: str, shops: list[str], spec: HistorySpec | None = None) -> History:
        x = {"x": rng.random((len(shops), 1), np.float32)}
        nodes = {"user": node_rows(np.arange(_USERS)), "shop": node_rows(pa.array(shops), x)}
        of_shop = pa.array([shops[-1] if len(shops) == 5 and s == 0 else f"s{s}" for s in shop])
        edges = {("user", "buys", "shop"): edge_rows(pa.array(user), of_shop, time=days)}
        bundle = ingest_tables(tmp_path / name, GraphTables(nodes, edges), reverse_edges=True)
        rows = rng.integers(0, _USERS, 900), rng.integers(0, 50, 900)
        return History(bundle, spec or fit_history(bundle, "user", "x", *rows))

    asked = np.arange(_USERS), np.full(_USERS, 49)
    known = history("known", ["s0", "s1", "s2", "s3"])
    last = known.names.index("buys.shop.id last")
    latest = [shop[np.flatnonzero(user == each)[-1]] for each in asked[0]]
    np.testing.assert_array_equal(known.columns(*asked)[:, last], latest)
    assert known.described[last].names == ("s0", "s1", "s2", "s3")
    assert last in known.categorical
    others = [i for i, name in enumerate(known.names) if name.startswith("buys.shop.id")]
    turned = history("turned", ["s3", "s1", "s0", "s2"], known.spec).columns(*asked)
    np.testing.assert_array_equal(turned[:, others], known.columns(*asked)[:, others])
    # A shop that training did not have is unknown.
    opened = history("opened", ["s0", "s1", "s2", "s3", "new"], known.spec).columns(*asked)
    expected = [np.nan if each == 0 else each for each in latest]
    np.testing.assert_array_equal(opened[:, last], expected)


@pytest.mark.parametrize("times", ["edges", "nodes"])
def test_later_events_and_other_nodes_change_no_bit(tmp_path: Path, times: str) -> None:
    orders = _orders(150)
    bundle = _bundle(tmp_path / "today", orders, times)
    spec, (nodes, asked) = _spec(bundle), _asked()
    asked = np.minimum(asked, 20)
    expected = History(bundle, spec).columns(nodes, asked)
    more, is_later = _orders(60, seed=9), orders["day"] > 20
    changed = {
        name: np.concatenate([np.where(is_later, values[::-1], values), more[name]])
        for name, values in orders.items()
    }
    changed["day"][:150] = np.where(is_later, orders["day"], changed["day"][:150])
    changed["day"][150:] += 21
    later = History(_bundle(tmp_path / "later", changed, times), spec)
    assert np.array_equal(later.columns(nodes, asked), expected, equal_nan=True)
    alone = orders | {"user": np.where(orders["user"] == 2, 2, _USERS - 1)}
    others = [i for i, name in enumerate(later.names) if not name.startswith("order.shop:")]
    mine = nodes == 2
    found = History(_bundle(tmp_path / "alone", alone, times), spec).columns(nodes, asked)
    assert np.array_equal(found[mine][:, others], expected[mine][:, others], equal_nan=True)
    one_by_one = [later.columns(nodes[i : i + 1], asked[i : i + 1]) for i in range(len(nodes))]
    assert np.array_equal(np.concatenate(one_by_one), expected, equal_nan=True)


@pytest.mark.parametrize("times", ["edges", "nodes", "link table"])
def test_what_happens_to_each_node_once_is_known_from_then_on(tmp_path: Path, times: str) -> None:
    """One cancellation of each user, which the reverse edge type leads to; or one advisor each."""
    rng, users = np.random.default_rng(4), np.arange(300)
    day, reason = rng.integers(5, 40, len(users)), rng.random((len(users), 1), np.float32)
    of_nodes = {"time": day} if times == "nodes" else {}
    of_edges = {} if times == "nodes" else {"time": day}
    nodes = {"user": node_rows(users), "end": node_rows(users, {"x": reason}, **of_nodes)}
    edge_type = ("user", "has", "end") if times == "link table" else ("end", "of", "user")
    edges = {edge_type: edge_rows(users, users, **of_edges)}
    bundle = ingest_tables(tmp_path, GraphTables(nodes, edges), reverse_edges=True)
    asked = users.repeat(2), rng.integers(0, 40, 2 * len(users))
    history = History(bundle, fit_history(bundle, "user", "x", *asked))
    is_later = day[asked[0]] > asked[1]
    found = history.columns(*asked)
    values = found[:, [i for i, name in enumerate(history.names) if ".x" in name]]
    assert values.size
    assert not np.nan_to_num(values[is_later]).any()
    assert (np.nan_to_num(values[~is_later]) == reason[asked[0]][~is_later]).any(axis=1).all()


def test_the_spec_is_json_and_fitted_on_training_times(tmp_path: Path) -> None:
    orders = _orders(150)
    orders["day"][:80] %= 15
    rows = np.arange(_USERS).repeat(3), np.tile([5, 10, 14], _USERS)
    bundle = _bundle(tmp_path / "a", orders)
    spec = fit_history(bundle, "user", "x", *rows, window=3)
    read = type_adapter(HistorySpec).validate_json(type_adapter(HistorySpec).dump_json(spec))
    assert read == spec
    assert type_adapter(HistorySpec).validate_python(asdict(spec)) == spec
    late = orders["day"] > 14
    orders["amount"] = np.where(late, orders["amount"] * 7, orders["amount"])
    again = fit_history(_bundle(tmp_path / "b", orders), "user", "x", *rows, window=3)
    assert again == spec


def test_without_times_all_events_count(tmp_path: Path) -> None:
    orders = _orders(150)
    bundle = _bundle(tmp_path, orders)
    history = History(bundle, fit_history(bundle, "user", "x", np.arange(_USERS), None))
    found = history.columns(np.arange(_USERS), None)
    counts = np.bincount(orders["user"], minlength=_USERS)
    assert np.array_equal(found[:, history.names.index("order count all")], counts)
    sums = np.bincount(orders["user"], orders["amount"], minlength=_USERS)
    assert found[:, history.names.index("order.x sum all")] == pytest.approx(sums)


def test_clocks_and_copies_are_left_out(tmp_path: Path) -> None:
    orders = _orders(400)
    orders["amount"] = (orders["day"] * 3 + 1).astype(np.float32)  # a running number
    bundle = _bundle(tmp_path, orders)
    names = History(bundle, _spec(bundle)).names
    assert not [name for name in names if name.startswith("order.x")]


def test_ages_that_are_times_for_most_nodes_are_left_out() -> None:
    """Of ten meters, seven were there when the data began."""
    rng, began = np.random.default_rng(0), np.array([0] * 7 + [4, 9, 14])
    times, node = np.arange(20).repeat(10), np.tile(np.arange(10), 20)
    rows = times >= began[node]
    times, node = times[rows], node[rows]
    age = (times - began[node]).astype(np.float64)
    assert not is_clock(age, times)
    columns = np.stack([age, np.minimum(age, 9), rng.random(len(age))], axis=1)
    described = [HistoryColumn(x, "meter", "age", is_age=True) for x in ("old", "young", "use")]
    assert list(_left_out(described, columns, times)) == ["old age"]


def test_amounts_are_in_their_own_unit(tmp_path: Path) -> None:
    orders = _orders(300)
    amounts = np.random.default_rng(4).lognormal(3, 2, 300)
    for name in ("log1p", "rank_gauss", "standard"):
        folder = tmp_path / name
        bundle = _bundle_with_transform(folder, orders, amounts, name)
        history = History(bundle, _spec(bundle))
        found = history.columns(np.arange(_USERS), np.full(_USERS, 50))
        sums = np.bincount(orders["user"], amounts, minlength=_USERS)
        column = history.names.index("order.amount sum all")
        assert found[:, column] == pytest.approx(sums, rel=1e-4)


def _bundle_with_transform(
    folder: Path, orders: dict[str, np.ndarray], amounts: np.ndarray, transform: str
) -> Bundle:
    import pyarrow.parquet as pq
    import yaml

    from raygnn.data.ingest.build_bundle import IngestOptions, ingest

    folder.mkdir()
    ids = np.arange(len(amounts))
    pq.write_table(pa.table({"id": np.arange(_USERS)}), folder / "user.parquet")
    pq.write_table(
        pa.table({"id": ids, "user": orders["user"], "day": orders["day"], "amount": amounts}),
        folder / "order.parquet",
    )
    columns = [{"column": "amount", "transform": transform}]
    order = {"files": "order.parquet", "id": "id", "features": {"x": columns}, "time": "day"}
    by = {"type": ["order", "by", "user"], "files": "order.parquet", "source": "id"}
    manifest = {
        "format": "raygnn/graph-v1",
        "node_types": {"user": {"files": "user.parquet", "id": "id"}, "order": order},
        "edge_types": [by | {"target": "user"}],
    }
    (folder / "graph.yaml").write_text(yaml.safe_dump(manifest))
    return ingest(str(folder), IngestOptions(), str(folder / "cache"))


_POSTS, _AUTHORS = 120, 7


def _posts(folder: Path, num_posts: int = _POSTS) -> Bundle:
    """Posts, with a time, whose author is known from then on."""
    rng = np.random.default_rng(6)
    day, author = rng.integers(0, 30, _POSTS), rng.integers(0, _AUTHORS, _POSTS)
    posts = np.arange(num_posts)
    nodes = {
        "author": node_rows(np.arange(_AUTHORS)),
        "post": node_rows(
            posts, {"x": rng.random((_POSTS, 1), np.float32)[posts]}, time=day[posts]
        ),
    }
    edges = {("post", "by", "author"): edge_rows(posts, author[posts])}
    return ingest_tables(folder, GraphTables(nodes, edges), reverse_edges=True)


def _rows_of_posts(bundle: Bundle, labels: np.ndarray) -> TableLabels:
    """Rows of posts, half of which have a label, known after three days."""
    rng = np.random.default_rng(7)
    posts = rng.integers(0, 100, len(labels))
    times = np.asarray(bundle.column("post", "time"))[posts] + rng.integers(0, 9, len(labels))
    rows = SeedRows("asked", "post", len(labels), posts, times, None, None, {}, 3)
    known = np.flatnonzero(rng.random(len(labels)) < 0.5)
    return TableLabels(rows, known, labels[known, None], None, "asked", ["y"])


def test_labels_of_rows_that_refer_to_the_same_node_are_known_after_their_window(
    tmp_path: Path,
) -> None:
    bundle, rng = _posts(tmp_path), np.random.default_rng(8)
    csc = bundle.csc(("post", "by", "author"))
    author = np.repeat(np.arange(_AUTHORS), np.diff(csc.indptr))[np.argsort(csc.indices)]
    values = rng.normal(size=400)
    labels = _rows_of_posts(bundle, values)
    posts, times = labels.rows.nodes, labels.rows.time
    assert posts is not None
    assert times is not None
    spec = fit_history(bundle, "post", "x", posts, times, labels=labels)
    history = History(bundle, spec, labels=labels)
    found = history.columns(posts, times)
    names = ("author: earlier labels count all", "author: earlier y mean all")
    positions = [history.names.index(name) for name in names]
    num_known = 0
    for row, (count, mean) in enumerate(found[:, positions]):
        same = author[posts[labels.known]] == author[posts[row]]
        past = labels.known[same & (times[labels.known] + 3 <= times[row])]
        assert row not in past
        assert count == len(past)
        assert mean == pytest.approx(values[past].mean() if len(past) else np.nan, nan_ok=True)
        num_known += len(past)
    assert num_known > 400
    # The label of a row whose window ends after a time changes no bit of a row at that time.
    later = times + 3 > 15
    shuffled = values.copy()
    shuffled[later] = rng.permutation(values[later])
    of_shuffled = History(bundle, spec, labels=_rows_of_posts(bundle, shuffled))
    early = times <= 15
    again = of_shuffled.columns(posts, times)
    assert np.array_equal(again[early], found[early], equal_nan=True)
    assert not np.array_equal(again, found, equal_nan=True)
    without = History(bundle, spec, labels=replace(labels, rows=None)).columns(posts, times)
    assert not without[:, positions[0]].any()
    # A post that is added later has the labels of its author's other posts.
    old = _posts(tmp_path / "old", 100)
    reader = RowReader(
        str(tmp_path / "old" / "tables"), old, ["x", "time"], IngestOptions(reverse_edges=True)
    )
    x, day = bundle.column("post", "x"), bundle.column("post", "time")
    new = range(100, _POSTS)
    rows = AddedRows(
        {"post": [{"id": i, "x": x[i].tolist(), "time": int(day[i])} for i in new]},
        {"post__by__author": [{"source": i, "target": int(author[i])} for i in new]},
    )
    growth = Growth(old, reader.read(rows))
    extended = ExtendedHistory(
        History(old, spec, labels=labels), ExtendedBundle(old, growth.view())
    )
    asked = rng.integers(0, _POSTS, 50), rng.integers(0, 40, 50)
    np.testing.assert_array_equal(extended.columns(*asked), history.columns(*asked))


@pytest.mark.parametrize("times", ["edges", "nodes"])
def test_added_rows_give_the_columns_of_the_whole_tables(tmp_path: Path, times: str) -> None:
    """Bit by bit, after each of several portions, of all nodes together and of one."""
    orders, num_old, options = _orders(150), 100, IngestOptions(reverse_edges=True)
    known = _bundle(tmp_path / "old", {k: v[:num_old] for k, v in orders.items()}, times)
    spec, (nodes, asked) = _spec(known), _asked()
    reader = RowReader(str(tmp_path / "old" / "tables"), known, ["x", "time"], options)
    growth = Growth(known, reader.read(AddedRows({})))
    of_known = History(known, spec)
    for first, last in ((100, 101), (101, 130), (130, 150)):
        added, day = range(first, last), orders["day"].tolist()
        of = {
            holder: [{"time": moment} if holder == times else {} for moment in day]
            for holder in ("nodes", "edges")
        }
        rows = AddedRows(
            {"order": [{"id": i, "x": [orders["amount"][i]], **of["nodes"][i]} for i in added]},
            {
                f"order__{name}__{to}": [
                    {"source": i, "target": orders[to][i], **of["edges"][i]} for i in added
                ]
                for name, to in (("by", "user"), ("at", "shop"))
            },
        )
        bundle = ExtendedBundle(known, growth.view())
        growth.append(reader.on(bundle).read(rows))
        whole = _bundle(tmp_path / f"{last}", {k: v[:last] for k, v in orders.items()}, times)
        expected = History(whole, spec).columns(nodes, asked)
        for view in (growth.view(), replace(growth.view(), chains={}, numbers={})):
            history = ExtendedHistory(of_known, ExtendedBundle(known, view))
            assert history.names == of_known.names
            np.testing.assert_array_equal(history.columns(nodes, asked), expected)
        alone = history.columns(nodes[7:8], asked[7:8])
        np.testing.assert_array_equal(alone, expected[7:8])
    assert not np.array_equal(of_known.columns(nodes, asked), expected, equal_nan=True)


@pytest.mark.parametrize(("end", "window"), [(None, None), (12, None), (None, 3), (12, 3)])
def test_guesses_are_of_earlier_labels_of_the_entity(end: int | None, window: int | None) -> None:
    rng = np.random.default_rng(0)
    nodes, times = rng.integers(0, 9, 300), rng.integers(0, 20, 300)
    scores = rng.normal(size=(300, 2))
    known = np.flatnonzero(rng.random(300) < 0.7)
    asked = rng.permutation(300)[:100]
    rows = SeedRows("visits", "user", 300, nodes, times, None, None, {}, window)
    default = np.array([5.0, -5.0])
    labels = PastLabels.of(rows, known, scores[known])
    until = times[asked] if end is None else np.minimum(times[asked], end)
    found = labels.guesses(nodes[asked], until, default)
    for row, mean, last in zip(asked, found["entity_mean"], found["last_label"], strict=True):
        until = times[row] if end is None else min(times[row], end)
        latest = until - (window or 1)  # its window is over, or its row is an earlier one
        past = [r for r in known if nodes[r] == nodes[row] and times[r] <= latest]
        if not past:
            assert np.array_equal(mean, default)
            assert np.array_equal(last, default)
            continue
        assert np.allclose(mean, scores[past].mean(axis=0))
        assert np.array_equal(last, scores[max(past, key=lambda r: (times[r], r))])


def test_no_labels_are_known() -> None:
    rows = SeedRows("visits", "user", 2, np.zeros(2, int), np.arange(2), None, None, {})
    none = np.empty(0, np.int64)
    for labels in (PastLabels.of(rows, none, np.ones((0, 1))), PastLabels.none(1)):
        found = labels.guesses(np.zeros(2, int), np.arange(2), np.array([0.5]))
        assert all(np.array_equal(guess, [[0.5], [0.5]]) for guess in found.values())
