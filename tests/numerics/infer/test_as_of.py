"""Inference as of a moment, of models that were trained in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raygnn.infer
import raygnn.train
from raygnn.data.time_units import AsOf
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks.exact_encoding import encode_exactly
from raygnn.loops.tasks.link_prediction.target import LinkOutput
from raygnn.models import GCN, GraphSAGE
from raygnn.models.exact import ExactOptions
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.sampling import LocalFeatureStore, LocalGraphStore, NeighborLoader, NeighborSampler
from raygnn.sampling.temporal import Temporal
from tests.folders import contents
from tests.numerics.infer.conftest import (
    DAY,
    NUM_ITEMS,
    Trained,
    timed_shop,
    write_shop,
)
from tests.numerics.infer.test_nodes import EXACT, SAMPLED, read
from tests.small_graph import EDGE, NODE, random_graph

ALL = ["--sampling.fanouts", "[-1, -1]"]


def _predict(model: Trained, out: Path, overrides: list[str], **args: Any) -> Any:
    graph = ["--data.uri", args.pop("graph", model.graph), "--scaling.num_workers", "0"]
    return raygnn.infer.predict(model.run, out, [*graph, *overrides], **args)


def _same(one: Any, other: Any) -> bool:
    pairs = [(read(one, name), read(other, name)) for name in ("user", "item")]
    return all(np.allclose(a["embedding"], b["embedding"], atol=1e-5) for a, b in pairs)


@pytest.mark.parametrize("timed_users", [True, False])
def test_what_is_later_is_not_there(temporal_links, tmp_path, timed_users):
    """As of a day the graph is the one without the later purchases, exact and sampled."""
    day = 60
    graphs = {
        name: write_shop(tmp_path / name, until, timed_users=timed_users)
        for name, until in (("whole", None), ("cut", day))
    }
    whole, cut = ({"graph": graphs[name]} for name in ("whole", "cut"))
    exact = _predict(temporal_links, tmp_path / "a", EXACT, as_of=day * DAY, chunk_size=40, **whole)
    sampled = [*SAMPLED, *ALL]
    assert _same(
        exact, _predict(temporal_links, tmp_path / "b", sampled, as_of="1970-03-02", **whole)
    )
    assert _same(exact, _predict(temporal_links, tmp_path / "c", EXACT, as_of=day * DAY, **cut))
    assert not _same(exact, _predict(temporal_links, tmp_path / "d", EXACT, **whole))
    static = _predict(
        temporal_links, tmp_path / "e", [*EXACT, "--sampling.temporal", "null"], **cut
    )
    # Users that are there later are neighbors to a model that does not read their times.
    assert _same(exact, static) != timed_users
    assert (exact.manifest["as_of"], exact.manifest["time_unit"]) == (day * DAY, "us")
    assert "as_of" not in static.manifest


@pytest.mark.parametrize("kind", ["GraphSAGE", "GCN"])
@pytest.mark.parametrize("timed", ["edges", "nodes", "both"])
def test_exact_encoding_as_of_a_moment_is_sampling_all_neighbors(kind, timed):
    small = random_graph(40, 250, 3)
    rng = np.random.default_rng(0)
    small.roles = {"y": "label", "time": "time", "x": "feature"}
    if timed != "nodes":
        small.times = {EDGE: rng.integers(0, 20, 250)}
    if timed != "edges":
        small.stored[NODE]["time"] = rng.random(40) * 20
    small.stored[NODE]["x"] = rng.random((40, 3), dtype=np.float32)
    small.stored[EDGE]["weight"] = rng.random(250, dtype=np.float32)
    columns = {"weight": "edge_weight"} if kind == "GCN" else {}
    graph, features = LocalGraphStore(small.bundle), LocalFeatureStore(small.bundle)
    torch.manual_seed(0)
    encoder = GraphEncoder({"GCN": GCN, "GraphSAGE": GraphSAGE}[kind](3, 4, 5, 2)).eval()
    loader = NeighborLoader(
        graph,
        features,
        np.arange(40),
        NODE,
        sampler=NeighborSampler(graph, [-1, -1], temporal=Temporal()),
        columns={"x": "x"},
        edge_columns=columns,
        as_of=9,
        batch_size=40,
        split="infer",
        seed=0,
        shuffle=False,
    )
    (batch,) = loader.iterate(0)
    loader.close()
    spec = ModelSpec("x", {}, (EDGE,), {}, LinkOutput((EDGE,)), edge_inputs=columns)
    given = (encoder, graph, features, spec, [NODE])
    for chunk_size in (1, 7, 1000):
        options = ExactOptions(chunk_size=chunk_size)
        rows = encode_exactly(*given, as_of=AsOf("time", 9), options=options)[NODE]
        with torch.no_grad():
            expected = encoder(batch)[NODE][batch.seed_index]
        torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-4)
    later = encode_exactly(*given)[NODE]
    assert not torch.allclose(rows, later, atol=1e-3)


def test_the_nodes_of_links_are_encoded_at_the_latest_time(temporal_links, tmp_path):
    _, shop = timed_shop()
    latest = int(max(shop["day"].max(), shop["born"].max())) * DAY
    for how, times in (
        (EXACT, (None, latest, float(latest) + 0.5, "latest")),
        (SAMPLED, (None, latest)),
    ):
        found = [
            _predict(temporal_links, tmp_path / f"{how[1]}{as_of}", how, as_of=as_of)
            for as_of in times
        ]
        first, *others = (contents(Path(written.uri), "*.parquet") for written in found)
        assert all(files == first for files in others)
        assert found[0].manifest["as_of"] == latest


def test_known_links_are_those_of_that_time(temporal_links, tmp_path):
    """A purchase after the day can still be recommended, one before it cannot."""
    _, shop = timed_shop()
    day, anchors = 60, list(range(40))
    overrides = ["--data.uri", temporal_links.graph, "--scaling.num_workers", "0", *EXACT]
    given = {"as_of": day * DAY, "filter_known": True}
    found = raygnn.infer.top_k(temporal_links.run, tmp_path, NUM_ITEMS, anchors, overrides, **given)
    neighbors = read(found, "neighbors")
    offered = set(
        zip(neighbors["anchor_id"].tolist(), neighbors["neighbor_id"].tolist(), strict=True)
    )
    early = shop["day"] <= day
    bought = set(zip(shop["user"][early].tolist(), shop["item"][early].tolist(), strict=True))
    every = {(anchor, item) for anchor in anchors for item in range(NUM_ITEMS)}
    assert offered == every - bought
    assert found.manifest["as_of"] == day * DAY


@pytest.mark.parametrize(
    ("as_of", "rule"),
    [
        ("soon", "neither a date nor a number"),
        ("2024-13-45", "neither a date nor a number"),
        ("nan", "not a finite number of 64 bits"),
        ("9" * 5000, "not a finite number of 64 bits"),
        (str(2**63), "not a finite number of 64 bits"),
    ],
)
def test_what_is_not_a_time_is_refused(capsys, temporal_links, tmp_path, as_of, rule):
    arguments = [
        temporal_links.run,
        "--out",
        str(tmp_path / "out"),
        "--data.uri",
        temporal_links.graph,
    ]
    arguments += ["--scaling.num_workers", "0", "--as-of", as_of]
    assert raygnn.infer.main(arguments) == 2
    assert rule in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
