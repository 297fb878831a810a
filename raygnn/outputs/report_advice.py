"""Warnings while a run trains: few steps, rare classes, results below baselines."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from raygnn.console import announced, count, say, warn
from raygnn.data.arrays import memory_bytes
from raygnn.data.splits import SPLIT_NAMES
from raygnn.data.time_units import TIME, latest_time
from raygnn.loops.baselines import Baselines, BaselinesOfParts, is_error
from raygnn.loops.blend import GNN, Standings, verdict
from raygnn.loops.callbacks import Callback
from raygnn.loops.position import Position, is_due
from raygnn.loops.tasks.blended_task import BlendedTask
from raygnn.outputs.ladder import baseline_name, find_baselines
from raygnn.outputs.progress import headline

if TYPE_CHECKING:
    from raygnn.data.bundle import Bundle
    from raygnn.loops.engine import Engine
    from raygnn.loops.task import Task

_SHOWN = ("auroc", "mae")  # metrics of the verdict, unless one is monitored or errors are squared
_FEW_STEPS = 50  # a run that may end before so many has hardly begun to learn


class Advice(Callback):
    """Warns at the start of a run, and compares the model with its baselines at the end."""

    def __init__(self) -> None:
        self._warnings: list[str] = []
        self._metrics: dict[str, float] = {}
        self._steps_per_epoch: int | None = None
        self._left_out: list[str] = []
        self._verdict: list[str] = []
        self._standard_errors: dict[str, float] = {}
        self._rungs: dict[str, Any] = {}
        self._rows: dict[str, Any] = {}
        self._described: dict[str, Any] = {}

    def on_train_start(self, engine: Engine) -> None:
        self._steps_per_epoch = engine.steps_per_epoch
        bundle = engine.task.env.bundle
        self._warnings = [*_few_steps(engine), *engine.task.warnings()]
        self._warnings += [*too_large(bundle)]
        self._find_baselines(engine, "val", engine.config.training.num_val_batches)
        self._left_out = engine.task.left_out()
        if engine.context.rank == 0:
            for text in self._warnings:
                warn(text)
            for text in self._left_out:
                say(text, "left_out")
            has_test = engine.task.loader("test") is not None
            monitor = engine.best.tracker.monitor
            say_baselines(self._metrics, "val", monitor, prints=not has_test)

    def on_test_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        weights = engine.task.score_weights()  # of the best model
        spec, (encoder, others) = engine.task.spec, weights or (1.0, 0.0)
        is_link = weights is not None and spec is not None and bool(spec.output.links)
        # Beside a recommender that ranks alone, an encoder orders targets with equal scores.
        is_unused = encoder < 1 if is_link else encoder == 0
        advice = [] if is_unused else _best_at_first(engine)
        self._warnings += advice
        if engine.context.rank == 0:
            for text in advice:
                warn(text)
        if engine.context.rank == 0 and weights is not None:
            what = "the linear recommender" if is_link else "the labels around a node"
            both = f"{what} (weight {others:.3g}) and the encoder ({encoder:.3g})"
            predicted = "links are ranked" if is_link else "classes are predicted"
            say(f"{predicted} by {both if encoder else f'{what} alone'}")
        baselines = self._find_baselines(engine, "test", engine.config.training.num_test_batches)
        if isinstance(baselines, Baselines) and baselines.uncalibrated is not None:
            self._described["uncalibrated"] = {"test": baselines.uncalibrated}
        if isinstance(task := engine.task, BlendedTask) and task.column_effects is not None:
            self._described["column_effects"] = {"val": task.column_effects}
        if baselines is not None:
            of_model = {name.removeprefix("test/"): value for name, value in metrics.items()}
            self._verdict = [
                f"test/{name} {of_model[name]:.4f} ({guess}: {baselines.metrics[guess][name]:.4f})"
                for name, guess in baselines.not_beaten(of_model).items()
            ]
            errors = {k: baselines.standard_error(k, value) for k, value in of_model.items()}
            self._standard_errors = {f"test/{k}": e for k, e in errors.items() if e is not None}
            for guess, of_guess in baselines.metrics.items():
                for name, value in of_guess.items():
                    error = baselines.standard_error(name, value)
                    if error is not None:
                        self._standard_errors[baseline_name(guess, "test", name)] = error
        if engine.context.rank == 0:
            limit = engine.config.training.num_test_batches
            tested = engine.task.split_rows("test", limit)
            splits = {name: engine.task.split_rows(name, None) for name in SPLIT_NAMES}
            learned = [splits[name] for name in SPLIT_NAMES[:2]]
            spans: dict[str, Any] = {
                name: rows.span for name, rows in splits.items() if rows and rows.span
            }
            if spans:
                spans["graph"] = latest_time(engine.task.env.bundle, TIME)
            self._rows = {
                "test_rows": None if tested is None else tested.digest,
                "learned_rows": [rows.sketch for rows in learned if rows is not None],
                "times": spans,
            }
        self._compare_rungs(engine, baselines)

    def _compare_rungs(
        self, engine: Engine, baselines: Baselines | BaselinesOfParts | None
    ) -> None:
        task, monitored = engine.task, engine.best.tracker.monitor.removeprefix("val/")
        of_test = baselines.parts if isinstance(baselines, BaselinesOfParts) else {}
        of_parts = {
            name: found
            for name, part in task.parts.items()
            if (found := _rungs(part, of_test.get(name), monitored.removeprefix(f"{name}/"), name))
        }
        self._rungs, prefixes = _rungs(task, baselines, monitored), ["val/"]
        if of_parts:
            self._rungs = {
                key: {name: found[key] for name, found in of_parts.items()}
                for key in ("blend", "rungs")
            }
            sentences = [found["verdict"] for found in of_parts.values()]
            self._rungs["verdict"] = "; ".join(filter(None, sentences))
            prefixes = [f"val/{name}/" for name in of_parts]
        for name, value in engine.metrics_of_module.items() if self._rungs else ():
            if name.startswith(tuple(prefixes)):
                self._metrics[baseline_name(GNN, *name.split("/", 1))] = value

    def metrics(self) -> dict[str, Any]:
        """`baseline/<guess>/<split>/<metric>`; `standard_errors` of test metrics and of baselines;
        `test_rows` and `learned_rows`, see `SplitRows`; `times`, the first and last time of each
        split and the latest of the graph; `steps_per_epoch`; and texts, possibly
        empty: `warnings`, what is `left_out`, and the metrics by which the model is
        `no_better_than_baseline`. If validation chose what predicts: `blend`, the weights of rungs;
        `rungs`, by split, metric and rung, the value and its difference from the model's with
        standard errors; and `verdict`, a sentence. The first two are by task, if there are several.
        If validation scaled the logits, `uncalibrated` is `calibration` without the scaling. If
        LightGBM has a share: `column_effects`.
        """
        return {
            **self._metrics,
            **self._described,
            "standard_errors": self._standard_errors,
            **self._rows,
            "steps_per_epoch": self._steps_per_epoch,
            "warnings": " ".join(self._warnings),
            "left_out": ". ".join(self._left_out),
            "no_better_than_baseline": ", ".join(self._verdict),
            **self._rungs,
        }

    def _find_baselines(
        self, engine: Engine, split: str, num_batches: int | None
    ) -> Baselines | BaselinesOfParts | None:
        slow = f"computing baselines on {split}, to compare the model with"
        with announced(slow) if engine.context.rank == 0 else nullcontext():
            baselines = engine.task.baselines(split, num_batches, engine.metrics)
        for guess, metrics in baselines.metrics.items() if baselines else ():
            for name, value in metrics.items():
                self._metrics[baseline_name(guess, split, name)] = value
        return baselines


def _rungs(
    task: Task[Any], baselines: Baselines | BaselinesOfParts | None, monitored: str, part: str = ""
) -> dict[str, Any]:
    """Entries of `Advice.metrics` of a task; none if validation did not choose what predicts."""
    if not isinstance(task, BlendedTask) or (blend := task.output.blend) is None:
        return {}
    of_test = baselines.standings if isinstance(baselines, Baselines) else {}
    of_val = task.val_standings or {}
    split, standings = ("test", of_test) if of_test else ("val", of_val)
    judged = ("r2",) if task.is_squared else ()
    order = [name for name in (monitored, *judged, *_SHOWN, *standings) if name in standings]
    text = ""
    if order:
        name = "/".join(filter(None, [split, part, order[0]]))
        text = verdict(blend.words, name, standings[order[0]], is_error=is_error(name))
    return {
        "blend": {name: share.weight for name, share in blend.shares.items()},
        "rungs": {"val": _records(of_val), "test": _records(of_test)},
        "verdict": text,
    }


def _records(standings: Standings) -> dict[str, Any]:
    return {
        metric: {rung: asdict(standing) for rung, standing in rungs.items()}
        for metric, rungs in standings.items()
    }


def say_baselines(
    metrics: Mapping[str, Any], split: str, monitor: str, *, prints: bool = True
) -> None:
    """Reports the baselines of a split, weakest first; without `prints`, as JSON only."""
    for rung in find_baselines(metrics, split, monitor):
        names = headline(rung.metrics)
        shown = "  ".join(f"{name} {rung.metrics[name]:.4f}" for name in names)
        text = f"baseline {rung.name}: {shown}" if prints else ""
        say(text, "baseline", baseline=rung.name, metrics=rung.metrics)


def say_warmth(metrics: Mapping[str, Any]) -> None:
    """Prints the ranks of links by which ends have known links, if some ends have none."""
    for name, by_split in metrics.items():
        if not name.endswith("ranks_by_warmth"):
            continue
        for split, shares in by_split.items():
            if shares["groups"] == ["both warm"]:
                continue
            rows = zip(shares["groups"], shares["links"], shares["mrr"], strict=True)
            shown = "  ".join(f"{group} {mrr:.4f} ({num:,})" for group, num, mrr in rows)
            task = name.removesuffix("ranks_by_warmth")
            say(f"{split}/{task}mrr by known links: {shown}")


def too_large(bundle: Bundle) -> list[str]:
    if not bundle.is_larger_than_memory:
        return []
    sizes = [f"{size / 1e9:,.1f} GB" for size in (bundle.num_bytes, memory_bytes())]
    return [
        f"the graph ({sizes[0]}) is larger than memory ({sizes[1]}), so most rows are read from "
        "disk. data.feature_dtype: float16 takes half the space of float32; data.mode: "
        "partitioned distributes the graph over machines."
    ]


def _few_steps(engine: Engine) -> list[str]:
    stopper = engine.early_stopper
    earliest = None if stopper is None else _earliest(engine, stopper.patience, _FEW_STEPS)
    if stopper is None or earliest is None:
        return []
    planned = engine.config.training.planned_steps(engine.steps_per_epoch)
    if planned is not None and planned <= earliest.step:
        return []
    return [
        f"an epoch has {count(engine.steps_per_epoch, 'step')}, so early stopping (patience "
        f"{stopper.patience}) may end the run after {count(earliest.step, 'step')} "
        f"({count(earliest.epoch, 'epoch')}). Set a smaller loader.batch_size or a larger "
        "early_stopping.patience."
    ]


def _best_at_first(engine: Engine) -> list[str]:
    stopper, best = engine.early_stopper, engine.best.position
    if stopper is None or not stopper.is_out_of_patience or best.step == 0:
        return []
    first = _earliest(engine, 0, best.step + 1)
    if first is None or first.step < best.step:
        return []
    return [
        f"{engine.best.tracker.monitor} was best at the first validation (step {best.step:,}): "
        "the model overfits, or the learning rate is too high. Try a smaller optimizer.args.lr, "
        "model.args.dropout: 0.5, and a larger min_frequency for category transforms."
    ]


def _earliest(engine: Engine, num_more: int, max_steps: int) -> Position | None:
    loader = engine.task.loader("train")
    assert loader is not None
    total, per_step = loader.num_batches, engine.config.batch.num_micro_batches
    num_left = num_more + (not engine.config.training.validate_at_start)
    now = Position()
    while now.step < max_steps and num_left:
        before, num_batches = now, min(per_step, total - now.batch_in_epoch)
        seen = min(now.batch_in_epoch * loader.batch_size, loader.num_examples)
        num_samples = min(num_batches * loader.batch_size, loader.num_examples - seen)
        now = before.advance(num_batches=num_batches, num_samples=num_samples, epoch_batches=total)
        num_left -= is_due(engine.validate_every, before, now)
    return None if num_left else now
