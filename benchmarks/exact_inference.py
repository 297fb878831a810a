"""Embeddings of all nodes from all edges, layer by layer, beside PyG's `inference`.

    python benchmarks/exact_inference.py --scale reference --rounds 3

GraphSAGE of three layers over an R-MAT graph. Both sides apply a layer to all nodes before the next
one. PyG's side is `GraphSAGE.inference` over a `NeighborLoader` of whole neighborhoods, and needs
pyg-lib (benchmarks/README.md says how to build it).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from harness import CLOCKS, Case, Row, chosen_scale, interleaved, medians, parser, publish
from rmat_graph import EDGE, NODE, RmatGraph
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.typing import WITH_PYG_LIB
from training import pyg_model, raygnn_model

from raygnn.data.bundle import Bundle
from raygnn.loops.process import keep_freed_memory
from raygnn.models.exact import ExactOptions, InEdges, exact_inference
from raygnn.parallel.shared_rows import SharedRows

_PYG_BATCH_SIZE = 4096


def _run(model: nn.Module, bundle: Bundle, work: Path) -> None:
    """As `raygnn.infer` does."""
    csc, x = bundle.csc(EDGE), bundle.column(NODE, "x")
    edges = InEdges(indptr=csc.indptr, indices=csc.indices)
    options = ExactOptions(compute=SharedRows(work / "scratch"))
    in_edges, num_nodes = {EDGE: edges}, {NODE: len(x)}
    exact_inference(model, lambda _, ids: x[ids], in_edges, num_nodes, options=options)


def pyg_loader(bundle: Bundle) -> NeighborLoader:
    """Whole neighborhoods of one hop, as PyG's `inference` asks for."""
    csc = bundle.csc(EDGE)
    indptr, indices = (torch.from_numpy(np.asarray(a, np.int64)) for a in (csc.indptr, csc.indices))
    target = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
    x = torch.from_numpy(np.array(bundle.column(NODE, "x")))
    data = Data(x=x, edge_index=torch.stack([indices, target]), num_nodes=len(x))
    return NeighborLoader(data, [-1], batch_size=_PYG_BATCH_SIZE, is_sorted=True)


def _run_pyg(model: nn.Module, loader: NeighborLoader) -> None:
    model.inference(loader)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__, in_rounds=True).parse_args(argv)
    scale, work = chosen_scale(options), Path(options.work)
    bundle = RmatGraph(scale.num_nodes, scale.num_edges, scale.num_features).bundle(work)
    keep_freed_memory()
    torch.manual_seed(0)
    model = raygnn_model(scale).eval()
    cases: dict[str, Case] = {"raygnn": partial(_run, model, bundle, work)}
    if WITH_PYG_LIB:
        peer, loader = pyg_model(scale).eval(), pyg_loader(bundle)
        cases["PyG"] = partial(_run_pyg, peer, loader)
    seconds = interleaved(cases, scale.rounds, CLOCKS[options.clock])
    rows = exact_rows(medians(seconds))
    publish("exact_inference", options, rows, seconds=seconds)


def exact_rows(seconds: dict[str, float]) -> list[Row]:
    """Our time and PyG's."""
    rows = [Row("all nodes, exact", seconds["raygnn"], "s")]
    if "PyG" in seconds:
        ratio = seconds["PyG"] / seconds["raygnn"]
        rows.append(Row("GraphSAGE.inference", seconds["PyG"], "s", ratio, "ours", ">= 4"))
    return rows


if __name__ == "__main__":
    main()
