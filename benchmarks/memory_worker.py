"""One worker of `memory.py`: holds a graph, trains a few steps, and says what memory is its own.

Prints its proportional set size, waits for a line, and prints it again once all workers are there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import SCALES, Scale
from rmat_graph import EDGE, NODE
from training import Trainer, make_loader
from training import pyg_model as build_pyg
from training import raygnn_model as build_raygnn

from raygnn.data.bundle import Bundle
from raygnn.loops.process import keep_freed_memory

_NUM_STEPS = 3


def train_raygnn(scale: Scale, bundle: Bundle) -> Any:
    """Trains on the mapped bundle; returns what has to stay in memory."""
    keep_freed_memory()
    trainer = Trainer(build_raygnn(scale), "cpu", "blocks")
    loader = make_loader(scale, bundle, "cpu", 1)
    for batch in loader.iterate(0, stop=_NUM_STEPS):
        trainer.step(batch)
    for array in graph_arrays(bundle):
        # so that no page of the graph is missing from the count
        array.reshape(-1).view(np.uint8)[::4096].max()
    return trainer, loader, bundle


def graph_arrays(bundle: Bundle) -> list[np.ndarray]:
    """What an epoch reads of the bundle."""
    csc = bundle.csc(EDGE)
    columns = [bundle.column(NODE, name) for name in ("x", "y")]
    return [csc.indptr, csc.indices, *(c for c in columns if isinstance(c, np.ndarray))]


def train_pyg(scale: Scale, bundle: Bundle) -> Any:
    """Trains on tensors of its own, as a script that loads a `Data` in each process does.

    The batches are raygnn's, since PyG's sampler need not be there: the CSC that PyG's
    `NeighborLoader` would make, int64, is held beside them.
    """
    csc, x = bundle.csc(EDGE), bundle.column(NODE, "x")
    held = [
        torch.from_numpy(np.array(csc.indptr)),
        torch.from_numpy(np.array(csc.indices, np.int64)),
        torch.from_numpy(np.array(x)),
    ]
    trainer = Trainer(build_pyg(scale), "cpu", "whole")
    loader = make_loader(scale, bundle, "cpu", 0)
    for batch in loader.iterate(0, stop=_NUM_STEPS):
        nodes = batch.nodes[NODE]
        nodes.columns["x"] = held[2][nodes.n_id]
        trainer.step(batch)
    return trainer, held


def proportional_bytes() -> int:
    """PSS: own pages whole, shared ones in equal parts."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not count proportional set sizes")


def main() -> None:
    """Trains, then answers each line with the present size."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("kind", choices=("raygnn", "pyg"))
    options.add_argument("scale", choices=SCALES)
    options.add_argument("bundle")
    given = options.parse_args()
    torch.set_num_threads(1)
    train = train_raygnn if given.kind == "raygnn" else train_pyg
    held = train(SCALES[given.scale], Bundle.open(given.bundle))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(proportional_bytes(), flush=True)
    del held


if __name__ == "__main__":
    main()
