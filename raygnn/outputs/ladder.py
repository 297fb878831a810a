"""The model and its baselines in order of strength, with a verdict in one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raygnn.console import count
from raygnn.loops.baselines import NUM_STANDARD_ERRORS, is_error
from raygnn.outputs.progress import headline

MODEL = "this model"
_PREFIX = "baseline/"
_OF_RANKS = ("test/auroc", "test/average_precision")
_MAX_METRICS = 4


@dataclass(frozen=True)
class Rung:
    """A predictor, and its metrics by name, such as `test/auroc`."""

    name: str
    metrics: Mapping[str, Any]

    @property
    def is_model(self) -> bool:
        return self.name == MODEL


@dataclass(frozen=True)
class Ladder:
    """The model and its baselines, weakest first by the first metric.

    Attributes:
        names: the metrics to show, which at least one baseline has.
    """

    names: list[str]
    rungs: list[Rung]

    def __bool__(self) -> bool:
        return bool(self.names)


def find_ladder(metrics: Mapping[str, Any], monitor: str, parts: Iterable[str] = ()) -> Ladder:
    """The rungs of the test split. See `shown_metrics`."""
    baselines = find_baselines(metrics, "test", monitor)
    names = [
        name
        for name in shown_metrics(metrics, monitor, parts)
        if any(rung.metrics.get(name) is not None for rung in baselines)
    ]
    baselines = [rung for rung in baselines if not rung.metrics.keys().isdisjoint(names)]
    rungs = [*baselines, Rung(MODEL, metrics)]
    return Ladder(names, by_strength(rungs, names[0]) if names else rungs)


def shown_metrics(metrics: Mapping[str, Any], monitor: str, parts: Iterable[str] = ()) -> list[str]:
    """The most important test metrics, the monitored one first; one of each of several tasks."""
    tested = [name for name in metrics if name.startswith("test/") and not name.endswith("/loss")]
    names = sorted(headline(tested), key=lambda name: name != monitor.replace("val/", "test/", 1))
    if prefixes := [f"test/{part}/" for part in parts]:
        firsts = (next((n for n in names if n.startswith(prefix)), None) for prefix in prefixes)
        return list(filter(None, firsts))
    return names[:_MAX_METRICS]


def find_baselines(metrics: Mapping[str, Any], split: str, monitor: str) -> list[Rung]:
    """Baselines of a split, weakest first by the monitored metric, else by their first one."""
    by_guess: dict[str, dict[str, Any]] = {}
    for name, value in metrics.items():
        guess, _, metric = name.removeprefix(_PREFIX).partition("/")
        if name.startswith(_PREFIX) and metric.startswith(f"{split}/"):
            by_guess.setdefault(guess, {})[metric] = value
    names = list(dict.fromkeys(name for values in by_guess.values() for name in values))
    monitored = monitor.replace("val/", f"{split}/", 1)
    first = monitored if monitored in names else next(iter(headline(names)), "")
    return by_strength([Rung(*item) for item in by_guess.items()], first)


def by_strength(rungs: Iterable[Rung], name: str) -> list[Rung]:
    """Weakest first by a metric; rungs without it come before all others."""
    sign = -1 if is_error(name) else 1

    def strength(rung: Rung) -> float:
        value = rung.metrics.get(name)
        return -math.inf if value is None or math.isnan(value) else sign * value

    return sorted(rungs, key=strength)


def baseline_name(guess: str, split: str, metric: str) -> str:
    return f"{_PREFIX}{guess}/{split}/{metric}"


def verdicts(metrics: Mapping[str, Any]) -> list[str]:
    """One sentence if the model does not beat a baseline by two standard errors."""
    text = metrics["no_better_than_baseline"]
    if not text:
        return []
    worst, *others = text.split(", ")
    more = f", and {count(len(others), 'more metric')} in metrics.json" if others else ""
    verdict = f"not better than a baseline by two standard errors: {worst}{more}"
    # A model that ranks rows well may still predict no rare class.
    ranks = [f"{name} {metrics[name]:.4f}" for name in _OF_RANKS if name in metrics]
    is_of_classes = all(
        part.startswith(("test/accuracy ", "test/f1_")) for part in (worst, *others)
    )
    if not ranks or not is_of_classes:
        return [verdict]
    return [
        f"{verdict}. It is better by {' and '.join(ranks)}, so its probabilities rank rows well: "
        "use them, or set class_weights: balanced (docs/losses.md#imbalance)"
    ]


def verdict_sentence(metrics: Mapping[str, Any], ladder: Ladder) -> str:
    """The result in a sentence; empty without baselines or without a known standard error."""
    if metrics.get("verdict"):  # of a model that validation chose among rungs
        return f"{metrics['verdict']}."
    if found := verdicts(metrics):
        return f"The model is {found[0]}."
    errors = metrics["standard_errors"]
    baselines = [rung for rung in ladder.rungs if rung.name != MODEL]
    for name in ladder.names:
        best, value = by_strength(baselines, name)[-1], metrics[name]
        gain = (value - best.metrics[name]) * (-1 if is_error(name) else 1)
        if errors.get(name) is not None and gain > NUM_STANDARD_ERRORS * errors[name]:
            return (
                f"The model is better than every baseline by two standard errors: {name} "
                f"{value:.4f} (the strongest baseline, {best.name}: {best.metrics[name]:.4f})."
            )
    return ""
