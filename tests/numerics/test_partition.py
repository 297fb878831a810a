"""Partitioned graphs against ingests of the same tables with the nodes in the partition's order."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import BundleRecord
from raygnn.data.checksums import dump_record, parse_record
from raygnn.data.edge_types import EdgeType
from raygnn.data.hashing import hash_ids
from raygnn.data.ingest import pieces, sort_edges
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import open_partitioned
from raygnn.data.partition.record import PART_NAME, RECORD_NAME, PartitionRecord
from raygnn.data.partition.steps import Method
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.errors import DataError
from tests.errors import raises
from tests.folders import contents
from tests.partitioned_graphs import late_shop
from tests.social_tables import Tables, social_tables, write_social
from tests.tiers import slow

_METHODS = ["hash", "range", "ldg"]


def _renumbered(tables: Tables, bundle: Bundle) -> Tables:
    """The tables with the nodes in the order of a bundle's dense ids."""
    ordered = dict(tables)
    for name in bundle.node_types:
        row_of = {id_: row for row, id_ in enumerate(tables[name]["id"].to_pylist())}
        ordered[name] = tables[name].take([row_of[id_] for id_ in bundle.ids(name).to_pylist()])
    return ordered


def _record(bundle: Bundle) -> dict[str, Any]:
    """bundle.json without ranges of times, which only parts have."""
    record = asdict(BundleRecord.load(bundle.path))
    for column in _columns(record):
        if column["role"] == "time":
            column["statistics"] = None
        if column["transforms"] is not None:
            column["transforms"] = repr(column["transforms"])
    return {**record, "fingerprint": "", "is_of_parts": None, "fit": None}


def _columns(record: dict[str, Any]) -> list[dict[str, Any]]:
    edges = [*record["edges"], *record["label_edges"]]
    return [c for one in [*record["nodes"].values(), *edges] for c in one["columns"]]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces and buckets of few rows."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1200)
    monkeypatch.setattr(sort_edges, "BUCKET_EDGES", 7)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.tuples(st.integers(3, 30), st.integers(1, 12)),
    seed=st.integers(0, 99),
    num_parts=st.sampled_from([1, 2, 4, 3]),
    method=st.sampled_from(_METHODS),
    reverse_edges=st.booleans(),
    feature_dtype=st.sampled_from([None, "float16"]),
)
@pytest.mark.usefixtures("small_pieces")
def test_opened_whole_it_is_the_bundle_of_the_renumbered_tables(
    sizes: tuple[int, int],
    seed: int,
    num_parts: int,
    method: Any,
    reverse_edges: bool,
    feature_dtype: Any,
) -> None:
    """Every array byte for byte: so features, labels, times, splits and edges of each node."""
    tables = social_tables(*sizes, seed)
    options = IngestOptions(reverse_edges=reverse_edges, feature_dtype=feature_dtype)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_social(folder / "graph", tables)
        how = Partitioning(num_parts, method)
        partition(folder / "graph", folder / "parts", how, options)
        whole = open_partitioned(folder / "parts", folder / "cache")
        again = write_social(folder / "again", _renumbered(tables, whole))
        expected = ingest(again, options, folder / "cache")
        assert contents(whole.path, "*.npy") == contents(expected.path, "*.npy")
        assert _record(whole) == _record(expected)


@pytest.mark.usefixtures("small_pieces")
def test_range_keeps_the_dense_ids_of_an_ingest(tmp_path: Path) -> None:
    graph = write_social(tmp_path / "graph", social_tables(40, 9, 3))
    partition(graph, tmp_path / "parts", Partitioning(4, "range"))
    whole = open_partitioned(tmp_path / "parts", tmp_path / "cache")
    assert contents(whole.path, "*.npy") == contents(
        ingest(graph, None, tmp_path / "cache").path, "*.npy"
    )


def test_hash_follows_from_the_original_id_alone(tmp_path: Path) -> None:
    tables = social_tables(40, 9, 3)
    record = partition(
        write_social(tmp_path / "graph", tables), tmp_path / "parts", Partitioning(4, "hash")
    )
    whole = open_partitioned(tmp_path / "parts", tmp_path / "cache")
    for name in ("user", "item"):
        ids = whole.ids(name)
        part = (hash_ids(ids, 0) % np.uint64(4)).astype(int)
        assert np.array_equal(part, np.repeat(np.arange(4), record.nodes[name]))
        # In a part the order of the table stays.
        row_of = {id_: row for row, id_ in enumerate(tables[name]["id"].to_pylist())}
        rows = np.array([row_of[id_] for id_ in ids.to_pylist()])
        assert np.array_equal(np.lexsort([rows, part]), np.arange(len(rows)))


@pytest.mark.parametrize("method", ["ldg", *slow("hash", "range")])
def test_counts_and_cut_are_those_of_the_edges(tmp_path: Path, method: Any) -> None:
    graph = write_social(tmp_path / "graph", social_tables(40, 9, 4))
    record = partition(graph, tmp_path / "parts", Partitioning(3, method))
    whole = open_partitioned(tmp_path / "parts", tmp_path / "cache")
    for edge_type in whole.edge_types:
        part_of = {
            name: np.repeat(np.arange(3), record.nodes[name])
            for name in (edge_type[0], edge_type[2])
        }
        csc = whole.csc(edge_type)
        targets = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
        into, source = part_of[edge_type[2]][targets], part_of[edge_type[0]][csc.indices]
        counts = record.counts_of(edge_type)
        assert counts.counts == tuple(np.bincount(into, minlength=3))
        assert counts.cut == tuple(np.bincount(into[into != source], minlength=3))


def _drawn_errors(kind: str, tables: Tables) -> Tables:
    if kind == "dangling":
        buys = tables["buys"].to_pydict()
        buys["t"][3:5] = [2**50, 2**51]
        return {**tables, "buys": pa.table(buys)}
    users = tables["user"].to_pydict()
    if kind == "repeated":
        users["id"][7:9] = [users["id"][0], users["id"][1]]
    else:
        users["age"][5] = float("nan")
    schema = tables["user"].schema
    return {**tables, "user": pa.table(users, schema)}


@pytest.mark.parametrize(
    ("kind", "method"),
    [("dangling", "ldg"), ("repeated", "ldg"), *slow(("nan", "hash"), ("dangling", "range"))],
)
@pytest.mark.usefixtures("small_pieces")
def test_bad_rows_are_reported_as_by_ingest(tmp_path: Path, kind: str, method: Any) -> None:
    """File, column, row, value and remedy: the same text."""
    graph = write_social(tmp_path / "graph", _drawn_errors(kind, social_tables(30, 9, 6)))
    with pytest.raises(DataError) as of_ingest:
        ingest(graph, None, tmp_path / "cache")
    with pytest.raises(DataError) as of_partition:
        partition(graph, tmp_path / "parts", Partitioning(3, method))
    assert str(of_partition.value) == str(of_ingest.value)


@pytest.mark.parametrize("kind", ["nan", *slow("dangling", "repeated")])
@pytest.mark.usefixtures("small_pieces")
def test_dropped_rows_are_those_that_ingest_drops(tmp_path: Path, kind: str) -> None:
    tables = _drawn_errors(kind, social_tables(30, 9, 6))
    if kind != "dangling":  # edges of dropped users would dangle
        users = social_tables(30, 9, 6)["user"]["id"].to_pylist()
        gone = pa.array([users[row] for row in (5, 7, 8)])
        for name, ends in (("knows", "st"), ("buys", "s"), ("likes", "s")):
            for end in ends:
                table = tables[name]
                tables[name] = table.filter(pc.invert(pc.is_in(table[end], gone)))
    graph, options = write_social(tmp_path / "graph", tables), IngestOptions(on_error="drop")
    said: list[str] = []
    partition(graph, tmp_path / "parts", Partitioning(3, "range"), options, progress=said.append)
    whole = open_partitioned(tmp_path / "parts", tmp_path / "cache")
    assert contents(whole.path, "*.npy") == contents(
        ingest(graph, options, tmp_path / "cache").path, "*.npy"
    )
    assert any("dropped" in line for line in said)


class _InterruptedError(Exception):
    pass


def _stopping(after: int) -> Callable[..., list[Any]]:
    """A schedule that stops when it has run some tasks."""
    left = [after]

    def schedule(fn: Callable[[Any], Any], items: list[Any], label: str) -> list[Any]:
        results = []
        for item in items:
            if hasattr(item, "folder") and hasattr(item, "fn"):
                if not left[0]:
                    raise _InterruptedError
                left[0] -= 1
            results.append(fn(item))
        return results

    return schedule


def _files(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if name != ".lock"}


@pytest.mark.parametrize(
    ("method", "is_fitted"),
    [("ldg", False), *slow(("hash", False), ("range", False), ("hash", True))],
)
@pytest.mark.usefixtures("small_pieces")
def test_interrupted_and_resumed_is_as_straight(
    tmp_path: Path, method: Any, is_fitted: bool
) -> None:
    """`is_fitted`: some tables are read twice, since transforms are fitted on training rows."""
    if is_fitted:
        graph = Path(write_tables(late_shop(), str(tmp_path / "graph")))
    else:
        graph = write_social(tmp_path / "graph", social_tables(12, 5, 7), num_shards=1)
    how = Partitioning(2, method)
    ran: list[str] = []

    def counting(fn: Callable[[Any], Any], items: list[Any], label: str) -> list[Any]:
        ran.extend(str(i.folder) for i in items if hasattr(i, "folder") and hasattr(i, "fn"))
        return [fn(item) for item in items]

    partition(graph, tmp_path / "straight", how, schedule=lambda _: counting)
    num_tasks = len(ran)
    stops = 0
    while not (tmp_path / "resumed" / RECORD_NAME).exists():
        try:
            partition(graph, tmp_path / "resumed", how, schedule=lambda _: _stopping(9))
        except _InterruptedError:
            stops += 1
    # No task ran twice: each start but the last has run nine new ones.
    assert stops == (num_tasks - 1) // 9
    assert _files(tmp_path / "resumed") == _files(tmp_path / "straight")


def test_a_finished_partition_is_left_as_it_is(tmp_path: Path) -> None:
    graph = write_social(tmp_path / "graph", social_tables(12, 5, 7))
    first = partition(graph, tmp_path / "parts", Partitioning(2))
    before = _files(tmp_path / "parts")

    def never(fn: Callable[[Any], Any], items: list[Any], label: str) -> list[Any]:
        raise AssertionError(label)

    assert partition(graph, tmp_path / "parts", Partitioning(2), schedule=lambda _: never) == first
    assert _files(tmp_path / "parts") == before
    with raises("partition-out-taken"):
        partition(graph, tmp_path / "parts", Partitioning(3))


def _part(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}"


def _remove(folder: Path) -> None:
    shutil.rmtree(_part(folder, 1))


def _cut_off(folder: Path) -> None:
    path = _part(folder, 1) / "nodes" / "item" / "columns" / "x.npy"
    path.write_bytes(path.read_bytes()[:-1])


def _swap(folder: Path) -> None:
    _part(folder, 0).rename(folder / "other")
    _part(folder, 1).rename(_part(folder, 0))
    (folder / "other").rename(_part(folder, 1))


def _garble_part(folder: Path) -> None:
    (_part(folder, 1) / PART_NAME).write_text("{")


def _garble_record(folder: Path) -> None:
    record = parse_record((folder / RECORD_NAME).read_text())
    (folder / RECORD_NAME).write_text(dump_record({**record, "edges": 3}))


def _raise_version(folder: Path) -> None:
    record = parse_record((folder / RECORD_NAME).read_text())
    (folder / RECORD_NAME).write_text(dump_record({**record, "version": 99}))


@pytest.mark.parametrize(
    ("damage", "id", "values"),
    [
        (_remove, "partition-missing", [1]),
        (_cut_off, "partition-damaged", ["part-00001", "columns/x.npy"]),
        (_swap, "partition-part-foreign", [0, 1]),
        (_garble_part, "partition-damaged", ["part-00001", PART_NAME]),
        (_garble_record, "partition-damaged", [RECORD_NAME]),
        (_raise_version, "partition-format", [99]),
    ],
)
def test_damage_is_reported(
    tmp_path: Path, damage: Callable[[Path], None], id: str, values: list[Any]
) -> None:
    graph = write_social(tmp_path / "graph", social_tables(12, 5, 7))
    partition(graph, tmp_path / "parts", Partitioning(2))
    damage(tmp_path / "parts")
    with raises(id, *values):
        open_partitioned(tmp_path / "parts", tmp_path / "cache")


def test_a_part_of_another_partition_is_refused(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "other")):
        graph = write_social(tmp_path / f"graph-{name}", social_tables(12, 5, seed))
        partition(graph, tmp_path / name, Partitioning(2))
    shutil.rmtree(_part(tmp_path / "one", 1))
    shutil.copytree(_part(tmp_path / "other", 1), _part(tmp_path / "one", 1))
    with raises("partition-part-foreign", 1):
        open_partitioned(tmp_path / "one", tmp_path / "cache")


def test_wrong_arguments(tmp_path: Path) -> None:
    graph = write_social(tmp_path / "graph", social_tables(3, 1, 7))
    with raises("partition-too-many-parts", 5, 4):
        partition(graph, tmp_path / "parts", Partitioning(5))
    with raises("partition-parts", 0):
        partition(graph, tmp_path / "parts", Partitioning(0))
    with raises("partition-missing"):
        open_partitioned(tmp_path / "nothing")


def test_the_record_says_what_was_written(tmp_path: Path) -> None:
    graph = write_social(tmp_path / "graph", social_tables(12, 5, 7))
    record = partition(graph, tmp_path / "parts", Partitioning(2))
    assert PartitionRecord.load(tmp_path / "parts") == record
    assert replace(record.whole, nodes={}) != record.whole
    assert not (tmp_path / "parts" / "work").exists()


NUM_USERS, NUM_ITEMS, NUM_GROUPS = 2000, 800, 40


def _communities() -> GraphTables:
    """Of 40 groups of users and items, 90 % of the edges are within a group."""
    rng = np.random.default_rng(0)
    groups = {"user": rng.integers(0, NUM_GROUPS, NUM_USERS)}
    groups["item"] = rng.integers(0, NUM_GROUPS, NUM_ITEMS)
    members = {
        name: [np.flatnonzero(of == g) for g in range(NUM_GROUPS)] for name, of in groups.items()
    }

    def edges(target_type: str, count: int) -> object:
        source = rng.integers(0, NUM_USERS, count)
        inside = [rng.choice(members[target_type][g]) for g in groups["user"][source]]
        anywhere = rng.integers(0, len(groups[target_type]), count)
        return edge_rows(source, np.where(rng.random(count) < 0.9, inside, anywhere))

    return GraphTables(
        {"user": node_rows(np.arange(NUM_USERS)), "item": node_rows(np.arange(NUM_ITEMS))},
        {
            ("user", "knows", "user"): edges("user", 12_000),
            ("user", "buys", "item"): edges("item", 8_000),
        },
    )


def _cuts(record: PartitionRecord) -> dict[EdgeType, float]:
    return {
        edge.type: sum(found.cut) / sum(found.counts)
        for edge, found in zip(record.whole.edges, record.edges, strict=True)
    }


@pytest.mark.parametrize("num_parts", [2, 4])
def test_communities_stay_together_and_parts_are_even(tmp_path: Path, num_parts: int) -> None:
    uri = write_tables(_communities(), str(tmp_path / "tables"))
    methods: tuple[Method, ...] = ("hash", "ldg")
    records = [partition(uri, tmp_path / m, Partitioning(num_parts, m)) for m in methods]
    hashed, found = map(_cuts, records)
    for edge_type, cut in found.items():
        assert hashed[edge_type] > 0.95 * (1 - 1 / num_parts)
        assert cut < 0.3 * hashed[edge_type], edge_type
    for counts in records[1].nodes.values():
        assert max(counts) <= np.ceil(1.05 * sum(counts) / num_parts)
        assert min(counts) > 0


def test_parts_do_not_depend_on_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = write_tables(_communities(), str(tmp_path / "tables"), num_shards=3)
    one = partition(uri, tmp_path / "one", Partitioning(3, "ldg"))
    monkeypatch.setattr(pieces, "PIECE_BYTES", 9000)
    other = partition(uri, tmp_path / "other", Partitioning(3, "ldg"))
    assert one == other
    for path in sorted((tmp_path / "one").rglob("*.npy")):
        same = tmp_path / "other" / path.relative_to(tmp_path / "one")
        assert same.read_bytes() == path.read_bytes(), path


def test_dropped_rows_have_no_part(tmp_path: Path) -> None:
    tables = _communities()
    nodes = dict(tables.nodes)
    nodes["item"] = node_rows(np.arange(NUM_ITEMS - 5).repeat([2, *[1] * (NUM_ITEMS - 6)]))
    uri = write_tables(GraphTables(nodes, tables.edges), str(tmp_path / "tables"))
    record = partition(uri, tmp_path / "out", Partitioning(2, "ldg"), IngestOptions("drop"))
    assert sum(record.nodes["item"]) == NUM_ITEMS - 5
    assert sum(record.nodes["user"]) == NUM_USERS
