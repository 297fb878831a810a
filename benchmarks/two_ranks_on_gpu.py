"""One of two ranks that train on the same GPU. benchmarks/on_gpu.sh starts both:

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29533 \
        python benchmarks/two_ranks_on_gpu.py nccl --device cuda --scale smoke

NCCL usually refuses two ranks on one device, and the last line says so. gloo carries the sums
through the host. Each rank prints the metrics of its run, which are equal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from harness import SCALES, parser
from rmat_graph import RmatGraph
from training import engine_config

import raygnn.train

_STEPS = 30
_TIMEOUT = timedelta(seconds=120)


def main(argv: Sequence[str] | None = None) -> None:
    """Trains as one of two ranks."""
    arguments = parser(__doc__)
    arguments.add_argument("backend", choices=("nccl", "gloo"))
    options = arguments.parse_args(argv)
    scale, work = SCALES[options.scale], Path(options.work)
    os.environ["LOCAL_RANK"] = "0"
    graph = RmatGraph(scale.num_nodes, scale.num_edges, scale.num_features, scale.num_classes)
    config = engine_config(
        scale,
        graph.tables(work),
        work,
        f"two-ranks-{options.backend}",
        _STEPS,
        use_gpu=options.device == "cuda",
        sampler_threads=1,
        device_features=True,
        cuda_graphs=True,
    )
    dist.init_process_group(options.backend, timeout=_TIMEOUT)
    try:
        result = raygnn.train.fit(config)
    except dist.DistBackendError as error:
        print(f"{options.backend} does not run two ranks on one GPU: {error}")
        sys.exit(0 if options.backend == "nccl" else 1)
    print(dist.get_rank(), {key: value for key, value in result.metrics.items() if "loss" in key})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
