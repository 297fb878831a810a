"""A step of link prediction, live, beside PyG's `LinkNeighborLoader` and `GraphSAGE`.

    python benchmarks/link_steps.py --scale reference --clock cpu

An R-MAT graph as large as that of Facebook's pages. A step samples the neighborhoods of 1,024 links
and of as many negatives, encodes them with two layers of GraphSAGE, and trains on inner products.
Each side does what it does by default: raygnn ranks each link's target among all targets and
negatives of the batch and takes the links out of the messages; PyG draws pairs of nodes for binary
cross-entropy. One thread. PyG is trimmed and needs pyg-lib (benchmarks/README.md says how to build
it).

With `--device cuda`, our steps are later ones of `raygnn.train`, whose batches the device samples,
or 12 threads, as PyG's loader has 12 processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from engine_steps import padded_batches, step_ms
from harness import CLOCKS, Case, Row, Scale, chosen_scale, interleaved, medians, parser, publish
from rmat_graph import EDGE, NODE, RmatGraph
from torch import nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader
from torch_geometric.nn.models import GraphSAGE
from torch_geometric.typing import WITH_PYG_LIB

from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.loops.process import prepare_process
from raygnn.loops.task import TaskEnvironment
from raygnn.loops.tasks.link_prediction.task import LinkPrediction

_STEPS_A_ROUND = {"cpu": 4, "cuda": 50}  # beside a GPU, many more than PyG's loader makes ahead
_SAMPLERS = 12  # threads or processes beside a GPU
_AS_FACEBOOK = {"num_nodes": 22_470, "num_edges": 341_646, "num_classes": 64, "fanouts": (10, 10)}


def of_links(config: dict[str, Any], scale: Scale) -> dict[str, Any]:
    """A config with links as its task."""
    return {
        **config,
        "data": {
            **config["data"],
            "splits": {"type": "hash", "fractions": [0.96, 0.02, 0.02]},
        },
        "task": {
            "type": "link_prediction",
            "args": {"num_random_negatives": scale.batch_size},
        },
        "model": {
            "type": "GraphSAGE",
            "args": {"hidden_channels": scale.hidden_channels, "out_channels": scale.num_classes},
        },
    }


def our_task(scale: Scale, bundle: Bundle, tables: Path, work: Path) -> LinkPrediction:
    """The task as a run makes it."""
    config = {
        "data": {"uri": str(tables)},
        "sampling": {"fanouts": list(scale.fanouts)},
        "loader": {"batch_size": scale.batch_size, "num_threads": 1},
        "scaling": {"num_workers": 0},
    }
    path = work / "link_steps.yaml"
    path.write_text(yaml.safe_dump(of_links(config, scale)))
    loaded = load_config(path)
    prepare_process(loaded)
    torch.set_num_threads(1)
    task = LinkPrediction(**loaded.config.task.args)
    task.setup(TaskEnvironment(loaded, bundle, 0, 1, torch.device("cpu")))
    task.model = task.build_model()
    return task


def our_steps(task: LinkPrediction) -> Case:
    """Steps of the task, without the engine around them."""
    optimizer = torch.optim.Adam(task.model.parameters())
    loader = task.loader("train")
    batches = (batch for epoch in itertools.count() for batch in loader.iterate(epoch))

    def run() -> None:
        for batch in itertools.islice(batches, _STEPS_A_ROUND["cpu"]):
            optimizer.zero_grad()
            output = task.training_step(batch)
            (output.loss_sum / output.weight).backward()
            optimizer.step()

    return run


def pyg_steps(scale: Scale, bundle: Bundle, device: torch.device) -> Case:
    """Steps of PyG's loader and model."""
    csc = bundle.csc(EDGE)
    indptr, indices = (torch.from_numpy(np.asarray(a, np.int64)) for a in (csc.indptr, csc.indices))
    target = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
    x = torch.from_numpy(np.array(bundle.column(NODE, "x")))
    data = Data(x=x, edge_index=torch.stack([indices, target]))
    loader = LinkNeighborLoader(
        data,
        list(scale.fanouts),
        edge_label_index=data.edge_index,
        neg_sampling="binary",
        batch_size=scale.batch_size,
        shuffle=True,
        is_sorted=True,
        num_workers=_SAMPLERS if device.type == "cuda" else 0,
        persistent_workers=device.type == "cuda",
        pin_memory=device.type == "cuda",
    )
    widths = (scale.num_features, scale.hidden_channels, len(scale.fanouts), scale.num_classes)
    model: nn.Module = GraphSAGE(*widths).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    batches: Iterator[Any] = (batch for _ in itertools.count() for batch in loader)

    def run() -> None:
        for batch in itertools.islice(batches, _STEPS_A_ROUND[device.type]):
            batch = batch.to(device, non_blocking=True)
            optimizer.zero_grad()
            rows = model(
                batch.x,
                batch.edge_index,
                num_sampled_nodes_per_hop=batch.num_sampled_nodes,
                num_sampled_edges_per_hop=batch.num_sampled_edges,
            )
            source, target = rows[batch.edge_label_index]
            scores = (source * target).sum(dim=-1)
            functional.binary_cross_entropy_with_logits(scores, batch.edge_label).backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__, in_rounds=True).parse_args(argv)
    scale, work, device = chosen_scale(options), Path(options.work), torch.device(options.device)
    if scale.name == "reference":
        scale = replace(scale, **_AS_FACEBOOK)
    graph = RmatGraph(scale.num_nodes, scale.num_edges, scale.num_features)
    tables, bundle = graph.tables(work), graph.bundle(work)
    torch.set_num_threads(1)
    cases: dict[str, Case] = {}
    if device.type == "cpu":
        make = partial(our_task, scale, bundle, tables, work)
        padded = padded_batches(make().loader("train"), _STEPS_A_ROUND["cpu"])
        cases = {"raygnn": our_steps(make()), **padded}
    if WITH_PYG_LIB:
        cases["PyG"] = pyg_steps(scale, bundle, device)
    seconds = interleaved(cases, scale.rounds, CLOCKS[options.clock])
    num_steps = _STEPS_A_ROUND[device.type]
    ms = {name: 1e3 * value / num_steps for name, value in medians(seconds).items()}
    rows = [Row(name, ms[name], "ms") for name in cases if name not in ("raygnn", "PyG")]
    if device.type == "cuda":
        step = partial(step_ms, scale, tables, work, "cuda", change=partial(of_links, scale=scale))
        ms["raygnn"], _ = step(threads=None)
        of_host, waited = step(threads=_SAMPLERS)
        note = f"{waited:.1f} ms wait for batches"
        rows.append(Row(f"step of links, {_SAMPLERS} sampler threads", of_host, "ms", note=note))
    publish("link_steps", options, [*link_rows(ms), *rows], seconds=seconds)


def link_rows(ms: dict[str, float]) -> list[Row]:
    """Our step and PyG's."""
    rows = [Row("step of links", ms["raygnn"], "ms")]
    if "PyG" in ms:
        ratio = ms["PyG"] / ms["raygnn"]
        rows.append(Row("LinkNeighborLoader, GraphSAGE", ms["PyG"], "ms", ratio, "ours", ">= 4"))
    return rows


if __name__ == "__main__":
    main()
