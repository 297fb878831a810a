"""Live view of a training on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raygnn.console import Event, LineLimit, show_duration, show_left, show_performance

_BAR_WIDTH = 32
_MAX_METRICS = 8
_MAX_BASELINES = 3


@contextmanager
def live_view(console: Console | None = None) -> Iterator[Callable[[Event], None]]:
    """Draws the progress of a training below the printed lines. Threads may call the result."""
    view = LiveView(console or Console())
    try:
        yield view.print
    finally:
        view.close()


class LiveView:
    """Printed lines with progress bars and a metrics table below them.

    Validations print at most one line a second. Lines of log windows are not printed, because the
    table shows them.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._state = TrainingState()
        self._lines = LineLimit(self._print_line)

    def print(self, event: Event) -> None:
        if event.kind == "start":
            self._state = TrainingState()
        self._state.add(event)
        in_picture = event.kind == "baseline" and self._state.is_running
        if event.text and event.kind != "step" and not in_picture:
            self._lines.print(event)
        if event.kind == "start" and self._live is None:
            # Output of Ray or of the user's program also appears above the view.
            self._live = Live(
                console=self._console,
                get_renderable=lambda: self._state.draw(self._console),  # restarts replace it
                refresh_per_second=4,
            )
            self._live.start()
        elif event.kind == "end":
            self.close()

    def close(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _print_line(self, event: Event) -> None:
        style = "yellow" if event.kind == "warning" else ""
        start = f"{event.label} " if event.label else ""
        self._console.print(
            Text(start + event.text, style), soft_wrap=True, highlight=False, markup=False
        )


class TrainingState:
    """State of a training, from its events.

    One thread draws it while another adds events, so fields are replaced, never changed.
    """

    def __init__(self) -> None:
        self.is_running = False
        self._at: dict[str, Any] = {}
        self._start: Mapping[str, Any] = {}
        self._phase = "training"
        self._last: dict[str, float] = {}
        self._best: dict[str, float] = {}
        self._best_epoch: int | None = None
        self._baselines: dict[str, Mapping[str, float]] = {}

    def add(self, event: Event) -> None:
        values = event.values
        if event.kind == "start":
            self._start, self.is_running = values, True
        elif event.kind == "end":
            self.is_running = False
        elif event.kind == "baseline":
            self._baselines = {**self._baselines, values["baseline"]: values["metrics"]}
        elif event.kind in ("step", "validation"):
            self._last = {**self._last, **values["metrics"]}
        if event.kind == "validation":
            self._judge(values)
        if "epoch_step" in values:
            self._at = dict(values)
            self._phase = values.get("phase", "training")

    def _judge(self, values: Mapping[str, Any]) -> None:
        monitor, metrics = self._start.get("monitor"), values["metrics"]
        value = metrics.get(monitor)
        if value is None:
            return
        before, sign = self._best.get(str(monitor)), 1 if self._start["mode"] == "max" else -1
        if before is None or sign * (value - before) > 0:
            self._best, self._best_epoch = dict(metrics), values["epoch"]

    def draw(self, console: Console) -> RenderableType:
        if not self._at:
            return Text("training starts")
        speed = Text(show_performance(self._last), "dim")
        return Group(self._bars(), *([speed] if speed else []), *self._metrics(console))

    def _bars(self) -> Table:
        at, bars = self._at, Table.grid(padding=(0, 1))
        bars.add_column(justify="right")
        bars.add_column(justify="right")
        bars.add_column(width=_BAR_WIDTH)
        bars.add_column()
        per_epoch = self._start.get("steps_per_epoch") or 1
        time = f"{show_duration(at['time_s'])} so far"
        if left := show_left(at["left_s"], at["stop_s"]):
            time += f", {left}"
        epochs = at["epochs"] or None
        done = at["step"] / (epochs * per_epoch) if epochs else None
        bars.add_row("epoch", _of(at["epoch"], epochs), _bar(done), time)
        phase = "validation" if self._phase == "validation" else ""
        step = _of(at["epoch_step"], per_epoch)
        bars.add_row("step", step, _bar(at["epoch_step"] / per_epoch), phase)
        return bars

    def _metrics(self, console: Console) -> list[Table]:
        """The table, with the strongest baselines that fit the terminal."""
        monitor = self._start.get("monitor")
        names = [n for n in self._last if not n.startswith("perf/")]
        names.sort(key=lambda name: (name != monitor, not name.startswith("val/")))
        names = names[:_MAX_METRICS]
        if not names:
            return []
        strongest = list(self._baselines)[: -_MAX_BASELINES - 1 : -1]  # the last is the strongest
        unlimited = console.options.update(width=10_000)
        while True:
            table = self._table(names, strongest)
            width = Measurement.get(console, unlimited, table).maximum
            if width <= console.width or not strongest:
                return [table]
            strongest.pop()

    def _table(self, names: list[str], baselines: Sequence[str]) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        best = "best" if self._best_epoch is None else f"best (epoch {self._best_epoch})"
        table.add_column("metric", no_wrap=True)
        for head in ("last", best, *baselines):
            table.add_column(head, justify="right", no_wrap=True)
        for name in names:
            of_baselines = (self._baselines[guess].get(name) for guess in baselines)
            cells = (self._last[name], self._best.get(name), *of_baselines)
            style = "bold" if name == self._start.get("monitor") else ""
            table.add_row(name, *map(_number, cells), style=style)
        return table


def _bar(done: float | None) -> ProgressBar:
    return ProgressBar(
        total=None if done is None else 1.0,
        completed=done or 0.0,
        width=_BAR_WIDTH,
        complete_style="cyan",
        finished_style="green",
    )


def _of(number: int, total: int | None) -> str:
    return f"{number:,}" if total is None else f"{number:,}/{total:,}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
