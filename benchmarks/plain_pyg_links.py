"""The peer of `link_accuracy.py`: PyG's own models on the whole graph, in one process.

Only the graph, the split of its links, the config's numbers and the early-stopping rule are shared,
and, of the metrics, `FullRanking`, which raygnn's tests hold to brute force and to PyG's metrics.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import seed_everything
from torch_geometric.nn import GCN, LightGCN
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import negative_sampling

from raygnn.config import Config
from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.edge_types import resolve_fanouts
from raygnn.data.links.message_graph import message_graph
from raygnn.loops.early_stopping import BestTracker, EarlyStopper
from raygnn.loops.tasks.link_prediction.target import LinkTarget, LinkTargetArguments
from raygnn.metrics import FullRanking, Links
from raygnn.recommender.peers import ease, ials

# torch says of its CSR tensors, which PyG makes too, that they are in beta and go unchecked.
warnings.filterwarnings("ignore", message="Sparse (invariant|CSR)")

MAX_STEPS = 2000
ANCHORS_AT_A_TIME = 512  # in full ranking
VALIDATE_EVERY = 20  # steps; a step is one pass over all training links
LAMBDA_REG = 5e-4  # L2 penalty of LightGCN's rows; PyG's default of 1e-4 validated lower

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class LinkGraph:
    """A graph in memory, nodes of all types counted through.

    Attributes:
        x: sparse CSR [num_nodes, num_features], or None.
        messages: int64 [2, num_edges] of each split: what messages flow along.
        links: int64 [2, num_links] of each split, (anchor, target).
        anchors, targets: the nodes of the two types of a link; the same slice where it is one type.
    """

    num_nodes: int
    x: Tensor | None
    messages: dict[str, Tensor]
    links: dict[str, Tensor]
    anchors: slice
    targets: slice

    @classmethod
    def of_bundle(cls, bundle: Bundle, config: Config) -> LinkGraph:
        """Takes graph, features and the split of the links as the raygnn run of that config."""
        arguments = LinkTargetArguments.of(config.task.args)
        target = LinkTarget.find(bundle, config, arguments)
        slices, start = {}, 0
        for name in bundle.node_types:
            slices[name] = slice(start, start + bundle.num_nodes(name))
            start = slices[name].stop
        anchors, targets = (slices[name] for name in target.node_types)

        fanouts = resolve_fanouts(config.sampling.fanouts, bundle.edge_types)
        used = [edge_type for edge_type in bundle.edge_types if any(fanouts[edge_type])]

        def links_of(split: str) -> Tensor:
            rows = target.splits[split]
            anchor = np.repeat(rows.anchors, np.diff(rows.indptr)) + anchors.start
            return torch.from_numpy(np.stack([anchor, rows.targets + targets.start]))

        def messages_of(split: str) -> Tensor:
            graph, found = message_graph(bundle, target.links, split), []  # type: ignore[arg-type]
            for source, relation, dest in used:
                csc = graph.csc((source, relation, dest))
                col = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
                found.append([csc.indices + slices[source].start, col + slices[dest].start])
            edges = np.concatenate([np.stack(pair).astype(np.int64) for pair in found], axis=1)
            return torch.from_numpy(np.unique(edges, axis=1))

        x = None
        if arguments.feature in bundle.columns(bundle.node_types[0]):
            x = _sparse(bundle.column(bundle.node_types[0], arguments.feature))
        return cls(
            start,
            x,
            {split: messages_of(split) for split in SPLITS},
            {split: links_of(split) for split in SPLITS},
            anchors,
            targets,
        )

    def once(self, split: str) -> Tensor:
        """The links of a split between nodes of one type, one direction of each."""
        links = self.links[split]
        return links[:, links[0] < links[1]]

    def known(self) -> Tensor:
        """int64 [2, num_links], the links of all splits."""
        return torch.cat(list(self.links.values()), dim=1)


@dataclass(frozen=True)
class PlainRun:
    """What a plain run ended with.

    Attributes:
        validation: best value of the monitored metric.
        rows: [num_nodes, channels], embeddings along the messages of test.
    """

    validation: float
    rows: Tensor
    steps: int


def train_links(graph: LinkGraph, config: Config) -> PlainRun:
    """Trains on the whole graph until validation has not improved for the config's patience.

    Loss, width, dropout, learning rate, weight decay and seed are the config's.

    Raises:
        ValueError: the config has a model or a loss that has no counterpart here.
    """
    seed_everything(config.seed)
    model = _PlainModel(graph, config)
    given = dict(config.optimizer.args)
    if config.losses[0].type == "bpr":
        given.pop("weight_decay", None)  # its penalty is LAMBDA_REG
    optimizer = torch.optim.Adam(model.parameters(), **given)
    loss_of = _LOSSES[config.losses[0].type]
    judge = _judge(graph, config)
    assert config.early_stopping is not None
    tracker = BestTracker(config.early_stopping.monitor, "max")
    stopper = EarlyStopper(tracker, config.early_stopping.patience)
    rows, step = torch.empty(0), 0
    for step in range(1, MAX_STEPS + 1):
        model.train()
        optimizer.zero_grad()
        loss_of(graph, model, config).backward()
        optimizer.step()
        if step % VALIDATE_EVERY:
            continue
        value = judge(model.encode("val"))
        has_to_stop = stopper.should_stop(value)
        if stopper.num_without_improvement == 0:
            rows = model.encode("test")
        if has_to_stop:
            break
    assert tracker.best is not None
    return PlainRun(tracker.best, rows, step)


def link_metrics(
    graph: LinkGraph, rows: Tensor, split: str, ks: tuple[int, ...]
) -> dict[str, float]:
    """Filtered full ranking of the links of a split; see `FullRanking`."""
    anchors, targets = rows[graph.anchors], rows[graph.targets]
    known = graph.known()
    if graph.anchors == graph.targets:  # nobody is asked to link to itself
        known = torch.cat([known, torch.arange(len(rows)).expand(2, -1)], dim=1)
    ranking, state = FullRanking(len(targets), ks), torch.zeros(1)
    positives, known_links = _by_anchor(graph, graph.links[split]), _by_anchor(graph, known)
    for first in range(0, len(anchors), ANCHORS_AT_A_TIME):
        some = slice(first, min(first + ANCHORS_AT_A_TIME, len(anchors)))
        state = state + ranking.update(
            anchors[some], targets, _rows(positives, some), _rows(known_links, some), _scores
        )
    return ranking.compute(state)


def recommend_simply(graph: LinkGraph) -> Iterator[tuple[str, Tensor]]:
    """Rows of popularity, iALS and EASE, [num_nodes, channels], from training and validation links.

    Their products are the scores. EASE needs memory for num_targets * num_nodes numbers.
    """
    starts = torch.tensor([[graph.anchors.start], [graph.targets.start]])
    links = torch.cat([graph.links["train"], graph.links["val"]], dim=1) - starts
    num_nodes = tuple(nodes.stop - nodes.start for nodes in (graph.anchors, graph.targets))
    counts = torch.bincount(links[1], minlength=num_nodes[1]).float().unsqueeze(1)
    yield "popularity", _joined(graph, torch.ones(num_nodes[0], 1), counts)
    yield "iALS", _joined(graph, *ials(*links.numpy(), num_nodes))
    yield "EASE", _joined(graph, *ease(*links.numpy(), num_nodes))


def _joined(graph: LinkGraph, anchors: Tensor, targets: Tensor) -> Tensor:
    rows = torch.zeros(graph.num_nodes, anchors.shape[1])
    rows[graph.anchors], rows[graph.targets] = anchors, targets
    return rows


def auc_and_ap(graph: LinkGraph, rows: Tensor, split: str, seed: int) -> dict[str, float]:
    """AUC and AP of a split's links, each once, against as many pairs that are not linked.

    The protocol of variational graph auto-encoders (arXiv:1611.07308).
    """
    positive = graph.once(split)
    seed_everything(seed)  # the same pairs for whatever run; PyG draws them with Python's `random`
    negative = negative_sampling(graph.known(), graph.num_nodes, positive.shape[1])
    pairs = torch.cat([positive, negative], dim=1)
    score = (rows[pairs[0]] * rows[pairs[1]]).sum(dim=1).numpy()
    is_link = np.arange(pairs.shape[1]) < positive.shape[1]
    return {
        "auc": float(roc_auc_score(is_link, score)),
        "ap": float(average_precision_score(is_link, score)),
    }


class _PlainModel(nn.Module):
    """PyG's GCN or LightGCN with what `model.args` of a raygnn config says."""

    def __init__(self, graph: LinkGraph, config: Config) -> None:
        super().__init__()
        given, depth = dict(config.model.args), config.sampling.num_hops
        self.normalize_output = given.pop("normalize_output", False)
        is_gcn = config.model.type == "GCN"
        self._x = graph.x
        # Normalised once: every layer and step of these models would do it again.
        self._adjacency = {
            split: _adjacency(edges, graph.num_nodes, self_loops=is_gcn)
            for split, edges in graph.messages.items()
        }
        self.encoder: nn.Module
        if is_gcn:
            assert graph.x is not None
            hidden, dropout = given.pop("hidden_channels"), given.pop("dropout", 0.0)
            self.encoder = GCN(
                graph.x.shape[1],
                hidden,
                depth,
                given.pop("out_channels", hidden),
                dropout=dropout,
                normalize=False,
            )
        elif config.model.type == "LightGCN":
            channels = given.pop("out_channels")
            self.encoder = LightGCN(graph.num_nodes, channels, depth, normalize=False)
        else:
            raise ValueError(f"model.type {config.model.type!r} has no counterpart in plain runs.")
        if given:
            raise ValueError(f"model.args {sorted(given)} have no counterpart in the plain run.")

    def forward(self, split: str) -> Tensor:
        """Embeds all nodes along the messages of a split."""
        adjacency = self._adjacency[split]
        if isinstance(self.encoder, LightGCN):
            rows = self.encoder.get_embedding(adjacency)
        else:
            rows = self.encoder(self._x, adjacency)
        return functional.normalize(rows, dim=-1) if self.normalize_output else rows

    @torch.no_grad()
    def encode(self, split: str) -> Tensor:
        """Embeds all nodes, for evaluation."""
        self.eval()
        return self(split)


def _binary_cross_entropy(graph: LinkGraph, model: _PlainModel, config: Config) -> Tensor:
    rows, links = model("train"), graph.once("train")
    negative = negative_sampling(links, graph.num_nodes, links.shape[1])
    pairs = torch.cat([links, negative], dim=1)
    logits = (rows[pairs[0]] * rows[pairs[1]]).sum(dim=1)
    return functional.binary_cross_entropy_with_logits(
        logits, (torch.arange(len(logits)) < links.shape[1]).float()
    )


def _bpr(graph: LinkGraph, model: _PlainModel, config: Config) -> Tensor:
    """LightGCN's own loss, as PyG has it."""
    rows, (anchor, target) = model("train"), graph.links["train"]
    negative = _negatives(graph, anchor)
    assert isinstance(model.encoder, LightGCN)
    loss: Tensor = model.encoder.recommendation_loss(
        (rows[anchor] * rows[target]).sum(dim=1),
        (rows[anchor] * rows[negative]).sum(dim=1),
        torch.cat([anchor, target, negative]),
        LAMBDA_REG,
    )
    return loss


def _softmax(graph: LinkGraph, model: _PlainModel, config: Config) -> Tensor:
    """Each positive against random targets that its anchor is not linked to in training."""
    rows, (anchor, target) = model("train"), graph.links["train"]
    temperature = config.losses[0].args["temperature"]
    number = config.task.args["num_random_negatives"]
    negative = torch.randint(graph.targets.start, graph.targets.stop, (number,))
    scores = rows[graph.anchors] @ rows[negative].T / temperature
    is_linked = torch.zeros(len(scores), graph.num_nodes, dtype=torch.bool)
    is_linked[anchor - graph.anchors.start, target] = True
    others = scores.masked_fill(is_linked[:, negative], -torch.inf).logsumexp(dim=1)
    own = (rows[anchor] * rows[target]).sum(dim=1) / temperature
    return (torch.logaddexp(own, others[anchor - graph.anchors.start]) - own).mean()


_LOSSES: dict[str, Callable[[LinkGraph, _PlainModel, Config], Tensor]] = {
    "link_binary_cross_entropy": _binary_cross_entropy,
    "bpr": _bpr,
    "softmax": _softmax,
}


def _negatives(graph: LinkGraph, anchor: Tensor) -> Tensor:
    """A target for each anchor, drawn again while the two are linked in training."""
    linked = graph.links["train"]
    keys = (linked[0] * graph.num_nodes + linked[1]).unique()
    drawn = torch.randint(graph.targets.start, graph.targets.stop, anchor.shape)
    is_link = torch.isin(anchor * graph.num_nodes + drawn, keys)
    while is_link.any():
        count = int(is_link.sum())
        drawn[is_link] = torch.randint(graph.targets.start, graph.targets.stop, (count,))
        is_link = torch.isin(anchor * graph.num_nodes + drawn, keys)
    return drawn


def _judge(graph: LinkGraph, config: Config) -> Callable[[Tensor], float]:
    """What early stopping goes by, from embeddings along the messages of validation."""
    assert config.early_stopping is not None
    name = config.early_stopping.monitor.removeprefix("val/")
    if name in ("auc", "ap"):
        return lambda rows: auc_and_ap(graph, rows, "val", seed=config.seed)[name]
    ks = (int(name.partition("@")[2]),) if "@" in name else (1,)
    return lambda rows: link_metrics(graph, rows, "val", ks)[name]


def _scores(queries: Tensor, candidates: Tensor) -> Tensor:
    return queries @ candidates.T


def _by_anchor(graph: LinkGraph, links: Tensor) -> Links:
    anchor, target = links[0] - graph.anchors.start, links[1] - graph.targets.start
    order = anchor.argsort(stable=True)
    counts = torch.bincount(anchor, minlength=graph.anchors.stop - graph.anchors.start)
    return Links(functional.pad(counts.cumsum(0), (1, 0)), target[order])


def _rows(links: Links, rows: slice) -> Links:
    indptr = links.indptr[rows.start : rows.stop + 1]
    return Links(indptr - indptr[0], links.targets[indptr[0] : indptr[-1]])


def _adjacency(edge_index: Tensor, num_nodes: int, *, self_loops: bool) -> Tensor:
    """Sparse CSR [num_nodes, num_nodes], rows are destinations, normalised as GCN and LightGCN."""
    index, weight = gcn_norm(edge_index, None, num_nodes, add_self_loops=self_loops)
    return torch.sparse_coo_tensor(index.flip(0), weight, (num_nodes,) * 2).to_sparse_csr()


def _sparse(column: np.ndarray | SparseColumn) -> Tensor:
    if not isinstance(column, SparseColumn):
        return torch.from_numpy(np.asarray(column)).float().to_sparse_csr()
    values = np.ones(len(column.indices)) if column.values is None else column.values
    return torch.sparse_csr_tensor(
        torch.from_numpy(np.array(column.indptr)),
        torch.from_numpy(column.indices.astype(np.int64)),
        torch.from_numpy(values.astype(np.float32)),
        (len(column.indptr) - 1, column.dim),
    )
