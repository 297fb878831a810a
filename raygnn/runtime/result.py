"""Ray's `Result` of a run, made from what the run folder holds."""

from __future__ import annotations

from typing import Any

import pandas as pd
from ray.train import Checkpoint, Result

from raygnn.data.filesystem import arrow_filesystem
from raygnn.outputs.checkpoints.store import CheckpointStore
from raygnn.outputs.run_folder import RunFolder


def build_result(folder: RunFolder, metrics: dict[str, Any]) -> Result:
    """The `Result` of a finished run.

    `metrics` are the final test metrics, `metrics_dataframe` has a row for every validation,
    `checkpoint` is the last one and `best_checkpoints` the best.
    """
    filesystem, path = arrow_filesystem(folder.uri)
    store = CheckpointStore(folder.checkpoints_uri)
    history = pd.DataFrame(folder.read_history())

    def checkpoint(which: str) -> Checkpoint | None:
        name = store.pointer(which)
        return None if name is None else Checkpoint(store.path_of(name), filesystem=filesystem)

    best = checkpoint("best")
    best_metrics = {name: value for name, value in metrics.items() if name.startswith("val/")}
    return Result(
        metrics=metrics,
        checkpoint=checkpoint("last"),
        best_checkpoints=[] if best is None else [(best, best_metrics)],
        metrics_dataframe=history,
        error=None,
        path=path,
        return_value=metrics,
        _storage_filesystem=filesystem,
    )
