"""Ray's `Result` of a run, built from its run folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from raygnn.data.filesystem import arrow_filesystem
from raygnn.outputs.checkpoints.store import CheckpointStore
from raygnn.outputs.run_folder import RunFolder

try:
    from ray.train import Checkpoint, Result
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "ray":
        raise
    # Training in this process needs no Ray. The attributes are the same without it.
    from types import SimpleNamespace as Checkpoint

    Result = Checkpoint


class RunResult(Result):
    """Ray's `Result`, and the model; without Ray, a namespace with the same attributes."""

    load_model: Callable[[], Any]

    @property
    def model(self) -> Any:
        """The trained model, as `raygnn.load` loads it: with the best weights, without a graph."""
        return self.load_model()


def build_result(
    folder: RunFolder, metrics: dict[str, Any], load_model: Callable[[], Any]
) -> RunResult:
    """`metrics` are the final test metrics, `metrics_dataframe` has a row for every validation,
    `checkpoint` is the last one and `best_checkpoints` the best.
    """
    filesystem, path = arrow_filesystem(folder.uri)
    store = CheckpointStore(folder.checkpoints_uri)
    history = pd.DataFrame(folder.read_history())

    def checkpoint(which: str) -> Checkpoint | None:
        name = store.pointer(which)
        return None if name is None else Checkpoint(path=store.path_of(name), filesystem=filesystem)

    best = checkpoint("best")
    best_metrics = {name: value for name, value in metrics.items() if name.startswith("val/")}
    result = RunResult(
        metrics=metrics,
        checkpoint=checkpoint("last"),
        best_checkpoints=[] if best is None else [(best, best_metrics)],
        metrics_dataframe=history,
        error=None,
        path=path,
        return_value=metrics,
        _storage_filesystem=filesystem,
    )
    result.load_model = load_model
    return result
