"""PyG's `NeighborLoader` over pyg-lib, `GraphSAGE` and DDP, for torchrun to start.

Needs torch, torch_geometric and pyg-lib, not raygnn. Takes the folder of the arrays, and as JSON a
scale and options: `device`; `trim`, layers to the rows that the next one reads; `samplers`,
processes that sample; `holds_features`, whether the device holds them. Rank 0 prints a line of
JSON, the seeds of all ranks a second.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

_WARM_UP_STEPS = {"cpu": 2, "cuda": 40}


def make_loader(
    arrays: dict[str, Tensor],
    scale: dict[str, Any],
    options: dict[str, Any],
    rank: int,
    world_size: int,
) -> NeighborLoader:
    """Batches of this rank's share of the training nodes, sampled in processes of their own."""
    degree = arrays["indptr"].diff()
    dst = torch.repeat_interleave(torch.arange(len(degree)), degree)
    data = Data(
        x=None if options["holds_features"] else arrays["x"],
        y=arrays["y"].long(),
        num_nodes=len(degree),
        edge_index=torch.stack([arrays["indices"].long(), dst]),
    )
    return NeighborLoader(
        data,
        scale["fanouts"],
        input_nodes=arrays["train"][rank::world_size],
        batch_size=scale["batch_size"],
        shuffle=True,
        is_sorted=True,
        num_workers=options["samplers"],
        persistent_workers=True,
        pin_memory=options["device"] == "cuda",
    )


def main() -> None:
    """Trains a few steps and says how fast."""
    folder = Path(sys.argv[1])
    scale, options = json.loads(sys.argv[2]), json.loads(sys.argv[3])
    device = torch.device(options["device"])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    arrays = {
        name: torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="r+"))
        for name in ("indptr", "indices", "x", "y", "train")
    }
    loader = make_loader(arrays, scale, options, rank, world_size)
    widths = (scale["num_features"], scale["hidden_channels"], len(scale["fanouts"]))
    model: nn.Module = GraphSAGE(*widths, scale["num_classes"]).to(device)
    if world_size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, fused=device.type == "cuda")
    rows = arrays["x"].to(device) if options["holds_features"] else None
    warm_up = _WARM_UP_STEPS[device.type]
    batches = (batch for _ in itertools.count() for batch in loader)
    for step in range(warm_up + scale["steps"]):
        if step == warm_up:
            wait_for_all(device)
            began = time.perf_counter()
        batch = next(batches).to(device, non_blocking=True)
        x = batch.x if rows is None else rows[batch.n_id]
        optimizer.zero_grad()
        hops = {
            "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
            "num_sampled_edges_per_hop": batch.num_sampled_edges,
        }
        scores = model(x, batch.edge_index, **(hops if options["trim"] else {}))
        scores = scores[: batch.batch_size]
        functional.cross_entropy(scores, batch.y[: batch.batch_size]).backward()
        optimizer.step()
    wait_for_all(device)
    seconds = time.perf_counter() - began
    if rank == 0:
        rate = scale["steps"] * scale["batch_size"] * world_size / seconds
        print(json.dumps({"seeds_per_s": rate}), flush=True)
    dist.destroy_process_group()


def wait_for_all(device: torch.device) -> None:
    """Waits for the device and for the other ranks."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


if __name__ == "__main__":
    main()
