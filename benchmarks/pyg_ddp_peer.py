"""PyG's `NeighborLoader` over pyg-lib, `GraphSAGE` and DDP, for torchrun to start.

Needs torch, torch_geometric and pyg-lib, not raygnn. Takes the folder of the arrays, a scale as
JSON and whether layers are trimmed to the rows that the next one reads; rank 0 prints a line of
JSON, the seeds of all ranks a second.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

_WARM_UP_STEPS = 2


def make_loader(folder: Path, scale: dict[str, Any], rank: int, world_size: int) -> NeighborLoader:
    """Batches of this rank's share of the training nodes, sampled in a process of their own."""
    arrays = {
        name: torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="r+"))
        for name in ("indptr", "indices", "x", "y", "train")
    }
    degree = arrays["indptr"].diff()
    dst = torch.repeat_interleave(torch.arange(len(degree)), degree)
    data = Data(
        x=arrays["x"],
        y=arrays["y"].long(),
        edge_index=torch.stack([arrays["indices"].long(), dst]),
    )
    return NeighborLoader(
        data,
        scale["fanouts"],
        input_nodes=arrays["train"][rank::world_size],
        batch_size=scale["batch_size"],
        shuffle=True,
        is_sorted=True,
        num_workers=1,
        persistent_workers=True,
    )


def main() -> None:
    """Trains a few steps and says how fast."""
    folder, scale, is_trimmed = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3] == "trimmed"
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    loader = make_loader(folder, scale, rank, world_size)
    widths = (scale["num_features"], scale["hidden_channels"], len(scale["fanouts"]))
    model = nn.parallel.DistributedDataParallel(GraphSAGE(*widths, scale["num_classes"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    batches = iter(loader)
    for step in range(_WARM_UP_STEPS + scale["steps"]):
        if step == _WARM_UP_STEPS:
            dist.barrier()
            began = time.perf_counter()
        batch = next(batches)
        optimizer.zero_grad()
        hops = {
            "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
            "num_sampled_edges_per_hop": batch.num_sampled_edges,
        }
        scores = model(batch.x, batch.edge_index, **(hops if is_trimmed else {}))
        scores = scores[: batch.batch_size]
        functional.cross_entropy(scores, batch.y[: batch.batch_size]).backward()
        optimizer.step()
    dist.barrier()
    seconds = time.perf_counter() - began
    if rank == 0:
        rate = scale["steps"] * scale["batch_size"] * world_size / seconds
        print(json.dumps({"seeds_per_s": rate}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
