"""Pages without network and server: one file with style, charts and code."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup, escape

_95_PERCENT = 1.96  # standard errors on either side


def render(template: str, page: object) -> str:
    return _environment().get_template(template).render(page=page)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FunctionLoader(_read)
    )
    environment.filters |= {"label": show, "breakable": _breakable}
    environment.globals |= {
        "uplot": Markup(_read("uPlot.iife.min.js")),
        "uplot_css": Markup(_read("uPlot.min.css")),
        "charts_js": Markup(_read("charts.js")),
    }
    return environment


def show(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 10 or value == 0 else label(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def duration(seconds: float) -> str:
    """As 12.3 s, 4 min 5 s, 2 h 3 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left} s"
    return f"{minutes // 60} h {minutes % 60} min"


def interval(metrics: Mapping[str, Any], name: str) -> str | None:
    """A metric's 95 % interval as "0.71 to 0.74", or half of it as "± 0.012"; None if unknown.

    From the spread of evaluation batches if there are many; else from the standard error of
    `raygnn.loops.baselines`, which is rather too large than too small.
    """
    ends = metrics.get("intervals", {}).get(name)
    if ends is not None:
        return f"{show(ends[0])} to {show(ends[1])}"
    error = metrics.get("standard_errors", {}).get(name)
    return None if error is None else f"± {label(float(f'{_95_PERCENT * error:.2g}'))}"


def _breakable(name: str) -> Markup:
    """A name that a browser may break after its signs, not within a word."""
    return Markup(re.sub(r"([./_@])(?=[A-Za-z])", r"\1<wbr/>", str(escape(name))))


def _read(name: str) -> str:
    return files("raygnn.outputs").joinpath("page", name).read_text("utf-8")


Point = tuple[float, float]

NUM_COLORS = 8  # colors in the page's style: --c0 to --c7


@dataclass(frozen=True)
class Series:
    """One line through points (x, y) by ascending x, with gaps where y is not finite."""

    name: str
    points: Sequence[Point]
    color: int = 0

    @property
    def is_flat(self) -> bool:
        return len({y for _, y in self.points}) <= 1


@dataclass(frozen=True)
class Chart:
    """Lines, or bars, over a common x axis.

    Attributes:
        marked_x: position of a vertical line, or null.
        from_zero, x_from_zero: whether the axes begin at 0.
        x_names: labels of x = 0, 1, ..., instead of numbers.
        wide: uses the whole width of the page.
    """

    title: str
    series: Sequence[Series]
    marked_x: float | None = None
    mark: str = ""
    from_zero: bool = False
    x_label: str = "step"
    x_from_zero: bool = True
    x_names: Sequence[str] = ()
    bars: bool = False
    wide: bool = False

    def data(self) -> dict[str, Any]:
        """Input of page/charts.js: columns over the union of all x; null for missing points."""
        xs = sorted({x for line in self.series for x, _ in line.points})
        columns = []
        for line in self.series:
            # The seven digits of a float32 take a third of the bytes.
            values = {x: float(f"{y:.7g}") for x, y in line.points if math.isfinite(y)}
            columns.append([values.get(x) for x in xs])
        return {
            "x": xs,
            "columns": columns,
            "names": [line.name for line in self.series],
            "colors": [line.color for line in self.series],
            **{key: value for key, value in vars(self).items() if key not in ("title", "series")},
        }

    def json(self) -> Markup:
        """`data` for a script element, without characters that could end the element."""
        text = json.dumps(self.data(), separators=(",", ":"))
        for letter in "<>&":
            text = text.replace(letter, f"\\u{ord(letter):04x}")
        return Markup(text)


def label(value: float) -> str:
    """As 0.25, 1,500, 2.5M, 3e-06."""
    size = abs(value)
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= factor:
            return f"{value / factor:.4g}{prefix}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
