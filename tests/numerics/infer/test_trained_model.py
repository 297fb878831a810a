"""`raygnn.load`: what the command line of inference writes, in memory, for chosen nodes too."""

from __future__ import annotations

import html
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch_geometric.data import Data, HeteroData

import raygnn
import raygnn.infer
import raygnn.registry
import raygnn.train
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.inference.embeddings import NodeEncoder
from tests.errors import assert_reports, raises
from tests.numerics.infer.conftest import DAY, Trained
from tests.small_runs import small_config
from tests.tiers import slow

EVAL = {None: [], True: ["--training.eval", "exact"], False: ["--training.eval", "sampled"]}
LOCAL = ["--scaling.num_workers", "0"]


def written(trained: Trained, out: Path, name: str, overrides: list[str], **args: Any) -> pa.Table:
    """A table of the command line's code, on the graph without labels."""
    graph = ["--data.uri", trained.plain_graph, *LOCAL]
    found = raygnn.infer.predict(trained.run, out, [*graph, *overrides], **args)
    return pq.read_table(found.table_uri(name))


@pytest.mark.parametrize("exact", [None, True, False], ids=["default", "exact", "sampled"])
@pytest.mark.parametrize("what", ["predictions", "probabilities", "embeddings"])
def test_tables_are_those_of_the_command_line(node_model, tmp_path, exact, what):
    model = raygnn.load(node_model.run)
    found = model.predict(node_model.plain_graph, what=what, exact=exact)
    assert found.arrow.equals(written(node_model, tmp_path, "node", EVAL[exact], what=what))


@pytest.mark.parametrize("exact", [True, *slow(False)], ids=["exact", "sampled"])
@pytest.mark.parametrize("as_of", ["1970-02-20", *slow(None, 12 * DAY)])
def test_models_in_time_are_those_of_the_command_line(
    temporal_links, temporal_labels, tmp_path, exact, as_of
):
    for trained, name in ((temporal_labels, "user"), (temporal_links, "item")):
        graph = raygnn.load(trained.run).open(trained.graph, exact=exact, as_of=as_of)
        what = "predictions" if trained is temporal_labels else "embeddings"
        found = graph.predict() if what == "predictions" else graph.embed(node_type=name)
        given = {"what": what, "as_of": as_of}
        assert found.arrow.equals(written(trained, tmp_path / name, name, EVAL[exact], **given))


@pytest.mark.parametrize("exact", [None, True, False], ids=["default", "exact", "sampled"])
def test_neighbors_are_those_of_the_command_line(link_model, temporal_links, tmp_path, exact):
    given: Any
    for i, (trained, given) in enumerate(
        (
            (link_model, {}),
            (link_model, {"edge_type": "user__buys__item", "filter_known": True}),
            (temporal_links, {"as_of": "1970-02-20", "filter_known": True}),
        )
    ):
        overrides = ["--data.uri", trained.plain_graph, *LOCAL, *EVAL[exact]]
        told = raygnn.infer.top_k(trained.run, tmp_path / str(i), 5, [3, 1, 4], overrides, **given)
        found = raygnn.load(trained.run).top_k(
            trained.plain_graph, [3, 1, 4], 5, exact=exact, **given
        )
        assert found.arrow.equals(pq.read_table(told.table_uri("neighbors")))


def test_chosen_nodes_are_rows_of_the_whole_in_the_order_asked(node_model):
    model = raygnn.load(node_model.run)
    asked = ["n077", "n003", "n077", "n149"]
    for exact in (True, False):
        graph = model.open(node_model.plain_graph, exact=exact)
        alone = graph.embed(asked)
        every = dict(zip(*graph.embed().to_numpy().values(), strict=True))
        assert alone["id"].tolist() == asked
        np.testing.assert_allclose(alone["embedding"], [every[i] for i in asked], atol=1e-6)
        classes = dict(graph.predict().to_pandas()[["id", "prediction"]].values.tolist())
        assert graph.predict(asked)["prediction"].tolist() == [classes[i] for i in asked]


def test_few_nodes_do_not_encode_the_whole_graph(node_model, link_model, monkeypatch):
    model = raygnn.load(node_model.run)
    graph = model.open(node_model.plain_graph)
    encoded: list[Any] = []
    monkeypatch.setattr(NodeEncoder, "_keep_every", lambda self, types: encoded.append(types))
    graph.predict(["n001"])
    raygnn.load(link_model.run).embed(link_model.graph, [1], node_type="item")
    assert not encoded


def test_scores_are_those_of_the_neighbors(link_model, temporal_links, node_model):
    relation = {"edge_type": "user__buys__item"}
    for trained, given in ((link_model, relation), (temporal_links, {"filter_known": True})):
        graph = raygnn.load(trained.run).open(trained.graph)
        best = graph.top_k([5, 2], 4, **given).to_pandas()
        pairs = best[["anchor_id", "neighbor_id"]]
        for form in (pairs, pairs.to_numpy(), list(pairs.itertuples(index=False))):
            found = graph.score(form)
            np.testing.assert_allclose(found["score"], best["score"], rtol=1e-6)
            assert found["target_id"].tolist() == best["neighbor_id"].tolist()
    near = raygnn.load(node_model.run).open(node_model.graph)
    rows = near.embed(["n001", "n002"])["embedding"].astype(np.float64)
    assert near.score([("n001", "n002")])["score"][0] == pytest.approx(rows[0] @ rows[1], rel=1e-5)


def test_it_is_a_module_with_the_weights_of_the_file(node_model):
    model = raygnn.load(node_model.run)
    saved = load_file(Path(node_model.run) / "model.safetensors")
    own = model.module.state_dict()
    assert own.keys() == saved.keys()
    assert all(torch.equal(own[name], saved[name]) for name in saved)
    assert isinstance(model, torch.nn.Module)
    assert not model.training


def test_a_notebook_keeps_its_random_state_and_settings(node_model):
    torch.use_deterministic_algorithms(False)
    torch.manual_seed(7)
    np.random.seed(7)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), torch.get_num_threads()
    raygnn.load(node_model.run).predict(node_model.plain_graph, exact=False)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert torch.get_num_threads() == before[2]
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_table_has_the_forms_that_are_wanted(node_model):
    found = raygnn.load(node_model.run).predict(node_model.plain_graph, what="probabilities")
    assert len(found) == 150
    assert found["probability"].shape == (150, 3)
    assert found.to_torch()["probability"].dtype == torch.float64
    assert list(found.to_torch()) == ["probability"]
    frame = found.to_pandas()
    assert frame["id"][7] == "n007"
    assert np.array_equal(np.stack(frame["probability"]), found["probability"])


def test_graphs_of_pyg_are_read(tmp_path):
    graph = random_data(120)
    config = small_config(tmp_path, scaling__num_workers=0, data__splits={"type": "hash"})
    result = raygnn.train.fit(config, data=graph)
    assert "load_model" not in repr(result)
    model = result.model
    found = model.predict(graph, [5, 0])
    assert found["id"].tolist() == [5, 0]
    assert set(found["prediction"]) <= {0, 1, 2}
    again = raygnn.load(result.path).predict(graph, [5, 0])
    assert again.arrow.equals(found.arrow)
    # PyG's module on what the model reads of the same graph.
    opened = model.open(graph, exact=True)
    data = opened.to_pyg()
    with torch.no_grad():
        rows = model.to_pyg()(data.x, data.edge_index)
    np.testing.assert_allclose(rows.numpy(), opened.embed()["embedding"], atol=1e-5)


def random_data(num_nodes: int) -> Data:
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(num_nodes, (2, 600), generator=generator)
    edges = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
    return Data(
        x=100 * torch.randn(num_nodes, 4, generator=generator) + 30,
        y=torch.randint(3, (num_nodes,), generator=generator),
        edge_index=edges,
    )


def test_several_types_become_pygs_hetero_data(link_model):
    data = raygnn.load(link_model.run).open(link_model.graph).to_pyg()
    assert isinstance(data, HeteroData)
    assert data["user"].x.shape == (40, 4)
    assert abs(data["user"].x.mean()) < 1e-5
    assert "x" not in data["item"]
    forward, back = (data[t].edge_index for t in data.edge_types)
    assert sorted(forward.T.tolist()) == sorted(back.flip(0).T.tolist())


def priced_shop(folder: Path, rows: slice = slice(None)) -> str:
    """Houses with a price; the whole table, or some of its rows, without edges between them."""
    rng = np.random.default_rng(0)
    size = rng.uniform(20, 300, 90)
    price = 3_000 * size + rng.normal(0, 1e3, 90)
    ids, at = np.arange(90)[rows], size.reshape(-1, 1)[rows]
    labels = {"price": price.astype(np.float32)[rows]}
    ring = np.arange(len(ids))
    tables = GraphTables(
        {"house": node_rows(ids, {"x": at.astype(np.float32)}, labels=labels)},
        {("house", "near", "house"): edge_rows(ids[ring], ids[np.roll(ring, 1)])},
    )
    return str(Path(write_tables(tables, str(folder))).parent)


def test_targets_of_a_regression_are_in_their_unit(tmp_path):
    uri = priced_shop(tmp_path / "graph")
    config = small_config(
        tmp_path,
        data={"uri": uri, "splits": {"type": "hash"}},
        model={"type": "MLP", "args": {"hidden_channels": 16}},
        metrics=[{"type": "mae"}],
        optimizer={"type": "Adam", "args": {"lr": 0.05}},
        training__max_epochs=30,
        scaling__num_workers=0,
    )
    model = raygnn.train.fit(config).model
    trained = Trained(str(tmp_path / "run"), uri, uri, {})
    found = model.predict(uri)
    assert found.arrow.equals(written(trained, tmp_path / "out", "house", EVAL[True]))
    price = pq.read_table(Path(uri, "nodes", "house"))["price"].to_numpy()
    assert np.abs(found["prediction"] - price).mean() < 0.1 * price.mean()
    # A table of one row is read as it was among all: nothing is measured again.
    one = model.predict(priced_shop(tmp_path / "one", slice(7, 8)))
    assert one["id"].tolist() == [7]
    assert one["prediction"][0] == pytest.approx(found["prediction"][7], rel=1e-6)


def test_what_is_wrong_is_told(node_model, link_model):
    model, links = raygnn.load(node_model.run), raygnn.load(link_model.run)
    with raises("infer-ids-unknown", "'node'", "nope"):
        model.predict(node_model.plain_graph, ["nope", "n001"])
    with raises("infer-ids-empty"):
        model.predict(node_model.plain_graph, [])
    with raises("nodes-id-kind"):
        model.predict(node_model.plain_graph, [1])
    with raises("model-node-type-missing", "user"):
        links.embed(node_model.plain_graph, node_type="user")
    with raises("model-node-type-open", "user", "item"):
        links.embed(link_model.graph)
    with raises("data-source-missing", node_model.graph):
        model.predict()
    with raises("infer-as-of-unread"):
        model.predict(node_model.graph, as_of=3)
    with raises("model-pairs"):
        links.score(link_model.graph, [(1, 2, 3)])
    with raises("infer-edge-type-unknown"):
        links.score(link_model.graph, [(1, 2)], edge_type="a__b__c")
    for wrong in ({"filter": True}, {"edge_type": 3}):
        with raises("infer-top-k-option", *wrong):
            model.top_k(node_model.graph, ["n001"], **wrong)
    with raises("infer-score-no-decoder"):
        model.score(node_model.graph, [("n001", "n002")], score="decoder")


def test_overrides_name_graph_and_reading(node_model):
    model = raygnn.load(node_model.run, ["--data.uri", node_model.plain_graph])
    assert model.predict().arrow.equals(model.predict(node_model.plain_graph).arrow)


def test_a_module_of_ones_own_needs_leave_and_is_encoded_from_full_neighborhoods(
    node_model, tmp_path
):
    model = {"type": "tests.user_code.PlainPyG"}
    config = small_config(tmp_path, model=model, scaling__num_workers=0, data__uri=node_model.graph)
    result = raygnn.train.fit(config, allow_modules=["tests"])
    with raises("component-not-allowed", "tests"):
        raygnn.load(result.path)
    found = result.model.predict(node_model.plain_graph, exact=True)
    whole = raygnn.load(
        result.path, ["--sampling.fanouts", "[-1, -1]"], allow_modules=["tests"]
    ).predict(node_model.plain_graph, exact=False, what="probabilities")
    assert found["prediction"].tolist() == [
        f"class-{c:03d}" for c in whole["probability"].argmax(1).tolist()
    ]
    assert isinstance(result.model.to_pyg(), torch.nn.Module)


def test_the_lines_that_a_report_shows_work(node_model, link_model):

    for trained, names in ((node_model, {}), (link_model, {"anchors": [1, 2]})):
        page = (Path(trained.run) / "report.html").read_text()
        shown = page.split("<h2>Use the model</h2>")[1].split("<pre>")[1].split("</pre>")[0]
        *lines, last = html.unescape(shown).splitlines()
        scope: dict[str, Any] = dict(names)
        exec("\n".join([*lines, f"found = {last}"]), scope)
        assert len(scope["found"]) == (150 if trained is node_model else 20)


def test_the_test_split_gives_the_metrics_of_the_run(node_model, link_model, temporal_links):
    for trained in (node_model, link_model, temporal_links):
        found = raygnn.load(trained.run).evaluate(trained.graph, split="test")
        expected = {
            name.partition("/")[2]: value
            for name, value in trained.metrics.items()
            if name.startswith("test/") and name != "test/loss"
        }
        assert found == {name: value for name, value in expected.items() if name in found}
        assert set(found) <= set(expected)
        assert found


def test_all_labelled_nodes_of_another_graph_are_judged(node_model, capsys):
    model = raygnn.load(node_model.run)
    found = model.evaluate(node_model.graph)
    table = pq.read_table(Path(node_model.graph) / "nodes" / "node")
    labels = dict(zip(table["id"].to_pylist(), table["y"].to_pylist(), strict=True))
    predicted = model.predict(node_model.graph).to_pandas()
    right = np.mean([labels[i] == p for i, p in predicted[["id", "prediction"]].values])
    assert found == {"accuracy": pytest.approx(right, abs=1e-12)}
    arguments = [node_model.run, "--data.uri", node_model.graph, "--metrics", "all"]
    assert raygnn.infer.main(arguments) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == found
    assert raygnn.infer.main([*arguments, "--out", "x"]) == 2
    assert "infer-options-clash" in capsys.readouterr().err
    lists = ["--table", "t", "--top-k", "2", "--filter-known", "--out", "x.csv"]
    assert raygnn.infer.main([*arguments[:3], *lists]) == 2
    assert "infer-options-clash" in capsys.readouterr().err
    assert raygnn.infer.main([*arguments[:3], "--out", "x.csv"]) == 2  # only rows are one file
    assert "infer-out-folder" in capsys.readouterr().err


def test_what_cannot_be_judged_is_told(node_model, link_model, tmp_path):
    model = raygnn.load(node_model.run)
    with raises("model-split", "dev"):
        model.evaluate(node_model.graph, split="dev")
    with raises("graph-column-unknown", "y"):
        model.evaluate(node_model.plain_graph)
    other = tmp_path / "other"
    shutil.copytree(node_model.graph, other)
    for path in (other / "nodes" / "node").iterdir():
        table = pq.read_table(path)
        names = pa.array([f"other-{text}" for text in table["y"].to_pylist()])
        place = table.column_names.index("y")
        pq.write_table(table.set_column(place, "y", names), path)
    with raises("model-classes-differ", "other-class-000", "class-000"):
        model.evaluate(other)


def test_an_alias_stands_for_the_model_of_a_run(node_model, tmp_path, capsys):
    name = f"{tmp_path}/orders"
    version = raygnn.registry.add(name, node_model.run, alias="champion")
    aliased, of_run = raygnn.load(f"{name}@champion"), raygnn.load(node_model.run)
    found, expected = (model.predict(node_model.graph) for model in (aliased, of_run))
    assert found.arrow.equals(expected.arrow)
    assert raygnn.registry.set_alias(f"{name}@next", version[:6]) == version
    assert raygnn.registry.main(["list", name]) == 0
    assert f"{node_model.run} @champion @next" in capsys.readouterr().out
    assert raygnn.registry.main(["rollback", f"{name}@next"]) == 2
    assert_reports(capsys.readouterr().err.strip(), "registry-rollback")
