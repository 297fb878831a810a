"""What a run leaves, without what may differ between two runs of equal results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.event_files import shown_scalars

_OF_THE_CLOCK = {
    "training_time_s",
    "wall_time_s",
    "time_s",
    "resumed_from",
    "restarts",
    "_hparams_/experiment",
}


def assert_equal_outcomes(run: Path, expected: Path) -> None:
    """Weights, metrics, history and TensorBoard steps of two runs are the same, bit for bit."""
    weights, others = (load_file(folder / "model.safetensors") for folder in (run, expected))
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, others[name]), name
    assert metrics_of(run) == metrics_of(expected)
    assert history_of(run) == history_of(expected)
    assert scalars_of(run / "logs") == scalars_of(expected / "logs")


def metrics_of(run: Path) -> dict[str, Any]:
    return _timeless(json.loads((run / "metrics.json").read_text()))


def history_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "history.jsonl").read_text().splitlines()
    return [_timeless(json.loads(line)) for line in lines]


def scalars_of(logs: Path) -> dict[tuple[str, int], float]:
    """Every scalar by name and step, as TensorBoard shows it."""
    shown = shown_scalars(str(logs))
    return {k: v for k, v in shown.items() if not k[0].startswith(("perf/", "_hparams_"))}


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in _OF_THE_CLOCK and not k.startswith("perf/")}
