"""docs/own-tables.md does what it says: its tables, its files, and each of its commands are run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import raygnn.infer
import raygnn.prepare
import raygnn.train

PAGE = (Path(__file__).parents[2] / "docs" / "own-tables.md").read_text()
CATEGORIES = ("Shoes", "Books", "Toys", "Garden", "Music", "Kitchen")
SEGMENTS = ("sport", "reader", "parent", "gardener", "musician", "cook")
NUM_USERS, NUM_ITEMS, NUM_PURCHASES = 400, 120, 8_000


def _header(name: str) -> list[str]:
    (line,) = re.findall(rf"^{name} +(\S+)$", PAGE, re.MULTILINE)
    return line.split(",")


def _write(file: Path, **columns: object) -> None:
    table = pd.DataFrame(columns)
    assert list(table.columns) == _header(file.name)
    table.to_csv(file, index=False)


def _days(rng: np.random.Generator, start: str, num_days: int, num: int) -> pd.Series:
    return pd.Series(np.datetime64(start) + rng.integers(0, num_days, num))


def write_shop(folder: Path) -> None:
    """Nine tenths of what a user buys is of one category, which the segment shows.

    So no model has an AUC above 0.875: the items of a category are alike.
    """
    rng = np.random.default_rng(0)
    folder.mkdir()
    users = np.sort(rng.choice(10**5, NUM_USERS, replace=False))
    items = np.array([f"SKU-{i}" for i in rng.choice(10**4, NUM_ITEMS, replace=False)])
    taste, category = rng.integers(0, 6, NUM_USERS), rng.integers(0, 6, NUM_ITEMS)
    price = np.round(np.exp(rng.normal(2 + category / 3, 0.6)), 2)
    words = [
        "soft",
        "red",
        "big",
        "tiny",
        "organic",
        "classic",
        "travel",
        "night",
        "eco",
        "vintage",
    ]
    _write(
        folder / "users.csv",
        user_id=users,
        name=[f"name {i}" for i in range(NUM_USERS)],
        age=np.where(rng.random(NUM_USERS) < 0.15, np.nan, rng.integers(18, 80, NUM_USERS)),
        country=rng.choice(["DE", "FR", "US", None], NUM_USERS),
        signup=_days(rng, "2022-01-01", 600, NUM_USERS),
        segment=np.where(rng.random(NUM_USERS) < 0.2, None, np.array(SEGMENTS)[taste]),
    )
    _write(
        folder / "items.csv",
        item_id=items,
        title=[f"{' '.join(rng.choice(words, 3))} {i}" for i in range(NUM_ITEMS)],
        category=np.array(CATEGORIES)[category],
        price=price,
        added=_days(rng, "2021-06-01", 500, NUM_ITEMS),
    )
    buyer = rng.integers(0, NUM_USERS, NUM_PURCHASES)
    bought = rng.integers(0, NUM_ITEMS, NUM_PURCHASES)
    is_own = rng.random(NUM_PURCHASES) < 0.9
    for kind in range(6):
        rows = np.flatnonzero(is_own & (taste[buyer] == kind))
        bought[rows] = rng.choice(np.flatnonzero(category == kind), len(rows))
    seconds = np.sort(rng.integers(0, 300 * 86_400, NUM_PURCHASES))
    _write(
        folder / "purchases.csv",
        purchase_id=np.arange(NUM_PURCHASES) + 5000,
        user_id=users[buyer],
        item_id=items[bought],
        date=np.datetime64("2023-09-01T00:00:00") + seconds.astype("timedelta64[s]"),
        price=price[bought],
        quantity=rng.integers(1, 4, NUM_PURCHASES),
    )


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def _commands() -> list[list[str]]:
    page = PAGE.replace("\\\n", "")
    return [shlex.split(line) for line in re.findall(r"^    python -m (.*)$", page, re.MULTILINE)]


def _run(command: list[str]) -> None:
    module, *arguments = command
    here = ["--data.cache_dir", "cache", "--scaling.num_workers", "0"]
    run = {"raygnn.train": raygnn.train, "raygnn.infer": raygnn.infer}.get(module)
    if run is None:
        assert raygnn.prepare.main(arguments) == 0, command
    else:
        assert run.main([*arguments, *here]) == 0, command


def _metric(run: str, name: str) -> float:
    return float(json.loads(Path("runs", run, "metrics.json").read_text())[f"test/{name}"])


@pytest.mark.timeout(900)  # two trainings, which a busy machine takes minutes for
def test_the_page_goes_from_tables_to_recommendations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_shop(tmp_path / "shop")
    draft, train_links, recommend, _, train_segments, predict = _commands()
    graph, links, users, segments = blocks("yaml")
    (tmp_path / "links.yaml").write_text(links)
    (tmp_path / "segments.yaml").write_text(segments)

    _run(draft)
    drafted = yaml.safe_load((tmp_path / "shop" / "graph.yaml").read_text())
    assert drafted == yaml.safe_load(graph)

    _run(train_links)
    assert _metric("shop", "auc") >= 0.8
    _run(recommend)
    capsys.readouterr()
    (script,) = blocks("python")
    exec(script, {})
    assert "title" in capsys.readouterr().out
    offers = pd.read_parquet("out/offers/neighbors")
    assert offers.groupby("anchor_id").size().eq(10).sum() >= 0.9 * NUM_USERS
    kinds = pd.read_csv("shop/items.csv").set_index("item_id")["category"]
    segment_of = pd.read_csv("shop/users.csv").set_index("user_id")["segment"]
    wanted = segment_of.map(dict(zip(SEGMENTS, CATEGORIES, strict=True)))
    firsts = offers[offers["rank"] == 1].set_index("anchor_id")["neighbor_id"].map(kinds)
    known = wanted.dropna().index
    assert (firsts[known] == wanted[known]).mean() >= 0.8

    drafted["node_types"] |= yaml.safe_load(users)
    (tmp_path / "shop" / "graph.yaml").write_text(yaml.safe_dump(drafted))
    _run(train_segments)
    assert _metric("segments", "accuracy") >= 0.8
    _run(predict)
    found = pd.read_parquet("out/segments/users")
    assert len(found) == NUM_USERS
    assert set(found["prediction"]) == set(SEGMENTS)
