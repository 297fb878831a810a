"""The sections about batches: sampling and loader, and the arithmetic of batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from raygnn.config.section import NonEmptyText, PositiveWhole, Rule, Section, Whole
from raygnn.errors import Problem, RuleError

PositiveNumber = Annotated[int, Field(gt=0)] | Annotated[float, Field(gt=0)]
#: A duration for dates, or a number for plain numbers.
Window = Annotated[str, Field(pattern=r"^\d+(\.\d+)?[smhdw]$")] | PositiveNumber


def _check_fanout(fanout: int, least: int = 1, all: str = "all") -> int:
    if fanout != -1 and fanout < least:
        rule, remedy = "a fanout is a number of neighbors", f"Set {least} or more, or -1 for {all}"
        raise RuleError(rule, remedy, id="sampling-fanout")
    return fanout


_check_fanout_of_type = partial(_check_fanout, least=0, all="all of this edge type")


#: The key of `sampling.fanouts` for all edge types that the map does not name.
REST = "default"

#: Fanouts without a config.
DEFAULT_FANOUTS = [15, 10]


def _check_fanouts_key(name: str) -> str:
    return name if name == REST else _check_edge_type_name(name)


def _check_edge_type_name(name: str) -> str:
    if len(name.split("__")) != 3 or not all(name.split("__")):
        rule, remedy = "it is not an edge type", "Set source__relation__destination"
        raise RuleError(rule, remedy, id="graph-edge-type-name")
    return name


EdgeTypeName = Annotated[str, AfterValidator(_check_edge_type_name)]


def _fanouts_kind(value: Any) -> str:
    return "by edge type" if isinstance(value, dict) else "for all edge types"


Fanouts = Annotated[list[Annotated[Whole, AfterValidator(_check_fanout)]], Field(min_length=1)]

FanoutsOfType = Annotated[
    list[Annotated[Whole, AfterValidator(_check_fanout_of_type)]], Field(min_length=1)
]

FanoutsSetting = Annotated[
    Annotated[Fanouts, Tag("for all edge types")]
    | Annotated[
        Annotated[
            dict[Annotated[str, AfterValidator(_check_fanouts_key)], FanoutsOfType],
            Field(min_length=1),
        ],
        Tag("by edge type"),
    ],
    Discriminator(_fanouts_kind),
]


def fanouts_by_type(fanouts: Any) -> dict[str, list[int]]:
    """Fanouts as a map, in which `REST` means all edge types that it does not name."""
    return fanouts if isinstance(fanouts, dict) else {REST: fanouts}


def fanouts_of(fanouts: Any, name: str) -> list[int]:
    """Fanouts of an edge type, one number per hop."""
    every = fanouts_by_type(fanouts)
    return list(every.get(name, every.get(REST, DEFAULT_FANOUTS)))


def num_hops(fanouts: Any) -> int:
    return len(next(iter(fanouts_by_type(fanouts).values())))


def with_fanouts(config: Any, change: Callable[[list[int]], list[int]]) -> Any:
    every = {REST: DEFAULT_FANOUTS} | fanouts_by_type(config.sampling.fanouts)
    changed: Any = {name: change(hops) for name, hops in every.items()}
    if not isinstance(config.sampling.fanouts, dict):  # a sampler of the user's may take a list
        changed = changed[REST]
    sampling = config.sampling.model_copy(update={"fanouts": changed})
    return config.model_copy(update={"sampling": sampling})


def overridden_fanouts(fanouts: Any, own: Any) -> Any:
    """The fanouts of a task: a map overrides those of single edge types."""
    return fanouts_by_type(fanouts) | own if isinstance(own, dict) else own


class TemporalSampling(Section):
    """Samples only neighbors that are not later than their seed.

    Attributes:
        column: Time column of edge types and node types; types without it are always sampled. Seeds
            have the time of their node.
        strategy: Draw among the neighbors up to then, or take the latest.
        window: Leaves out edges that are older than the seed by more than this: a duration such as
            90d (s, m, h, d, w), or a number if the times are plain numbers. null: any age.
        until: Ends the graph for the rows of a training table in a split: date or number by split,
            such as {test: 2010-01-01}. Rows see nothing later, even if their own time is. To learn
            from old data, half of the training rows see a graph as much older than themselves as it
            is for rows of these splits.
    """

    column: NonEmptyText = "time"
    strategy: Literal["uniform", "last"] = "uniform"
    window: Window | None = None
    until: dict[Literal["val", "test"], str | int | float] = Field(default={})


class PprSampling(Section):
    """Uses the nodes of highest personalized PageRank as the neighbors of a node.

    Attributes:
        top_k: Maximum number of neighbors of a node.
        alpha: Probability that a walk restarts from its node at each step; a smaller one reaches
            further.
        epsilon: Precision: the PageRank falls short by at most this for each edge of a neighbor.
            Ten times smaller takes up to ten times as long.
    """

    top_k: PositiveWhole = 32
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.25
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 1e-4


class Sampling(Section):
    """The sampled neighborhood of a batch.

    Attributes:
        fanouts: Neighbors per hop, the hop next to the seed first; -1 is all. A map sets them for
            single edge types (`src__rel__dst`), where 0 samples none; its key `default` sets the
            others ([15, 10] if missing). On the whole graph, only zeros and the number of hops
            matter, which is the number of layers of a model without `num_layers`.
        weight: Edge column to draw neighbors in proportion to; an edge of weight 0 is never drawn.
            Edge types without the column draw uniformly.
        temporal: Sample no neighbor that is later than the seed.
        ppr: Use neighbors by personalized PageRank instead of the edges: each node has in-edges
            from its `top_k`, for fanouts, `weight: ppr` and exact evaluation.
        disjoint: Sample a separate neighborhood for each seed: a node near several seeds is in the
            batch once for each. Outside training, the sample of a seed then does not depend on its
            batch. For tasks of nodes, not of links.
        type: Null samples the neighbors of each node independently. With `labor`, all nodes of a
            hop share one random number per neighbor, for batches with fewer nodes (layer-neighbor
            sampling). `full` computes each step on the whole graph, for all training seeds.
    """

    fanouts: FanoutsSetting = DEFAULT_FANOUTS
    weight: NonEmptyText | None = None
    temporal: TemporalSampling | None = None
    ppr: PprSampling | None = None
    disjoint: bool = False
    type: Literal["labor", "full"] | None = None

    # fmt: off
    rules = (
        Rule("sampling-last-draws-nothing", "weight type",
             lambda s: s.takes_latest and not s.is_full,
             "sampling.temporal.strategy is last, which draws nothing",
             "Remove it, or set the strategy to uniform"),
        Rule("sampling-labor-weight", "weight", lambda s: s.is_labor,
             "sampling.type is labor, which draws uniformly", "Remove it, or sampling.type"),
        Rule("sampling-full-draws-nothing", "disjoint temporal weight", lambda s: s.is_full,
             "sampling.type is full, which takes all edges", "Remove it, or sampling.type"),
        Rule("sampling-ppr-temporal", "temporal", lambda s: s.ppr,
             "sampling.ppr counts walks over edges of all times", "Remove one of the two"),
    )
    # fmt: on

    @property
    def takes_latest(self) -> bool:
        """Whether the latest neighbors are taken, so that nothing is drawn."""
        return self.temporal is not None and self.temporal.strategy == "last"

    @property
    def is_full(self) -> bool:
        return self.type == "full"

    @property
    def is_labor(self) -> bool:
        """Whether all nodes of a hop share one random number per neighbor."""
        return self.type == "labor"

    @property
    def num_hops(self) -> int:
        """Number of hops, which is also the number of layers."""
        return num_hops(self.fanouts)

    def broken_rules(self) -> Iterable[Problem]:
        lengths = {len(fanouts) for fanouts in fanouts_by_type(self.fanouts).values()}
        if len(lengths) > 1:
            rule = f"edge types differ in their number of hops: {sorted(lengths)}"
            yield Problem(("fanouts",), rule, "Set lists of one length", id="sampling-hops")


class TrainLoader(Section):
    """Settings of the training split that differ; its batch size is `loader.batch_size`.

    Attributes:
        num_threads: Sampler threads per worker.
        prefetch_batches: Batches made ahead.
    """

    num_threads: PositiveWhole | None = None
    prefetch_batches: PositiveWhole | None = None


class SplitLoader(TrainLoader):
    """Settings of one split that differ from `loader`; null uses `loader`.

    Attributes:
        batch_size: Seeds per batch and worker.
    """

    batch_size: PositiveWhole | None = None


class Loader(Section):
    """Options of the data loaders.

    Attributes:
        batch_size: Seeds per micro-batch and worker; null derives it from
            `training.global_batch_size`.
        eval_batch_size: Seeds per batch in validation and test; null is as in training.
        num_threads: Sampler threads per worker, besides training; null on a GPU is three quarters
            of the cores divided by the node's workers. On a CPU it is one, or, if training keeps
            all cores busy, as many as torch has, which then take turns with training.
        prefetch_batches: Batches made ahead, per worker; null is one per sampler thread, or two if
            they take turns with training, and one more in all on a GPU.
        train: Settings that differ for training.
        val: Settings that differ for validation.
        test: Settings that differ for the test.
    """

    batch_size: PositiveWhole | None = 1024
    eval_batch_size: PositiveWhole | None = None
    num_threads: PositiveWhole | None = None
    prefetch_batches: PositiveWhole | None = None
    train: TrainLoader | None = None
    val: SplitLoader | None = None
    test: SplitLoader | None = None


@dataclass(frozen=True)
class LoaderPlan:
    """Resolved settings of the loader of one split."""

    batch_size: int
    num_threads: int | None
    prefetch_batches: int | None


def plan_loader(loader: Loader, split: str, train_batch_size: int) -> LoaderPlan:
    """Resolves the loader settings of a split: its own, those of evaluation, common ones."""
    special: TrainLoader | None = getattr(loader, split)
    batch_size = train_batch_size
    if split != "train":
        batch_size = loader.eval_batch_size or train_batch_size
    if isinstance(special, SplitLoader):
        batch_size = special.batch_size or batch_size
    return LoaderPlan(
        batch_size,
        (special and special.num_threads) or loader.num_threads,
        (special and special.prefetch_batches) or loader.prefetch_batches,
    )


@dataclass(frozen=True)
class BatchPlan:
    """Numbers of seeds per micro-batch and step.

    Attributes:
        batch_size: seeds of one micro-batch on one worker.
        accumulate: micro-batches of each worker in one optimizer step.
        world_size: maximum number of workers.
    """

    batch_size: int
    accumulate: int
    world_size: int
    global_batch_size: int

    @property
    def num_micro_batches(self) -> int:
        return self.accumulate * self.world_size


def plan_batches(
    batch_size: int | None, accumulate: int | None, workers: int, global_batch_size: int | None
) -> BatchPlan:
    """Completes the consistent triple of batch sizes. `workers`: of the run, at least one."""
    if global_batch_size is None:
        assert batch_size is not None
        accumulate = accumulate or 1
        return BatchPlan(batch_size, accumulate, workers, batch_size * workers * accumulate)
    if batch_size is None:
        accumulate = accumulate or 1
        batch_size = global_batch_size // (workers * accumulate)
    if accumulate is None:
        accumulate = global_batch_size // (workers * batch_size)
    return BatchPlan(batch_size, accumulate, workers, global_batch_size)


def broken_batch_rules(
    batch_size: int | None, accumulate: int | None, workers: int, global_batch_size: int | None
) -> Iterable[Problem]:
    if global_batch_size is None:
        if batch_size is None:
            rule, remedy = "it is null", "Set loader.batch_size or training.global_batch_size"
            yield Problem(("loader", "batch_size"), rule, remedy, id="config-batch-size")
        return
    plan = plan_batches(batch_size, accumulate, workers, global_batch_size)
    product = plan.batch_size * plan.num_micro_batches
    if product == global_batch_size:
        return
    if batch_size is not None and accumulate is not None:
        rule = f"batch_size {batch_size} x {workers} workers x {accumulate} batches = {product}"
        remedy = f"Set it to {product}, or only two of the three"
    else:
        known = f"batch_size {batch_size}" if batch_size else f"{accumulate or 1} batches"
        unit = (batch_size or accumulate or 1) * workers
        nearest = max(round(global_batch_size / unit), 1) * unit
        rule = f"{global_batch_size} is not a multiple of {known} x {workers} workers = {unit}"
        derived = ", or loader.batch_size: null to derive it" if batch_size else ""
        remedy = f"Set a multiple of {unit}, as {nearest}{derived}"
    yield Problem(("training", "global_batch_size"), rule, remedy, id="config-batch-size")
