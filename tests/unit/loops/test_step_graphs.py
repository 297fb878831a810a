"""Which settings keep the steps of a run from being recorded as CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raygnn.config import load_config
from raygnn.loops.step_graphs import obstacles
from raygnn.models.encoder import MLP

_TASK = {"data": {"uri": "graph"}, "task": "node_classification", "model": "MLP"}


def _loss(**args: Any) -> dict[str, Any]:
    return {"losses": [{"type": "cross_entropy", "args": args}]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        (_loss(label_smoothing=0.1), []),
        (_loss(class_weights="balanced"), ["losses.args.class_weights"]),
        (
            {"losses": [{"type": "torch.nn.CrossEntropyLoss"}]},
            ["losses.type='torch.nn.CrossEntropyLoss'"],
        ),
        ({"training": {"precision": "fp16-mixed"}}, ["training.precision='fp16-mixed'"]),
    ],
)
def test_only_settings_that_prevent_recording_are_named(
    changes: dict[str, Any], expected: list[str]
) -> None:
    config = load_config({**_TASK, **changes}).config
    assert obstacles(config, MLP(4, 2)) == expected


def test_rows_that_depend_on_each_other_are_not_recorded() -> None:
    config = load_config(_TASK).config
    assert obstacles(config, torch.nn.BatchNorm1d(4)) == ["model.type='MLP'", "batch normalization"]
