from __future__ import annotations

import math

from raygnn.loops.progress import sparkline


def test_a_curve_spans_the_bars():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"


def test_a_flat_curve_and_nan_are_drawn_without_fuss():
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([math.nan, 1.0, 2.0]) == "▁█"
    assert sparkline([]) == ""


def test_only_the_last_values_are_shown():
    assert len(sparkline(range(100), width=10)) == 10
