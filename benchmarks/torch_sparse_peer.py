"""PyG's compiled sampler as a process of its own, which may run in another Python.

Needs torch, torch_geometric and torch-sparse, not raygnn. Reads a line of JSON for each request
and answers with one, so that its work can take turns with raygnn's in the same run.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch


class Peer:
    """The graph and the sampler; each method answers one kind of request."""

    def __init__(self, indptr: str, indices: str, clock: str) -> None:
        import torch_sparse  # noqa: F401 - registers the operator

        torch.set_num_threads(1)
        self._clock = time.process_time if clock == "cpu" else time.perf_counter
        self._colptr = torch.from_numpy(np.load(indptr))
        # the operator takes int64 only
        self._row = torch.from_numpy(np.load(indices).astype(np.int64))

    def sample(self, seeds: list[int], fanouts: list[int]) -> dict[str, float]:
        """Samples the neighborhood of seeds."""
        given = torch.tensor(seeds)
        began = self._clock()
        node, row, *_ = torch.ops.torch_sparse.neighbor_sample(
            self._colptr, self._row, given, fanouts, False, True
        )
        seconds = self._clock() - began
        return {"seconds": seconds, "num_nodes": node.numel(), "num_edges": row.numel()}


def main() -> None:
    """Answers requests until there are no more."""
    peer: Peer | None = None
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        kind = request.pop("kind")
        if kind == "open":
            try:
                peer = Peer(**request)
                answer: dict[str, Any] = {"opened": True}
            except ImportError as error:
                answer = {"opened": False, "why": str(error)}
        else:
            assert peer is not None
            answer = peer.sample(**request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
