"""A step on a training table with all defaults: temporal and disjoint neighborhoods of a database.

    python benchmarks/row_steps.py --scale reference --device cuda

The database is that of `relational.py --scale`. With `--device cuda`, steps are later ones of
`raygnn.train` without LightGBM, whose batches the device samples, or 12 threads. Without a GPU: a
padded batch of one thread, and the part of it that the host makes beside a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engine_steps import padded_batches, step_ms
from harness import CLOCKS, Row, chosen_scale, interleaved, medians, parser, publish
from relational_scale import train_loader, write_database
from training import engine_config

import raygnn.prepare.__main__

_BATCHES = 8  # of a round
_DATABASE_ROWS = {"smoke": 60_000, "reference": 2_000_000}


def of_rows(config: dict[str, Any]) -> dict[str, Any]:
    """A config with a training table as its task, and the default sampling."""
    task = {"type": "node_classification", "args": {"table": "orders_soon", "blend": False}}
    width = config["model"]["args"]["hidden_channels"]
    model = {"type": "Hetero", "args": {"hidden_channels": width}}
    return {**config, "task": task, "model": model, "metrics": ["auroc"], "sampling": {}}


def graph_of_database(work: Path, num_rows: int) -> Path:
    """The folder of a generated database as a graph."""
    database, graph = work / f"database-{num_rows}", work / f"database-{num_rows}-graph"
    if not graph.exists():
        write_database(database, num_rows)
        raygnn.prepare.__main__.main(["relbench", str(database), "--out", str(graph)])
    return graph


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__, in_rounds=True).parse_args(argv)
    scale, work = chosen_scale(options), Path(options.work)
    graph = graph_of_database(work, _DATABASE_ROWS[scale.name])
    rows, seconds = [], {}
    if options.device == "cpu":
        config = engine_config(scale, graph, work, "row-steps", 1, use_gpu=False)
        seconds = interleaved(
            padded_batches(train_loader(of_rows(config)), _BATCHES),
            scale.rounds,
            CLOCKS[options.clock],
        )
        rows = [Row(name, 1e3 * s / _BATCHES, "ms") for name, s in medians(seconds).items()]
    else:
        measure = partial(step_ms, scale, graph, work, "cuda", change=of_rows)
        for name, threads in {"sampled on the device": None, "12 sampler threads": 12}.items():
            took, waited = measure(threads=threads)
            note = f"{waited:.1f} ms wait for batches, {1e3 * scale.batch_size / took:,.0f} rows/s"
            rows.append(Row(name, took, "ms", note=note))
    publish("row_steps", options, rows, seconds=seconds)


if __name__ == "__main__":
    main()
