"""A generated database of any size: ingest, training and memory, for `relational.py --scale`."""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
import yaml
from harness import markdown
from relbench_gnn import RelBenchGNN, Rows, Settings, make_loader, read_graph, seconds, train_step
from torch_geometric.typing import WITH_PYG_LIB

import raygnn.prepare.__main__
import raygnn.train
from raygnn.config import load_config
from raygnn.config.loader_section import DEFAULT_FANOUTS
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from raygnn.parallel.all_reduce import StepTotals
from raygnn.runtime.data_checks import find_spec, with_task_defaults
from raygnn.runtime.launch import open_graph
from raygnn.runtime.stored_samples import sampled_loaders

START, DAYS = pd.Timestamp("2020-01-01"), 1_000
VAL, TEST = START + pd.Timedelta("700D"), START + pd.Timedelta("850D")
#: Shares of all rows, by table with times.
EVENTS = {"orders": 0.4, "visits": 0.4, "reviews": 0.18}
BATCH_SIZE = 1024
TABLE_ROWS = 10  # rows of the database for each row of the training table


def write_database(folder: Path, num_rows: int) -> None:
    """Five tables of `num_rows` rows in RelBench's layout, and a task of a tenth as many rows.

    Customers order at different rates; the label is whether one orders within 30 days.
    """
    rng = np.random.default_rng(0)
    num_customers, num_products = num_rows // 55, num_rows // 500
    rate = rng.exponential(1, num_customers)
    entries: dict[str, dict[str, object]] = {}
    task = folder / "tasks" / "orders-soon"
    for path in (folder / "db", task):
        path.mkdir(parents=True)

    def write(name: str, columns: dict[str, np.ndarray], **entry: object) -> None:
        frame = pd.DataFrame(columns)
        frame.insert(0, f"{name}_id", np.arange(len(frame)))
        frame.to_parquet(folder / "db" / f"{name}.parquet")
        entries[name] = {"pkey": f"{name}_id", "time_col": None, "fkeys": {}, **entry}

    write("customers", {"age": rng.integers(18, 90, num_customers)})
    write("products", {"price": rng.random(num_products, np.float32)})
    keys = {"customer": "customers", "product": "products"}
    for name, share in EVENTS.items():
        num = int(num_rows * share)
        columns = {
            "customer": rng.choice(num_customers, num, p=rate / rate.sum()),
            "product": rng.integers(0, num_products, num),
            "amount": rng.random(num, np.float32),
            "date": _dates(np.sort(rng.random(num)) * DAYS),
        }
        write(name, columns, time_col="date", fkeys=keys)
    num = num_rows // TABLE_ROWS
    customer, date = rng.integers(0, num_customers, num), _dates(rng.random(num) * DAYS)
    per_month = rate / rate.sum() * num_rows * EVENTS["orders"] * 30 / DAYS
    label = (rng.random(num) > np.exp(-per_month[customer])).astype(int)
    rows = pd.DataFrame({"date": date, "customer": customer, "ordered": label})
    splits = {
        "train": rows[rows.date < VAL],
        "val": rows[(rows.date >= VAL) & (rows.date < TEST)].head(5_000),
        "test": rows[rows.date >= TEST].head(5_000),
    }
    for split, part in splits.items():
        part.to_parquet(task / f"{split}.parquet")
    times = {"val_timestamp": str(VAL), "test_timestamp": str(TEST)}
    _dump(folder, {"name": "scale", "manifest_version": 1, **times, "tables": entries})
    ends = {"entity_table": "customers", "entity_col": "customer", "target_col": "ordered"}
    kinds = {"kind": "forecast", "task_type": "binary_classification", "timedelta": "30 days"}
    _dump(task, {"name": task.name, "manifest_version": 1, **kinds, **ends, "time_col": "date"})


def _dates(days: np.ndarray) -> np.ndarray:
    return START.to_datetime64() + (days * 86_400e6).astype("timedelta64[us]")


def _dump(folder: Path, content: dict[str, object]) -> None:
    (folder / "manifest.yaml").write_text(yaml.safe_dump(content))


class StepClock(Callback):
    """Processor seconds of all threads at the end of each training step."""

    seconds: ClassVar[list[float]] = []

    def on_train_step_end(self, engine: Engine, totals: StepTotals) -> None:
        """Notes the time."""
        self.seconds.append(time.process_time())


def measure(work: Path, num_rows: int, steps: int) -> str:
    """Generates a database, trains some steps with defaults, and returns a table of figures.

    Each part runs in a process of its own, whose peak memory is a figure. Rates of batches and of
    training are rows per second of processor time, since PyG's loader samples in turns with the
    steps, and raygnn's in a thread beside them.
    """
    shutil.rmtree(work, ignore_errors=True)
    database, graph = work / "database", work / "graph"
    seconds_of, memory = {}, {}

    def run(name: str, function: Callable[..., Any], *args: object) -> Any:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            pool.submit(_peak_memory).result()  # imports
            start = time.perf_counter()
            result = pool.submit(function, *args).result()
            seconds_of[name] = time.perf_counter() - start
            memory[name] = peak = pool.submit(_peak_memory).result()
        print(f"{name}: {seconds_of[name]:,.0f} s, {peak:.1f} GiB", flush=True)
        return result

    run("generate", write_database, database, num_rows)
    run("convert", raygnn.prepare.__main__.main, ["relbench", str(database), "--out", str(graph)])
    metrics, rates = run("raygnn", _raygnn_rates, work, graph, steps)
    if WITH_PYG_LIB:
        rates |= run("PyG", _pyg_rates, database, steps)
    shutil.rmtree(work)
    lines = [
        ("", f"{num_rows:,} rows, {num_rows // TABLE_ROWS:,} training rows"),
        ("read and write as a graph", f"{num_rows / seconds_of['convert']:,.0f} rows/s"),
        ("ingest, training and test", f"{seconds_of['raygnn']:,.0f} s"),
        *((f"{name}: peak memory", f"{peak:.1f} GiB") for name, peak in memory.items()),
        ("test AUROC", f"{metrics['test/auroc']:.3f}"),
        ("training", f"{metrics['perf/seeds_per_s']:,.0f} rows/s over {steps} steps"),
        *((f"{what}, processor time", f"{rate:,.0f} rows/s") for what, rate in rates.items()),
    ]
    return markdown(lines)


def _peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _raygnn_rates(work: Path, graph: Path, steps: int) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of a run with defaults, and rates of its batches and steps."""
    settings = {"max_steps": steps, "validate_every": {"steps": steps}, "eval": "sampled"}
    config = {
        "data": {"uri": str(graph), "cache_dir": str(work / "cache")},
        "task": {"type": "node_classification", "args": {"table": "orders_soon"}},
        "model": "Hetero",
        "metrics": ["auroc"],
        "training": settings,
        "callbacks": [{"type": "relational_scale.StepClock"}],
        "scaling": {"num_workers": 0},
        "run": {"storage_path": str(work), "name": "run"},
    }
    result = raygnn.train.fit(config, allow_modules=["relational_scale"])
    loader = train_loader(config)
    batches = (loader.make(*divmod(i, loader.num_batches)) for i in count())
    rates = {
        "raygnn: batches": _rate(_clocked(partial(next, batches) for _ in range(steps))),
        "raygnn: training": _rate(StepClock.seconds),
    }
    return result.metrics, rates


def train_loader(config: dict[str, Any]) -> Any:
    """Batches of training rows, as a run makes them."""
    loaded = with_task_defaults(load_config(config, allow_modules=["relational_scale"]), None)
    bundle = open_graph(loaded, None, on_cluster=False)
    return sampled_loaders(loaded, bundle, find_spec(loaded, bundle))["train"]


def _pyg_rates(database: Path, steps: int) -> dict[str, float]:
    """PyG's loader, and its layers of the same widths, hops and fanouts, on the latest neighbors.

    Trimmed layers compute only rows that a later layer reads.
    """
    data, target = read_graph(database, TEST), "customers"
    rows = pd.read_parquet(database / "tasks" / "orders-soon" / "train.parquet")
    labels = rows["ordered"].to_numpy(copy=True)
    train = Rows(rows["customer"].to_numpy(copy=True), seconds(rows["date"]), labels)
    shape = Settings(256, DEFAULT_FANOUTS, num_blocks=0, aggr="mean", strategy="last")
    settings = replace(shape, batch_size=BATCH_SIZE)
    loader = make_loader(data, target, train, settings, shuffle=True)
    batches = chain.from_iterable(repeat(loader))
    rates = {"PyG: batches": _rate(_clocked(partial(next, batches) for _ in range(steps)))}
    for trimmed in (True, False):
        model = RelBenchGNN(data, target, replace(settings, trimmed=trimmed))
        optimizer = torch.optim.Adam(model.parameters())
        step = lambda: train_step(model, optimizer, next(batches), labels)  # noqa: B023, E731
        name = f"PyG: training, {'trimmed' if trimmed else 'whole'}"
        rates[name] = _rate(_clocked(step for _ in range(steps)))
    return rates


def _clocked(calls: Iterable[Callable[[], object]]) -> list[float]:
    """Processor seconds before the first call and after each."""
    marks = [time.process_time()]
    for call in calls:
        call()
        marks.append(time.process_time())
    return marks


def _rate(marks: Sequence[float]) -> float:
    return BATCH_SIZE / float(np.median(np.diff(marks)))
