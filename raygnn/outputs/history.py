"""The history of a run's metrics: `history.jsonl`, and rows for the charts of its page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raygnn.loops.callbacks import Callback
from raygnn.outputs.run_folder import RunFolder

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine


class HistoryWriter(Callback):
    """Rewrites `history.jsonl` completely, so that a resume leaves no row twice."""

    only_on_rank_0 = True

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_validation_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        self._folder.write_history(engine.history)


#: More points than this a chart does not show.
MAX_ROWS = 400


class LogRows(Callback):
    """Stores rows of `on_log`, thinned if too many. Follows callbacks that add metrics."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self._stride = 1
        self._num_seen = 0

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        if self._num_seen % self._stride == 0:
            self.rows.append({"step": engine.position.step, **metrics})
        self._num_seen += 1
        if len(self.rows) > MAX_ROWS:
            self.rows, self._stride = self.rows[::2], 2 * self._stride

    def state_dict(self) -> dict[str, Any]:
        return {"rows": list(self.rows), "stride": self._stride, "num_seen": self._num_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = list(state["rows"])
        self._stride, self._num_seen = state["stride"], state["num_seen"]
