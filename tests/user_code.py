"""What a user would write: a model, a task, callbacks, a data set, named by dotted path."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv

from raygnn.errors import DataError
from raygnn.loops.callbacks import Callback
from raygnn.loops.tasks.node_classification.task import NodeClassification
from raygnn.models import GAT, GraphSAGE, LightGCN
from raygnn.parallel import collectives

CALLS: list[str] = []


class PlainPyG(nn.Module):
    """A model with PyG's usual forward; it knows nothing of raygnn."""

    def __init__(self, in_channels: int, out_channels: int, width: int = 8) -> None:
        super().__init__()
        self.first = SAGEConv(in_channels, width)
        self.second = SAGEConv(width, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Normed(PlainPyG):
    """Has torch's own batch norm, with a momentum or with the mean of all steps."""

    def __init__(self, in_channels: int, out_channels: int, momentum: float | None = 0.1) -> None:
        super().__init__(in_channels, out_channels)
        self.norm = nn.BatchNorm1d(8, momentum=momentum)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)


class NeighborsOnly(nn.Module):
    """Sees what the neighbors are, and not the node itself."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.layer = SAGEConv(in_channels, out_channels, root_weight=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layer(x, edge_index)


class BadGradient(PlainPyG):
    """Has a finite loss and a gradient that is not, in one micro-batch of one rank."""

    def __init__(self, in_channels: int, out_channels: int, batch: int, rank: int) -> None:
        super().__init__(in_channels, out_channels)
        self.root = nn.Parameter(torch.ones(1))
        self._batches_left = batch if collectives.rank() == rank else -1

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = super().forward(x, edge_index)
        self._batches_left -= self.training
        is_bad = self.training and self._batches_left == 0
        inside = self.root - self.root.detach() if is_bad else self.root
        return out + 0.1 * inside.sqrt()


class StatefulModel(PlainPyG, Callback):
    """A model that is a callback registers itself."""

    def on_train_start(self, engine) -> None:
        CALLS.append("model.on_train_start")


class CountingTask(NodeClassification):
    """A task of the user's own."""

    def training_step(self, batch):
        CALLS.append("task.training_step")
        return super().training_step(batch)


class Undeclared(NodeClassification):
    """A task that forgets `step_metrics`."""

    def training_step(self, batch):
        return replace(super().training_step(batch), metrics={"extra": 1.0})


class TwoGroups(NodeClassification):
    """A task with an optimizer of its own."""

    def configure_optimizers(self, model):
        decayed = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "name": "matrices"}, {"params": others, "lr": 0.001}]
        return torch.optim.AdamW(groups, lr=0.01)


class TwoHeads(nn.Module):
    """Gives two named outputs."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, 2 * out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
        main, extra = self.linear(x).chunk(2, dim=1)
        return {"main": main, "extra": extra}


class Fragile(nn.Module):
    """Fails on a forward pass."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        raise ValueError("a mistake in user code")


class Exploding(nn.Module):
    """Gives infinite logits."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.linear(x) * float("inf")


def note_epoch(engine, epoch: int) -> None:
    """A hook as a plain function."""
    CALLS.append(f"epoch {epoch}")


def prepare_process() -> None:
    """`init_env`."""
    CALLS.append("init_env")


def my_graph(num_nodes: int = 90) -> Data:
    """A data source."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (num_nodes,), generator=generator)
    return Data(
        x=nn.functional.one_hot(labels, 3).float(),
        y=labels,
        edge_index=torch.randint(0, num_nodes, (2, 4 * num_nodes), generator=generator),
    )


class NeedsEdgeWeights(nn.Module):
    """Cannot do without the weights of the edges."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.layer = GCNConv(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.layer(x, edge_index, edge_weight)


class WaitsToBeStopped(Callback):
    """With a small learning rate, trains two epochs and then until it is stopped from outside."""

    def on_epoch_start(self, engine, epoch):
        if epoch == 2 and engine.config.optimizer.args["lr"] < 1e-3:
            time.sleep(300.0)


class WaitsForAnother(Callback):
    """Trains once two processes have come to a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def on_train_start(self, engine):
        self._folder.mkdir(exist_ok=True)
        (self._folder / str(os.getpid())).touch()
        while len(list(self._folder.iterdir())) < 2:
            time.sleep(0.1)


class CallsHome(Callback):
    """Takes settings with secrets; a failure of its quotes them."""

    def __init__(self, fails: bool = False, **settings) -> None:
        self._fails, self._settings = fails, settings

    def on_test_end(self, engine, metrics) -> None:
        if self._fails:
            raise ValueError(f"no answer with {self._settings}")


class FailOnRank(Callback):
    """Fails in a hook, on one rank."""

    def __init__(self, rank: int, hook: str) -> None:
        setattr(self, hook, self._fail)
        self._rank = rank

    def _fail(self, engine, *args) -> None:
        if engine.context.rank == self._rank:
            raise ValueError("a mistake in a hook")


class NoNumbers(PlainPyG):
    """Gives NaN as soon as it is evaluated."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = super().forward(x, edge_index)
        return out if self.training else out * float("nan")


class FailsToStart(NodeClassification):
    """Cannot be set up, on one rank: as where a disk is full or a file is missing."""

    def __init__(self, rank: int, where: str) -> None:
        super().__init__()
        self._failing_rank, self._where = rank, where

    def setup(self, env):
        super().setup(env)
        self._fail("setup")

    def build_model(self):
        self._fail("build_model")
        return super().build_model()

    def loader(self, split):
        self._fail("loader")
        return super().loader(split)

    def _fail(self, where: str) -> None:
        if self.env.rank == self._failing_rank and where == self._where:
            raise DataError(f"rank {self.env.rank} cannot {where}")


class AttendsToEdges(GAT):
    """Reads what GAT reads."""


class WeighsMessages(GraphSAGE):
    """Says itself that it reads weights."""

    reads_edge_weight = True


class RowsUnsaid(LightGCN):
    """Learns a row of every node, and its class says that it reads features."""

    reads_node_features = True


class FailOnce(Callback):
    """Fails before a step, the first time."""

    steps: list[int] = []  # noqa: RUF012 - shared by the instances of both attempts

    def on_train_step_start(self, engine: Any) -> None:
        if engine.position.step in self.steps:
            self.steps.remove(engine.position.step)
            raise RuntimeError("the machine went away")
