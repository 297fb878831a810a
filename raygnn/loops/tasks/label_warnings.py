"""Warnings about the labels that a task learns."""

from __future__ import annotations

import numpy as np

from raygnn.config import Config
from raygnn.data.transforms.fit import is_heavy_tailed
from raygnn.loops.tasks.label_target import LabelOutput, LabelTarget

_RARE, _MAX_NAMED = 0.01, 5
_MANY = 100  # named classes: if more have few rows each, they may be numbers or names
_OF_EQUAL_SHARE = 0.2  # classes below this part of an equal share are rare


def label_warnings(
    config: Config, target: LabelTarget, output: LabelOutput, counts: np.ndarray
) -> list[str]:
    """Warns about single or rare classes, and targets that are mostly 0 or have huge values."""
    if output.problem == "regression":
        return _mostly_zero(config, target, output) or _long_tail(config, target, output)
    if output.problem != "multi_class":
        return []
    names = output.shown_classes
    if np.count_nonzero(counts) == 1:
        return [
            f"all {counts.sum():,} training labels are {names[np.argmax(counts)]!r}, so there "
            "is nothing to learn. Check the column of the labels, and the training split."
        ]
    if output.class_names is not None and _MANY < len(counts) > counts.sum() / 2:
        return [
            f"label {output.label!r} has {len(counts):,} classes for {counts.sum():,} "
            "training labels, as numbers and names have. To regress numbers as 1.234,50 give "
            "the label a format in graph.yaml: decimal_point or decimal_comma."
        ]
    share = max(_RARE, _OF_EQUAL_SHARE / len(counts))
    rare = np.flatnonzero((counts > 0) & (counts < share * counts.sum()))
    if not len(rare):
        return []
    shown = [
        f"{names[c]!r} ({counts[c] / counts.sum():.2%}, {counts[c]:,})" for c in rare[:_MAX_NAMED]
    ]
    more = f" and {len(rare) - _MAX_NAMED} more" if len(rare) > _MAX_NAMED else ""
    of = f" (of {names[output.positive_class]!r})" if len(counts) == 2 else ""
    return [
        f"classes of under {100 * share:.2g} % of the {counts.sum():,} training labels: "
        f"{', '.join(shown)}{more}. Accuracy hardly counts them; see f1_macro, "
        f"average_precision{of}, and per_class in metrics.json.{_remedy(config)}"
    ]


def _mostly_zero(config: Config, target: LabelTarget, output: LabelOutput) -> list[str]:
    is_of_table = getattr(output, "table", None) is not None
    if config.losses or not is_of_table or not output.is_mostly_zero:
        return []
    is_zero = target.labels[target.counted_rows] == 0
    share = float(is_zero.mean(axis=0).max())
    return [
        f"{output.label!r} is 0 in {share:.0%} of the training rows, so the default "
        "loss is mse: predictions are means, as totals need them, and r2 judges them. "
        "A constant 0 may have the least mae; to predict medians, set losses to [{type: mae}]."
    ]


def _long_tail(config: Config, target: LabelTarget, output: LabelOutput) -> list[str]:
    values = target.labels[target.counted_rows]
    is_squared = not config.losses and output.default_loss == "mse"
    is_default = is_squared and values.ndim == 1 and len(values)
    if not is_default or values.min() < 0 or not is_heavy_tailed(values):
        return []
    return [
        f"{output.label!r} has a long tail: half of its training values are at most "
        f"{np.median(values):.4g}, and the greatest is {values.max():.4g}. Squared errors are "
        "mostly those of the greatest. Write its logarithm (numpy.log1p) into the table, and "
        "take numpy.expm1 of predictions."
    ]


def _remedy(config: Config) -> str:
    if any("class_weights" in term.args for term in config.losses):
        return ""
    return (
        " To weigh them more, set losses to [{type: cross_entropy, args: {class_weights: "
        "balanced}}]."
    )
