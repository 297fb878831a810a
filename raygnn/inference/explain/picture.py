"""Explanations as one picture: the edges and columns behind each prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Pixels: a panel with its rings, and a bar of a column.
_WIDTH, _HEIGHT, _RADIUS, _BAR = 440, 340, 66, 18
_PANELS_IN_A_ROW = 3
_MOST_PANELS = 24
_MOST_LETTERS = 18
_STYLE = (
    "text{font:11px sans-serif;fill:#222;"
    "paint-order:stroke;stroke:#fff;stroke-width:3px}"
    ".t{font-weight:bold;font-size:13px}"
    ".n{fill:#cfe0f5;stroke:#35608f}.s{fill:#f6c453;stroke:#8a6100}"
    ".e{stroke:#35608f;fill:none}.b{fill:#8fb3dc}"
)


@dataclass(frozen=True)
class Drawn:
    """The explanation of a node or a pair.

    Attributes:
        seeds: explained nodes, keys of `nodes`.
        edges, columns: (source, target, importance) and (name, importance), the largest first.
    """

    title: str
    seeds: Sequence[int]
    nodes: Mapping[int, str]
    edges: Sequence[tuple[int, int, float]]
    columns: Sequence[tuple[str, float]]


def draw_explanations(drawn: Sequence[Drawn]) -> str:
    """An SVG with a panel for each of the first 24 explanations. The node is in the middle, others
    on rings by their distance in edges. Widths of edges are importances; bars are columns.
    """
    shown = drawn[:_MOST_PANELS]
    bars = max((len(one.columns) for one in shown), default=0) * _BAR
    height = _HEIGHT + bars
    num_rows = -(-len(shown) // _PANELS_IN_A_ROW)
    panels = "".join(
        f'<g transform="translate({i % _PANELS_IN_A_ROW * _WIDTH},'
        f'{i // _PANELS_IN_A_ROW * height})">{"".join(_panel(one))}</g>\n'
        for i, one in enumerate(shown)
    )
    size = f"{min(len(shown), _PANELS_IN_A_ROW) * _WIDTH} {num_rows * height}"
    marker = (
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="9" markerHeight="9"'
        ' markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="#35608f"/>'
        "</marker></defs>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}">'
        f"<style>{_STYLE}</style>{marker}\n"
        f'<rect width="100%" height="100%" fill="#fff"/>\n{panels}</svg>\n'
    )


def _panel(one: Drawn) -> Iterator[str]:
    places = _places(one)
    most = max((weight for *_, weight in one.edges), default=1.0) or 1.0
    yield f'<text class="t" x="12" y="20">{_short(one.title, 56)}</text>'
    for source, target, weight in reversed(one.edges):
        (x1, y1), (x2, y2) = places[source], places[target]
        length = math.hypot(x2 - x1, y2 - y1) or 1.0
        x2, y2 = x2 - (x2 - x1) * 9 / length, y2 - (y2 - y1) * 9 / length
        width = 0.8 + 3.2 * weight / most
        yield (
            f'<line class="e" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke-width="{width:.1f}" opacity="{0.35 + 0.65 * weight / most:.2f}" '
            f'marker-end="url(#a)"><title>{weight:.3g}</title></line>'
        )
    for node, (x, y) in places.items():
        kind = "s" if node in one.seeds else "n"
        yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="8"/>'
        yield (
            f'<text x="{x:.1f}" y="{y - 12:.1f}" text-anchor="middle">'
            f"{_short(one.nodes[node], _MOST_LETTERS)}</text>"
        )
    top = max((weight for _, weight in one.columns), default=1.0) or 1.0
    for i, (name, weight) in enumerate(one.columns):
        y = _HEIGHT + i * _BAR
        yield (
            f'<rect class="b" x="150" y="{y}" width="{200 * weight / top:.1f}" height="12"/>'
            f'<text x="144" y="{y + 10}" text-anchor="end">{_short(name, _MOST_LETTERS)}</text>'
            f'<text x="{156 + 200 * weight / top:.1f}" y="{y + 10}">{weight:.2f}</text>'
        )


def _places(one: Drawn) -> dict[int, tuple[float, float]]:
    hops = _hops(one)
    rings: dict[int, list[int]] = {}
    for node in one.nodes:
        rings.setdefault(hops[node], []).append(node)
    scale = min(1.0, 2.0 / max(max(rings), 1))
    middle = (_WIDTH / 2, _HEIGHT / 2 + 10)
    places = {}
    for hop, nodes in rings.items():
        radius = hop * _RADIUS * scale if hop or len(nodes) == 1 else _RADIUS / 3
        for i, node in enumerate(nodes):
            angle = 2 * math.pi * (i / len(nodes) + 0.07 * hop)
            # Wider than high, as labels are.
            x = middle[0] + 1.35 * radius * math.cos(angle)
            places[node] = (x, middle[1] + radius * math.sin(angle))
    return places


def _hops(one: Drawn) -> dict[int, int]:
    hops, frontier = dict.fromkeys(one.seeds, 0), set(one.seeds)
    while frontier:
        hop = max(hops.values()) + 1
        frontier = {s for s, t, _ in one.edges if t in frontier and s not in hops}
        hops.update(dict.fromkeys(frontier, hop))
    last = max(hops.values()) + 1
    return {node: hops.get(node, last) for node in one.nodes}


def _short(text: str, most: int) -> str:
    return escape(text if len(text) <= most else text[: most - 1] + "…")
