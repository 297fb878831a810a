"""The metric history as JSON lines, one per validation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raygnn.loops.callbacks import Callback
from raygnn.outputs.run_folder import RunFolder

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine


class HistoryWriter(Callback):
    """Rewrites `history.jsonl` whole on rank 0, so that a resume leaves no row twice."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_validation_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        if engine.context.rank == 0:
            self._folder.write_history(engine.history)
