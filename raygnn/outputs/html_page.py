"""Pages that need no network and no server: one file with its style, its charts and their code."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from raygnn.outputs.charts import label


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


def _read(name: str) -> str:
    return files("raygnn.outputs").joinpath("page", name).read_text("utf-8")
