"""Rules between sections of a config."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

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
from raygnn.config.sections import SEVERAL_TASKS, Sections, TaskEntry
from raygnn.errors import Problem, choose_from

Rule = Callable[[Sections], Iterable[Problem]]


def _batch_triple(config: Sections) -> Iterable[Problem]:
    if config.sampling.is_full:
        yield from _full_batches(config)
        return
    yield from broken_batch_rules(
        config.loader.batch_size,
        config.training.accumulate_grad_batches,
        config.scaling.world_size,
        config.training.global_batch_size,
    )


def _full_batches(config: Sections) -> Iterable[Problem]:
    for key in (
        "global_batch_size",
        "accumulate_grad_batches",
        "num_val_batches",
        "num_test_batches",
    ):
        if getattr(config.training, key) not in (None, 1):
            rule = "with sampling.type: full, all seeds of a split are one batch"
            remedy = "Remove it, or sampling.type"
            yield Problem(("training", key), rule, remedy, id="sampling-full-batches")


def _layers_equal_hops(config: Sections) -> Iterable[Problem]:
    num_layers = config.model.args.get("num_layers")
    is_built_in = config.model.type in SLOTS["model"].names
    if not is_built_in or not config.sampling.draws_neighbors or num_layers is None:
        return
    hops = config.sampling.num_hops
    if num_layers != hops:
        yield Problem(
            ("model", "args", "num_layers"),
            f"each layer spans one hop, but sampling.fanouts has {hops}: {config.sampling.fanouts}",
            f"Set it to {hops}, leave it out, or give {num_layers} fanouts",
            id="model-layers-hops",
        )


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
        rule = "ReduceLROnPlateau steps at each validation"
        remedy = "Remove it, and set training.validate_every"
        yield Problem(("lr_scheduler", "frequency"), rule, remedy, id="scheduler-frequency")
    known = [(checkpoint.monitor, checkpoint.mode)]
    known += [(stopping.monitor or "val/loss", stopping.mode)] if stopping else []
    monitor = scheduler.monitor or next((name for name, _ in known if name), None)
    if monitor is None:
        rule = "ReduceLROnPlateau needs a metric, and there is no early stopping to take it from"
        remedy = "Set the name of a logged metric, as in val/loss"
        yield Problem(("lr_scheduler", "monitor"), rule, remedy, id="scheduler-monitor-missing")
        return
    mode = next((mode for name, mode in known if name == monitor and mode), "min")
    if scheduler.args.get("mode", "min") != mode and not monitor.endswith("/loss"):
        yield Problem(
            ("lr_scheduler", "args", "mode"),
            f"{monitor} is better when it is {_WORDS[mode]} according to other keys of this config",
            f"Set lr_scheduler.args.mode: {mode}",
            id="scheduler-mode",
        )


def _sharding_fits(config: Sections) -> Iterable[Problem]:
    shard, optimizer = config.scaling.shard, config.optimizer.type.rpartition(".")[2]
    if shard == "embeddings":
        yield from _row_sharding_fits(config, optimizer)
    elif shard != "none" and config.model.args.get("sparse_embeddings"):
        yield Problem(
            ("scaling", "shard"),
            "with model.args.sparse_embeddings only the rows that were read travel between workers",
            "Set it to embeddings, which shards these rows, or to none",
            id="shard-sparse-gradients",
        )
    if shard == "full" and optimizer in ("Adafactor", "Rprop"):
        rule = f"torch's {optimizer} does not work on parts of weights"
        remedy = "Set it to optimizer or none, or optimizer.type to Adam"
        yield Problem(("scaling", "shard"), rule, remedy, id="shard-optimizer")
    if shard == "full" and config.scaling.gradients == "ddp":
        rule = "with scaling.shard: full, the weights of a step have no gradient hooks"
        remedy = "Set it to flat, or scaling.shard to optimizer or none"
        yield Problem(("scaling", "gradients"), rule, remedy, id="shard-gradients")


def _row_sharding_fits(config: Sections, optimizer: str) -> Iterable[Problem]:
    reason, others = "scaling.shard is embeddings, and", "scaling.shard to none"
    if optimizer == "Adafactor":
        rule = f"{reason} Adafactor needs all rows of a weight, and a worker has only some"
        remedy = f"Set it to Adam, or {others}"
        yield Problem(("optimizer", "type"), rule, remedy, id="shard-rows-optimizer")
    if config.training.precision == "fp16-mixed":
        rule = f"{reason} gradients of rows may overflow on their owner alone"
        remedy = f"Set it to bf16-mixed or fp32, or {others}"
        yield Problem(("training", "precision"), rule, remedy, id="shard-rows-precision")
    if config.training.compile:
        rule = (
            f"{reason} each step fetches rows from other workers, which torch.compile cannot trace"
        )
        remedy = f"Set it to false, or {others}"
        yield Problem(("training", "compile"), rule, remedy, id="shard-rows-compile")
    if config.task.type == "self_supervised":
        rule = f"{reason} self_supervised trains nodes with features"
        yield Problem(("task", "type"), rule, f"Set {others}", id="shard-rows-task")


def _parts_suffice(config: Sections) -> Iterable[Problem]:
    if config.data.mode != "partitioned":
        return
    reason, in_memory = "data.mode is partitioned, and", "data.mode to in_memory"
    if config.task.type not in _TASKS_OF_SAMPLER:
        rule = f"{reason} trains one task: {', '.join(_TASKS_OF_SAMPLER)}"
        yield Problem(_task_key(config), rule, f"Set {in_memory}", id="partition-task")
    if not config.sampling.draws_neighbors:
        rule = f"{reason} parts answer raygnn's own sampling only"
        remedy = f"Remove it, or set {in_memory}"
        yield Problem(("sampling", "type"), rule, remedy, id="partition-sampler")
    if config.sampling.ppr is not None:
        rule = f"{reason} PageRank needs all edges in one process"
        remedy = f"Remove it, or set {in_memory}"
        yield Problem(("sampling", "ppr"), rule, remedy, id="partition-ppr")
    if config.tune is not None:
        rule = "trials of a sweep train in memory"
        remedy = "Set it to in_memory, and data.uri to the tables of the graph"
        yield Problem(("data", "mode"), rule, remedy, id="partition-sweep")


def _task_key(config: Sections) -> tuple[str, ...]:
    return ("tasks",) if config.tasks else ("task", "type")


def _tasks_fit(config: Sections) -> Iterable[Problem]:
    is_several = config.task.type == SEVERAL_TASKS
    if not config.tasks:
        if is_several:
            yield Problem(
                ("tasks",),
                "it names no task",
                "Set it as in {topics: {type: node_classification}, links: {type: "
                "link_prediction}}, or task.type to one task",
                id="tasks-none",
            )
        return
    if not is_several:
        rule = "a run has one task, or several under tasks"
        yield Problem(("task", "type"), rule, "Remove it, or tasks", id="tasks-and-task")
    if not sum(entry.weight for entry in config.tasks.values()):
        rule = "the weights of all tasks are 0, so nothing is trained"
        remedy = "Set the weight of a task to more than 0"
        yield Problem(("tasks",), rule, remedy, id="tasks-no-weight")
    for key in ("losses", "metrics"):
        if getattr(config, key):
            rule = "each task has its own"
            remedy = f"Move it to tasks.{next(iter(config.tasks))}.{key}"
            yield Problem((key,), rule, remedy, id="tasks-own-key")
    if config.training.loss_reduction == "sum":
        rule = "the losses of several tasks are summed as means, so that their weights compare them"
        remedy = "Set it to mean"
        yield Problem(("training", "loss_reduction"), rule, remedy, id="tasks-loss-reduction")
    if config.sampling.is_full:
        rule = "with several tasks, each step would compute the whole graph once per task"
        remedy = "Remove it, or train one task"
        yield Problem(("sampling", "type"), rule, remedy, id="tasks-full-graph")
    for name, entry in config.tasks.items():
        yield from _task_fits(config, name, entry)


def _task_fits(config: Sections, name: str, entry: TaskEntry) -> Iterable[Problem]:
    own = [other for other in SLOTS["task"].names if other != SEVERAL_TASKS]
    if entry.type == SEVERAL_TASKS or "." in entry.type:  # another name is of no component
        rule = "tasks that share an encoder must be raygnn's own"
        yield Problem(("tasks", name, "type"), rule, choose_from(entry.type, own), id="tasks-type")
    for key in INPUTS_OF_ENCODER & entry.args.keys():
        rule = "all tasks read what the encoder reads"
        remedy = f"Set task.args.{key} instead"
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
        yield Problem(
            place,
            f"the encoder has no layers for {', '.join(unread)}, as sampling.fanouts has zeros "
            "there",
            "Set zeros here too",
            id="tasks-edge-types",
        )


def _samples_suffice(config: Sections) -> Iterable[Problem]:
    if config.data.mode != "presampled":
        return
    in_memory = "data.mode to in_memory"
    if config.task.type not in _TASKS_OF_SAMPLER:
        rule = f"data.mode is presampled, and trains one task: {', '.join(_TASKS_OF_SAMPLER)}"
        yield Problem(_task_key(config), rule, f"Set {in_memory}", id="samples-task")
    if not config.sampling.draws_neighbors:
        rule = "data.mode is presampled, and only raygnn's own sampling can be stored"
        remedy = f"Remove it, or set {in_memory}"
        yield Problem(("sampling", "type"), rule, remedy, id="samples-sampler")
    if config.tune is not None:
        rule = "trials of a sweep must sample live, because they may vary the sampling"
        remedy = "Set it to in_memory, and data.samples to null"
        yield Problem(("data", "mode"), rule, remedy, id="samples-sweep")


def _space_exists(config: Sections) -> Iterable[Problem]:
    return () if config.tune is None else broken_space(config.tune, type(config))


def _trials_have_workers(config: Sections) -> Iterable[Problem]:
    if config.tune is not None and config.scaling.max_workers == 0:
        rule = "each trial of a sweep trains in workers of Ray Train"
        yield Problem(("scaling", "num_workers"), rule, "Set 1 or more", id="sweep-workers")


def _anchors_have_histories(config: Sections) -> Iterable[Problem]:
    splits = config.data.splits
    if splits is None or splits.type != "temporal" or splits.per is None:
        return
    if config.task.type != "link_prediction" or config.data.mode == "partitioned":
        rule = "it splits the links of each anchor, in link prediction on a graph in one part"
        yield Problem(("data", "splits", "per"), rule, "Remove it", id="split-per-anchor")


#: Arguments of all tasks that say what the encoder reads; with `tasks` they are under `task`.
INPUTS_OF_ENCODER = frozenset({"feature", "edge_feature", "edge_weight"})

_TASKS_OF_SAMPLER = ("node_classification", "link_prediction", "edge_prediction")

_WORDS = {"min": "less", "max": "more"}

_RULES: tuple[tuple[Rule, frozenset[str]], ...] = (
    (_batch_triple, frozenset({"loader", "training", "scaling", "sampling"})),
    (_layers_equal_hops, frozenset({"model", "sampling"})),
    (_sharding_fits, frozenset({"scaling", "model", "optimizer", "training", "task"})),
    (_plateau_has_monitor, frozenset({"lr_scheduler", "early_stopping", "checkpoint"})),
    (_parts_suffice, frozenset({"data", "task", "sampling", "training", "tune"})),
    (_tasks_fit, frozenset({"task", "tasks", "losses", "metrics", "sampling", "training"})),
    (_samples_suffice, frozenset({"data", "task", "sampling", "tune"})),
    (_anchors_have_histories, frozenset({"data", "task"})),
    (_space_exists, frozenset({"tune"})),
    (_trials_have_workers, frozenset({"tune", "scaling"})),
)


def broken_cross_rules(config: Sections) -> Iterable[Problem]:
    for rule, sections in _RULES:
        for problem in rule(config):
            yield replace(problem, needs=sections)
