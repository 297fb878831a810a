from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.outputs.line_chart import Chart, Series, label, ticks

_FINITE = st.floats(-1e12, 1e12)


def _paths(chart: Chart) -> dict[str, str]:
    drawing = ElementTree.fromstring(chart.svg())
    return {e.get("data-metric", ""): e.get("d", "") for e in drawing.iter("path")}


@settings(max_examples=60, deadline=None)
@given(st.lists(_FINITE, min_size=1, max_size=30), st.booleans())
def test_every_point_lies_in_the_drawing(values, from_zero):
    points = list(enumerate(values))
    chart = Chart("any", [Series("a", points)], from_zero=from_zero)
    drawing = ElementTree.fromstring(chart.svg())
    dots = [(float(e.get("cx", "")), float(e.get("cy", ""))) for e in drawing.iter("circle")]
    assert len(dots) == len(values)
    assert all(0 <= x <= 560 and 0 <= y <= 250 for x, y in dots)
    ys = [y for _, y in dots]
    assert values[ys.index(min(ys))] == pytest.approx(max(values), abs=1e-2 * 1e12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_FINITE, _FINITE), min_size=1, max_size=30))
def test_every_point_of_any_x_lies_in_the_drawing(points):
    chart = Chart("any", [Series("a", sorted(points))], x_from_zero=False)
    drawing = ElementTree.fromstring(chart.svg())
    dots = [(float(e.get("cx", "")), float(e.get("cy", ""))) for e in drawing.iter("circle")]
    assert len(dots) == len(points)
    assert all(58 <= x <= 546 and 20 <= y <= 210 for x, y in dots)


@settings(max_examples=60, deadline=None)
@given(_FINITE, st.floats(1e-6, 1e12))
def test_ticks_are_few_and_inside(low, width):
    high = low + width
    if high - low < 1e-9 * max(abs(low), abs(high)):
        return
    found = ticks(low, high, 5)
    room = 1e-6 * (high - low)
    assert len(found) <= 6
    assert all(low - room <= tick <= high + room for tick in found)


def test_ticks_are_round():
    assert ticks(0, 1, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0.5, 348, 7) == [50, 100, 150, 200, 250, 300]


def test_a_line_breaks_where_there_is_no_number():
    points = [(1, 0.5), (2, math.nan), (3, 0.25), (4, 0.75)]
    path = _paths(Chart("loss", [Series("val/loss", points)]))["val/loss"]
    assert [part[0] for part in path.split(" ") if part[0].isalpha()] == ["M", "M", "L"]


@pytest.mark.parametrize("points", [[], [(3, 2.0)], [(0, 0.0)], [(1, 5.0), (2, 5.0)]])
def test_little_to_draw_is_drawn(points):
    assert "a" in _paths(Chart("few", [Series("a", points)], marked_x=1, mark="best"))


def test_names_are_escaped():
    name = '<b onload="x">&'
    chart = Chart(name, [Series(name, [(0, 1.0)])], marked_x=0, mark=name)
    assert "<b" not in chart.svg()
    assert _paths(chart) == {name: _paths(chart)[name]}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.25, "0.25"), (1500, "1,500"), (2.5e6, "2.5M"), (3e-6, "3e-06"), (1e9, "1G"), (0, "0")],
)
def test_numbers_are_short(value, text):
    assert label(value) == text
