"""Self-supervised learning of raygnn beside plain PyG scripts of the same methods.

    python benchmarks/self_supervised.py --data DIR --only cora_cca_ssg --seeds 0 1 2

Both sides read the same tables, splits and settings (`benchmarks/ssl_configs`), and are judged by
the same probe after the last epoch: logistic regression on embeddings of unit length, C chosen on
the validation nodes. The plain side has PyG's convolutions, augmentations and torch alone, on the
whole graph in one process. `--epochs` shortens both, with their schedules.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import real_graphs
import torch
from harness import markdown
from plain_pyg import _dense
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv
from torch_geometric.utils import dropout_edge

import raygnn.train
from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.splits import make_splits
from raygnn.loops.tasks.self_supervised.task import ProbeRows, fit_probe

CONFIGS = Path(__file__).with_name("ssl_configs")


@dataclass(frozen=True)
class Case:
    """A method on a data set.

    Attributes:
        published: mean test accuracy of the paper, in percent.
    """

    name: str
    dataset: str
    tables: str
    prepare: tuple[str, ...]
    published: float


_CORA = ("npz", "{data}/cora_planetoid.npz", "--normalize-features", "row")
CASES = {
    case.name: case
    for case in (
        Case("cora_cca_ssg", "Cora, public split", "cora_ssl", _CORA, 84.0),
        Case("cora_graphmae", "Cora, public split", "cora_ssl", _CORA, 84.2),
        Case(
            "computers_bgrl",
            "Amazon Computers, 10/10/80",
            "computers_ssl",
            ("npz", "{data}/amazon_computers.npz"),
            90.3,
        ),
        Case(
            "cs_bgrl",
            "Coauthor CS, 10/10/80",
            "cs_ssl",
            ("npz", "{data}/coauthor_cs.npz"),
            93.3,
        ),
    )
}


class PlainEncoder(nn.Module):
    """Two layers of PyG, with what `model.args` says."""

    def __init__(self, kind: str, in_channels: int, args: dict[str, Any]) -> None:
        super().__init__()
        hidden, out = args["hidden_channels"], args["out_channels"]
        self._dropouts = args.get("input_dropout", 0.0), args.get("dropout", 0.0)
        if kind == "GCN":
            self.convs = nn.ModuleList([GCNConv(in_channels, hidden), GCNConv(hidden, out)])
        else:
            heads, rate = args["num_heads"], args["attn_dropout"]
            first = GATConv(in_channels, hidden // heads, heads, dropout=rate)
            self.convs = nn.ModuleList([first, GATConv(hidden, out, 1, dropout=rate)])
        self.norm = nn.BatchNorm1d(hidden) if args.get("norm") else nn.Identity()
        self.activation = nn.PReLU() if args.get("activation") == "prelu" else nn.ReLU()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, rate in zip(self.convs, self._dropouts, strict=True):
            x = conv(functional.dropout(x, rate, self.training), edge_index)
            if conv is self.convs[0]:
                x = self.activation(self.norm(x))
        return x


def _view(x: Tensor, edge_index: Tensor, args: dict[str, Any], number: int) -> tuple[Tensor, ...]:
    drop, mask = (
        args[name][number] if isinstance(args[name], list) else args[name]
        for name in ("drop_edges", "mask_features")
    )
    keep = torch.rand(x.shape[1]) >= mask
    return x * keep, dropout_edge(edge_index, drop)[0]


class CCASSG(nn.Module):
    """arXiv:2106.12484."""

    def __init__(self, encoder: PlainEncoder, args: dict[str, Any], *_: Any) -> None:
        super().__init__()
        self.encoder, self.args = encoder, args

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        views = [self.encoder(*_view(x, edge_index, self.args, i)) for i in range(2)]
        one, other = ((h - h.mean(0)) / h.std(0) for h in views)
        identity, num_nodes = torch.eye(one.shape[1]), len(one)
        decorrelated = [(identity - z.T @ z / num_nodes).square().sum() for z in (one, other)]
        invariance = -(one * other).sum() / num_nodes
        return invariance + self.args["decorrelation"] * sum(decorrelated)


class GraphMAE(nn.Module):
    """arXiv:2205.10803."""

    def __init__(self, encoder: PlainEncoder, args: dict[str, Any], *widths: int) -> None:
        super().__init__()
        self.encoder, self.args = encoder, args
        width, channels = widths
        self.token = nn.Parameter(torch.zeros(1, width))
        self.to_decoder = nn.Linear(channels, channels, bias=False)
        self.decoder = GATConv(channels, width, 1, dropout=0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        order = torch.randperm(len(x))
        masked = order[: int(self.args["mask"] * len(x))]
        num_replaced = int(self.args["replace"] * len(masked))
        shown = x.clone()
        shown[masked] = self.token
        shown[masked[:num_replaced]] = x[torch.randperm(len(x))[:num_replaced]]
        rows = self.to_decoder(self.encoder(shown, edge_index))
        rows = rows.index_fill(0, masked, 0.0)
        found = self.decoder(rows, edge_index)[masked]
        cosine = functional.cosine_similarity(found, x[masked])
        return ((1 - cosine) ** self.args["alpha"]).mean()


class BGRL(nn.Module):
    """arXiv:2102.06514; norm and activation of the last layer are not part of the embeddings."""

    def __init__(self, encoder: PlainEncoder, args: dict[str, Any], *widths: int) -> None:
        super().__init__()
        self.encoder, self.args = encoder, args
        channels, hidden = widths[1], args["hidden_channels"]
        self.output = nn.Sequential(nn.BatchNorm1d(channels), nn.PReLU())
        self.predictor = nn.Sequential(
            nn.Linear(channels, hidden), nn.PReLU(), nn.Linear(hidden, channels)
        )
        online = nn.ModuleList([self.encoder, self.output])
        self.target = copy.deepcopy(online).requires_grad_(False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        views = [_view(x, edge_index, self.args, i) for i in range(2)]
        found = [self.predictor(self.output(self.encoder(*view))) for view in views]
        encoder, output = self.target
        with torch.no_grad():
            targets = [output(encoder(*view)) for view in views]
        pairs = zip(found, targets[::-1], strict=True)
        return sum((1 - functional.cosine_similarity(*pair)).mean() for pair in pairs)

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        decay = 1 - (1 - self.args["decay"]) * (math.cos(math.pi * progress) + 1) / 2
        online = [*self.encoder.parameters(), *self.output.parameters()]
        for moved, weight in zip(self.target.parameters(), online, strict=True):
            moved.lerp_(weight, 1 - decay)


METHODS: dict[str, Callable[..., nn.Module]] = {
    "cca_ssg": CCASSG,
    "graphmae": GraphMAE,
    "bgrl": BGRL,
}


def shortened(path: Path, epochs: int | None) -> dict[str, Any]:
    """The config, with its limit and schedules cut to a number of epochs."""
    config = dict(load_config(path).saved)
    if epochs is None:
        return config
    share = epochs / config["training"]["max_epochs"]
    config["training"]["max_epochs"] = epochs
    config["training"]["validate_every"] = {"epochs": epochs}
    args = config["lr_scheduler"]["args"]
    for each in (args, *args.get("schedulers", ())):
        for name in ("T_max", "total_iters"):
            if name in each:
                each[name] = max(1, round(each[name] * share))
    if "milestones" in args:
        args["milestones"] = [round(m * share) for m in args["milestones"]]
    return config


def train_plain(bundle: Bundle, config: dict[str, Any]) -> tuple[float, float]:
    """Trains on the whole graph; returns test accuracy and seconds of an epoch."""
    torch.manual_seed(config["seed"])
    (node_type,), (edge_type,) = bundle.node_types, bundle.edge_types
    x, csc = _dense(bundle.column(node_type, "x")), bundle.csc(edge_type)
    labels = np.asarray(bundle.column(node_type, "y"))
    targets = np.repeat(np.arange(len(labels)), np.diff(csc.indptr))
    edge_index = torch.from_numpy(np.stack([csc.indices, targets]).astype(np.int64))
    model_args, component = config["model"]["args"], config["task"]["args"]["method"]
    encoder = PlainEncoder(config["model"]["type"], x.shape[1], model_args)
    widths = x.shape[1], model_args["out_channels"]
    model = METHODS[component["type"]](encoder, component["args"], *widths)
    optimizer_class = getattr(torch.optim, config["optimizer"]["type"])
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = optimizer_class(trained, **config["optimizer"]["args"])
    num_epochs = config["training"]["max_epochs"]
    schedule = _schedule(optimizer, config["lr_scheduler"])
    model.train()
    began = time.perf_counter()
    for epoch in range(num_epochs):
        optimizer.zero_grad()
        model(x, edge_index).backward()
        optimizer.step()
        schedule.step()
        if isinstance(model, BGRL):
            model.after_step((epoch + 1) / num_epochs)
    seconds = (time.perf_counter() - began) / num_epochs
    encoder.eval()
    with torch.no_grad():
        rows = encoder(x, edge_index)
    splits = make_splits(bundle, node_type, None, "y", 0)
    train, val, test = (
        ProbeRows(rows[torch.from_numpy(ids)], labels[ids])
        for ids in (splits.train, splits.val, splits.test)
    )
    found = fit_probe("multi_class", int(labels.max()) + 1, train, val)(test.rows)
    return float((found.argmax(1).numpy() == test.labels).mean()), seconds


def _schedule(optimizer: torch.optim.Optimizer, section: dict[str, Any]) -> Any:
    schedulers = torch.optim.lr_scheduler
    args = dict(section["args"])
    if "schedulers" in args:
        args["schedulers"] = [
            getattr(schedulers, each["__type"])(
                optimizer, **{k: v for k, v in each.items() if k != "__type"}
            )
            for each in args["schedulers"]
        ]
    return getattr(schedulers, section["type"])(optimizer, **args)


def run_case(case: Case, args: Any, seed: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """(test accuracy, seconds an epoch) of raygnn and of the plain script."""
    tables = real_graphs.make_tables(case, Path(args.data), Path(args.work))
    config = shortened(CONFIGS / f"{case.name}.yaml", args.epochs)
    config["seed"] = seed
    config["data"]["uri"] = str(tables)
    config["scaling"]["num_workers"] = args.num_workers
    config["run"] = {
        "name": f"{case.name}-{seed}",
        "storage_path": str(Path(args.work) / "runs"),
        "overwrite": True,
    }
    metrics = raygnn.train.fit(config).metrics
    ours = metrics["test/accuracy"], metrics["training_time_s"] / metrics["epoch"]
    return ours, train_plain(ingest(str(tables)), config)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 0 if no mean is more than a point below the plain script's."""
    options = real_graphs.parser("self_supervised", __doc__ or "", list(CASES), 3)
    options.add_argument("--epochs", type=int, metavar="N", help="default: those of the config")
    args = options.parse_args(argv)
    torch.set_num_threads(1)
    titles = ("case", "data set", "epochs", "raygnn", "PyG", "paper", "s an epoch", "PyG")
    lines, short = [titles], False
    for name in args.only or CASES:
        case = CASES[name]
        results = [run_case(case, args, seed) for seed in args.seeds]
        ours, plain = ([100 * found[side][0] for found in results] for side in (0, 1))
        seconds = [np.mean([found[side][1] for found in results]) for side in (0, 1)]
        epochs = shortened(CONFIGS / f"{name}.yaml", args.epochs)["training"]["max_epochs"]
        cells = [name, case.dataset, str(epochs)]
        cells += [real_graphs.mean_and_spread(found, 2) for found in (ours, plain)]
        lines.append((*cells, f"{case.published}", *(f"{s:.3f}" for s in seconds)))
        short |= float(np.mean(ours)) < float(np.mean(plain)) - 1
        print(markdown(lines), flush=True)
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
