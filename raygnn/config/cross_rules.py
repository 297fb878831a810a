"""Rules between sections. Each says which sections it reads, so that a broken one silences it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from raygnn.config.batch import broken_batch_rules
from raygnn.config.problems import Problem
from raygnn.config.slots import SLOTS
from raygnn.config.tune_rules import broken_space, trials_need_workers

if TYPE_CHECKING:
    from raygnn.config.schema import Config

Rule = Callable[["Config"], Iterable[Problem]]


def _batch_triple(config: Config) -> Iterable[Problem]:
    return broken_batch_rules(
        config.loader.batch_size,
        config.training.accumulate_grad_batches,
        config.scaling.world_size,
        config.training.global_batch_size,
    )


def _layers_equal_hops(config: Config) -> Iterable[Problem]:
    num_layers = config.model.args.get("num_layers")
    is_built_in = config.model.type in SLOTS["model"].names
    if not is_built_in or config.sampling.type is not None or num_layers is None:
        return
    hops = config.sampling.num_hops
    if num_layers != hops:
        yield Problem(
            ("model", "args", "num_layers"),
            f"a layer goes one hop, and sampling.fanouts has {hops}: {config.sampling.fanouts}",
            f"Set it to {hops}, leave it out, or give {num_layers} fanouts",
        )


def _plateau_has_monitor(config: Config) -> Iterable[Problem]:
    scheduler, stopping, checkpoint = config.lr_scheduler, config.early_stopping, config.checkpoint
    is_plateau = scheduler.type.rpartition(".")[2] == "ReduceLROnPlateau"
    if not is_plateau:
        if scheduler.monitor is not None and scheduler.type in SLOTS["lr_scheduler"].names:
            yield Problem(
                ("lr_scheduler", "monitor"),
                f"{scheduler.type} looks at no metric",
                "Set lr_scheduler.type: ReduceLROnPlateau, or remove the monitor",
            )
        return
    if scheduler.frequency != 1:
        yield Problem(
            ("lr_scheduler", "frequency"),
            "ReduceLROnPlateau steps at each validation",
            "Remove it, and set training.validate_every",
        )
    known = [(checkpoint.monitor, checkpoint.mode)]
    known += [(stopping.monitor, stopping.mode)] if stopping else []
    monitor = scheduler.monitor or next((name for name, _ in known if name), None)
    if monitor is None:
        yield Problem(
            ("lr_scheduler", "monitor"),
            "ReduceLROnPlateau needs a metric, and there is no early stopping to take it from",
            "Set the name of a logged metric, as in val/loss",
        )
        return
    mode = next((mode for name, mode in known if name == monitor and mode), "min")
    if scheduler.args.get("mode", "min") != mode and not monitor.endswith("/loss"):
        yield Problem(
            ("lr_scheduler", "args", "mode"),
            f"{monitor} is better when it is {_WORDS[mode]}, as said elsewhere in this config",
            f"Set lr_scheduler.args.mode: {mode}",
        )


def _exact_evaluation_has_no_times(config: Config) -> Iterable[Problem]:
    if config.sampling.temporal is not None and config.training.eval == "exact":
        yield Problem(
            ("training", "eval"),
            "it takes all neighbors, and sampling.temporal leaves later ones out",
            "Set it to sampled",
        )


def _sharding_fits(config: Config) -> Iterable[Problem]:
    shard, optimizer = config.scaling.shard, config.optimizer.type.rpartition(".")[2]
    if shard != "none" and config.model.args.get("sparse_embeddings"):
        yield Problem(
            ("scaling", "shard"),
            "with model.args.sparse_embeddings only the rows that were read travel between workers",
            "Set it to none, or sparse_embeddings to false",
        )
    if shard == "full" and optimizer in ("Adafactor", "Rprop"):
        yield Problem(
            ("scaling", "shard"),
            f"torch's {optimizer} does not work on parts of weights",
            "Set it to optimizer or none, or optimizer.type to Adam",
        )


def _links_share_nodes(config: Config) -> Iterable[Problem]:
    if config.sampling.disjoint and config.task.type == "link_prediction":
        yield Problem(
            ("sampling", "disjoint"),
            "in a batch of links each node is encoded once, for all links that it is an end of",
            "Set it to false",
        )


_WORDS = {"min": "less", "max": "more"}

_RULES: tuple[tuple[Rule, frozenset[str]], ...] = (
    (_batch_triple, frozenset({"loader", "training", "scaling"})),
    (_layers_equal_hops, frozenset({"model", "sampling"})),
    (_exact_evaluation_has_no_times, frozenset({"sampling", "training"})),
    (_sharding_fits, frozenset({"scaling", "model", "optimizer"})),
    (_links_share_nodes, frozenset({"sampling", "task"})),
    (_plateau_has_monitor, frozenset({"lr_scheduler", "early_stopping", "checkpoint"})),
    (broken_space, frozenset({"tune"})),
    (trials_need_workers, frozenset({"tune", "scaling"})),
)


# Inference as of one moment is exact too; an evaluation in training has a time for each seed.
_OF_TRAINING = frozenset({_exact_evaluation_has_no_times})


def broken_cross_rules(config: Config, *, trains: bool = True) -> Iterable[Problem]:
    """Every rule between sections that does not hold, with the sections it has read.

    Args:
        trains: false for the config of inference, of which less is asked.
    """
    for rule, sections in _RULES:
        if not trains and rule in _OF_TRAINING:
            continue
        for problem in rule(config):
            yield replace(problem, needs=sections)
