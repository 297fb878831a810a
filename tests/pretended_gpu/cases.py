"""Whole small runs: every component of raygnn that computes on a device.

Each case is a graph, changes to `small_config`, and how often a step may wait for the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from raygnn.data.tables.columns import sparse_rows
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.prepare.synthetic import synthetic_tables
from raygnn.prepare.synthetic.link_graphs import likes
from tests.partitioned_graphs import asked_shop
from tests.several_tasks import social_films


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        graph: a folder of `write_graphs`.
        changes: to `small_config`, by dotted path.
        waits: how often a step waits for the device, at most.
        validation_waits: the same of a validation.
        tolerance: relative difference of losses and metrics from those of the CPU.
    """

    graph: str
    changes: dict[str, Any] = field(default_factory=dict)
    waits: int = 1
    validation_waits: int = 1
    tolerance: float = 1e-4


def write_graphs(folder: Path) -> None:
    """Writes the graphs of all cases."""
    write_tables(_one_type(), str(folder / "one"))
    write_tables(_one_type(sparse=True), str(folder / "sparse"))
    write_tables(social_films(60, 30), str(folder / "films"))
    liked = likes(num_users=60, num_films=30, num_likes=600, num_series=6)
    write_tables(liked, str(folder / "likes"))
    write_tables(asked_shop(), str(folder / "rows"))
    rng = np.random.default_rng(0)
    relations = {("e", f"r{r}", "e"): edge_rows(*rng.integers(0, 100, (2, 150))) for r in range(6)}
    tables = GraphTables({"e": node_rows(np.arange(100))}, relations)
    write_tables(tables, str(folder / "relations"))


def _one_type(*, sparse: bool = False) -> GraphTables:
    """A planted partition with three kinds of labels, and edges with features and times."""
    tables = synthetic_tables(
        "planted_partition", num_nodes=150, num_classes=3, num_features=8, seed=1
    )
    ((name, nodes),), ((edge_type, edges),) = tables.nodes.items(), tables.edges.items()
    rng = np.random.default_rng(0)
    y = nodes.table[next(iter(nodes.labels))].to_numpy()
    x = np.eye(3, 8, dtype=np.float32)[y] + rng.normal(0, 1, (len(y), 8)).astype(np.float32)
    labels = {
        "y": y,
        "real": (y + rng.normal(0, 0.1, len(y))).astype(np.float32),
        "flags": np.stack([y == 0, y == 1], axis=1).astype(np.int64),
    }
    if sparse:
        x = np.pad(x, ((0, 0), (0, 56)))
    features = {"x": sparse_rows(x * (x > 0.5)) if sparse else x}
    rows = node_rows(np.arange(len(y)), features, labels, time=rng.integers(0, 50, len(y)))
    source, target = (edges.table[column].to_numpy() for column in (edges.source, edges.target))
    e = rng.normal(size=(len(source), 2)).astype(np.float32)
    weight, time = rng.random(len(source)) + 0.5, rng.integers(0, 50, len(source))
    links = edge_rows(source, target, {"edge_attr": e}, weight=weight, time=time)
    return replace(tables, nodes={name: rows}, edges={edge_type: links})


def _model(name: str, **args: Any) -> dict[str, Any]:
    width = "out_channels" if name in ("LightGCN", "Embedding") else "hidden_channels"
    return {"model": {"type": name, "args": {width: 8, **args}}}


# Weights of the labels around nodes are chosen on the host.
_AROUND_NODES = 6


def _terms(*names: str) -> list[dict[str, Any]]:
    return [{"type": name} for name in names]


def _nodes(label: str = "y", **changes: Any) -> Case:
    task = {"type": "node_classification", "args": {"blend": False, "label": label}}
    waits = _AROUND_NODES if label == "y" else 1
    return Case("one", {"task": task, "metrics": [], **changes}, validation_waits=waits)


def _links(loss: str | None = None, model: dict[str, Any] | None = None, **args: Any) -> Case:
    sizes = {"num_random_negatives": 20, "num_random_negatives_eval": 30}
    changes = {
        "task": {"type": "link_prediction", "args": {**sizes, **args}},
        "metrics": [{"type": name} for name in ("mrr", "hits", "auc", "ap")],
        "losses": [] if loss is None else [{"type": loss}],
        **(model or _model("GraphSAGE", normalize_output=True)),
    }
    return Case("one", changes)


def _films(model: str, task: str, **args: Any) -> Case:
    tasks = {"nodes": _GENRE, "links": _FOLLOWS, "edges": _RATING}
    heads = {"num_heads": 2} if model in ("HGT", "SimpleHGN") else {}
    changes = {"task": tasks[task], "metrics": [], **_model(model, **heads, **args)}
    waits = _AROUND_NODES if task == "nodes" else 1
    return Case("films", {"data__reverse_edges": True, **changes}, validation_waits=waits)


def _also(case: Case, waits: int | None = None, **changes: Any) -> Case:
    merged = {**case.changes, **changes}
    return replace(case, changes=merged, waits=case.waits if waits is None else waits)


_GENRE = {"type": "node_classification", "args": {"blend": False, "target": "film"}}
_FOLLOWS = {
    "type": "link_prediction",
    "args": {
        "edge_type": "user__follows__user",
        "num_random_negatives": 20,
        "num_random_negatives_eval": 30,
    },
}
_RATING = {"type": "edge_prediction", "args": {}}
_SSL = ("barlow_twins", "cca_ssg", "bgrl", "grace", "graphmae")
_SPARSE_ROWS = _model("LightGCN", sparse_embeddings=True)
_SAMPLING: dict[str, dict[str, Any]] = {
    "labor": {"sampling": {"type": "labor", "fanouts": [4, 3]}},
    "pagerank": {"sampling": {"ppr": {"top_k": 8}, "fanouts": [-1]}},
    "temporal": {"sampling": {"temporal": {}, "fanouts": [4, 3]}},
    "full": {"sampling": {"type": "full"}},
}

CASES: dict[str, Case] = {
    **{name: _nodes(**_model(name)) for name in ("GCN", "GraphSAGE", "GIN", "MLP")},
    **{name: _nodes(**_model(name, num_heads=2)) for name in ("GAT", "GATv2", "Transformer")},
    "GINE": _nodes(**_model("GINE", edge_dim=2)),
    "GATv2 on edge features": _nodes(**_model("GATv2", num_heads=2, edge_dim=2)),
    "GraphSAGE max": _nodes(**_model("GraphSAGE", aggr="max")),
    "GCN, norm, jump": _nodes(**_model("GCN", norm="batch", jump="cat", residual=True)),
    "Embedding": _links("softmax", _model("Embedding")),
    "LightGCN": _links("bpr", _model("LightGCN")),
    **{
        f"{model} {task}": _films(model, task)
        for model in ("Hetero", "HGT")
        for task in ("nodes", "links", "edges")
    },
    **{name: _films(*name.split()) for name in ("RGCN nodes", "RGCN links", "SimpleHGN nodes")},
    **{
        f"Hetero of {conv}": _films("Hetero", "nodes", conv=conv)
        for conv in ("GAT", "GATv2", "GIN", "Transformer")
    },
    **{
        f"linear recommender, {name}": Case(
            "likes",
            {
                "task": {"type": "link_prediction", "args": {"num_random_negatives": 16}},
                "data__reverse_edges": True,
                "metrics": [],
                "model": {"type": name, "args": args},
            },
            validation_waits=47,  # the closed form is computed on the host
        )
        for name, args in (("EASE", {}), ("Hetero", {"hidden_channels": 8}))
    },
    "LightGCN of types": _films("LightGCN", "links"),
    "losses of classes": _nodes(losses=_terms("cross_entropy", "weight_l1")),
    "balanced": replace(
        _nodes(losses=[{"type": "cross_entropy", "args": {"class_weights": "balanced"}}]),
        waits=2,  # the sum of the seeds' weights
    ),
    "losses of flags": _nodes("flags", losses=_terms("binary_cross_entropy")),
    "loss mse": _nodes("real", losses=_terms("mse")),
    "losses of numbers": _nodes("real", losses=_terms("mae", "huber")),
    "metrics of classes": _nodes(
        metrics=[
            {"type": name}
            for name in (
                *("accuracy", "balanced_accuracy", "f1_macro", "f1_micro", "auroc"),
                "average_precision",
            )
        ]
    ),
    "metrics of numbers": _nodes(
        "real", metrics=[{"type": name} for name in ("mae", "nmae", "rmse", "r2")]
    ),
    **{f"loss {name}": _links(name) for name in ("retrieval", "direct_au")},
    "losses of links": _also(
        _links(),
        losses=_terms("softmax", "margin", "bpr", "link_binary_cross_entropy", "embedding_l2"),
    ),
    "loss n3": _also(
        _links(decoder={"type": "complex"}),
        losses=[{"type": "softmax"}, {"type": "n3", "weight": 0.01}],
    ),
    "global candidates": _also(
        _links(), losses=[{"type": "retrieval", "args": {"candidates": "global"}}]
    ),
    **{
        f"decoder {name}": _links(decoder={"type": name}, negatives="degree")
        for name in ("inner_product", "hadamard_mlp", "distmult")
    },
    "logQ": _links("retrieval", logq_correction=True),
    # 13 batches, and the blocks of the exact encoding
    "full ranking": replace(_links(full_ranking=[1, 3]), validation_waits=15),
    "full ranking, exact": replace(
        _also(_links(full_ranking=[1, 3]), training__eval="exact"), validation_waits=15
    ),
    "relations": Case(
        "relations",
        {
            **_links("softmax", _model("RGCN"), edge_type="e__r*__e").changes,
            "task__args__decoder": {"type": "distmult"},
            "metrics": [],
        },
    ),
    **{
        f"self-supervised {name}": Case(
            "one",
            {
                "task": {"type": "self_supervised", "args": {"method": name, "label": "y"}},
                "metrics": [],
                **_model("GCN", norm="batch"),
            },
            tolerance=0.1,
            validation_waits=2,  # the embeddings that a probe reads
        )
        for name in _SSL
    },
    "several tasks": Case(
        "films",
        {
            "data__reverse_edges": True,
            "metrics": [],
            "tasks": {"genre": _GENRE, "follows": _FOLLOWS, "rating": _RATING},
            **_model("Hetero", out_channels=8),
        },
        validation_waits=_AROUND_NODES,
    ),
    **{name: _nodes(**changes) for name, changes in _SAMPLING.items()},
    "full": replace(_nodes(**_SAMPLING["full"]), validation_waits=_AROUND_NODES + 2),
    "training rows": Case(
        "rows",
        {
            "task": {"type": "node_classification", "args": {"blend": False, "label": "y"}},
            "data__reverse_edges": True,
            "sampling__temporal": {},
            "metrics": [],
            **_model("Hetero"),
        },
    ),
    "temporal links": Case(
        "rows",
        {
            "task": {
                "type": "link_prediction",
                "args": {
                    "edge_type": "user__buys__item",
                    "num_random_negatives": 20,
                    "num_random_negatives_eval": 20,
                },
            },
            "data__reverse_edges": True,
            "sampling__temporal": {},
            "metrics": [],
            **_model("Hetero"),
        },
    ),
    "edges with their own neighborhoods": _also(
        _films("Hetero", "edges"), sampling={"disjoint": True, "fanouts": [4, 3]}
    ),
    "sparse features": replace(_nodes(), graph="sparse"),
    "sparse features, GAT": replace(_nodes(**_model("GAT", num_heads=2)), graph="sparse"),
    **{
        f"{dtype} features{held}": _also(
            _nodes(data__feature_dtype=dtype, **_model("GATv2", num_heads=2, edge_dim=2)),
            data__device_features=not held,
        )
        for dtype, held in (
            *(("float16", ""), ("float16", " of each batch")),
            ("float32", " of each batch"),  # others hold float32
        )
    },
    **{
        f"optimizer {name}": _also(
            _links("bpr", _SPARSE_ROWS), 2, optimizer={"type": name, "args": {"lr": 0.05}}
        )
        for name in ("SparseAdam", "Adagrad", "SGD")
    },
    **{
        f"optimizer {name}": _nodes(optimizer={"type": name, "args": {"lr": 0.01}})
        for name in (
            *("Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"),
        )
    },
    # Torch's own read numbers of each weight.
    "optimizer ASGD": replace(_nodes(optimizer={"type": "ASGD"}), waits=7),
    "optimizer Adafactor": replace(_nodes(optimizer={"type": "Adafactor"}), waits=13),
    "clipping": _nodes(training__clip_grad_norm=0.5),
    "accumulation": _nodes(training__accumulate_grad_batches=3),
    "average of weights": _nodes(training__ema_decay=0.9),
    "bf16-true": replace(_nodes(training__precision="bf16-true"), tolerance=0.1),
    **{
        f"{name} {precision}": replace(
            _nodes(**_model(name), training__precision=precision), tolerance=0.1
        )
        for name, precision in (("GraphSAGE", "fp16-mixed"), ("GATv2", "bf16-mixed"))
    },
    "exact evaluation": _nodes(training__eval="exact"),
    "exact evaluation of types": _also(_films("Hetero", "nodes"), training__eval="exact"),
}
