"""A generated database of any size: ingest, training and memory, for `relational.py --scale`."""

from __future__ import annotations

import resource
import shutil
import time
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from harness import markdown

import raygnn.prepare
import raygnn.train

START, DAYS = pd.Timestamp("2020-01-01"), 1_000
VAL, TEST = START + pd.Timedelta("700D"), START + pd.Timedelta("850D")
#: Shares of all rows, by table with times.
EVENTS = {"orders": 0.4, "visits": 0.4, "reviews": 0.18}
TABLE_ROWS = 10  # rows of the database for each row of the training table


def write_database(folder: Path, num_rows: int) -> None:
    """Five tables of `num_rows` rows in RelBench's layout, and a task of a tenth as many rows.

    Customers order at different rates; the label is whether one orders within 30 days.
    """
    rng = np.random.default_rng(0)
    num_customers, num_products = num_rows // 55, num_rows // 500
    rate = rng.exponential(1, num_customers)
    keys = {"customer": "customers", "product": "products"}
    tables = {
        "customers": {"age": rng.integers(18, 90, num_customers)},
        "products": {"price": rng.random(num_products, np.float32)},
    }
    entries = {name: {"pkey": f"{name}_id", "time_col": None, "fkeys": {}} for name in tables}
    for name, share in EVENTS.items():
        num = int(num_rows * share)
        tables[name] = {
            "customer": rng.choice(num_customers, num, p=rate / rate.sum()),
            "product": rng.integers(0, num_products, num),
            "amount": rng.random(num, np.float32),
            "date": _dates(np.sort(rng.random(num)) * DAYS),
        }
        entries[name] = {"pkey": f"{name}_id", "time_col": "date", "fkeys": keys}
    task = folder / "tasks" / "orders-soon"
    for path in (folder / "db", task):
        path.mkdir(parents=True)
    for name, columns in tables.items():
        frame = pd.DataFrame(columns)
        frame.insert(0, f"{name}_id", np.arange(len(frame)))
        frame.to_parquet(folder / "db" / f"{name}.parquet")
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
    columns = {"entity_table": "customers", "entity_col": "customer", "target_col": "ordered"}
    kinds = {"kind": "forecast", "task_type": "binary_classification", "timedelta": "30 days"}
    _dump(task, {"name": task.name, "manifest_version": 1, **kinds, **columns, "time_col": "date"})


def _dates(days: np.ndarray) -> np.ndarray:
    return START.to_datetime64() + (days * 86_400e6).astype("timedelta64[us]")


def _dump(folder: Path, content: dict[str, object]) -> None:
    (folder / "manifest.yaml").write_text(yaml.safe_dump(content))


def measure(work: Path, num_rows: int, steps: int) -> str:
    """Generates a database, trains some steps with defaults, and returns a table of figures."""
    shutil.rmtree(work, ignore_errors=True)
    database, graph = work / "database", work / "graph"
    write_database(database, num_rows)
    start = time.perf_counter()
    raygnn.prepare.main(["relbench", str(database), "--out", str(graph)])
    converted = time.perf_counter()
    settings = {"max_steps": steps, "validate_every": {"steps": steps}, "eval": "sampled"}
    config = {
        "data": {"uri": str(graph), "cache_dir": str(work / "cache")},
        "task": {"type": "node_classification", "args": {"table": "orders_soon"}},
        "model": "Hetero",
        "metrics": ["auroc"],
        "training": settings,
        "scaling": {"num_workers": 0},
        "run": {"storage_path": str(work), "name": "run"},
    }
    result = raygnn.train.fit(config)
    end = time.perf_counter()
    seeds_per_s = result.metrics["perf/seeds_per_s"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    shutil.rmtree(work)
    lines = [
        ("", f"{num_rows:,} rows, {num_rows // TABLE_ROWS:,} training rows"),
        ("read and write as a graph", f"{num_rows / (converted - start):,.0f} rows/s"),
        ("ingest, training and test", f"{end - converted:,.0f} s"),
        ("training", f"{seeds_per_s:,.0f} rows/s over {steps} steps"),
        ("peak memory", f"{peak:.1f} GiB"),
        ("test AUROC", f"{result.metrics['test/auroc']:.3f}"),
    ]
    return markdown(lines)
