"""Draws docs/how-it-works.svg, the picture of the README: `python -m docs.picture`.

One file serves light and dark pages: its colors follow the reader's browser.
"""

from __future__ import annotations

from pathlib import Path

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2937; text-anchor: middle }
.note { font-size: 11px; fill: #6b7280 }
.box { fill: #f3f4f6; stroke: #9ca3af; rx: 8 }
.main { fill: #e0e7ff; stroke: #4f46e5 }
.arrow { stroke: #6b7280; stroke-width: 1.5; fill: none; marker-end: url(#head) }
#head path { fill: #6b7280 }
@media (prefers-color-scheme: dark) {
  text { fill: #e5e7eb } .note { fill: #9ca3af }
  .box { fill: #1f2937; stroke: #6b7280 } .main { fill: #312e81; stroke: #818cf8 }
  .arrow { stroke: #9ca3af } #head path { fill: #9ca3af }
}"""
#: Left, top, width, title and note of each box. All boxes are 54 high.
BOXES = {
    "tables": (0, 56, 136, "tables", "Parquet, CSV, bucket"),
    "graph": (208, 56, 136, "graph store", "mapped by all workers"),
    "worker 0": (392, 0, 152, "worker 0", "sample, train, evaluate"),
    "worker 1": (392, 112, 152, "worker 1", "sample, train, evaluate"),
    "run": (592, 56, 144, "run", "model, report, metrics"),
    "use": (784, 56, 136, "predictions", "tables, Python, HTTP"),
}
HEIGHT = 54
#: From, to, and a word on the way.
ARROWS = [
    ("tables", "graph", "ingest"),
    ("graph", "worker 0", ""),
    ("graph", "worker 1", ""),
    ("worker 0", "run", ""),
    ("worker 1", "run", ""),
    ("run", "use", ""),
]


def draw() -> str:
    """The picture as SVG."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 928 176" role="img" '
        'aria-label="Tables become a graph store; workers train on it; a run gives predictions.">',
        f"<style>{STYLE}\n</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>',
    ]
    for name, (left, top, width, title, note) in BOXES.items():
        kind = "box main" if name.startswith("worker") else "box"
        middle = left + width / 2
        parts += [
            f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{HEIGHT}"/>',
            f'<text x="{middle:g}" y="{top + 23}">{title}</text>',
            f'<text class="note" x="{middle:g}" y="{top + 41}">{note}</text>',
        ]
    for start, end, word in ARROWS:
        left, top, width, *_ = BOXES[start]
        right, below, *_ = BOXES[end]
        x, y, y_end = left + width, top + HEIGHT / 2, below + HEIGHT / 2
        bend = (x + right) / 2
        curve = f"M{x} {y:g}C{bend:g} {y:g} {bend:g} {y_end:g} {right} {y_end:g}"
        parts.append(f'<path class="arrow" d="{curve}"/>')
        if word:
            parts.append(f'<text class="note" x="{bend:g}" y="{y - 8:g}">{word}</text>')
    left, top, width, *_ = BOXES["worker 0"]
    x = left + width / 2
    parts += [
        f'<path class="arrow" d="M{x:g} {top + HEIGHT}V{BOXES["worker 1"][1]}"/>',
        f'<path class="arrow" d="M{x:g} {BOXES["worker 1"][1]}V{top + HEIGHT}"/>',
        f'<text class="note" x="{x + 44:g}" y="{top + HEIGHT + 33}">all-reduce</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("how-it-works.svg").write_text(draw(), encoding="utf-8")
