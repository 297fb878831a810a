"""Ray's `Result` of a run, made from what the run folder holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from ray.train import Checkpoint, Result

from raygnn.data.filesystem import arrow_filesystem
from raygnn.outputs.checkpoints.store import CheckpointStore
from raygnn.outputs.run_folder import RunFolder


@dataclass(repr=False)  # Ray's own shows what matters
class RunResult(Result):
    """Ray's `Result`, and the model.

    Attributes:
        load_model: loads it; `model` calls it.
    """

    load_model: Callable[[], Any] | None = None

    @property
    def model(self) -> Any:
        """The trained model, as `raygnn.load` loads it: with the best weights, without a graph."""
        assert self.load_model is not None
        return self.load_model()


def build_result(
    folder: RunFolder, metrics: dict[str, Any], load_model: Callable[[], Any]
) -> RunResult:
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
    return RunResult(
        metrics=metrics,
        checkpoint=checkpoint("last"),
        best_checkpoints=[] if best is None else [(best, best_metrics)],
        metrics_dataframe=history,
        error=None,
        path=path,
        return_value=metrics,
        _storage_filesystem=filesystem,
        load_model=load_model,
    )
