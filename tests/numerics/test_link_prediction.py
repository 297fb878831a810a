"""Link prediction learns, and is the same for 1 and 2 workers."""

from __future__ import annotations

from pathlib import Path

import pytest

import raygnn.train
from raygnn.config import load_config
from raygnn.documents import parse_yaml
from raygnn.runtime.data_checks import find_spec
from raygnn.runtime.data_source import open_bundle
from tests.errors import error_cases, raises
from tests.small_runs import check_workers_agree, small_bundle, small_config
from tests.tiers import slow

TASK = {
    "type": "link_prediction",
    "args": {"num_random_negatives": 20, "num_random_negatives_eval": 30},
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    small_bundle(folder, num_nodes=150, homophily=0.95)
    return folder / "tables"


@pytest.fixture(scope="module")
def bundle_path(graph: Path) -> str:
    return str(next((graph.parent / "cache" / "bundles").glob("*/bundle.json")).parent)


def _config(folder: Path, graph: Path, world_size: int = 0, **changes) -> dict:
    settings = {
        "task": TASK,
        "metrics": [],
        "data": {"uri": str(graph), "splits": {"type": "hash", "fractions": [0.7, 0.15, 0.15]}},
        "scaling__num_workers": world_size,
        "optimizer__args": {"lr": 0.01},
    }
    return small_config(folder, **{**settings, **changes})


def _task(**args) -> dict:
    return {**TASK, "args": {**TASK["args"], **args}}


@pytest.mark.parametrize(
    "loss", ["retrieval", *slow("softmax", "margin", "bpr", "link_binary_cross_entropy")]
)
def test_each_loss_learns_to_rank_links(tmp_path, graph, loss):
    config = _config(
        tmp_path,
        graph,
        losses=[{"type": loss}],
        training__max_epochs=6,
        model={"type": "GraphSAGE", "args": {"hidden_channels": 16, "normalize_output": True}},
    )
    metrics = raygnn.train.fit(config).metrics
    assert metrics["test/auc"] > 0.7
    assert 0 < metrics["test/mrr"] <= 1
    assert metrics["test/hits@1"] <= metrics["test/hits@10"] <= 1


@pytest.mark.parametrize("decoder", ["hadamard_mlp", *slow("inner_product", "distmult")])
def test_each_decoder_trains(tmp_path, graph, decoder):
    config = _config(tmp_path, graph, task=_task(decoder={"type": decoder}, negatives="degree"))
    assert raygnn.train.fit(config).metrics["epoch"] == 2


def test_workers_agree(ranks, graph, bundle_path, tmp_path):
    def config(folder: Path, size: int) -> dict:
        task = _task(full_ranking=[1, 3], max_labels_per_anchor=2)
        return _config(folder, graph, size, task=task, training__global_batch_size=96)

    names = ("train/loss", "val/loss", "val/mrr", "val/auc", "val/full_mrr")
    metrics, _ = check_workers_agree(ranks, config, tmp_path, bundle_path, *names)
    assert metrics["test/full_mrr"] > 0
    assert 0 < metrics["test/full_recall@3"] < 1


@pytest.mark.parametrize("sparse", [False, True])
def test_workers_agree_on_embedding_tables(ranks, graph, bundle_path, tmp_path, sparse):
    def config(folder: Path, size: int) -> dict:
        changes = {"training__global_batch_size": 96, "training__clip_grad_norm": 0.5}
        changes["optimizer"] = {"type": "Adagrad", "args": {"lr": 0.05}}
        args = {"out_channels": 8, "sparse_embeddings": sparse}
        return _config(folder, graph, size, model={"type": "LightGCN", "args": args}, **changes)

    check_workers_agree(ranks, config, tmp_path, bundle_path, sizes=(1, 3))


def test_variants_train(tmp_path, graph):
    for number, args in enumerate(
        (
            {"test_messages": "inductive", "disjoint_train_ratio": 0.3},
            {"remove_accidental_hits": False, "seeds": "anchors", "max_labels_per_anchor": 2},
            {"num_random_negatives": 0},
        )
    ):
        config = _config(tmp_path / str(number), graph, task=_task(**args))
        assert raygnn.train.fit(config).metrics["test/auc"] > 0
    plain = _config(tmp_path / "plain", graph, model={"type": "tests.user_code.PlainPyG"})
    plain["model"]["args"] = {"out_channels": 8}
    assert raygnn.train.fit(plain, allow_modules=["tests"]).metrics["test/auc"] > 0


@pytest.mark.parametrize(
    ("text", "message"),
    error_cases(
        """
task: {edge_type: []}
    task-edge-type-unknown
task: {num_random_negatives: 0}, losses: [bpr]
    task-no-negatives
losses: [{type: retrieval, args: {candidates: global}}, bpr]
    loss-candidates-mixed
task: {logq_correction: true}, losses: [bpr]
    task-logq-unused
task: {full_ranking: true}, model: {type: tests.user_code.PlainPyG, args: {out_channels: 8}}
    model-not-layerwise | full_ranking=True | tests.user_code
"""
    ),
)
def test_wrong_input_is_told(tmp_path, graph, text, message):
    changes = parse_yaml(f"{{{text}}}").value
    changes["task"] = _task(**changes.get("task", {}))
    with raises(*message):
        raygnn.train.fit(_config(tmp_path, graph, **changes), allow_modules=["tests"])


@pytest.mark.parametrize("metric", ["mrr", "auc"])
def test_a_score_that_is_no_number_names_the_step(tmp_path, graph, metric):
    model = {"type": "tests.user_code.NoNumbers", "args": {"out_channels": 8}}
    config = _config(tmp_path, graph, model=model, metrics=[{"type": metric}])
    with raises("metric-nan", "evaluation of the val split, epoch 1", "scores"):
        raygnn.train.fit(config, allow_modules=["tests"])


def test_anchors_that_keep_no_message_are_warned_of(tmp_path, graph, capsys):
    lightgcn = {"model": {"type": "LightGCN", "args": {"out_channels": 8}}}
    for args, model, is_warned in (
        ({"seeds": "anchors"}, {}, True),
        ({"seeds": "anchors"}, lightgcn, False),  # it keeps the links of a batch
        ({"seeds": "anchors", "max_labels_per_anchor": 1}, {}, False),
        ({"seeds": "anchors", "disjoint_train_ratio": 0.3}, {}, False),
        ({"seeds": "links"}, {}, False),
    ):
        loaded = load_config(_config(tmp_path, graph, task=_task(**args), **model))
        find_spec(loaded, open_bundle(loaded, None))
        said = capsys.readouterr().out
        assert ("keeps all links of" in said) == is_warned, (args, said)
