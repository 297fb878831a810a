"""Pages that need no network and no server: one file with its style, its charts and their code."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from raygnn.outputs.charts import label

_95_PERCENT = 1.96  # standard errors on either side


def render(template: str, page: object) -> str:
    """The page of a template of `page/`. All that comes from users is escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FunctionLoader(_read)
    )
    environment.filters["label"] = show
    code = {
        "uplot": Markup(_read("uPlot.iife.min.js")),
        "uplot_css": Markup(_read("uPlot.min.css")),
        "charts_js": Markup(_read("charts.js")),
    }
    return environment.get_template(template).render(page=page, **code)


def show(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e3 or value == 0 else label(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def duration(seconds: float) -> str:
    """Seconds as people say them: 12.3 s, 4 min 5 s, 2 h 3 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def interval(metrics: Mapping[str, Any], name: str) -> str | None:
    """A metric's 95 % interval as "0.71 to 0.74", or half of it as "± 0.012"; None if unknown.

    From the spread of evaluation batches where these are many; else by the standard error of
    `raygnn.loops.baselines`, which is rather too large than too small.
    """
    ends = metrics.get("intervals", {}).get(name)
    if ends is not None:
        return f"{show(ends[0])} to {show(ends[1])}"
    error = metrics.get("standard_errors", {}).get(name)
    return None if error is None else f"± {label(float(f'{_95_PERCENT * error:.2g}'))}"


def _read(name: str) -> str:
    return files("raygnn.outputs").joinpath("page", name).read_text("utf-8")
