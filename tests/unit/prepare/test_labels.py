"""Label queries against labels that pandas makes by loops."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raygnn.config import load_config
from raygnn.data.manifest import Manifest
from raygnn.errors import ConfigError
from raygnn.prepare.__main__ import main as prepare
from raygnn.prepare.question import parse_duration
from tests.errors import ids_of

pytest.importorskip("duckdb")

DAY = pd.Timedelta(days=1)
START = pd.Timestamp("2024-01-01")
VAL, TEST = START + 60 * DAY, START + 90 * DAY
OPTIONS = ("--every", "10d", "--val", str(VAL), "--test", str(TEST), "--name", "asked")
GRAPH = """\
# A shop.
node_types:
  user: {files: users.csv, id: user_id, time: joined, features: {x: [age]}}  # people
  item: {files: items.parquet, id: sku}
edge_types:
  - {type: [user, bought, item], files: purchases.csv, source: user_id, target: sku, time: day}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """20 users, of whom some join late and some never buy, and 300 purchases in 120 days."""
    rng = np.random.default_rng(0)
    joined = START + rng.integers(0, 80, 20) * DAY
    users = pd.DataFrame({"user_id": [f"u{i}" for i in range(20)], "joined": joined})
    users["age"] = rng.integers(20, 60, 20)
    buyer = rng.integers(0, 15, 300)
    day = START + rng.integers(0, 121, 300) * DAY
    day = np.maximum(day, joined[buyer])
    purchases = pd.DataFrame({"user_id": users.user_id.to_numpy()[buyer], "day": day})
    purchases["sku"] = rng.integers(0, 7, 300)
    purchases["amount"] = rng.integers(1, 50, 300) / 4
    purchases.loc[0, "day"] = START + 120 * DAY
    folder = tmp_path / "shop"
    folder.mkdir()
    users.to_csv(folder / "users.csv", index=False)
    purchases.to_csv(folder / "purchases.csv", index=False)
    pd.DataFrame({"sku": np.arange(7)}).to_parquet(folder / "items.parquet")
    (folder / "graph.yaml").write_text("format: raygnn/graph-v1\n" + GRAPH)
    return folder


def _ask(folder: Path, question: str, *options: str) -> int:
    asked = ["--predict", question, "--for", "user"]
    return prepare(["labels", str(folder), *asked, *OPTIONS, *options])


def _query(folder: Path, sql: str, *options: str) -> int:
    (folder / "labels.sql").write_text(sql)
    query = ["--sql", str(folder / "labels.sql"), "--window", "20d"]
    return prepare(["labels", str(folder), *query, *OPTIONS, *options])


def _read(folder: Path, kind: str = "training_tables") -> pd.DataFrame:
    return pd.read_parquet(folder / kind / "asked.parquet")


def test_rows_have_weights(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = "CASE WHEN age > 40 THEN 2 ELSE age / 40 END"
    assert _ask(shop, "count(purchases) over 10d > 0", "--weight", weight) == 0
    rows = _read(shop).merge(pd.read_csv(shop / "users.csv"), on="user_id")
    assert np.allclose(rows.weight, np.where(rows.age > 40, 2, rows.age / 40))
    assert Manifest.load(str(shop)).training_tables["asked"].weight == "weight"
    sql = "SELECT t.timestamp, u.user_id, u.age, u.age % 7 AS y FROM timestamps t, user u "
    sql += "WHERE u.joined <= t.timestamp"
    assert _query(shop, sql, "--overwrite", "--weight", "age") == 0
    table = Manifest.load(str(shop)).training_tables["asked"]
    assert (table.weight, [*table.labels]) == ("age", ["y"])
    for wrong, problem in (("age - 90", "labels-weight"), ("no_column", "labels-question")):
        question = ("count(purchases) over 10d > 0", "--overwrite", "--weight", wrong)
        assert _ask(shop, *question) != 0
        assert problem in ids_of(capsys.readouterr().err)
    assert _ask(shop, "list(purchases.sku) over 10d", "--overwrite", "--weight", "age") != 0
    assert "prepare-options-clash" in ids_of(capsys.readouterr().err)


def test_a_column_of_events_is_better_asked_by_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "planes.csv").write_text("plane\n" + "\n".join(f"p{i}" for i in range(9)))
    rows = [f"{i},p{i % 9},2024-01-{i % 28 + 1:02d},{i * 7 % 5}" for i in range(60)]
    (tmp_path / "flights.csv").write_text("\n".join(["flight,plane,at,late", *rows]))
    for what, is_event in (("", False), (", time: at", True)):
        (tmp_path / "graph.yaml").write_text(
            "format: raygnn/graph-v1\nnode_types:\n  planes: {files: planes.csv, id: plane}\n"
            "  flights: {files: flights.csv, id: flight, time: at}\nedge_types:\n"
            f"  - {{type: [flights, by, planes], files: flights.csv, source: flight{what},"
            " target: plane}\n"
        )
        asked = ["--predict", "flights.late", "--for", "flights", "--name", "late"]
        assert prepare(["labels", str(tmp_path), "--overwrite", *asked]) == 0
        assert ("drawn among later ones" in capsys.readouterr().err) is is_event


def test_columns_make_rows_without_times(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(*options: str) -> int:
        return prepare(["labels", str(shop), "--name", "asked", "--overwrite", *options])

    users = pd.read_csv(shop / "users.csv")
    users["city"] = ["Bonn", "Kyiv", None, "Bonn"] * 5
    users.to_csv(shop / "users.csv", index=False)
    text = (shop / "graph.yaml").read_text()
    drafted = text.replace("{x: [age]}}  # people", "{x: [age, city]}}  # people")
    known = users[users.city.notna()]
    (shop / "graph.yaml").write_text(drafted)
    asked = ("--predict", "user.city", "--for", "user", "--weight", "age / 2")
    assert ask(*asked) == 0
    assert "15 of 20 user have a label" in capsys.readouterr().out
    rows = _read(shop).set_index("user_id")
    assert rows["label"].to_dict() == dict(zip(known.user_id, known.city, strict=True))
    assert np.allclose(rows.weight, known.set_index("user_id").age[rows.index] / 2)
    graph = Manifest.load(str(shop))
    table = graph.training_tables["asked"]
    assert (table.time, table.split, table.window, table.weight) == (None, None, None, "weight")
    assert graph.node_types["user"].features["x"].column_names == ("age",)
    assert load_config(str(shop / "asked.yaml")).config.data.splits.type == "hash"
    # A comparison, for some of the entities; lines of other tables and comments stay.
    block = "    features:\n      x:\n        - {column: age, transform: auto}\n        - city\n"
    lines = text.replace(", features: {x: [age]}}", "}").replace(
        "user: {files: users.csv, id: user_id, time: joined}",
        f"user:\n    files: users.csv\n    id: user_id\n{block}    time: joined",
    )
    (shop / "graph.yaml").write_text(lines)
    pql = "PREDICT user.age > 40 FOR EACH user.user_id WHERE user.city IS NOT NULL"
    assert ask("--pql", pql) == 0
    rows = _read(shop).set_index("user_id")
    older = (known.age > 40).astype(int)
    assert rows["label"].to_dict() == dict(zip(known.user_id, older, strict=True))
    written = (shop / "graph.yaml").read_text()
    assert written.startswith(lines.replace("        - {column: age, transform: auto}\n", ""))
    for wrong, problem in (
        (["--predict", "user.town"], "labels-question"),
        (["--predict", "user.city", "--every", "9d"], "prepare-options-clash"),
        (["--predict", 'user.age in (select 1) and "select" > 2'], "labels-question"),
        (["--predict", "user.city", "--horizons", "2"], "prepare-options-clash"),
        (["--predict", "user.age > 4"], "labels-one-value"),
        (["--predict", "count(purchases) over 9d", "--val", "2024-02-01"], "prepare-options-clash"),
    ):
        assert ask(*wrong, "--for", "user") == 2
        assert ids_of(capsys.readouterr().err) == (problem,)
    assert (shop / "graph.yaml").read_text() == written


def _expected(folder: Path, window: int) -> list[tuple[str, pd.Timestamp, str, pd.DataFrame]]:
    """User, time, split and the purchases of the window, by the rolling rule."""
    users = pd.read_csv(folder / "users.csv", parse_dates=["joined"])
    purchases = pd.read_csv(folder / "purchases.csv", parse_dates=["day"])
    span, step = window * DAY, 10 * DAY
    first = min(users.joined.min(), purchases.day.min())
    last = purchases.day.max()
    times = [("train", VAL - span - k * step) for k in range(20) if VAL - span - k * step >= first]
    times += [("val", VAL + k * step) for k in range(20) if VAL + k * step + span <= TEST]
    times += [("test", TEST + k * step) for k in range(20) if TEST + k * step + span <= last]
    rows = []
    for split, time in times:
        for user in users.itertuples():
            if user.joined <= time:
                mine = purchases[purchases.user_id == user.user_id]
                inside = mine[(mine.day > time) & (mine.day <= time + span)]
                rows.append((user.user_id, time, split, inside))
    return rows


QUESTIONS: dict[str, Any] = {
    "count(purchases) over 20d > 0": lambda x: int(len(x) > 0),
    "exists(bought) over 20d": lambda x: int(len(x) > 0),
    "count(purchases) over 20d": len,
    "exists(purchases where amount > 12) over 20d": lambda x: int((x.amount > 12).any()),
    "sum(purchases.amount) over 20d": lambda x: x.amount.sum(),
    "mean(purchases.amount) over 20d": lambda x: x.amount.mean() if len(x) else None,
    "max(purchases.amount) over 20d >= 9.5": lambda x: (
        int(x.amount.max() >= 9.5) if len(x) else None
    ),
    "min(purchases.amount where sku < 3) over 20d": lambda x: (
        x[x.sku < 3].amount.min() if (x.sku < 3).any() else None
    ),
    "distinct(purchases.sku) over 20 days < 2 where amount > 2": lambda x: int(
        x[x.amount > 2].sku.nunique() < 2
    ),
}


def _recorded(rows: list[tuple]) -> list[tuple]:
    """Rows without the first training and the last test times that have one label, if it is not
    so by chance.
    """
    for split, step in (("train", 1), ("test", -1)):
        times = sorted({row[1] for row in rows if row[2] == split})[::step]
        labels = [{row[3] for row in rows if row[1] == time} for time in times]
        num_same = next(
            i for i in range(len(times)) if labels[i] != labels[0] or len(labels[i]) > 1
        )
        same = [row[3] for row in rows if row[1] in times[:num_same]]
        share = np.mean([row[3] in same for row in rows if row[1] not in times[:num_same]])
        if same and share ** (len(same) - 1) <= 1e-4:
            rows = [row for row in rows if row[1] not in times[:num_same]]
    return rows


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_follow_the_rolling_rule(shop: Path, question: str) -> None:
    """Users join before purchases are recorded, and after the last of them."""
    users = pd.read_csv(shop / "users.csv", parse_dates=["joined"])
    users.loc[18:, "joined"] = START - 40 * DAY, START + 150 * DAY
    users.to_csv(shop / "users.csv", index=False)
    assert _ask(shop, question) == 0
    rows = _read(shop)
    expected = [(u, t, s, QUESTIONS[question](x)) for u, t, s, x in _expected(shop, 20)]
    expected = _recorded([row for row in expected if row[3] is not None])
    found = {(r.user_id, r.timestamp): (r.split, r.label) for r in rows.itertuples()}
    is_class = "exists" in question or re.search("over 20 ?d(ays)? [<>]", question) is not None
    assert (rows.label.dtype.kind == "i") is is_class  # others are numbers
    assert len(found) == len(rows) == len(expected)
    assert {"train", "val", "test"} == {row[2] for row in expected}
    for user, time, split, label in expected:
        assert found[user, time] == (split, pytest.approx(label))


@pytest.mark.parametrize(
    ("question", "label"),
    [
        ("sum(purchases.amount) over 10d", lambda x: float(x.amount.sum())),
        ("sum(purchases.amount) over 10d > 20", lambda x: int(x.amount.sum() > 20)),
        (
            "sum(purchases.amount) over 10d after 5d / count(purchases) over 10d after 5d",
            lambda x: x.amount.mean() if len(x) else None,
        ),
    ],
)
def test_horizons_are_successive_windows(shop: Path, question: str, label: Any) -> None:
    assert _ask(shop, question, "--horizons", "2") == 0
    rows, table = _read(shop), Manifest.load(str(shop)).training_tables["asked"]
    after = 5 * ("after" in question)
    assert table.window == f"{after + 20}d"
    assert table.labels["y"].columns == ("label_1", "label_2")
    purchases = pd.read_csv(shop / "purchases.csv", parse_dates=["day"])
    expected = {}
    for user, time, split, _ in _expected(shop, after + 20):
        labels = []
        for first in (after, after + 10):
            since = purchases.day - time
            inside = (since > first * DAY) & (since <= (first + 10) * DAY)
            labels.append(label(purchases[inside & (purchases.user_id == user)]))
        if None not in labels:
            expected[user, time] = (split, *labels)
    found = {(r.user_id, r.timestamp): r for r in rows.itertuples()}
    assert len(found) == len(rows) == len(expected) > 20
    for key, (split, *labels) in expected.items():
        assert (found[key].split, found[key].label_1) == (split, pytest.approx(labels[0]))
        assert found[key].label_2 == pytest.approx(labels[1])


@pytest.mark.parametrize(
    "question",
    [
        "last(purchases.sku) over 10d",
        "list(purchases.sku) over 10d",
        "count(purchases) over 10d / count(purchases) over 20d",
    ],
)
def test_other_questions_have_no_horizons(
    shop: Path, question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ask(shop, question, "--horizons", "2") != 0
    assert ids_of(capsys.readouterr().err) == ("labels-horizons",)


def test_windows_end_with_the_events_of_the_question(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if other tables go on, unless a gap as long is usual."""
    assert _ask(shop, "count(purchases) over 10d") == 0
    expected = _read(shop)
    users = pd.read_csv(shop / "users.csv", parse_dates=["joined"])
    users.loc[0, "joined"] = START + 140 * DAY
    users.to_csv(shop / "users.csv", index=False)
    capsys.readouterr()
    assert _ask(shop, "count(purchases) over 10d", "--overwrite") == 0
    assert "purchases ends at 2024-04-30, before other tables" in capsys.readouterr().out
    assert _read(shop).timestamp.max() == expected.timestamp.max()
    purchases = pd.read_csv(shop / "purchases.csv", parse_dates=["day"])
    last = purchases.day.max()
    purchases[(last - purchases.day).dt.days % 20 == 0].to_csv(shop / "purchases.csv", index=False)
    assert _ask(shop, "count(purchases) over 10d", "--overwrite") == 0
    assert "before other tables" not in capsys.readouterr().out
    assert _read(shop).timestamp.max() > expected.timestamp.max()


def test_several_questions_are_outputs_of_one_label(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = ["mean(purchases.amount) over 10d", "count(purchases) over 20d"]
    singly = []
    for question in questions:
        assert _ask(shop, question, "--overwrite") == 0
        rows = _read(shop)
        singly.append({(r.user_id, r.timestamp): r.label for r in rows.itertuples()})
    capsys.readouterr()
    assert _ask(shop, questions[0], "--predict", questions[1], "--overwrite") == 0
    assert f"label_1: {questions[0]}\n  label_2: {questions[1]}\n" in capsys.readouterr().out
    table = Manifest.load(str(shop)).training_tables["asked"]
    assert (table.window, table.labels["y"].columns) == ("20d", ("label_1", "label_2"))
    rows = _read(shop)
    assert len(rows) > 10
    for row in rows.itertuples():  # a mean of 20 days' time ago is known at fewer times
        key = row.user_id, row.timestamp
        assert (row.label_1, row.label_2) == (singly[0].get(key, row.label_1), singly[1][key])
    assert set(singly[1]) >= {(r.user_id, r.timestamp) for r in rows.itertuples()}

    assert _ask(shop, questions[0], "--predict", "exists(purchases) over 9d", "--overwrite") == 2
    assert ids_of(capsys.readouterr().err) == ("labels-joined",)


def test_amounts_are_numbers_in_the_format_of_the_graph(shop: Path) -> None:
    """Also under a name that the question has to quote."""
    purchases = pd.read_csv(shop / "purchases.csv")
    purchases["Paid (EUR)"] = [f"{amount:.2f} EUR".replace(".", ",") for amount in purchases.amount]
    purchases.to_csv(shop / "purchases.csv", index=False)
    column = "{column: Paid (EUR), transform: auto, format: decimal_comma}"
    text = (shop / "graph.yaml").read_text()
    (shop / "graph.yaml").write_text(
        text.replace("time: day}", f"time: day, features: {{x: [{column}]}}}}")
    )
    assert _ask(shop, "sum(purchases.amount) over 20d") == 0
    expected = _read(shop)
    assert _ask(shop, 'sum(purchases."Paid (EUR)") over 20d', "--overwrite") == 0
    pd.testing.assert_frame_equal(_read(shop), expected)


def test_rows_may_be_those_of_active_entities(shop: Path) -> None:
    """Users who joined or bought something in the 15 days before."""
    question = "count(purchases) over 20d > 0"
    assert _ask(shop, question) == 0
    every = _read(shop)
    assert _ask(shop, question, "--active", "15d", "--overwrite") == 0
    users = pd.read_csv(shop / "users.csv", parse_dates=["joined"])
    purchases = pd.read_csv(shop / "purchases.csv", parse_dates=["day"])
    moments = pd.concat(
        [users.rename(columns={"joined": "at"}), purchases.rename(columns={"day": "at"})]
    )

    def is_active(row: Any) -> bool:
        age = row.timestamp - moments[moments.user_id == row.user_id]["at"]
        return bool(((age >= 0 * DAY) & (age < 15 * DAY)).any())

    expected = every[[is_active(row) for row in every.itertuples()]].reset_index(drop=True)
    assert 0 < len(expected) < len(every)
    pd.testing.assert_frame_equal(_read(shop), expected)


@pytest.mark.parametrize("graph", ["", "graph.yaml"])
def test_a_config_names_the_table(shop: Path, graph: str) -> None:
    assert _ask(shop / graph, "count(bought) over 20d > 0") == 0
    config = load_config(str(shop / "asked.yaml")).config
    assert config.data.uri == str(shop)
    assert config.task.args["table"] == "asked"


def test_both_ends_of_events_between_users_see_them(shop: Path) -> None:
    """Else a question about those who send would be asked of a model that reads who receives."""
    table = "{type: [user, wrote, user], files: m.csv, source: by, target: to, time: day}"
    with (shop / "graph.yaml").open("a") as graph:
        graph.write(f"  - {table}\n")
    (shop / "m.csv").write_text("by,to,day\nu0,u1,2024-01-05\nu1,u2,2024-03-20\n")
    assert _ask(shop, "count(wrote by by) over 20d > 0") == 0
    assert load_config(str(shop / "asked.yaml")).config.data.reverse_edges is True


@pytest.mark.parametrize("drops", ["config", "option", None])
def test_unknown_entities_are_dropped_as_bad_rows_are(
    shop: Path, drops: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a table without a header, too."""
    text = (shop / "graph.yaml").read_text().replace("time: joined, ", "")
    bought = "files: purchases.csv, csv: {header: false, skip_lines: 1}, source: '0', target: '2'"
    text = text.replace("files: purchases.csv, source: user_id, target: sku", bought)
    (shop / "graph.yaml").write_text(text.replace("time: day", "time: '1'"))
    users = pd.read_csv(shop / "users.csv")
    users[users.user_id != "u3"].to_csv(shop / "users.csv", index=False)
    if drops == "config":
        (shop / "train.yaml").write_text("data: {on_error: drop}")
    given = ["--on-error", "drop"] if drops == "option" else []
    assert _ask(shop, "count(bought) over 20d > 0", *given) == (0 if drops else 2)
    printed = capsys.readouterr()
    if drops is None:
        assert "error: --predict is invalid in the row user_id='u3'" in printed.err
        assert ids_of(printed.err) == ("labels-entity-unknown",)
        return
    assert re.search(r"\d rows of unknown user are left out", printed.out)
    assert "u3" not in set(_read(shop).user_id)
    assert load_config(str(shop / "asked.yaml")).config.data.on_error == "drop"


def test_entities_without_times_exist_from_their_first_event_in_any_table(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if they have none in the table of the question, which may end what it counts."""
    text = (shop / "graph.yaml").read_text().replace("time: joined, ", "")
    gone = (
        "  - {type: [user, left, item], files: gone.csv, source: user_id, target: sku, time: day}\n"
    )
    (shop / "graph.yaml").write_text(text + gone)
    leaving = pd.DataFrame({"user_id": ["u1", "u2"], "sku": 0, "day": VAL + pd.Timedelta(days=5)})
    leaving.to_csv(shop / "gone.csv", index=False)
    assert _ask(shop, "exists(left) over 20d") == 0
    assert "label is 0 in all training rows: there is nothing to learn" in capsys.readouterr().err
    rows = _read(shop)
    first = pd.read_csv(shop / "purchases.csv", parse_dates=["day"]).groupby("user_id").day.min()
    first = first.combine(leaving.set_index("user_id").day, min, fill_value=pd.Timestamp.max)
    assert len(rows) == sum((first <= time).sum() for time in rows.timestamp.unique())
    assert set(rows.user_id[rows.label == 1]) == {"u1", "u2"}


def test_events_may_name_the_entity_in_the_table_that_they_refer_to(shop: Path) -> None:
    """Returns name a purchase, and purchases a user."""
    (shop / "graph.yaml").write_text("""\
format: raygnn/graph-v1
node_types:
  user: {files: users.csv, id: user_id, time: joined}
  order: {files: orders.csv, id: id, time: day}
  back: {files: back.csv, id: back_id, time: day}
edge_types:
  - {type: [order, by, user], files: orders.csv, source: id, target: user_id}
  - {type: [back, of, order], files: back.csv, source: back_id, target: order_id}
""")
    orders = pd.read_csv(shop / "purchases.csv", parse_dates=["day"])
    orders["id"] = np.arange(len(orders)) + 1000
    orders.to_csv(shop / "orders.csv", index=False)
    back = pd.DataFrame({"order_id": orders["id"], "day": orders.day}).iloc[::2]
    back.assign(back_id=np.arange(len(back))).to_csv(shop / "back.csv", index=False)
    assert _ask(shop, "count(back) over 20d") == 0
    rows = _read(shop)
    for row in rows.itertuples():
        mine = orders[::2][orders[::2].user_id == row.user_id]
        inside = (mine.day > row.timestamp) & (mine.day <= row.timestamp + 20 * DAY)
        assert row.label == inside.sum()
    assert rows.label.sum() > 0


def test_lists_become_label_edges(shop: Path) -> None:
    question = "list(purchases.sku) over 20d"
    assert _ask(shop, question) == 0
    rows = _read(shop, "label_edges")
    found = {(r.user_id, r.timestamp, r.target, r.split) for r in rows.itertuples()}
    expected = {(u, t, sku, s) for u, t, s, x in _expected(shop, 20) for sku in x.sku}
    assert found == expected
    assert len(rows) == len(found)
    (edges,) = Manifest.load(str(shop)).label_edges
    assert edges.type == ("user", "asked", "item")
    task = load_config(str(shop / "asked.yaml")).config.task
    assert task.args["edge_type"] == "user__asked__item"


@pytest.mark.parametrize("question", ["count(purchases) over 20d", "list(purchases.item) over 20d"])
def test_references_of_events_may_have_gaps(shop: Path, question: str) -> None:
    """A purchase by nobody is of no user, and one of nothing adds nothing to a list."""
    (shop / "graph.yaml").write_text("""\
format: raygnn/graph-v1
node_types:
  user: {files: users.csv, id: user_id}
  item: {files: items.parquet, id: sku}
  purchases: {files: purchases.csv, id: id, time: day}
edge_types:
  - {type: [purchases, by, user], files: by.csv, source: id, target: user_id}
  - {type: [purchases, item, item], files: items.csv, source: id, target: item}
""")
    rows = pd.read_csv(shop / "purchases.csv").rename(columns={"sku": "item"})
    rows["item"] = rows["item"].astype("Int64")
    rows.loc[1::5, "user_id"] = rows.loc[2::5, "item"] = None
    rows["id"] = range(len(rows))
    for file, column in (("purchases", "id"), ("by", "user_id"), ("items", "item")):
        rows[rows[column].notna()].to_csv(shop / f"{file}.csv", index=False)
    assert _ask(shop, question) == 0
    found = _read(shop, "label_edges" if "list" in question else "training_tables")
    assert len(found) > 0
    assert not found.isna().any(axis=None)


def test_the_window_is_open_at_its_start_and_closed_at_its_end(tmp_path: Path) -> None:
    days = [0, 10, 20, 30, 40]  # of purchases of one user; each time is one of these
    day = START + np.array(days) * DAY
    pd.DataFrame({"user_id": ["a"] * 5, "day": day, "sku": 0}).to_csv(
        tmp_path / "purchases.csv", index=False
    )
    pd.DataFrame({"user_id": ["a", "b"], "age": 1}).to_csv(tmp_path / "users.csv", index=False)
    pd.DataFrame({"sku": [0]}).to_parquet(tmp_path / "items.parquet")
    text = "format: raygnn/graph-v1\n" + GRAPH.replace(", time: joined", "")
    (tmp_path / "graph.yaml").write_text(text)
    times = ["--val", str(day[2]), "--test", str(day[3])]
    assert _ask(tmp_path, "count(bought) over 10d", *times) == 0
    rows = _read(tmp_path)
    # User b has no event, so it is never asked; a is asked from its first purchase on.
    assert rows.user_id.tolist() == ["a"] * 4
    assert [int((time - START) / DAY) for time in rows.timestamp] == [0, 10, 20, 30]
    assert rows.split.tolist() == ["train", "train", "val", "test"]
    assert rows.label.tolist() == [1, 1, 1, 1]


def test_graph_yaml_keeps_its_comments(shop: Path) -> None:
    question = "count(bought) over 20d > 0"
    assert _ask(shop, question) == 0
    assert _ask(shop, question, "--name", "again") == 0
    text = (shop / "graph.yaml").read_text()
    assert "# A shop." in text
    assert "# people" in text
    tables = Manifest.load(str(shop)).training_tables
    assert sorted(tables) == ["again", "asked"]
    assert tables["again"].labels["y"].columns == ("label",)
    assert tables["again"].window == "20d"
    assert _ask(shop, question, "--overwrite") == 0
    assert (shop / "graph.yaml").read_text() == text


@pytest.mark.parametrize("question", ["count(bought) over 20d", "list(bought.sku) over 20d"])
def test_replaced_labels_leave_the_other_lines(shop: Path, question: str) -> None:
    """Comments and formatting, also if the entry changes and others follow it."""
    kind = "training_tables" if "count" in question else "label_edges"
    assert _ask(shop, question) == 0
    assert _ask(shop, question, "--name", "again") == 0
    before = (shop / "graph.yaml").read_text()
    assert _ask(shop, question.replace("20d", "10d"), "--overwrite") == 0
    text = (shop / "graph.yaml").read_text()
    assert text.startswith("format: raygnn/graph-v1\n" + GRAPH)
    assert len(text.splitlines()) == len(before.splitlines())
    entries = getattr(Manifest.load(str(shop)), kind)
    assert len(entries) == 2
    if kind == "training_tables":
        assert (entries["asked"].window, entries["again"].window) == ("10d", "20d")


def test_files_of_a_table_may_lack_columns(shop: Path) -> None:
    purchases = pd.read_csv(shop / "purchases.csv")
    (shop / "purchases.csv").unlink()
    purchases[:200].to_csv(shop / "purchases-0.csv", index=False)
    rows = purchases[200:].rename(columns={"amount": "amount_eur"})
    rows.to_csv(shop / "purchases-1.csv", index=False)
    text = (shop / "graph.yaml").read_text()
    (shop / "graph.yaml").write_text(text.replace("purchases.csv", "purchases-*.csv"))
    assert _ask(shop, "sum(bought.amount) over 20d") == 0
    assert _read(shop).label.max() > 0


@pytest.mark.parametrize(
    "change", [("sku, time: day", "sku, time: at"), ("id: sku", "id: sku, time: at")]
)
def test_a_table_lacks_its_time(
    shop: Path, change: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = (shop / "graph.yaml").read_text()
    (shop / "graph.yaml").write_text(text.replace(*change))
    assert _ask(shop, "count(bought) over 20d") == 2
    assert ids_of(capsys.readouterr().err) == ("table-column-missing",)


WINDOW = "x.day > t.timestamp AND x.day <= t.timestamp + INTERVAL '{window}'"
BROKEN = {
    "labels-read-future": "SELECT t.timestamp, x.user_id, count(*) AS y FROM timestamps t "
    "JOIN bought x ON x.day > t.timestamp GROUP BY ALL",
    "labels-depend-on-split": "SELECT t.timestamp, x.user_id, count(*) + (SELECT count(*) FROM "
    f"timestamps) AS y FROM timestamps t JOIN bought x ON {WINDOW} GROUP BY ALL",
    "labels-repeated": f"SELECT t.timestamp, x.user_id, x.sku AS y FROM timestamps t JOIN bought x "
    f"ON {WINDOW}",
    "labels-entity-unknown": "SELECT t.timestamp, 'u99' AS user_id, 1 AS y FROM timestamps t",
    "labels-time": "SELECT t.timestamp + INTERVAL 1 DAY AS timestamp, 'u1' AS user_id, 1 AS y "
    "FROM timestamps t",
    "labels-column": "SELECT t.timestamp, 1 AS y FROM timestamps t",
    "labels-split-empty": "SELECT t.timestamp, 'u1' AS user_id, 1 AS y FROM timestamps t "
    "WHERE t.timestamp < TIMESTAMP '2024-03-01'",
    "labels-sql": "SELECT * FROM read_text('/etc/hostname')",
}
RANDOM = 'SELECT t.timestamp, n.user_id, random() AS y FROM timestamps t, "user" n'


@pytest.mark.parametrize(("id", "sql"), [*BROKEN.items(), ("labels-depend-on-split", RANDOM)])
def test_broken_queries_are_refused(
    shop: Path, id: str, sql: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (shop / "graph.yaml").read_text()
    assert _query(shop, sql) == 2
    assert ids_of(capsys.readouterr().err) == (id,)
    assert (shop / "graph.yaml").read_text() == before


def test_a_feature_that_is_the_label_is_named(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = 'SELECT t.timestamp, n.user_id, n.age FROM timestamps t, "user" n '
    assert _query(shop, f"{sql} WHERE n.joined <= t.timestamp") == 0
    assert "label age equals feature user.age in 100.0%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "id"),
    [
        (["--predict", "count(bought) over 40d"], "labels-window-overlap"),
        (["--predict", "count(bought) over 20d", "--val", "2023-01-01"], "labels-no-training-time"),
        (["--predict", "count(bought) over 20d", "--test", "2024-04-25"], "labels-window-overlap"),
        (["--predict", "count(bought) over 20d", "--every", "x"], "labels-duration"),
        (["--predict", f"count(bought) over {10**12}d"], "labels-duration"),
        (["--predict", "count(bought) over 20d", "--name", "a b"], "graph-type-name"),
        (["--predict", "count(bought) over 20d", "--val", "soon"], "labels-time-option"),
        (["--predict", "count(sold) over 20d"], "labels-question"),
        (["--predict", "median(bought.amount) over 20d"], "labels-question"),
        (["--predict", "sum(bought) over 20d"], "labels-question"),
        (["--predict", "count(bought) over 20d", "--for", "people"], "labels-node-type"),
        (["--predict", "count(bought) over 20d", "--window", "30d"], "prepare-options-clash"),
        ([], "prepare-options-clash"),
    ],
)
def test_broken_options_are_refused(
    shop: Path, options: list[str], id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(["labels", str(shop), *OPTIONS, "--for", "user", *options]) == 2
    assert ids_of(capsys.readouterr().err) == (id,)


def test_durations() -> None:
    given = ["30d", "12 h", "1mo", "2 Weeks", "5min", "1 year"]
    assert [parse_duration(text, "--every") for text in given] == [
        "30 days", "12 hours", "1 month", "2 weeks", "5 minutes", "1 year",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="labels-duration"):
        parse_duration("0d", "--every")
