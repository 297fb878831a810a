"""Training tables of a relational database with every default, beside LightGBM.

    python benchmarks/relational.py --data ../shared/data/rel-f1 --seeds 0 1 2

Reads a database in RelBench's folder layout with `raygnn prepare relbench` and trains on each of
its tasks with nothing chosen but `model: Hetero`. Each model is tested twice: `frozen` at the test
time of the database, as RelBench does, and `live`, with the history up to each row. Validation rows
always see the history up to their time.

LightGBM reads the entity's own columns, or also aggregates that a person would write: for each
table that refers to the entity, the number of rows up to the row's time, the mean and the last
value of each number, and the age of the last row.

    python benchmarks/relational.py --data shop --seeds 0 1 2

With a folder of `graph.yaml`, trains on each of its training tables (`raygnn prepare labels`) with
every default, and prints the ladder: each rung on validation and test beside the model.

If pyg-lib is installed, RelBench's GNN (`relbench_gnn.py`) trains on the same rows.

`--scale 10000000` times a generated database of so many rows instead.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from harness import markdown
from real_graphs import mean_and_spread
from relational_scale import measure
from relbench_gnn import Rows, Settings, predict, read_graph, seconds, train_model
from sklearn.metrics import mean_absolute_error, roc_auc_score
from torch_geometric.typing import WITH_PYG_LIB

import raygnn
import raygnn.prepare.__main__
import raygnn.train

SPLITS = ("train", "val", "test")
#: Least AUROC, most mean absolute error: at the test time of the database, and at each row's.
AIMS = {
    "driver-dnf": {"frozen": 0.755, "live": 0.843},
    "driver-position": {"frozen": 3.77, "live": 2.45},
}
#: By kind of a task: LightGBM's objective, the metric, and its name in raygnn.
KINDS: dict[str, tuple[str, Any, str]] = {
    "regression": ("l1", mean_absolute_error, "mae"),
    "binary_classification": ("binary", roc_auc_score, "auroc"),
}


@dataclass(frozen=True)
class Question:
    """A task of a database: rows of (entity, time, label)."""

    folder: Path
    name: str

    @cached_property
    def database(self) -> dict[str, Any]:
        return dict(yaml.safe_load((self.folder / "manifest.yaml").read_text()))

    @cached_property
    def task(self) -> dict[str, Any]:
        path = self.folder / "tasks" / self.name / "manifest.yaml"
        return dict(yaml.safe_load(path.read_text()))

    @property
    def test_start(self) -> pd.Timestamp:
        return pd.Timestamp(self.database["test_timestamp"])

    @cached_property
    def rows(self) -> pd.DataFrame:
        files = {split: self.folder / "tasks" / self.name / f"{split}.parquet" for split in SPLITS}
        return pd.concat(
            [pd.read_parquet(path).assign(split=split) for split, path in files.items()],
            ignore_index=True,
        )

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.folder / "db" / f"{name}.parquet")

    def own_columns(self) -> pd.DataFrame:
        """The columns of each row's entity, as numbers."""
        entity = self.task["entity_table"]
        key = self.database["tables"][entity]["pkey"]
        columns = self.rows[[self.task["entity_col"]]].merge(
            self.table(entity), how="left", left_on=self.task["entity_col"], right_on=key
        )
        return pd.DataFrame({name: _numbers(columns[name]) for name in columns if name != key})

    def aggregates(self, until: pd.Timestamp | None) -> pd.DataFrame:
        """Counts, means and last values of the tables that refer to the entity.

        Args:
            until: later rows of the database are not read.
        """
        task, known = self.task, {}
        asked = self.rows[[task["entity_col"], task["time_col"]]].set_axis(["key", "time"], axis=1)
        asked["row"], asked["asked"] = np.arange(len(asked)), asked["time"]
        if until is not None:
            asked["time"] = asked["time"].clip(upper=until)
        for name, info in self.database["tables"].items():
            keys = [k for k, to in info["fkeys"].items() if to == task["entity_table"]]
            if info["time_col"] is None or not keys:
                continue
            columns = self.table(name).sort_values(info["time_col"], ignore_index=True)
            others = {info["pkey"], info["time_col"], *info["fkeys"]}
            numbers = columns.drop(columns=list(others)).select_dtypes("number").astype(float)
            of_key = columns[keys[0]]
            count = numbers.notna().groupby(of_key).cumsum()
            found = pd.concat(
                [
                    (numbers.fillna(0).groupby(of_key).cumsum() / count).add_suffix("_mean"),
                    numbers.add_suffix("_last"),
                ],
                axis=1,
            ).assign(
                count=columns.groupby(keys[0]).cumcount() + 1, latest=columns[info["time_col"]]
            )
            found["key"], found["time"] = of_key, found["latest"].astype(asked["time"].dtype)
            joined = pd.merge_asof(asked.sort_values("time"), found, on="time", by="key")
            joined = joined.sort_values("row", ignore_index=True)
            joined["age"] = (joined["asked"] - joined["latest"]).dt.days
            drop = ["key", "time", "row", "asked", "latest"]
            known[name] = joined.drop(columns=drop).add_prefix(f"{name}.")
        return pd.concat([self.own_columns(), *known.values()], axis=1)

    def boosted(
        self, columns: pd.DataFrame, frozen: pd.DataFrame | None = None
    ) -> dict[str, float]:
        """Scores of LightGBM on validation and test, the latter also on `frozen` columns."""
        import lightgbm

        objective, metric, _ = KINDS[self.task["task_type"]]
        parts = {split: (self.rows["split"] == split).to_numpy() for split in SPLITS}
        y = self.rows[self.task["target_col"]].to_numpy(float)
        settings = {"objective": objective, "learning_rate": 0.03, "verbosity": -1, "seed": 0}
        train, val = (
            lightgbm.Dataset(columns[parts[split]], y[parts[split]]) for split in ("train", "val")
        )
        stop = lightgbm.early_stopping(50, verbose=False)
        model = lightgbm.train(settings, train, 1000, valid_sets=[val], callbacks=[stop])
        read = {"val": columns, "live": columns, "frozen": columns if frozen is None else frozen}
        scores = {}
        for what, x in read.items():
            part = parts["val" if what == "val" else "test"]
            scores[what] = float(metric(y[part], model.predict(x[part])))
        return scores

    def relbench_gnn(self, seed: int) -> dict[str, float]:
        """Scores of RelBench's GNN, and minutes of its training."""
        task, target = self.task, self.task["entity_table"]
        _, metric, name = KINDS[task["task_type"]]
        ids = pd.Index(self.table(target)[self.database["tables"][target]["pkey"]])
        parts = {
            split: Rows(
                ids.get_indexer(rows[task["entity_col"]]),
                seconds(rows[task["time_col"]]),
                rows[task["target_col"]].to_numpy(float if name == "mae" else np.int64, copy=True),
            )
            for split, rows in self.rows.groupby("split")
        }
        bounds = np.percentile(parts["train"].labels, [2, 98]) if name == "mae" else (None, None)

        def score(labels: np.ndarray, values: np.ndarray) -> float:
            return float(metric(labels, values.clip(*bounds)))

        def error(labels: np.ndarray, values: np.ndarray) -> float:
            return score(labels, values) if name == "mae" else -score(labels, values)

        start, settings = time.perf_counter(), Settings()
        frozen = read_graph(self.folder, self.test_start)
        model = train_model(frozen, target, parts["train"], parts["val"], error, settings, seed)
        minutes = (time.perf_counter() - start) / 60
        live = read_graph(self.folder, self.test_start, is_live=True)
        read = ("val", "val", frozen), ("frozen", "test", frozen), ("live", "test", live)
        scores = {
            what: score(parts[split].labels, predict(model, data, parts[split], settings))
            for what, split, data in read
        }
        return {**scores, "minutes": minutes}

    def trained(
        self, graph: Path, work: Path, seed: int, overrides: Sequence[str]
    ) -> dict[str, dict[str, float]]:
        """Scores of a model of raygnn and of its rungs, and minutes of processor time of both."""
        name = KINDS[self.task["task_type"]][2]
        table = self.name.replace("-", "_")  # as `prepare relbench` names it
        config = work / "config.yaml"
        config.write_text(
            f"task: {{type: node_classification, args: {{table: {table}}}}}\nmodel: Hetero\n"
        )
        settings = [
            *("--data.uri", str(graph), "--scaling.num_workers", "0", "--seed", str(seed)),
            *("--run.storage_path", str(work / "runs"), "--run.overwrite", "true"),
            *("--metrics", f"[{name}]", *overrides),
        ]
        until = {"strategy": "last", "until": {"test": str(self.test_start)}}
        run = [*settings, "--sampling.temporal", json.dumps(until), "--run.name", self.name]
        start = time.process_time()
        result = raygnn.train.fit(config, run)
        minutes = (time.process_time() - start) / 60
        print(result.metrics["verdict"], flush=True)
        live = raygnn.load(str(result.path), ["--sampling.temporal", "{strategy: last}"])
        val, test = (result.metrics["rungs"][split][name] for split in ("val", "test"))
        found = {
            f"raygnn, {rung}": {"val": val[rung]["value"], "frozen": test[rung]["value"]}
            for rung in test
        }
        found["raygnn, model"] |= {
            "live": live.evaluate(graph, split="test", exact=False)[name],
            "minutes": minutes,
        }
        return found


def ladder(
    graph: Path, table: str, work: Path, seeds: Sequence[int], overrides: Sequence[str]
) -> list[tuple[str, ...]]:
    """Lines of a table: what predicts, then each rung, on validation and test over seeds."""
    beside = graph / f"{table}.yaml"  # as `prepare labels` writes it
    config = beside if beside.exists() else work / "config.yaml"
    if not beside.exists():
        task = {"type": "node_classification", "args": {"table": table}}
        config.write_text(yaml.safe_dump({"task": task, "model": "Hetero"}))
    found: dict[str, dict[str, list[float]]] = {}
    metric, words, seconds_used = "", [], []
    for seed in seeds:
        start = time.process_time()
        run = ("--run.storage_path", str(work / "runs"), "--run.overwrite", "true")
        settings = ["--data.uri", str(graph), "--scaling.num_workers", "0", "--seed", str(seed)]
        result = raygnn.train.fit(config, [*settings, *run, "--run.name", table, *overrides])
        seconds_used.append(time.process_time() - start)
        metric = result.metrics["verdict"].partition(":")[0].partition("/")[2]
        words.append(result.metrics["verdict"])
        for split, metrics in result.metrics["rungs"].items():
            for rung, standing in metrics.get(metric, {}).items():
                found.setdefault(rung, {}).setdefault(split, []).append(standing["value"])
    print(*words, sep="\n", flush=True)
    first = (mean_and_spread(seconds_used, 0),)
    order = ["model", *(rung for rung in found if rung != "model")]
    return [
        (
            table if rung == "model" else "",
            f"{rung} ({metric})",
            *(
                mean_and_spread(found[rung][split], 4) if split in found[rung] else ""
                for split in ("val", "test")
            ),
            *(first if rung == "model" else ("",)),
        )
        for rung in order
    ]


def _numbers(column: pd.Series) -> pd.Series:
    if pd.api.types.is_datetime64_any_dtype(column):
        return (column - pd.Timestamp(0)).dt.days
    return column if pd.api.types.is_numeric_dtype(column) else column.astype("category").cat.codes


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 0."""
    options = argparse.ArgumentParser(prog="python benchmarks/relational.py", description=__doc__)
    options.add_argument("--data", default="../shared/data/rel-f1", metavar="DIR")
    options.add_argument("--tasks", nargs="+", metavar="NAME", help="default: all")
    options.add_argument("--work", default="build/relational", metavar="DIR")
    options.add_argument("--seeds", type=int, nargs="+", default=list(range(10)), metavar="S")
    options.add_argument("--scale", type=int, metavar="ROWS", help="time a generated database")
    options.add_argument("--peers-only", action="store_true", help="train no model of raygnn")
    args, overrides = options.parse_known_args(argv)
    folder, work = Path(args.data), Path(args.work)
    if args.scale:
        print(measure(work / "scale", args.scale, steps=20))
        return 0
    work.mkdir(parents=True, exist_ok=True)
    if (folder / "graph.yaml").exists():
        tables = (
            args.tasks or yaml.safe_load((folder / "graph.yaml").read_text())["training_tables"]
        )
        lines = [("", "", "validation", "test", "processor time, s")]
        for table in tables:
            lines += ladder(folder, table, work, args.seeds, overrides)
        print(markdown(lines))
        return 0
    lines = [("", "", "validation", "test, frozen", "test, live", "minutes")]
    if not args.peers_only:
        raygnn.prepare.__main__.main(["relbench", str(folder), "--out", str(work / "graph")])
    for name in args.tasks or sorted(path.name for path in (folder / "tasks").iterdir()):
        question = Question(folder, name)
        live = question.aggregates(None)
        frozen = question.aggregates(question.test_start)
        found = {
            "LightGBM, own columns": [question.boosted(question.own_columns())],
            "LightGBM, aggregates": [question.boosted(live, frozen)],
        }
        if WITH_PYG_LIB:
            found["RelBench's GNN"] = [question.relbench_gnn(seed) for seed in args.seeds]
        if not args.peers_only:
            runs = [question.trained(work / "graph", work, seed, overrides) for seed in args.seeds]
            found |= {rung: [run[rung] for run in runs] for rung in runs[0]}
        found["aim"] = [AIMS.get(name, {})]
        for what, scores in found.items():
            cells = [
                mean_and_spread([s[k] for s in scores], 3) if k in scores[0] else ""
                for k in ("val", "frozen", "live", "minutes")
            ]
            lines.append((name, what, *cells))
    print(markdown(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
