"""Rules between sections of a config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from raygnn.config.loader_section import (
    REST,
    broken_batch_rules,
    fanouts_by_type,
    fanouts_of,
    num_hops,
    overridden_fanouts,
)
from raygnn.config.registry import SLOTS
from raygnn.config.run_section import broken_space
from raygnn.config.section import Rule, broken
from raygnn.config.sections import SEVERAL_TASKS, Sections, TaskEntry
from raygnn.errors import Problem, choose_from

Check = Callable[[Sections], Iterable[Problem]]


def _batch_triple(config: Sections) -> Iterable[Problem]:
    if not config.sampling.is_full:
        yield from broken_batch_rules(
            config.loader.batch_size,
            config.training.accumulate_grad_batches,
            config.scaling.world_size,
            config.training.global_batch_size,
        )
        return
    sizes = ("global_batch_size", "accumulate_grad_batches")
    for key in (*sizes, "num_val_batches", "num_test_batches"):
        if getattr(config.training, key) not in (None, 1):
            rule, remedy = "all seeds of a split are one batch", "Remove it, or sampling.type"
            yield Problem(("training", key), rule, remedy, id="sampling-full-batches")


def _layers_equal_hops(config: Sections) -> Iterable[Problem]:
    num_layers = config.model.args.get("num_layers")
    is_built_in = config.model.type in SLOTS["model"].names
    if not is_built_in or config.sampling.is_full or num_layers is None:
        return
    hops = config.sampling.num_hops
    if num_layers != hops:
        rule = f"each layer spans one hop, sampling.fanouts has {hops}: {config.sampling.fanouts}"
        remedy = f"Set it to {hops}, or give {num_layers} fanouts"
        yield Problem(("model", "args", "num_layers"), rule, remedy, id="model-layers-hops")


def _plateau_has_monitor(config: Sections) -> Iterable[Problem]:
    scheduler, stopping, checkpoint = config.lr_scheduler, config.early_stopping, config.checkpoint
    is_plateau = scheduler.type.rpartition(".")[2] == "ReduceLROnPlateau"
    if not is_plateau:
        if scheduler.monitor is not None and scheduler.type in SLOTS["lr_scheduler"].names:
            rule = f"{scheduler.type} reads no metric"
            remedy = "Set lr_scheduler.type: ReduceLROnPlateau, or remove the monitor"
            yield Problem(("lr_scheduler", "monitor"), rule, remedy, id="scheduler-monitor-unread")
        return
    if scheduler.frequency != 1:
        rule, remedy = "ReduceLROnPlateau steps at each validation", "Set training.validate_every"
        yield Problem(("lr_scheduler", "frequency"), rule, remedy, id="scheduler-frequency")
    known = [(checkpoint.monitor, checkpoint.mode)]
    known += [(stopping.monitor or "val/loss", stopping.mode)] if stopping else []
    monitor = scheduler.monitor or next((name for name, _ in known if name), None)
    if monitor is None:
        rule, remedy = "ReduceLROnPlateau needs a metric", "Set a logged one, as in val/loss"
        yield Problem(("lr_scheduler", "monitor"), rule, remedy, id="scheduler-monitor-missing")
        return
    mode = next((mode for name, mode in known if name == monitor and mode), "min")
    if scheduler.args.get("mode", "min") != mode and not monitor.endswith("/loss"):
        rule = f"{monitor} is better if it is {_WORDS[mode]}"
        path = ("lr_scheduler", "args", "mode")
        yield Problem(path, rule, f"Set lr_scheduler.args.mode: {mode}", id="scheduler-mode")


def _tasks_fit(config: Sections) -> Iterable[Problem]:
    if not config.tasks:
        if config.task.type == SEVERAL_TASKS:
            rule = "it names no task"
            remedy = "Set it as in {topics: {type: node_classification}}, or task.type to one"
            yield Problem(("tasks",), rule, remedy, id="tasks-none")
        return
    if not sum(entry.weight for entry in config.tasks.values()):
        yield Problem(("tasks",), "all weights are 0", "Set one above 0", id="tasks-no-weight")
    for key in ("losses", "metrics"):
        if getattr(config, key):
            remedy = f"Move it to tasks.{next(iter(config.tasks))}.{key}"
            yield Problem((key,), "each task has its own", remedy, id="tasks-own-key")
    for name, entry in config.tasks.items():
        yield from _task_fits(config, name, entry)


def _task_fits(config: Sections, name: str, entry: TaskEntry) -> Iterable[Problem]:
    own = [other for other in SLOTS["task"].names if other != SEVERAL_TASKS]
    if entry.type == SEVERAL_TASKS or "." in entry.type:  # another name is of no component
        rule = "tasks that share an encoder must be raygnn's own"
        yield Problem(("tasks", name, "type"), rule, choose_from(entry.type, own), id="tasks-type")
    for key in INPUTS_OF_ENCODER & entry.args.keys():
        rule, remedy = "all tasks read what the encoder reads", f"Set task.args.{key} instead"
        yield Problem(("tasks", name, "args", key), rule, remedy, id="tasks-input")
    fanouts, place = entry.sampling.fanouts, ("tasks", name, "sampling", "fanouts")
    if fanouts is None:
        return
    hops = config.sampling.num_hops
    if num_hops(fanouts) != hops:
        rule = f"each layer of the encoder spans one hop, but sampling.fanouts has {hops}"
        yield Problem(place, rule, f"Set {hops} fanouts", id="tasks-hops")
    configured = config.sampling.fanouts
    own = overridden_fanouts(configured, fanouts)
    names = {REST, *fanouts_by_type(configured), *fanouts_by_type(own)}
    read, wanted = ({n for n in names if any(fanouts_of(f, n))} for f in (configured, own))
    if unread := sorted(wanted - read):
        rule = f"the encoder has no layers for {', '.join(unread)}, where sampling.fanouts is 0"
        yield Problem(place, rule, "Set zeros here too", id="tasks-edge-types")


def _space_exists(config: Sections) -> Iterable[Problem]:
    return () if config.tune is None else broken_space(config.tune, Sections)


def _other_task(config: Sections) -> bool:
    return config.task.type not in (*_TASKS_OF_SAMPLER, SEVERAL_TASKS)


def _rows_sharded(config: Sections) -> bool:
    return config.scaling.shard == "embeddings"


def _optimizer(config: Sections) -> str:
    return config.optimizer.type.rpartition(".")[2]


#: Arguments of all tasks that say what the encoder reads; with `tasks` they are under `task`.
INPUTS_OF_ENCODER = frozenset({"feature", "edge_feature", "edge_weight"})

_WORDS = {"min": "less", "max": "more"}

_TASKS_OF_SAMPLER = ("node_classification", "link_prediction", "edge_prediction")


# fmt: off
def _rules_of_mode(
    mode: str, area: str, uri: str, *, sampler: str, sweep: str
) -> tuple[Rule, ...]:
    """Exclusions of a mode that does not sample from a graph in memory."""
    task = f"data.mode is {mode}, and trains one task: {', '.join(_TASKS_OF_SAMPLER)}"
    return (
        Rule(f"{area}-task", "tasks", lambda c: c.data.mode == mode,
             task, "Set data.mode to in_memory"),
        Rule(f"{area}-task", "task.type", lambda c: c.data.mode == mode and _other_task(c),
             task, "Set data.mode to in_memory"),
        Rule(f"{area}-sampler", "sampling.type",
             lambda c: c.data.mode == mode and c.sampling.is_full,
             f"data.mode is {mode}, and {sampler}", "Remove it, or set data.mode to in_memory"),
        Rule(f"{area}-sweep", "data.mode", lambda c: c.tune and c.data.mode == mode,
             sweep, f"Set it to in_memory, and {uri}"),
    )


#: Keys that exclude each other across sections.
RULES = (
    Rule("shard-sparse-gradients", "scaling.shard",
         lambda c: not _rows_sharded(c) and c.model.args.get("sparse_embeddings"),
         "with model.args.sparse_embeddings only the rows that were read travel between workers",
         "Set it to embeddings, which shards these rows, or to none"),
    Rule("shard-optimizer", "scaling.shard",
         lambda c: c.scaling.shard == "full" and _optimizer(c) in ("Adafactor", "Rprop"),
         "torch's Adafactor and Rprop do not work on parts of weights",
         "Set it to optimizer or none, or optimizer.type to Adam"),
    Rule("shard-rows-optimizer", "optimizer.type",
         lambda c: _rows_sharded(c) and _optimizer(c) == "Adafactor",
         "scaling.shard is embeddings, and Adafactor needs all rows of a weight",
         "Set it to Adam, or scaling.shard to none"),
    Rule("shard-rows-precision", "training.precision",
         lambda c: _rows_sharded(c) and c.training.precision == "fp16-mixed",
         "scaling.shard is embeddings, and gradients of rows may overflow on their owner alone",
         "Set it to bf16-mixed or fp32, or scaling.shard to none"),
    Rule("shard-rows-compile", "training.compile", _rows_sharded,
         "scaling.shard is embeddings, and each step fetches rows from other workers, which "
         "torch.compile cannot trace", "Set it to false, or scaling.shard to none"),
    Rule("shard-rows-task", "task.type",
         lambda c: _rows_sharded(c) and c.task.type == "self_supervised",
         "scaling.shard is embeddings, and self_supervised trains nodes with features",
         "Set scaling.shard to none"),
    *_rules_of_mode("partitioned", "partition", "data.uri to the tables of the graph",
                    sampler="parts answer raygnn's own sampling only",
                    sweep="trials of a sweep train in memory"),
    *_rules_of_mode("presampled", "samples", "data.samples to null",
                    sampler="only raygnn's own sampling can be stored",
                    sweep="trials of a sweep must sample live, because they may vary the sampling"),
    Rule("partition-ppr", "sampling.ppr", lambda c: c.data.mode == "partitioned",
         "data.mode is partitioned, and PageRank needs all edges in one process",
         "Remove it, or set data.mode to in_memory"),
    Rule("training-refit", "training.refit",
         lambda c: c.task.type != "node_classification" or c.loop or c.data.mode != "in_memory"
         or c.lr_scheduler.type.rpartition(".")[2] == "ReduceLROnPlateau",
         "only node_classification in memory, with raygnn's loop and no ReduceLROnPlateau, has it",
         "Set it to false"),
    Rule("tasks-and-task", "task.type", lambda c: c.tasks and c.task.type != SEVERAL_TASKS,
         "a run has one task, or several under tasks", "Remove it, or tasks"),
    Rule("tasks-loss-reduction", "training.loss_reduction", lambda c: c.tasks,
         "the losses of several tasks are summed as means, so that their weights compare them",
         "Set it to mean"),
    Rule("tasks-full-graph", "sampling.type", lambda c: c.tasks and c.sampling.is_full,
         "with several tasks, each step would compute the whole graph once per task",
         "Remove it, or train one task"),
    Rule("sweep-workers", "scaling.num_workers",
         lambda c: c.tune and c.scaling.max_workers == 0,
         "each trial of a sweep trains in workers of Ray Train", "Set 1 or more"),
    Rule("split-per-anchor", "data.splits.per",
         lambda c: c.task.type != "link_prediction" or c.data.mode == "partitioned",
         "it splits the links of each anchor, in link prediction on a graph in one part",
         "Remove it"),
)
_CHECKS: tuple[Check, ...] = (
    _batch_triple, _layers_equal_hops, _plateau_has_monitor, _tasks_fit, _space_exists,
)
# fmt: on


class _Reads:
    """A config that notes which of its sections a rule reads."""

    def __init__(self, config: Sections) -> None:
        self._config, self.names = config, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self._config, name)


def broken_cross_rules(config: Sections) -> Iterator[Problem]:
    """Problems between sections, with the names of those that each rule read."""
    for rule in RULES:
        reads: Any = _Reads(config)
        for problem in broken(config, (rule,), reads):
            yield replace(problem, needs=frozenset({*reads.names, str(problem.path[0])}))
    for check in _CHECKS:
        reads = _Reads(config)
        for problem in check(reads):
            yield replace(problem, needs=frozenset(reads.names))
