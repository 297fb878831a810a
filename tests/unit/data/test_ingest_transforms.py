"""Transforms of an ingest: fitted on training rows, applied to all rows and to other tables."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import RECORD_NAME
from raygnn.data.checksums import dump_record, parse_record
from raygnn.data.ingest import fit_features, pieces
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.manifest import FORMAT, DenseFeature, Manifest
from raygnn.data.standardization import ColumnScale
from raygnn.data.transforms import fit as fitting
from raygnn.data.transforms.fitted import FittedColumn, FittedFeature
from raygnn.data.transforms.state import OneHot, Standard
from raygnn.errors import DataError
from tests.errors import raises
from tests.graph_writer import cut, write_graph

NUM_ROWS = 60
COLUMNS: list[Any] = [
    "price",
    {"column": "age", "transform": "standard", "missing": "indicator"},
    {"column": "country", "transform": "category"},
    {"column": "income", "transform": "rank_gauss"},
    {"column": "joined", "transform": "time"},
    {"column": "plan", "transform": "auto"},
]


def people(num_rows: int = NUM_ROWS) -> pa.Table:
    rng = np.random.default_rng(0)
    ages = [None if i % 7 == 0 else float(i % 50) for i in range(num_rows)]
    return pa.table(
        {
            "id": [f"p{i}" for i in range(num_rows)],
            "price": rng.normal(size=num_rows),
            "age": pa.array(ages, pa.float64()),
            "country": [["de", "fr", "it", "no"][i * i % 4] for i in range(num_rows)],
            "income": rng.lognormal(0, 2, num_rows),
            "joined": pa.array(np.arange(num_rows) * 100_000 + 1_600_000_000, pa.timestamp("s")),
            "plan": [["free", "paid"][i % 2] for i in range(num_rows)],
            "tags": [["a", "b"][: i % 3] for i in range(num_rows)],
        }
    )


def made(
    folder: Path,
    table: pa.Table,
    columns: Any,
    *,
    num_shards: int = 1,
    suffix: str = ".parquet",
    spec: dict[str, Any] | None = None,
    lines: list[str] | None = None,
    **options: Any,
) -> Bundle:
    node_spec = {"features": {"x": columns}, **(spec or {})}
    path = write_graph(folder / "graph", cut(table, num_shards), None, node_spec, suffix=suffix)
    progress = None if lines is None else lines.append
    return ingest(path, IngestOptions(**options), folder / "cache", progress=progress)


def x_of(bundle: Bundle) -> np.ndarray:
    rows = bundle.column("n", "x")
    assert isinstance(rows, np.ndarray)
    return np.array(rows)


def transforms_of(bundle: Bundle) -> FittedFeature:
    found = bundle.columns("n")["x"].transforms
    assert found is not None
    return found


def test_a_row_is_all_columns_in_their_order(tmp_path: Path) -> None:
    table = people()
    bundle = made(tmp_path, table, COLUMNS)
    x = x_of(bundle)
    assert x.dtype == np.float32
    assert x.shape == (NUM_ROWS, 1 + 2 + 1 + 1 + 7 + 2)
    assert np.array_equal(x[:, 0], table["price"].to_numpy().astype("f4"))
    gaps = table["age"].is_null().to_numpy()
    assert np.array_equal(x[:, 2], gaps)
    ages = table["age"].to_numpy()[~gaps]
    assert np.allclose(x[~gaps, 1], (ages - ages.mean()) / ages.std(), atol=1e-6)
    codes = {"de": 1, "fr": 2}  # i * i % 4 is 0 or 1
    assert x[:, 3].tolist() == [codes[text] for text in table["country"].to_pylist()]
    assert transforms_of(bundle).num_codes == {3: 3}
    assert x[:, 12].tolist() == [1, 0] * 30


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_any_cut_of_the_tables_gives_the_same_bits(tmp_path: Path, suffix: str) -> None:
    table = people().drop_columns("tags")
    whole = made(tmp_path / "one", table, COLUMNS)
    shards = made(tmp_path / "many", table, COLUMNS, num_shards=7, suffix=suffix)
    assert transforms_of(shards) == transforms_of(whole)
    assert x_of(shards).tobytes() == x_of(whole).tobytes()


def test_rounds_of_a_fit_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "SAMPLE_SIZE", 10)
    columns = [{"column": "income", "transform": "rank_gauss"}]
    one = made(tmp_path / "one", people(), columns)
    monkeypatch.setattr(fit_features, "_FIRST_ROUND", 1)
    many = made(tmp_path / "many", people(), columns, num_shards=11)
    assert transforms_of(one) == transforms_of(many)
    ((income,),) = (transforms_of(one).parts,)
    assert len(income.state.quantiles) == 10  # type: ignore[union-attr]


def test_tasks_and_counts_travel(tmp_path: Path) -> None:
    def elsewhere(fn: Any, items: Any, label: str) -> list[Any]:
        sent = pickle.loads(pickle.dumps(items))
        return [pickle.loads(pickle.dumps(fn(item))) for item in sent]

    here = made(tmp_path, people(), COLUMNS)
    cache = tmp_path / "other"
    there = ingest(tmp_path / "graph", IngestOptions(), cache, schedule=elsewhere)
    assert x_of(there).tobytes() == x_of(here).tobytes()
    assert pickle.loads(pickle.dumps(transforms_of(there))) == transforms_of(here)


def test_states_are_of_training_rows(tmp_path: Path) -> None:
    table = people()
    split = ["train" if i < 20 else "val" if i < 40 else None for i in range(NUM_ROWS)]
    columns = [
        {"column": "price", "transform": "standard"},
        {"column": "name", "transform": "one_hot"},
    ]
    table = table.append_column("split", pa.array(split))
    table = table.append_column("name", pa.array(["a", "b"] * 10 + ["c"] * 40))
    bundle = made(tmp_path, table, columns, spec={"split": "split"})
    price, name = transforms_of(bundle).parts
    prices = table["price"].to_numpy()[:20]
    assert isinstance(price, FittedColumn)
    assert price.state == Standard(pytest.approx(prices.mean()), pytest.approx(prices.std()))
    assert isinstance(name, FittedColumn)
    assert name.state == OneHot(("a", "b"), has_rare=False)
    assert not x_of(bundle)[20:, 1:].any()
    none = table.set_column(table.column_names.index("split"), "split", pa.array(["val"] * 60))
    with raises("transform-no-training-rows", "split='split'"):
        made(tmp_path / "none", none, columns, spec={"split": "split"})


def test_ingest_prints_what_auto_chose(tmp_path: Path) -> None:
    lines: list[str] = []
    names = ["price", "age", "country", "income", "joined", "tags"]
    table = people()
    many = pa.array([f"c{i % 20}" for i in range(NUM_ROWS)])
    table = table.append_column("city", many).append_column("day", table["joined"].cast("string"))
    vectors = pa.array([[1.0, 2.0]] * NUM_ROWS)
    table = table.append_column("vector", vectors)
    columns = [{"column": n, "transform": "auto"} for n in [*names, "city", "day", "vector"]]
    bundle = made(tmp_path, table, columns, lines=lines)
    said = [line.partition("features.x: ")[2] for line in lines if "features.x" in line]
    assert [line if line.startswith("joined") else line.split(", ")[0] for line in said] == [
        "age: unchanged",
        "country: one_hot",
        "income: log1p",
        "joined, day: time",
        "tags: multi_hot",
        "city: category",
        "price",
    ]
    assert said[0] == "age: unchanged, 9 gaps, missing: indicator"
    assert lines.count("ingest: numbers left unchanged: node_types.n.features.x: price") == 1
    assert bundle.columns("n")["x"].shape == (1 + 2 + 2 + 1 + 7 + 2 + 1 + 7 + 2,)


def test_scaled_elements_are_not_standardised_again(tmp_path: Path) -> None:
    bundle = made(tmp_path, people(), COLUMNS)
    info = bundle.columns("n")["x"]
    scale = ColumnScale.of(info)
    assert scale is not None
    changed = [
        i
        for i, (mean, std) in enumerate(zip(scale.mean, scale.std, strict=True))
        if (mean, std) != (0, 1)
    ]
    assert changed == [0, 5]  # the price, and the age in years since joined


def test_categories_are_stored_as_float32(tmp_path: Path) -> None:
    category = {"column": "country", "transform": "category"}
    bundle = made(tmp_path / "a", people(), ["price", category], feature_dtype="float16")
    assert bundle.columns("n")["x"].dtype == "float32"
    standard = {"column": "price", "transform": "standard"}
    bundle = made(tmp_path / "b", people(), [standard], feature_dtype="float16")
    assert bundle.columns("n")["x"].dtype == "float16"


def test_gaps_without_missing_are_reported(tmp_path: Path) -> None:
    column = {"column": "age", "transform": "standard"}
    with raises("transform-values", "'age'", 9):
        made(tmp_path, people(), [column])
    kept = made(tmp_path / "drop", people(), [column], on_error="drop")
    assert kept.num_nodes("n") == NUM_ROWS - 9


def test_edge_features_are_transformed(tmp_path: Path) -> None:
    edges = pa.table(
        {
            "s": ["p0", "p1", "p2", "p3"],
            "t": ["p1", "p2", "p3", "p0"],
            "kind": ["a", "b", "a", "c"],
            "split": ["train", None, "train", "test"],
        }
    )
    spec = {"features": {"edge_attr": {"column": "kind", "transform": "one_hot"}}, "split": "split"}
    path = write_graph(tmp_path / "graph", people(), edges, {}, spec)
    bundle = ingest(path, IngestOptions(reverse_edges=True), tmp_path / "cache")
    for edge_type in bundle.edge_types:
        info = bundle.columns(edge_type)["edge_attr"]
        assert info.transforms is not None
        assert info.transforms.parts[0].state == OneHot(("a", "b"), False)  # type: ignore[union-attr]
        rows = bundle.column(edge_type, "edge_attr")
        assert np.asarray(rows).sum(axis=0).tolist() == [2, 1]


def test_saved_transforms_are_applied_and_nothing_is_fitted(tmp_path: Path) -> None:
    trained = made(tmp_path / "trained", people(), COLUMNS)
    saved = {"n": {"x": transforms_of(trained)}}
    for i in (0, 17):
        lines: list[str] = []
        row = people().slice(i, 1)
        one = made(tmp_path / str(i), row, COLUMNS, lines=lines, transforms=saved)
        assert x_of(one).tobytes() == x_of(trained)[i : i + 1].tobytes()
        assert transforms_of(one) == transforms_of(trained)
        assert not any("fitting" in line for line in lines)
    assert one.fingerprint != made(tmp_path / "17", row, ["price"]).fingerprint
    names = [c if isinstance(c, str) else c["column"] for c in COLUMNS]
    by_name = made(tmp_path / "names", row, names, transforms=saved)
    assert x_of(by_name).tobytes() == x_of(one).tobytes()


def test_saved_transforms_need_the_same_columns(tmp_path: Path) -> None:
    trained = made(tmp_path / "trained", people(), COLUMNS)
    saved = {"n": {"x": transforms_of(trained)}}
    with raises("transform-columns", "['age', 'price']", "['price', 'age', "):
        made(
            tmp_path / "other",
            people(),
            [{"column": "age", "missing": "zero"}, "price"],
            transforms=saved,
        )
    texts = people().set_column(2, "age", pa.array(["old"] * NUM_ROWS))
    with raises("transform-type", "'age'", "string", "standard"):
        made(tmp_path / "texts", texts, COLUMNS, transforms=saved)


def test_a_damaged_or_newer_state_is_refused(tmp_path: Path) -> None:
    bundle = made(tmp_path, people(), COLUMNS)
    path = bundle.path / RECORD_NAME
    content = parse_record(path.read_text())
    assert Bundle.open(bundle.path).columns("n") == bundle.columns("n")
    (x,) = [c for c in content["nodes"]["n"]["columns"] if c["name"] == "x"]
    x["transforms"]["version"] = 2
    path.write_text(dump_record(content))
    with raises("transform-version", "'x'", 2):
        Bundle.open(bundle.path)
    x["transforms"] = {"version": 1, "parts": [{"column": "a", "state": {"type": "none"}}]}
    path.write_text(dump_record(content))
    with raises("bundle-damaged"):
        Bundle.open(bundle.path)
    del x["transforms"]  # a bundle of an older raygnn
    path.write_text(dump_record(content))
    assert Bundle.open(bundle.path).columns("n")["x"].transforms is None


@pytest.mark.parametrize(
    ("column", "id", "values"),
    [
        ({"column": "country", "transform": "standard"}, "transform-type", ["string", "standard"]),
        ({"column": "country"}, "transform-type", ["string"]),
        ({"column": "price", "transform": "multi_hot"}, "transform-type", ["double"]),
        ({"column": "country", "transform": "multi_hot"}, "transform-type", ["separator"]),
        ({"column": "tags", "transform": "category"}, "transform-type", ["list<item: string>"]),
        ({"column": "price", "transform": "time"}, "transform-type", ["unit: s"]),
        ({"column": "id", "transform": "auto"}, "transform-ids", [60]),
        ({"column": "price", "transform": "log1p", "missing": "median"}, "transform-log1p", []),
        ({"column": "country", "transform": "time"}, "transform-no-values", []),
        ({"column": "country", "format": "decimal_point"}, "transform-values", ["not numbers"]),
        ({"column": "price", "format": "decimal_comma"}, "transform-type", ["1.234,50 EUR"]),
        (
            {"column": "joined", "transform": "auto", "format": "day_first"},
            "transform-type",
            ["timestamp[ms]", "05/06/2024"],
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_column(
    tmp_path: Path, column: dict[str, Any], id: str, values: list[Any]
) -> None:
    with raises(id, repr(column["column"]), *values):
        made(tmp_path, people(), [column])


def test_times_of_nodes_and_edges_may_have_a_format(tmp_path: Path) -> None:
    days = [datetime(2024, 1 + i % 12, 1 + i % 28, i % 24, tzinfo=UTC) for i in range(NUM_ROWS)]
    bundles = []
    for name, form, written in (
        ("iso", "%Y-%m-%d %H:%M", None),
        ("day", "%d/%m/%Y %H:%M", "day_first"),
        ("month", "%m/%d/%y %I:%M %p", "month_first"),
    ):
        texts = [day.strftime(form) for day in days]
        nodes = pa.table({"id": np.arange(NUM_ROWS), "at": texts})
        edges = pa.table({"s": np.arange(NUM_ROWS), "t": np.arange(NUM_ROWS), "at": texts})
        time = {"time": "at" if written is None else {"column": "at", "format": written}}
        path = write_graph(tmp_path / name, nodes, edges, time, time)
        manifest = Manifest.load(str(path))
        assert Manifest.parse(manifest.dump()) == manifest
        bundles.append(ingest(path, IngestOptions(), tmp_path / f"cache-{name}"))
    for type_ in ("n", ("n", "to", "n")):
        first, *others = (np.asarray(bundle.column(type_, "time")) for bundle in bundles)
        assert first.tolist() == [int(day.timestamp()) * 10**6 for day in days]
        assert all(np.array_equal(first, other) for other in others)
    with raises("table-time-text", "'at'", NUM_ROWS):
        path = write_graph(tmp_path / "none", nodes, edges, {}, {"time": "at"})
        ingest(path, IngestOptions(), tmp_path / "cache-none")


def test_numbers_to_regress_may_have_a_format(tmp_path: Path) -> None:
    prices = ["EUR 1.234,50", "-7,25", None, "12"]
    nodes = pa.table({"id": np.arange(4), "price": prices, "other": ["1", "2", "3", "4"]})
    edges = pa.table({"s": [0], "t": [1]})
    written = {"column": "price", "format": "decimal_comma"}
    for name, label, expected in (
        ("one", written, [1234.5, -7.25, None, 12]),
        (
            "two",
            {"columns": ["price", "other"], "format": "decimal_comma"},
            [[1234.5, 1], [-7.25, 2], [None, 3], [12, 4]],
        ),
    ):
        path = write_graph(tmp_path / name, nodes, edges, {"labels": {"y": label}})
        labels = np.asarray(ingest(path, IngestOptions(), tmp_path / "cache").column("n", "y"))
        assert np.array_equal(labels, np.array(expected, np.float32), equal_nan=True)
    for bad, id, values in (
        ({**written, "format": "decimal_point"}, "labels-not-numbers", ["'price'", 2]),
        ({"column": "id", "format": "day_first"}, "config-choice", ["decimal_point"]),
        ({**written, "kind": "class"}, "labels-format-kind", ["class"]),
        ({"column": "price", "kind": "regression"}, "labels-kind-strings", ["decimal_comma"]),
    ):
        path = write_graph(tmp_path / f"bad-{id}", nodes, edges, {"labels": {"y": bad}})
        with raises(id, *values):
            ingest(path, IngestOptions(), tmp_path / "cache")
    times = nodes.append_column("at", pa.array(np.arange(4), pa.timestamp("s")))
    spec = {"labels": {"y": {"column": "at", "format": "decimal_point"}}}
    with raises("labels-format", "'at'"):
        ingest(write_graph(tmp_path / "at", times, edges, spec), cache_dir=tmp_path / "cache")


def test_new_rows_of_gaps_alone_are_of_any_type(tmp_path: Path) -> None:
    columns = [
        {"column": "tags", "transform": "multi_hot", "separator": ";"},
        {"column": "day", "transform": "auto", "format": "day_first"},
        {"column": "sum", "transform": "standard", "format": "decimal_comma", "missing": "zero"},
        {"column": "kind", "transform": "one_hot"},
    ]
    header = "id;tags;day;sum;kind"
    bundles = []
    for name, lines in (
        ("train", ["1;a,b;15/06/2024;1.234,5;x", "2;a,c;16/06/2024;4,5;y"]),
        ("new", ["3;;;;"]),
    ):
        edges = pa.table({"s": [3 if name == "new" else 1], "t": [3 if name == "new" else 1]})
        spec = {"files": "nodes/n.csv", "features": {"x": columns}}
        path = write_graph(tmp_path / name, people(), edges, spec)
        (path / "nodes" / "n.csv").write_text("\n".join([header, *lines]))
        fitted = {"n": {"x": bundles[0].columns("n")["x"].transforms}} if bundles else {}
        options = IngestOptions(transforms=fitted)
        bundles.append(ingest(path, options, tmp_path / f"cache-{name}"))
    trained, (new,) = (np.asarray(bundle.column("n", "x")) for bundle in bundles)
    assert new.shape == trained.shape[1:]
    expected = [0, 0, (0 - 619.5) / 615, 0, 0]
    assert np.array_equal(new[[0, 1, -3, -2, -1]], np.float32(expected))


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_columns_without_values_in_training_rows_are_zeros_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    is_train = np.arange(NUM_ROWS) < 40
    table = people().drop_columns(["tags"]).append_column("void", pa.nulls(NUM_ROWS, pa.float64()))
    table = table.append_column("split", pa.array(np.where(is_train, "train", "test")))
    columns: list[Any] = ["price"]
    for name in ("age", "plan", "joined"):  # known in test rows only
        values = pa.array(
            [None if t else v for t, v in zip(is_train, table[name].to_pylist(), strict=True)]
        )
        table = table.append_column(f"late_{name}", values)
        columns.append({"column": f"late_{name}", "transform": "auto"})
    columns.append({"column": "void", "transform": "standard"})
    bundle = made(tmp_path / "a", table, columns, spec={"split": "split"}, suffix=suffix)
    assert (
        "warning: models read 0 for columns without values in training rows: late_age of "
        "node_types.n.features.x, late_plan of node_types.n.features.x, late_joined of "
        "node_types.n.features.x, void of node_types.n.features.x\n"
    ) in capsys.readouterr().out
    expected = np.zeros((NUM_ROWS, 5), np.float32)
    expected[:, 0] = table["price"].to_numpy()
    assert np.allclose(x_of(bundle), expected)
    fitted = {"n": {"x": bundle.columns("n")["x"].transforms}}
    later = table.drop_columns(["void"]).append_column("void", pa.array(["a"] * NUM_ROWS))
    again = made(tmp_path / "b", later, columns, transforms=fitted, suffix=suffix)
    assert np.array_equal(x_of(again), x_of(bundle))
    assert "warning" not in capsys.readouterr().out


def test_edges_have_no_categories(tmp_path: Path) -> None:
    edges = pa.table({"s": ["p0"], "t": ["p1"], "kind": ["a"]})
    spec = {"features": {"edge_attr": {"column": "kind", "transform": "category"}}}
    path = write_graph(tmp_path / "graph", people(), edges, {}, spec)
    with raises("transform-category-nodes", "'kind'"):
        ingest(path, IngestOptions(), tmp_path / "cache")


def test_all_problems_are_listed(tmp_path: Path) -> None:
    columns = [{"column": "country", "transform": "time"}, {"column": "id", "transform": "auto"}]
    table = people()
    with raises("transform-no-values", "'country'") as caught:
        made(tmp_path, table, columns)
    assert caught.value.ids == ("transform-no-values", "transform-ids")
    columns = [
        {"column": "country", "transform": "standard"},
        {"column": "price", "transform": "multi_hot"},
    ]
    with raises("transform-type", "'country'", "'price'"):
        made(tmp_path, table, columns)


def test_a_column_of_ids_ends_the_pass_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "MAX_DISTINCT", 20)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1)  # a piece is a file
    read: list[Any] = []
    count_rows = fit_features.count_rows
    monkeypatch.setattr(fit_features, "count_rows", lambda task: read.append(1) or count_rows(task))
    column = {"column": "id", "transform": "category"}
    with raises("transform-too-many-values", "'id'", 20):
        made(tmp_path, people(), [column], num_shards=30)
    assert len(read) == 4 + 8  # two rows in each piece


def test_the_manifest_is_written_as_it_is_read() -> None:
    text = yaml.safe_dump(
        {
            "format": FORMAT,
            "node_types": {
                "n": {
                    "files": "n/*.parquet",
                    "id": "id",
                    "features": {
                        "x": COLUMNS,
                        "y": {"column": "age", "missing": "zero"},
                        "z": "price",
                    },
                }
            },
        }
    )
    manifest = Manifest.parse(text)
    written = yaml.safe_load(manifest.dump())["node_types"]["n"]["features"]
    assert written == {"x": COLUMNS, "y": {"column": "age", "missing": "zero"}, "z": "price"}
    assert Manifest.parse(manifest.dump()) == manifest
    z = manifest.node_types["n"].features["z"]
    assert isinstance(z, DenseFeature)
    assert z.transforms == (None,)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ({"column": "a", "transform": "standart"}, ["x.1.transform", "Did you mean standard?"]),
        ({"column": "a", "transfrom": "standard"}, ["x.1.transfrom", "Did you mean transform?"]),
        ({"column": "a", "transform": "standard", "dim": 3}, ["dim", "'a'", "tfidf"]),
    ],
)
def test_the_manifest_names_what_is_wrong(column: dict[str, Any], values: list[str]) -> None:
    spec = {"files": "a", "id": "id", "features": {"x": ["b", column]}}
    with pytest.raises(DataError) as caught:
        Manifest.parse(yaml.safe_dump({"format": FORMAT, "node_types": {"n": spec}}))
    assert [value for value in values if value not in str(caught.value)] == []
