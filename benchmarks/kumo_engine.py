"""kumo-engine's side of `kumo_peer.py`, for an interpreter with kumo-engine and without raygnn.

    python kumo_engine.py FOLDER

FOLDER has tables as Parquet files, and `tables.json` with their keys. The rows to learn are its
table `rows`. Writes the test metric into `result.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kumo.engine import (
    Edge,
    FileConnector,
    Graph,
    PredictiveQuery,
    Table,
    Trainer,
    TrainingTable,
    configure,
)
from kumoapi.train import TrainingTableSpec
from sklearn.metrics import mean_absolute_error, roc_auc_score


def main(folder: Path) -> None:
    """Trains with every default, and writes the metric of the test rows."""
    asked = json.loads((folder / "tables.json").read_text())
    configure(scratch_dir=str(folder.parent / "scratch"))
    files = FileConnector(root_dir=str(folder))
    tables = {
        name: Table.from_source_table(
            files[f"{name}.parquet"], primary_key=keys["key"], time_column=keys["time"]
        )
        for name, keys in asked["tables"].items()
    }
    graph = Graph(tables=tables, edges=[Edge(*edge) for edge in asked["edges"]])
    snapshot, query = graph.snapshot(), PredictiveQuery(graph, asked["query"])
    rows = TrainingTable.from_source_table(
        files["rows.parquet"], TrainingTableSpec(split_col="SPLIT"), pq=query, snapshot=snapshot
    )
    trainer = Trainer(query.suggest_model_plan(snapshot))
    found = trainer.fit(rows, snapshot=snapshot).holdout_df()
    if asked["metric"] == "auroc":
        value = roc_auc_score(found["TARGET"], found["True_PROB"])
    else:
        value = mean_absolute_error(found["TARGET"], found["TARGET_PRED"])
    result = {"value": float(value), "num_rows": len(found)}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
