"""Command line and Python entry of retraining: `raygnn retrain NAME CONFIG`."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any

from raygnn.command_line import (
    add_allow_module,
    check_arguments,
    command,
    command_parser,
    exit_process,
)
from raygnn.config import LoadedConfig, load_config
from raygnn.config.run_section import Promotion
from raygnn.console import give_result, say
from raygnn.errors import CheckpointError, RunError
from raygnn.loops.baselines import is_error

if TYPE_CHECKING:
    from raygnn.inference.evaluate import Judged
    from raygnn.outputs.stored_run import StoredRun

#: Exit status if the champion stays.
KEPT = 3
_OF_INTERVAL = 1.96  # standard errors on each side of a 95 % interval
_USAGE = """\
raygnn retrain NAME[@ALIAS] CONFIG [--section.key value ...]

Trains CONFIG on the newest tables, from the weights of the champion, with splits moved forward by
the elapsed time. Judges both on the newest test rows, and sets the alias (default: champion) to the
challenger if it is better by run.promotion. Exit status 3: the champion stays. After a kill, the
same command continues. See docs/retraining.md.
"""
_EXAMPLES = """
raygnn retrain orders store/orders_soon.yaml --metrics '[auroc]'
raygnn retrain gs://bucket/models/orders@champion train.yaml --run.promotion.min_gain 0.002
"""


@dataclass(frozen=True)
class Retrained:
    """The outcome of a retraining.

    Attributes:
        run: folder of the challenger's run.
        version: of the challenger, a version of the registered model.
        is_promoted: whether the alias names it now.
        metric: by which both were judged on the same rows.
        champion, challenger: its values.
        error: standard error of their difference on these rows; NaN if unknown.
        reason: a sentence.
    """

    run: str
    version: str
    is_promoted: bool
    metric: str
    champion: float
    challenger: float
    error: float
    reason: str


def retrain(
    name: str,
    config: str | PathLike[str] | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    allow_modules: Sequence[str] = (),
) -> Retrained:
    """Trains a challenger of a registered model, and promotes it if it is better.

    Args:
        name: `NAME` or `NAME@ALIAS` of the registered model; its alias names the champion.
        config: as for `raygnn.train.fit`. `run.name` is by default the name of the model and the
            date, so that the same command continues a retraining that was killed.
        overrides: options as on the command line.
        allow_modules: modules whose classes the config may name, besides raygnn's and torch's.
    Raises:
        RunError: there is no champion, or it has no such metric.
        RaygnnError: as `raygnn.train.fit`, or the registered model is damaged.
    """
    from raygnn.data.filesystem import absolute, join, read_text
    from raygnn.documents import parse_yaml
    from raygnn.judging import judge
    from raygnn.outputs.model_registry import CHAMPION, named_model
    from raygnn.outputs.run_folder import RunFolder, RunStatus
    from raygnn.outputs.saved_model import SavedModel
    from raygnn.outputs.stored_run import StoredRun

    registered, alias = named_model(name)
    alias = alias or CHAMPION
    champion_uri = registered.version_uri(registered.current(alias))
    champion, label = StoredRun.open(champion_uri), registered.uri.rstrip("/").rpartition("/")[2]
    own = ["--run.name", f"{label}-{datetime.now(UTC):%Y%m%d}", *overrides]
    loaded = load_config(config, own, allow_modules)
    run = absolute(join(loaded.config.run.storage_path, loaded.config.run.name or ""))
    state = None if loaded.config.run.overwrite else RunFolder(run, run, run, "").read_state()
    if state is not None:  # killed, or finished but not judged
        written = dict(parse_yaml(read_text(join(run, "config.yaml"))).value)
        init_from, splits = written["checkpoint"]["init_from"], written["data"]["splits"]
    else:
        init_from = {"uri": champion_uri, "strict": False}
        splits = _moved_splits(champion, loaded)
    own += ["--checkpoint.init_from", json.dumps(init_from)]
    own += [] if splits is None else ["--data.splits", json.dumps(splits)]
    loaded = load_config(config, own, allow_modules)
    if state is None or state["status"] != RunStatus.FINISHED.value:
        _train(loaded)
    challenger, saved = StoredRun.open(run), SavedModel.open(run, allow_modules=allow_modules)
    metric = _metric(loaded, challenger)
    of_data = loaded.config.data.uri, loaded.config.data.allow_outside, allow_modules
    of_champion, of_challenger = (
        judge(each, challenger, *of_data, with_outputs=True) for each in (champion, challenger)
    )
    of_metric = metric.partition("/")[2]
    before, after = of_champion.metrics[of_metric], of_challenger.metrics[of_metric]
    error = _error_of_difference(of_champion, of_challenger, of_metric)
    registered.add(run, saved.uri, saved.fingerprint)
    is_better, reason = _decide(loaded.config.run.promotion, metric, before, after, error)
    if registered.current(alias) == saved.fingerprint:
        is_better, reason = True, "the challenger is the champion already"
    elif is_better:
        registered.set_alias(alias, saved.fingerprint)
    return Retrained(run, saved.fingerprint, is_better, metric, before, after, error, reason)


def _moved_splits(champion: StoredRun, loaded: LoadedConfig) -> dict[str, Any] | None:
    """Splits by time that begin as much later as the graph has grown since the champion was
    trained; None if its splits are not by time, or by quantiles, which move by themselves.
    """
    from raygnn.data.time_units import TIME, latest_time, parse_time, time_unit
    from raygnn.runtime.launch import open_graph

    times, rule = champion.metrics.get("times") or {}, loaded.config.data.splits
    is_by_time = rule is None or (rule.type == "temporal" and rule.timestamps is not None)
    if not is_by_time or times.keys() != {"train", "val", "test", "graph"}:
        return None
    (_, end_of_train), (val, end_of_val), (test, _) = (times[s] for s in ("train", "val", "test"))
    if not end_of_train < val <= end_of_val < test:
        return None
    bundle = open_graph(loaded, None)
    latest, unit = latest_time(bundle, TIME), time_unit(bundle, TIME)
    assert latest is not None
    given = (champion.data.get("splits") or {}).get("timestamps")
    begins = [val, test] if given is None else [parse_time(time, unit) for time in given]
    moved: list[Any] = [time + latest - times["graph"] for time in begins]
    if unit is not None:
        moved = [(datetime(1970, 1, 1) + timedelta(microseconds=t)).isoformat() for t in moved]
    say(f"splits by time: val from {moved[0]}, test from {moved[1]}")
    return {"type": "temporal", "timestamps": moved}


def _train(loaded: LoadedConfig) -> None:
    """Trains from the weights of the champion, or from random ones if shapes have changed."""
    from raygnn.runtime.launch import launch

    try:
        launch(loaded)
    except CheckpointError as error:
        if error.id != "init-weights-shape":
            raise
        say(f"the challenger starts from random weights: {error}")
        anew: dict[str, dict[str, Any]] = {
            "checkpoint": {"init_from": None},
            "run": {"overwrite": True},
        }
        launch(loaded.with_values(anew))


def _metric(loaded: LoadedConfig, challenger: StoredRun) -> str:
    names = [n for n in challenger.metrics if n.startswith("test/") and n != "test/loss"]
    chosen = loaded.config.run.promotion.metric or next(iter(names), None)
    if chosen not in names:
        raise RunError(
            f"run.promotion.metric={chosen!r} is invalid: unknown metric of the test of "
            f"{challenger.name}. Set one of: {', '.join(names) or 'none'}. [retrain-metric]"
        )
    return chosen


def _error_of_difference(before: Judged, after: Judged, metric: str) -> float:
    """The standard error of a difference: of paired rows, else as of independent models."""
    assert before.outputs is not None
    assert after.outputs is not None
    error = after.outputs.error_of_difference(metric, before.outputs)
    return (
        error
        if not math.isnan(error)
        else math.hypot(*(_error(j, metric) for j in (before, after)))
    )


def _error(judged: Judged, metric: str) -> float:
    low, high = judged.intervals.get(metric) or (math.nan, math.nan)
    return judged.standard_errors.get(metric, (high - low) / (2 * _OF_INTERVAL))


def _decide(
    rule: Promotion, metric: str, before: float, after: float, error: float
) -> tuple[bool, str]:
    gain = (after - before) * (-1 if is_error(metric) else 1)
    needed = rule.min_gain + (0.0 if math.isnan(error) else rule.num_errors * error)
    is_better = gain > needed
    verb = "is promoted" if is_better else "is not promoted"
    return is_better, (
        f"{metric} on the newest test rows: champion {before:.4f}, challenger {after:.4f}. The "
        f"challenger {verb}: it gains {gain:.4f} ± {error:.4f}, and needs more than {needed:.4f}"
    )


def _run(options: argparse.Namespace, remaining: Sequence[str]) -> int:
    rule = "it needs NAME and CONFIG"
    check_arguments(remaining, 2, rule, _USAGE, id="retrain-arguments-missing")
    name, config, *overrides = remaining
    found = retrain(name, config, overrides, allow_modules=options.allow_modules)
    say(found.reason)
    give_result(version=found.version, is_promoted=found.is_promoted, reason=found.reason)
    return 0 if found.is_promoted else KEPT


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn retrain", _EXAMPLES, usage=_USAGE)
    add_allow_module(parser)
    return parser


main = command(_run, build_parser, interrupted="the same command continues")

if __name__ == "__main__":
    exit_process(main)
