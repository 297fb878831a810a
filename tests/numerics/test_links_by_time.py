"""Label edges with times: rows of (user, time, items), of which a pair may have many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import raygnn.infer
import raygnn.train
from raygnn.data.links.split import LinkSplit
from raygnn.data.links.supervision import make_supervision
from raygnn.data.tables.graph_tables import (
    EdgeRows,
    GraphTables,
    edge_rows,
    node_rows,
    write_tables,
)
from raygnn.inference.output_folder import OutputFolder
from raygnn.loops.tasks.link_prediction.baselines import LinkBaselines
from raygnn.loops.tasks.link_prediction.target import (
    LinkTarget,
    LinkTargetArguments,
    find_dated_links,
)
from raygnn.metrics import FullRanking, Links
from raygnn.recommender import recommender
from raygnn.recommender.peers import PeersInTime
from raygnn.runtime.data_source import open_bundle
from raygnn.serving.answers import Answers
from raygnn.serving.messages import Refused, TopK
from tests.numerics.infer.conftest import dates
from tests.rank_pool import RankPool
from tests.tiers import slow

NUM_USERS, NUM_ITEMS, NUM_GROUPS, NUM_DAYS, WINDOW = 100, 40, 8, 360, 30
BUYS, NEXT = ("user", "buys", "item"), ("user", "next", "item")
ASKED = np.arange(60, NUM_DAYS - WINDOW + 1, WINDOW)
SPLITS = np.array(["train"] * (len(ASKED) - 2) + ["val", "test"])


@dataclass(frozen=True)
class Shop:
    """Purchases of users who prefer a group of items.

    Attributes:
        chance: [NUM_USERS, num_items], of each item to be the next; the best possible scores if
            users buy an item again and again.
    """

    chance: np.ndarray
    user: np.ndarray
    item: np.ndarray
    day: np.ndarray

    @classmethod
    def random(cls, seed: int, preference: float) -> Shop:
        rng = np.random.default_rng(seed)
        is_liked = _is_liked(rng, NUM_ITEMS)
        weights = rng.gamma(0.5, size=is_liked.shape) * is_liked
        chance = np.full(is_liked.shape, (1 - preference) / NUM_ITEMS)
        chance += preference * weights / weights.sum(axis=1, keepdims=True)
        user = rng.integers(0, NUM_USERS, 40 * NUM_USERS)
        item = np.array([rng.choice(NUM_ITEMS, p=chance[u]) for u in user])
        return cls(chance, user, item, np.sort(rng.integers(1, NUM_DAYS, len(user))))

    @classmethod
    def of_books(cls, seed: int) -> Shop:
        """Nobody buys the same item twice."""
        rng = np.random.default_rng(seed)
        is_liked = _is_liked(rng, num_items := 96)
        chance = rng.gamma(1, size=num_items) * np.where(is_liked, 1, 0.02)
        chance /= chance.sum(axis=1, keepdims=True)
        item = np.stack([rng.choice(num_items, 10, replace=False, p=p) for p in chance])
        user = np.repeat(np.arange(NUM_USERS), item.shape[1])
        order = np.argsort(day := rng.integers(1, NUM_DAYS, len(user)))
        return cls(chance, user[order], item.ravel()[order], day[order])

    @property
    def num_items(self) -> int:
        return self.chance.shape[1]

    def after(self, day: int, rng: np.random.Generator) -> Shop:
        """The same until the end of a day; then other purchases."""
        past, num = self.day <= day, int(rng.integers(1, 2000))
        return Shop(
            self.chance,
            np.append(self.user[past], rng.integers(0, NUM_USERS, num)),
            np.append(self.item[past], rng.integers(0, self.num_items, num)),
            np.append(self.day[past], np.sort(rng.integers(day + 1, NUM_DAYS, num))),
        )

    def rows(self) -> pd.DataFrame:
        """A row for each item that a user buys in the window of a day; pairs repeat."""
        bought = pd.DataFrame({"user": self.user, "item": self.item, "day": self.day})
        parts = [
            bought[(bought.day > asked) & (bought.day <= asked + WINDOW)].assign(
                asked=asked, split=split
            )
            for asked, split in zip(ASKED, SPLITS, strict=True)
        ]
        return pd.concat(parts).drop_duplicates(["user", "item", "asked"])

    def write(self, folder: Path, *, has_purchases: bool = False) -> str:
        """Writes purchases as edges, or as nodes with edges to user and item."""
        rows = self.rows()
        nodes = {
            "user": node_rows(np.arange(NUM_USERS), {"x": np.ones((NUM_USERS, 1), np.float32)}),
            "item": node_rows(np.arange(self.num_items)),
        }
        rows = rows.assign(asked=dates(rows.asked.to_numpy()))
        asked = EdgeRows(rows, "user", "item", time="asked", split="split")
        time, rows_of = dates(self.day), np.arange(len(self.day))
        edges = {BUYS: edge_rows(self.user, self.item, time=time)}
        if has_purchases:
            nodes["purchase"] = node_rows(rows_of, time=time)
            edges = {
                ("purchase", "by", "user"): edge_rows(rows_of, self.user),
                ("purchase", "of", "item"): edge_rows(rows_of, self.item),
            }
        write_tables(
            GraphTables(nodes, edges, label_edges={(NEXT, "positive"): asked}), str(folder)
        )
        return str(folder)

    def judge(self, scores: np.ndarray, split: str = "test", k: int = 20) -> float:
        """NDCG@k of scores, [NUM_USERS, num_items], on the rows of a split."""
        rows = self.rows().query("split == @split").groupby(["asked", "user"]).item.apply(list)
        ends = torch.tensor([0, *map(len, rows)]).cumsum(0)
        links = Links(ends, torch.tensor([item for items in rows for item in items]))
        none = Links(torch.zeros_like(ends), torch.zeros(0, dtype=torch.long))
        ranking = FullRanking(self.num_items, [k])
        queries = torch.from_numpy(scores[rows.index.get_level_values("user")]).float()
        state = ranking.update(
            queries, torch.eye(self.num_items), links, none, lambda a, b: a @ b.T
        )
        return ranking.compute(state)[f"full_ndcg@{k}"]


def _is_liked(rng: np.random.Generator, num_items: int) -> np.ndarray:
    group = rng.integers(0, NUM_GROUPS, NUM_USERS)
    return group[:, None] == np.arange(num_items) % NUM_GROUPS


def _config(folder: Path, graph: str, epochs: int = 30) -> dict[str, Any]:
    args = {"edge_type": "user__next__item", "labels": True}
    return {
        "data": {"uri": graph, "cache_dir": str(folder / "cache")},
        "task": {"type": "link_prediction", "args": args},
        "model": {"type": "Hetero", "args": {"hidden_channels": 32}},
        "sampling": {"temporal": {"strategy": "last"}},
        "optimizer": {"args": {"lr": 0.01}},
        "training": {"max_epochs": epochs},
        "scaling": {"num_workers": 0},
        "run": {"storage_path": str(folder), "name": "run"},
    }


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop.random(0, preference=0.9)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, shop: Shop) -> tuple[Any, str]:
    folder = tmp_path_factory.mktemp("next")
    graph = shop.write(folder / "graph")
    return raygnn.train.fit(_config(folder, graph)), graph


def test_a_pair_is_a_link_at_each_of_its_times(shop: Shop, tmp_path: Path) -> None:
    bundle = open_bundle(_loaded(tmp_path, shop.write(tmp_path / "graph")), None)
    found = make_supervision(bundle, LinkSplit(NEXT, labels=True, by_time=True))
    rows = shop.rows()
    assert rows.duplicated(["user", "item"]).any()
    assert rows.groupby(["user", "item"]).split.nunique().max() > 1
    for split, edges in found.items():
        expected = rows[rows.split == split].groupby(["user", "asked"]).item.apply(sorted)
        made = [part.tolist() for part in np.split(edges.targets, edges.indptr[1:-1])]
        assert edges.anchors.tolist() == expected.index.get_level_values("user").tolist()
        assert made == expected.tolist()


def _loaded(folder: Path, graph: str) -> Any:
    from raygnn.config import load_config

    return load_config(_config(folder, graph))


def test_features_are_fitted_until_the_last_training_row(shop: Shop, tmp_path: Path) -> None:
    config = _loaded(tmp_path, shop.write(tmp_path / "graph"))
    bundle = open_bundle(config, None)
    arguments = LinkTargetArguments.of(config.config.task.args)
    fitted = LinkTarget.find(bundle, config.config, arguments).fit_rows(bundle, config.config)
    last = dates(ASKED[SPLITS == "train"]).max().astype(int)
    assert (fitted.until, fitted.unit) == (last, "us")


def test_repeated_purchases_are_learned(trained: tuple[Any, str], shop: Shop) -> None:
    """The best scores are the probabilities that made them. Saved models rank the same."""
    result, graph = trained
    best, found = shop.judge(shop.chance), result.metrics["test/full_ndcg@20"]
    assert result.metrics["baseline/popularity/test/full_ndcg@20"] < 0.5 * best
    assert 0.95 * best < found
    for name in ("own_targets", "ials", "ease"):  # of the same links
        assert found > 0.98 * result.metrics[f"baseline/{name}/test/full_ndcg@20"]
    assert result.model.module.factors.is_used
    ranked = result.model.open(graph).top_k_of_rows("next", NUM_ITEMS, split="test").to_pandas()
    scores = np.zeros(shop.chance.shape)
    for row in ranked.itertuples():
        scores[row.id, row.neighbor_id] = row.score
    assert shop.judge(scores) == pytest.approx(found, abs=1e-6)


def test_baselines_know_what_is_known_at_the_time_of_a_row(
    trained: tuple[Any, str], shop: Shop
) -> None:
    """Against loops over the purchases."""
    metrics = trained[0].metrics
    for split, asked in (("val", ASKED[-2]), ("test", ASKED[-1])):
        own = np.zeros(shop.chance.shape)
        for user, item, day in zip(shop.user, shop.item, shop.day, strict=True):
            own[user, item] += day <= asked
        total = own.sum(axis=0)
        guesses = {"own_targets": own + 1e-4 * total / total.max(), "popularity": total + 0 * own}
        guesses["popularity of labels"] = np.tile(
            _popularity_of_labels(shop, split), (NUM_USERS, 1)
        )
        found = {
            name: metrics[f"baseline/{name}/{split}/full_ndcg@20"]
            for name in ("own_targets", "popularity", "ease", "ials")
        }
        expected = {name: shop.judge(scores, split) for name, scores in guesses.items()}
        assert found["own_targets"] == pytest.approx(expected.pop("own_targets"), abs=1e-6)
        assert found["popularity"] in [
            pytest.approx(value, abs=1e-6) for value in expected.values()
        ]
        assert found["ials"] > found["ease"] > 2 * found["popularity"]


def _popularity_of_labels(shop: Shop, split: str) -> np.ndarray:
    known = shop.rows().query("split == 'train'" + (" or split == 'val'" * (split == "test")))
    return np.bincount(known["item"], minlength=NUM_ITEMS)


def test_validation_rows_choose_penalties(shop: Shop, tmp_path: Path) -> None:
    """With links known at the time of a row, and with label edges alone."""
    loaded = _loaded(tmp_path, shop.write(tmp_path / "graph"))
    config, bundle = loaded.config, open_bundle(loaded, None)
    target = LinkTarget.find(bundle, config, LinkTargetArguments.of(config.task.args))
    history = find_dated_links(bundle, config, ("user", "item"))
    baselines = LinkBaselines(target, bundle, history)
    baselines._best("labels", baselines._ials, (10.0, 1e6), "val")
    assert baselines._chosen["labels"][0] == 10
    fits = [partial(baselines._scores_of, PeersInTime.ials, l2) for l2 in (10.0, 1e6)]
    baselines._best_in_time("fitted", fits, "val")
    assert baselines._chosen["fitted"] == (0, False)


def test_top_k_ranks_rows_of_now(trained: tuple[Any, str]) -> None:
    graph = trained[0].model.open(trained[1])
    users = np.arange(NUM_USERS)
    rows = graph.top_k_of_rows(pd.DataFrame({"id": users})).to_pandas()
    scores = graph.top_k(users).to_pandas().score.to_numpy().reshape(NUM_USERS, -1)
    # The encoder has little weight; it reads all neighbors for nodes, and sampled ones for rows.
    np.testing.assert_allclose(scores, np.stack(rows.score), rtol=0, atol=0.01)


def test_ranks_write_their_share_of_the_lists(
    ranks: RankPool, trained: tuple[Any, str], tmp_path: Path
) -> None:
    result, graph = trained
    expected = result.model.open(graph).top_k_of_rows("next", 5, split="test").to_pandas()
    given = ["--data.uri", graph, "--table", "next", "--split", "test", "--top-k", "5"]
    for size in (1, 2):
        out = str(tmp_path / f"{size}.parquet")
        parts = ranks.run(_infer, size, [str(result.path), *given, "--out", out])
        assert sorted(chain(*parts)) == list(range(-(-len(expected) // 20)))
        assert all(parts)
        assert pd.read_parquet(out).equals(expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.parquet", "2.parquet"]


def _infer(arguments: list[str]) -> list[int]:
    """Parts that a rank writes, of 20 rows."""
    written = []
    with pytest.MonkeyPatch.context() as patch:
        write = OutputFolder.write

        def record(self: OutputFolder, table: str, part: int, *args: Any) -> Any:
            written.append(part)
            return write(self, table, part, *args)

        patch.setattr(OutputFolder, "write", record)
        assert raygnn.infer.main([*arguments, "--rows-per-file", "100"]) == 0
    return written


@pytest.mark.parametrize("day", [330, *slow(120, 200)])
def test_nothing_later_than_a_row_changes_a_bit_of_its_list(
    trained: tuple[Any, str], shop: Shop, tmp_path: Path, day: int
) -> None:
    result, graph = trained
    changed = shop.after(day, np.random.default_rng(day)).write(tmp_path / "changed")
    at = pd.DataFrame({"id": np.arange(NUM_USERS), "time": dates(np.full(NUM_USERS, day))})
    before, after = (result.model.open(uri).top_k_of_rows(at).arrow for uri in (graph, changed))
    assert after.equals(before)
    later = at.assign(time=dates(np.full(NUM_USERS, NUM_DAYS)))
    before, after = (result.model.open(uri).top_k_of_rows(later).arrow for uri in (graph, changed))
    assert not after.equals(before)


def test_what_a_user_has_is_not_recommended_if_nobody_buys_twice(tmp_path: Path) -> None:
    shop = Shop.of_books(0)
    graph = shop.write(tmp_path / "graph", has_purchases=True)
    result = raygnn.train.fit(_config(tmp_path, graph, epochs=2))
    settings = result.model.module.factors.settings
    assert settings.hides_known
    found, ials, popularity = (
        result.metrics[f"{name}test/full_ndcg@20"]
        for name in ("", "baseline/ials/", "baseline/popularity/")
    )
    assert found > ials - 0.02 > 3 * popularity  # known targets last in the baselines too
    opened = result.model.open(graph)
    ranked = opened.top_k_of_rows("next", shop.num_items, split="test").to_pandas()
    bought = set(zip(shop.user, shop.item, strict=True))
    before = {
        (user, item)
        for user, item, day in zip(shop.user, shop.item, shop.day, strict=True)
        if day <= ASKED[-1]
    }
    listed = {(row.id, item) for row in ranked.itertuples() for item in row.neighbor_id}
    users = set(ranked.id)
    assert listed == {*product(users, range(shop.num_items))} - before
    assert np.isfinite(np.concatenate(ranked.score)).all()
    best = {(row.id, item) for row in ranked.itertuples() for item in row.neighbor_id[:20]}
    assert len(best & bought) > 20
    time = str(dates(ASKED[-1:])[0])
    question = TopK(anchors=sorted(users), k=shop.num_items, time=time)
    (answer,) = Answers(result.model, graph).answer([question])
    assert not isinstance(answer, Refused), answer
    assert {(row["anchor_id"], row["neighbor_id"]) for row in answer} == listed
    overrides = ["--data.uri", graph]
    k = shop.num_items
    raygnn.infer.top_k(result.path, tmp_path / "out", k, sorted(users), overrides, as_of=time)
    written = pd.read_parquet(tmp_path / "out" / "neighbors")
    assert {*zip(written.anchor_id, written.neighbor_id, strict=True)} == listed


@pytest.mark.parametrize("is_alone", [True, False])
def test_advice_on_training_is_for_a_ranking_by_the_encoder(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    """By the weights of the best validation, here the first one."""
    weights = {True: (1 / 1024, 1.0), False: (1.0, 1.0)}
    chosen = iter([(weights[is_alone], 0.9), *[(weights[not is_alone], 0.5)] * 9])
    monkeypatch.setattr(recommender, "choose_weights", lambda *_: next(chosen))
    config = _config(tmp_path, shop.write(tmp_path / "graph"), epochs=3)
    config |= {"early_stopping": {"patience": 1}}
    config["training"]["validate_every"] = {"epochs": 1}
    warnings = raygnn.train.fit(config).metrics["warnings"]
    assert ("model.args.dropout" in warnings) is not is_alone


def test_noise_gives_chance(tmp_path: Path) -> None:
    shop = Shop.random(1, preference=0)
    result = raygnn.train.fit(_config(tmp_path, shop.write(tmp_path / "graph"), epochs=3))
    chance = shop.judge(np.zeros((NUM_USERS, NUM_ITEMS)))
    assert result.metrics["test/full_ndcg@20"] == pytest.approx(chance, abs=0.06)
    for name in ("popularity", "own_targets", "recent_popularity", "ease", "ials"):
        found = result.metrics[f"baseline/{name}/test/full_ndcg@20"]
        assert found == pytest.approx(chance, abs=0.06)
