"""A Ray Train run that does nothing: what `startup.py` compares with. Stamps lines by themselves.

`--workers N` as many as the run that it is compared with.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def main() -> None:
    """Starts Ray, runs the trainer, and leaves."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--workers", type=int, default=1)
    workers = options.parse_args().workers
    print("imported", flush=True)
    ray.init()
    print("initialised", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        TorchTrainer(
            _say_so,
            train_loop_config={},
            scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(storage_path=folder),
        ).fit()
    print("finished", flush=True)


def _say_so(_: dict[str, Any]) -> None:
    print("first step", flush=True)


if __name__ == "__main__":
    main()
