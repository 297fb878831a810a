"""raygnn's defaults beside kumo-engine, on the same rows of five databases.

    python benchmarks/kumo_peer.py --data ../shared/data/rel-f1 --kumo kumo-venv/bin/python

Each side trains in a process of its own, with nothing chosen. Prints the test metric, and the
processor time and peak memory of reading, training and testing. The databases are rel-f1 in
RelBench's layout (test rows see the database up to their own time), the stores of two tutorials,
and those of `made_databases.py`. kumo-engine needs other versions of pandas and pyarrow, so it has
an interpreter of its own; benchmarks/README.md says how to make it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from harness import markdown
from made_databases import write_database

import raygnn.prepare.__main__
from raygnn.data.manifest import Manifest

_ROOT = Path(__file__).parents[1]
_SPLITS = {"train": 0, "val": 1, "test": 2}


@dataclass(frozen=True)
class Question:
    """A training table of a folder with graph.yaml, and the metric of its test rows."""

    name: str
    graph: Path
    table: str
    metric: str


def questions(data: Path | None, work: Path) -> Iterator[Question]:
    """Writes the graphs and training tables."""
    if data is not None:
        graph = work / "rel-f1"
        _prepare("relbench", str(data), "--out", str(graph), "--protocol", "live", "--overwrite")
        yield Question("rel-f1 driver-dnf", graph, "driver_dnf", "auroc")
        yield Question("rel-f1 driver-position", graph, "driver_position", "mae")
    for page, folder, *asked in (
        ("database", "store", "count(orders) over 30d > 0", "customers", "2023-10-01 2023-12-01"),
        (
            "churn",
            "service",
            "count(sessions) over 30d = 0",
            "subscribers",
            "2023-10-01 2023-12-01",
        ),
    ):
        with contextlib.chdir(work):
            text = (_ROOT / f"docs/tutorials/{page}.md").read_text()
            exec(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[0], {})
        yield _asked(work / folder, *asked, "auroc")
    for folder, *asked, metric in (
        ("ferry", "count(bookings) over 60d > 0", "passengers", "2023-01-01 2023-05-01", "auroc"),
        ("library", "count(loans) over 60d", "members", "2023-01-01 2023-05-01", "mae"),
    ):
        write_database(folder, work / folder)
        yield _asked(work / folder, *asked, metric)


def _asked(folder: Path, question: str, entity: str, dates: str, metric: str) -> Question:
    _prepare("draft", str(folder), "--overwrite")
    val, test = dates.split()
    _prepare(
        *("labels", str(folder), "--predict", question, "--for", entity, "--every", "30d"),
        *("--val", val, "--test", test, "--name", "asked", "--overwrite"),
    )
    return Question(f"{folder.name}: {question}", folder, "asked", metric)


def _prepare(*arguments: str) -> None:
    with contextlib.redirect_stdout(sys.stderr):
        if raygnn.prepare.__main__.main(arguments):
            raise SystemExit(f"raygnn prepare {' '.join(arguments)} failed")


def for_kumo(question: Question, folder: Path) -> None:
    """Writes the tables of a graph and the rows as kumo-engine reads them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    graph = Manifest.load(str(question.graph))
    tables, edges = {}, []
    for name, node in graph.node_types.items():
        time = None if node.time is None else node.time.column
        _write(_read(question.graph, node.files, time), folder / f"{name}.parquet")
        tables[name] = {"key": node.id, "time": time}
    for edge in graph.edge_types:
        source, relation, target = edge.type
        node = graph.node_types[source]
        rows = _read(question.graph, edge.files, None if edge.time is None else edge.time.column)
        if edge.source == node.id and rows[edge.source].is_unique:  # a reference
            kept = pd.read_parquet(folder / f"{source}.parquet")
            if edge.target not in kept:
                kept = kept.merge(rows[[edge.source, edge.target]], "left", on=edge.source)
                _write(kept, folder / f"{source}.parquet")
            edges.append((source, edge.target, target))
            continue
        _write(rows, folder / f"{relation}.parquet")
        tables[relation] = {"key": None, "time": None if edge.time is None else edge.time.column}
        edges += [(relation, edge.source, source), (relation, edge.target, target)]
    asked = graph.training_tables[question.table]
    rows = _read(question.graph, asked.files, asked.time.column)
    labels = next(iter(asked.labels.values()))
    rows = pd.DataFrame(
        {
            "ENTITY1": rows[asked.node],
            "TIMESTAMP": rows[asked.time.column].astype("datetime64[ns]"),
            "TARGET1": rows[labels.columns[0]].astype(
                bool if question.metric == "auroc" else float
            ),
            "SPLIT": rows[asked.split].map(_SPLITS),
        }
    )
    _write(rows, folder / "rows.parquet")
    # The labels are given: the query names the kind of task and the entity only. It is refused if
    # events refer to the entity in two columns.
    referring = [source for source, _, other in edges if other == asked.node_type]
    events = next(e for e in referring if tables[e]["time"] and referring.count(e) == 1)
    key = tables[asked.node_type]["key"]
    compared = " > 0" if question.metric == "auroc" else ""
    query = f"PREDICT COUNT({events}.*, 0, 30, days){compared} FOR EACH {asked.node_type}.{key}"
    content = {"tables": tables, "edges": edges, "query": query, "metric": question.metric}
    (folder / "tables.json").write_text(json.dumps(content))


def _read(graph: Path, patterns: Sequence[str], time: str | None) -> pd.DataFrame:
    files = [path for pattern in patterns for path in sorted(graph.glob(pattern))]
    parts = [pd.read_csv(p) if p.suffix == ".csv" else pd.read_parquet(p) for p in files]
    rows = pd.concat(parts, ignore_index=True)
    if time is not None:
        rows[time] = pd.to_datetime(rows[time]).astype("datetime64[us]")
    return rows


def _write(rows: pd.DataFrame, path: Path) -> None:
    table = pa.Table.from_pandas(rows, preserve_index=False)
    short = [  # kumo-engine reads no large_string
        f.with_type(pa.string()) if pa.types.is_large_string(f.type) else f for f in table.schema
    ]
    pq.write_table(table.cast(pa.schema(short)), path)


@dataclass(frozen=True)
class Cost:
    """Processor seconds and peak MiB of a process and those that it waited for."""

    seconds: float
    mib: float


def run(command: Sequence[str], log: Path) -> Cost:
    """Runs a command, whose output goes to a file."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text()[-2000:]}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def raygnn_side(question: Question, work: Path, seed: int) -> tuple[float, Cost]:
    """The test metric of a run with defaults."""
    config = question.graph / f"{question.table}.yaml"
    arguments = ["--task.args.table", question.table] if not config.exists() else []
    config = config if config.exists() else question.graph / "train.yaml"
    name = question.graph.name + "-" + question.table
    log = work / f"{name}-raygnn.log"
    cost = run(
        [
            *(sys.executable, "-m", "raygnn", "train", str(config), *arguments),
            *("--metrics", f"[{question.metric}]", "--seed", str(seed)),
            *("--run.name", name, "--run.overwrite", "true"),
            *("--run.storage_path", str(work / "runs"), "--scaling.num_workers", "0"),
        ],
        log,
    )
    metrics: dict[str, Any] = json.loads((work / "runs" / name / "metrics.json").read_text())
    return metrics[f"test/{question.metric}"], cost


def kumo_side(question: Question, work: Path, python: str) -> tuple[float, Cost]:
    """The test metric of kumo-engine's suggested plan."""
    folder = work / "kumo" / f"{question.graph.name}-{question.table}"
    for_kumo(question, folder)
    log = work / f"{folder.name}-kumo.log"
    script = str(Path(__file__).with_name("kumo_engine.py"))
    cost = run([python, script, str(folder)], log)
    result = json.loads((folder / "result.json").read_text())
    tested = _read(folder, ["rows.parquet"], None)["SPLIT"].eq(_SPLITS["test"]).sum()
    if result["num_rows"] != tested:
        raise SystemExit(f"kumo-engine tested {result['num_rows']} of {tested} rows")
    return result["value"], cost


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns 0, or 1 if kumo-engine is missing."""
    options = argparse.ArgumentParser(
        prog="python benchmarks/kumo_peer.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--data", metavar="DIR", help="rel-f1, in RelBench's layout")
    options.add_argument(
        "--kumo", default=sys.executable, metavar="PYTHON", help="with kumo-engine"
    )
    options.add_argument("--only", nargs="+", metavar="WORD", help="questions with one of these")
    options.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="S", help="of raygnn")
    options.add_argument("--work", default="build/kumo_peer", metavar="DIR")
    args = options.parse_args(argv)
    if subprocess.run([args.kumo, "-c", "import kumo.engine"], capture_output=True).returncode:
        print(f"kumo-engine is not installed in {args.kumo}: see benchmarks/README.md")
        return 1
    work = Path(args.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    lines = [("", "", "test", "processor time", "peak memory")]
    for question in questions(Path(args.data) if args.data else None, work):
        if args.only and not any(word in question.name for word in args.only):
            continue
        found = {f"raygnn, seed {s}": raygnn_side(question, work, s) for s in args.seeds}
        found["kumo-engine"] = kumo_side(question, work, args.kumo)
        for side, (value, cost) in found.items():
            shown = (
                f"{question.metric} {value:.4f}",
                f"{cost.seconds:.0f} s",
                f"{cost.mib:.0f} MiB",
            )
            lines.append((question.name, side, *shown))
            print(*lines[-1], sep="  ", file=sys.stderr, flush=True)
    print(markdown(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
