"""A training loop of your own, on raygnn's loaders, workers and outputs.

Run it with

    python -m raygnn.train examples/quickstart.yaml --allow-module examples \
        --loop examples.custom_loop.train
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from raygnn.loops.context import WorkerContext
from raygnn.loops.task import Task


def train(task: Task, context: WorkerContext) -> dict[str, float]:
    """Two epochs of plain SGD; all ranks average their gradients after each micro-batch."""
    model = task.build_model().to(context.device)
    task.model = model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = task.loader("train")
    assert loader is not None
    # Every rank takes as many steps as the one with fewest micro-batches, so none waits forever.
    num_steps = loader.num_batches // context.world_size
    loss = 0.0
    for epoch in range(2):
        for _, batch in zip(range(num_steps), loader.iterate(epoch), strict=False):
            optimizer.zero_grad()
            output = task.training_step(batch.to(context.device))
            (output.loss_sum / output.weight).backward()
            for parameter in model.parameters():
                if context.world_size > 1:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= context.world_size
            optimizer.step()
            loss = float(output.loss_sum.detach()) / output.weight
        context.report({"train/loss": loss}, None)
    return {"train/loss": loss}
