"""A graph with added rows gives what the same tables give ingested whole."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from raygnn.data.added_rows import AddedRows, RowReader
from raygnn.data.bundle import Bundle
from raygnn.data.extended_bundle import Addition, ExtendedBundle
from raygnn.data.growth import Growth
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.sampling.extended_stores import ExtendedFeatureStore, ExtendedGraphStore
from raygnn.sampling.protocols import PickRequest, Picks
from raygnn.sampling.stores import LocalFeatureStore, LocalGraphStore
from raygnn.sampling.temporal import Horizon, Temporal
from tests.errors import raises
from tests.graph_writer import write_graph, write_shards

USERS, ITEMS, NEW_USERS, NEW_ITEMS = 60, 40, 4, 3
BUYS, FOLLOWS = ("user", "buys", "item"), ("user", "follows", "user")
BLOCKS = ("user", "blocks", "user")  # without a reverse
COLUMNS = ("x", "edge_attr", "weight", "time")
OPTIONS = IngestOptions()


def shop(*, with_times: bool) -> GraphTables:
    rng = np.random.default_rng(3)
    num_users, num_items = USERS + NEW_USERS, ITEMS + NEW_ITEMS
    ids = pa.array([f"u{i}" for i in rng.permutation(1000)[:num_users]])
    users, items = rng.integers(0, num_users, 900), rng.integers(0, num_items, 900)
    source, target = rng.integers(0, num_users, 400), rng.integers(0, num_users, 400)
    times = rng.integers(0, 50, 900).astype("datetime64[s]") if with_times else None
    buys = edge_rows(
        ids.take(pa.array(users)),
        items * 10,
        {"edge_attr": rng.random((900, 2), np.float32)},
        weight=rng.integers(0, 5, 900).astype(np.float32),
        time=times,
    )
    follows = edge_rows(ids.take(pa.array(source)), ids.take(pa.array(target)))
    x = {n: rng.random((count, 3), np.float32) for n, count in ((0, num_users), (1, num_items))}
    return GraphTables(
        {
            "user": node_rows(ids, {"x": x[0]}),
            "item": node_rows(
                np.arange(num_items) * 10,
                {"x": x[1]},
                time=np.arange(num_items).astype("datetime64[s]") if with_times else None,
            ),
        },
        {BUYS: buys, FOLLOWS: replace(follows, directed=False), BLOCKS: follows},
    )


@dataclass(frozen=True)
class Case:
    """The graph of the first rows, the other rows, and the graph of all rows."""

    tables: str
    old: Bundle
    rows: AddedRows
    whole: Bundle

    def extended(self, rows: AddedRows | None = None) -> ExtendedBundle:
        reader = RowReader(self.tables, self.old, COLUMNS, IngestOptions())
        return ExtendedBundle(self.old, reader.read(rows or self.rows))


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "timed"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder, tables = tmp_path_factory.mktemp("rows"), shop(with_times=request.param)
    known = {"user": USERS, "item": ITEMS}
    ids = {n: rows.table.column("id").slice(0, known[n]) for n, rows in tables.nodes.items()}
    is_old, old, new = {}, {}, {}
    for edge_type, rows in tables.edges.items():
        sides = zip((rows.source, rows.target), edge_type[::2], strict=True)
        found = [pc.is_in(rows.table.column(c), ids[n].combine_chunks()) for c, n in sides]
        is_old[edge_type] = pc.and_(*found)
        old[edge_type] = replace(rows, table=rows.table.filter(is_old[edge_type]))
        new[edge_type] = rows.table.filter(pc.invert(is_old[edge_type]))
    # The order of equal rows is that of the input, where the new ones stand behind the others.
    whole = {
        t: replace(rows, table=pa.concat_tables([old[t].table, new[t]]))
        for t, rows in tables.edges.items()
    }
    first = {n: replace(r, table=r.table.slice(0, known[n])) for n, r in tables.nodes.items()}
    uris = [
        write_tables(GraphTables(nodes, edges), str(folder / name), num_shards=2)
        for name, nodes, edges in (("old", first, old), ("whole", tables.nodes, whole))
    ]
    bundles = [ingest(uri, IngestOptions(), folder / "cache") for uri in uris]
    added = AddedRows(
        {n: json_rows(r.table.slice(known[n])) for n, r in tables.nodes.items()},
        {"__".join(t): json_rows(table) for t, table in new.items()},
    )
    return Case(uris[0], bundles[0], added, bundles[1])


def json_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as JSON has them: features as lists."""
    return [
        {
            k: np.frombuffer(v, np.float32).tolist() if isinstance(v, bytes) else v
            for k, v in r.items()
        }
        for r in table.to_pylist()
    ]


@pytest.mark.parametrize("fanout", [-1, 3, 60])
@pytest.mark.parametrize("way", ["uniform", "weight", "by_neighbor", "horizon"])
def test_picks_are_those_of_the_whole_tables(case, fanout, way):
    is_timed = "time" in case.whole.columns(BUYS)
    if way == "horizon" and not is_timed:
        pytest.skip("there are no times")
    bundle = case.extended()
    extended = ExtendedGraphStore(LocalGraphStore(case.old), bundle)
    whole = LocalGraphStore(case.whole)
    assert extended.edge_types == whole.edge_types
    for edge_type in whole.edge_types:
        taker = edge_type[2]
        nodes = np.random.default_rng(1).permutation(whole.num_nodes(taker))
        assert extended.num_nodes(taker) == len(nodes)
        assert extended.num_edges(edge_type) == whole.num_edges(edge_type)
        request = PickRequest(
            nodes,
            fanout,
            key=7,
            hop=1,
            weight="weight" if way == "weight" else None,
            by_neighbor=way == "by_neighbor",
            horizon=_horizon(len(nodes)) if way == "horizon" else None,
        )
        found, expected = (store.pick(edge_type, request) for store in (extended, whole))
        np.testing.assert_array_equal(found.offsets, expected.offsets)
        np.testing.assert_array_equal(found.neighbors, expected.neighbors)
        if "edge_attr" in case.whole.columns(edge_type):
            rows = features(bundle).gather(edge_type, "edge_attr", found.e_id)
            wanted = LocalFeatureStore(case.whole).gather(
                edge_type, "edge_attr", expected.e_id.astype(np.int64)
            )
            np.testing.assert_array_equal(rows, wanted)


def features(bundle: ExtendedBundle) -> ExtendedFeatureStore:
    return ExtendedFeatureStore(bundle, {})


def _horizon(num_nodes: int) -> Horizon:
    return Horizon(Temporal("time"), np.full(num_nodes, 25_000_000))


@pytest.mark.parametrize("in_time", [False, True])
def test_degrees_are_those_of_the_whole_tables(case, in_time):
    if in_time and "time" not in case.whole.columns(BUYS):
        pytest.skip("there are no times")
    bundle = case.extended()
    known, whole = (LocalGraphStore(b) for b in (case.old, case.whole))
    stores = ExtendedGraphStore(known, bundle), whole
    for edge_type in case.whole.edge_types:
        for end, name in ((2, "degrees"), (0, "neighbor_degrees")):
            node_type = edge_type[end]
            nodes = np.random.default_rng(1).permutation(case.whole.num_nodes(node_type))
            horizon = _horizon(len(nodes)) if in_time else None
            found, expected = (getattr(s, name)(edge_type, nodes, horizon) for s in stores)
            np.testing.assert_array_equal(found, expected)


def test_rows_and_ids_are_those_of_the_whole_tables(case):
    addition = pickle.loads(pickle.dumps(case.extended().addition))  # as workers get it
    bundle = ExtendedBundle(case.old, addition)
    for node_type in case.whole.node_types:
        ids = case.whole.ids(node_type)
        np.testing.assert_array_equal(bundle.id_map(node_type).lookup(ids), np.arange(len(ids)))
        assert bundle.ids(node_type).equals(ids)
        nodes = np.random.default_rng(1).permutation(len(ids))
        assert bundle.take_ids(node_type, nodes).equals(ids.take(pa.array(nodes)))
        found = features(bundle).gather(node_type, "x", nodes)
        np.testing.assert_array_equal(
            found, LocalFeatureStore(case.whole).gather(node_type, "x", nodes)
        )
    assert bundle.id_map("user").lookup(pa.array(["nobody"])).tolist() == [-1]


def test_rows_that_come_one_after_another_are_those_of_the_whole_tables(case):
    """Also the view of each moment, after later rows came."""
    rng, reader = np.random.default_rng(0), RowReader(case.tables, case.old, COLUMNS, OPTIONS)
    growth = Growth(case.old, reader.read(AddedRows({})))
    rows: list[tuple[str, str, Any]] = [
        (kind, name, row)
        for kind, tables in (("nodes", case.rows.nodes), ("edges", case.rows.edges))
        for name, table in tables.items()
        for row in table
        if name != "user__follows__user"  # a copy depends on rows of both directions
    ]
    ends = np.unique([*rng.integers(1, len(rows), 8), len(rows)])
    moments = []
    for first, last in zip([0, *ends], ends, strict=False):
        added: dict[str, Any] = {"nodes": {}, "edges": {}}
        for kind, name, row in rows[first:last]:
            added[kind].setdefault(name, []).append(row)
        bundle = ExtendedBundle(case.old, growth.view())
        growth.append(reader.on(bundle).read(AddedRows(**added)))
        moments.append((growth.view(), *_samples(case, growth.view())))
    bundle = ExtendedBundle(case.old, growth.view())
    for view, *samples in moments:
        np.testing.assert_equal(_samples(case, view), samples)
    for node_type in case.whole.node_types:
        ids = case.whole.ids(node_type)
        np.testing.assert_array_equal(bundle.id_map(node_type).lookup(ids), np.arange(len(ids)))
        np.testing.assert_array_equal(
            features(bundle).gather(node_type, "x", np.arange(len(ids))),
            LocalFeatureStore(case.whole).gather(node_type, "x", np.arange(len(ids))),
        )
    whole = LocalGraphStore(case.whole)
    expected = [whole.pick(t, _last(whole.num_nodes(t[2]))) for t in (BUYS, BLOCKS)]
    for found, wanted in zip(_samples(case, growth.view()), expected, strict=True):
        np.testing.assert_array_equal(found.neighbors, wanted.neighbors)
        np.testing.assert_array_equal(found.offsets, wanted.offsets)


def _samples(case: Case, view: Addition) -> list[Picks]:
    store = ExtendedGraphStore(LocalGraphStore(case.old), ExtendedBundle(case.old, view))
    return [store.pick(t, _last(store.num_nodes(t[2]))) for t in (BUYS, BLOCKS)]


def _last(num_nodes: int) -> PickRequest:
    return PickRequest(np.arange(num_nodes), 5, key=3, hop=0)


def _edited(case: Case, **changes: Any) -> AddedRows:
    user = {**case.rows.nodes["user"][0], **changes}
    return AddedRows({"user": [user]}, {})


def test_wrong_rows_are_refused(case):
    known, user = case.old.ids("user")[0].as_py(), case.rows.nodes["user"][0]
    edge = {**case.rows.edges["user__buys__item"][0], "source": "nobody", "target": 0}
    wrong = [
        (AddedRows({"users": [{}]}), "rows-type-unknown", ["user"]),
        (AddedRows({}, {"user__sells__item": [{}]}), "rows-type-unknown", ["user__buys__item"]),
        (_edited(case, idd=1), "rows-column-unknown", ["idd", "id"]),
        (_edited(case, id=known), "rows-id-known", [known]),
        *(
            (_edited(case, id=id), "nodes-id-kind", [])
            for id in (7, [None], [1], {"a": 1}, 1.5, True)
        ),
        (AddedRows({"user": [user, user]}), "nodes-id-repeated", [user["id"]]),
        (_edited(case, id=None), "nodes-null-ids", ["id"]),
        (_edited(case, x=[1.0, "a", 2.0]), "rows-column-kinds", ["x"]),
        (_edited(case, x=None), "table-null-values", ["x"]),
        (_edited(case, x=[1.0, 2.0]), "rows-feature-width", ["x", 3, 2]),
        (AddedRows({}, {"user__buys__item": [edge]}), "edges-dangling", ["nobody"]),
    ]
    for rows, id, values in wrong:
        with raises(id, *values):
            case.extended(rows)


def test_a_row_of_a_million_values_is_refused_at_once(case):
    before = time.process_time()
    with raises("rows-feature-width", 1_000_000, 3):
        case.extended(_edited(case, x=[0.5] * 1_000_000))
    assert time.process_time() - before < 1


def test_each_column_of_a_feature_has_its_own_width(tmp_path):
    """`x` of two and `year` of two fill a row of four as well as three and one do."""
    rng = np.random.default_rng(0)
    columns = {"id": np.arange(5), "x": list(rng.random((5, 3))), "year": rng.random(5)}
    spec = {"features": {"x": {"columns": ["x", "year"]}}}
    graph = write_graph(tmp_path / "graph", pa.table(columns), node_spec=spec)
    bundle = ingest(graph, IngestOptions(), tmp_path / "cache")
    reader = RowReader(str(graph), bundle, ["x"], IngestOptions())
    added = reader.read(AddedRows({"n": [{"id": 7, "x": [1, 2, 3], "year": 4}]}))
    np.testing.assert_array_equal(added.column("n", "x"), [[1, 2, 3, 4]])
    for row, values in (
        ({"x": [1, 2], "year": [3, 4]}, ["x", 2, 3]),
        ({"x": [1, 2, 3], "year": [4, 5]}, ["year", 2, 1]),
        ({"x": [1, 2, 3, 4]}, ["x", 4, 3]),
    ):
        with raises("rows-feature-width", *values):
            reader.read(AddedRows({"n": [{"id": 7, **row}]}))


@pytest.mark.parametrize("on_error", ["fail", "drop"])
def test_csv_files_are_read_as_those_of_the_graph(tmp_path, on_error):
    """Texts that happen to be numbers stay texts; bad edges go where the graph's would."""
    nodes = pa.table({"id": ["a", "b", "c"], "kind": ["u", "v", "1"], "size": [1.5, 2.5, 3.0]})
    edges = pa.table({"s": ["a", "b"], "t": ["b", "c"]})
    kind = {"column": "kind", "transform": "one_hot"}
    spec = {"features": {"x": {"columns": [kind, "size"]}}}
    graph = write_graph(tmp_path / "graph", nodes, edges, spec, suffix=".csv")
    options = IngestOptions(on_error=on_error)
    bundle = ingest(graph, options, tmp_path / "cache")
    new = tmp_path / "new"
    write_shards(new / "nodes", [pa.table({"id": ["7"], "kind": ["1"], "size": [4]})], ".csv")
    write_shards(new / "edges", [pa.table({"s": ["7", "7"], "t": ["a", "nobody"]})], ".csv")
    reader = RowReader(str(graph), bundle, ["x"], options)
    if on_error == "fail":
        with raises("edges-dangling", "nobody"):
            reader.read_tables(str(new))
        return
    added = reader.read_tables(str(new))
    whole = ingest(
        write_graph(
            tmp_path / "whole",
            pa.concat_tables([nodes, pa.table({"id": ["7"], "kind": ["1"], "size": [4.0]})]),
            edges,
            spec,
            suffix=".csv",
        ),
        replace(options, transforms={"n": {"x": bundle.columns("n")["x"].transforms}}),
        tmp_path / "cache",
    )
    np.testing.assert_array_equal(added.column("n", "x"), whole.column("n", "x")[3:])
    assert added.ids["n"].to_pylist() == ["7"]
    (sources, targets) = added.edges["n", "to", "n"]
    assert (sources.tolist(), targets.tolist()) == ([3], [0])


def test_sparse_rows_are_those_of_the_whole_tables(tmp_path):
    types = {"at": pa.list_(pa.int32()), "by": pa.list_(pa.float32())}
    rows = [{"id": i, "at": [i, i + 1], "by": [0.5, i]} for i in range(4)]
    table = pa.Table.from_pylist(rows, pa.schema([("id", pa.int64()), *types.items()]))
    spec = {"features": {"x": {"indices": "at", "values": "by", "dim": 5}}}
    options = IngestOptions()
    bundles = [
        ingest(write_graph(tmp_path / name, part, node_spec=spec), options, tmp_path / "cache")
        for name, part in (("old", table.slice(0, 3)), ("whole", table))
    ]
    reader = RowReader(str(tmp_path / "old"), bundles[0], ["x"], options)
    added = reader.read(AddedRows({"n": [rows[3]]})).column("n", "x")
    whole = bundles[1].column("n", "x")
    first = int(whole.indptr[3])
    np.testing.assert_array_equal(added.indptr, whole.indptr[3:] - first)
    np.testing.assert_array_equal(added.indices, whole.indices[first:])
    np.testing.assert_array_equal(added.values, whole.values[first:])
    with raises("table-sparse-type", "at"):
        reader.read(AddedRows({"n": [{**rows[3], "at": ["3", "4"]}]}))
