"""Line charts as inline SVG: no script, no font, no image from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Point = tuple[float, float]

_WIDTH, _HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 20, 40
NUM_COLORS = 6  # of the page's style: .c0 to .c5
_MARGIN = 0.06  # above and below the curves
_MAX_DOTS = 60  # more would hide the line


@dataclass(frozen=True)
class Series:
    """One line.

    Attributes:
        points: (x, y) by ascending x; the line breaks where y is not finite.
        color: below `NUM_COLORS`.
    """

    name: str
    points: Sequence[Point]
    color: int = 0


@dataclass(frozen=True)
class Chart:
    """Lines over a common x axis.

    Attributes:
        marked_x: where to draw a vertical line, or null.
        mark: what that line says.
        from_zero, x_from_zero: whether the axes begin at 0.
    """

    title: str
    series: Sequence[Series]
    marked_x: float | None = None
    mark: str = ""
    from_zero: bool = False
    x_label: str = "step"
    x_from_zero: bool = True

    def svg(self) -> Markup:
        """The drawing. Lines carry their names in `data-metric`, points theirs in tooltips."""
        points = [point for line in self.series for point in line.points]
        scale = _Scale.of(points, self.from_zero, self.x_from_zero)
        names = ", ".join(line.name for line in self.series)
        parts = [
            Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
                _WIDTH, _HEIGHT, f"{self.title}: {names}"
            ),
            *_grid(scale, self.x_label),
            *self._mark(scale),
        ]
        for line in self.series:
            parts += _line(line, scale, self.marked_x)
        return Markup("\n").join([*parts, Markup("</svg>")])

    def _mark(self, scale: _Scale) -> list[Markup]:
        if self.marked_x is None:
            return []
        x = scale.x(self.marked_x)
        near_right = x > _WIDTH - 110
        return [
            Markup('<line class="mark" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(
                _number(x), _TOP, _HEIGHT - _BOTTOM
            ),
            Markup('<text class="mark" x="{}" y="{}" text-anchor="{}">{}</text>').format(
                _number(x - 5 if near_right else x + 5),
                _TOP - 8,
                "end" if near_right else "start",
                self.mark,
            ),
        ]


@dataclass(frozen=True)
class _Scale:
    """From values to places in the drawing."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    @classmethod
    def of(cls, points: Sequence[Point], from_zero: bool, x_from_zero: bool) -> _Scale:
        finite = [y for _, y in points if math.isfinite(y)]
        y_low, y_high = _spread([0.0, *finite] if from_zero else finite)
        if not x_from_zero:
            return cls(*_spread([x for x, _ in points]), y_low, y_high)
        return cls(0.0, max([x for x, _ in points], default=0.0) or 1.0, y_low, y_high)

    def x(self, value: float) -> float:
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """Smallest and greatest value, apart from each other and with a margin around."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        half = 0.5 * abs(low) or 0.5
        return low - half, high + half
    room = _MARGIN * (high - low)
    return low - room if low else low, high + room


def ticks(low: float, high: float, at_most: int) -> list[float]:
    """Round numbers in a range: multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / at_most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def label(value: float) -> str:
    """A number as people write it: 0.25, 1,500, 2.5M, 3e-06."""
    size = abs(value)
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= factor:
            return f"{value / factor:.4g}{prefix}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _grid(scale: _Scale, x_label: str) -> list[Markup]:
    parts = []
    for value in ticks(scale.y_low, scale.y_high, 5):
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>'
                '<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>'
            ).format(
                _LEFT,
                _WIDTH - _RIGHT,
                _LEFT - 7,
                _number(scale.y(value) + 3.5),
                label(value),
                y=_number(scale.y(value)),
            )
        )
    for value in ticks(scale.x_low, scale.x_high, 7):
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                _number(scale.x(value)), _HEIGHT - _BOTTOM + 16, label(value)
            )
        )
    parts.append(
        Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            (_LEFT + _WIDTH - _RIGHT) // 2, _HEIGHT - 6, x_label
        )
    )
    return parts


def _line(line: Series, scale: _Scale, marked_x: float | None) -> list[Markup]:
    path, pen_is_down = [], False
    for x, y in line.points:
        if not math.isfinite(y):
            pen_is_down = False
            continue
        command = "L" if pen_is_down else "M"
        path.append(f"{command}{_number(scale.x(x))} {_number(scale.y(y))}")
        pen_is_down = True
    parts = [
        Markup('<path class="line c{}" data-metric="{}" d="{}"/>').format(
            line.color, line.name, " ".join(path)
        )
    ]
    few = len(line.points) <= _MAX_DOTS
    for x, y in line.points:
        if math.isfinite(y) and (few or x == marked_x):
            parts.append(
                Markup(
                    '<circle class="c{}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>'
                ).format(
                    line.color,
                    _number(scale.x(x)),
                    _number(scale.y(y)),
                    "4.5" if x == marked_x else "2.2",
                    f"{line.name} {y:.6g} at {label(x)}",
                )
            )
    return parts


def _number(value: float) -> Markup:
    return escape(f"{value:.1f}")
