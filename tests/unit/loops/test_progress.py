from __future__ import annotations

import io
import math
import os
import sys

import pytest

from raygnn.config.training_section import Training
from raygnn.console import Pace, compact, say, show, show_duration, show_left, show_performance
from raygnn.outputs.progress import headline, sparkline


def test_bars_span_the_last_values_of_a_curve():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([math.nan, 1.0, 2.0]) == "▁█"
    assert sparkline([]) == ""
    assert len(sparkline(range(100), width=10)) == 10


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7.25, "7.25"), (999.6, "1k"), (12345, "12.3k"), (2.5e9, "2.5G"), (3e14, "300T")],
)
def test_quantities_are_short(value, text):
    assert compact(value) == text


def test_performance_takes_few_words():
    metrics = {
        "perf/seeds_per_s": 12345.6,
        "perf/edges_per_s": 1.5e6,
        "perf/loader_wait_share": 0.031,
        "perf/memory_bytes": 2.25e9,
        "train/loss": 1.0,
    }
    shown = "12.3k seeds/s  1.5M edges/s  loader wait 3%  2.25GB"
    assert show_performance(metrics) == shown
    assert show_performance({**metrics, "perf/cuda_memory_bytes": 8e6}) == f"{shown}  GPU 8MB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (89.4, "89 s"), (90, "2 min"), (5000, "83 min"), (11520, "3.2 h")],
)
def test_durations_have_one_unit(seconds, text):
    assert show_duration(seconds) == text


@pytest.mark.parametrize(
    ("left_s", "stop_s", "text"),
    [
        (40.0, None, "40 s left"),
        (40.0, 60.0, "40 s left"),
        (9000.0, 40.0, "40 s left without improvement"),
        (None, 40.0, "40 s left without improvement"),
        (None, None, ""),
    ],
)
def test_time_left_ends_with_the_limit_or_with_early_stopping(left_s, stop_s, text):
    assert show_left(left_s, stop_s) == text


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        ({"max_epochs": 3}, 21),
        ({"max_epochs": 3, "max_steps": 20}, 20),
        ({"max_epochs": 3, "max_steps": 30}, 21),
        ({"max_epochs": None, "max_samples": 5}, None),
    ],
)
def test_the_first_limit_is_planned(limits, steps):
    assert Training(**limits).planned_steps(steps_per_epoch=7) == steps


def test_pace_says_how_far_it_is_now_and_then(capsys, monkeypatch):
    Pace("encoding", 2000).reached(500)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(Pace, "EVERY_S", 0.0)
    Pace("encoding", 2000).reached(500)
    assert capsys.readouterr().out == "[raygnn] encoding: 500 of 2,000 rows, 25%, 0 s left\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_letters_that_an_output_does_not_know_end_no_run(monkeypatch, encoding):
    output = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", output)
    say("▁ val/loss")
    shown = output.buffer.getvalue().decode(encoding)
    assert shown == f"[raygnn] {'▁' if encoding == 'utf-8' else '?'} val/loss\n"


def test_an_output_that_is_gone_or_full_ends_no_run(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    say("to nobody")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        say("to a full disk")
        monkeypatch.setattr(sys, "stdout", None)
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        say("to a reader that has seen enough")
        say("and once more")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        show("all keys\n")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OSError, match="No space left"):
            show("what was asked for, and cannot be given")
        monkeypatch.setattr(sys, "stdout", None)
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_line_has_one_metric_of_each_kind_and_full_ranks_of_a_task_alone():
    names = ["val/a/loss", "val/a/mrr", "val/a/full_mrr", "val/b/hits@1", "val/b/hits@10"]
    assert headline(names) == ["val/a/loss", "val/a/full_mrr", "val/b/hits@10"]
