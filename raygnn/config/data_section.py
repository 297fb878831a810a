"""The sections about the input: data and splits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from raygnn.config.loader_section import EdgeTypeName
from raygnn.config.section import (
    Component,
    NonEmptyText,
    NonNegativeWhole,
    PositiveWhole,
    Rule,
    Section,
    Seed,
)
from raygnn.errors import Problem, RuleError

_SUM_TOLERANCE = 1e-6  # fractions are written with few decimals, and summed in binary


class HashSplit(Section):
    """Random by a hash of (seed, id): a node or link keeps its split when the graph grows.

    Attributes:
        type: Random by a hash of (seed, id).
        fractions: Shares of train, val and test; they sum to 1.
        seed: Seed; null uses the config's.
    """

    type: Literal["hash"]
    fractions: Annotated[
        list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=3, max_length=3)
    ] = Field(default=[0.8, 0.1, 0.1])
    seed: Seed | None = None

    def broken_rules(self) -> Iterable[Problem]:
        total = sum(self.fractions)
        if abs(total - 1) > _SUM_TOLERANCE:
            rule, remedy = f"the sum is {total:g}, not 1", "Set shares as [0.8, 0.1, 0.1]"
            yield Problem(("fractions",), rule, remedy, id="split-fractions")
        elif self.fractions[0] == 0:
            yield Problem(("fractions",), "the first is 0", "Raise it", id="split-no-training")


class PerClassSplit(Section):
    """A fixed number of nodes of each class for train and val, the rest for test.

    Attributes:
        type: A fixed number of nodes of each class.
        train: Training nodes of each class.
        val: Validation nodes of each class.
        seed: Seed; null uses the config's.
    """

    type: Literal["per_class"]
    train: PositiveWhole = 20
    val: NonNegativeWhole = 30
    seed: Seed | None = None


def _check_timestamp(value: Any) -> Any:
    is_date = isinstance(value, str) and _is_iso_date(value)
    if not is_date and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise RuleError("it is not a time", "Set a date or a number", id="split-timestamp")
    return value


def _is_iso_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


Timestamp = Annotated[
    Any, AfterValidator(_check_timestamp), WithJsonSchema({"type": ["number", "string"]})
]


class TemporalSplit(Section):
    """Splits by time: the oldest nodes or links for train, the newest for test.

    Attributes:
        type: By the time column of the nodes or links.
        quantiles: Quantiles of time at which val and test begin; without timestamps [0.8, 0.9].
        timestamps: Times at which val and test begin: dates, or numbers if the column has numbers.
        per: anchor takes the quantiles of each anchor's own links, in link prediction.
    """

    type: Literal["temporal"]
    quantiles: (
        Annotated[list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=2, max_length=2)]
        | None
    ) = None
    timestamps: Annotated[list[Timestamp], Field(min_length=2, max_length=2)] | None = None
    per: Literal["anchor"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_quantiles(cls, value: Any) -> Any:
        is_open = isinstance(value, dict) and not {"quantiles", "timestamps"} & {
            key for key, given in value.items() if given is not None
        }
        return {**value, "quantiles": [0.8, 0.9]} if is_open else value

    def broken_rules(self) -> Iterable[Problem]:
        if self.quantiles is not None and self.timestamps is not None:
            rule = "timestamps set where val and test begin too"
            yield Problem(("quantiles",), rule, "Remove one of them", id="split-bounds-source")
        if self.timestamps is not None and self.per is not None:
            rule = "timestamps are equal for all anchors"
            yield Problem(("per",), rule, "Remove it, or set quantiles", id="split-per-anchor")
        if self.timestamps is not None and len({isinstance(t, str) for t in self.timestamps}) > 1:
            rule, remedy = "one is a date and one is a number", "Set two of one kind"
            yield Problem(("timestamps",), rule, remedy, id="split-bounds-kinds")
            return
        for name, bounds in (
            ("quantiles", self.quantiles),
            ("timestamps", [_comparable(t) for t in self.timestamps or ()]),
        ):
            if bounds and bounds[0] > bounds[1]:
                rule, remedy = "test would begin before val", "Set them in ascending order"
                yield Problem((name,), rule, remedy, id="split-bounds-order")


def _comparable(time: int | float | str) -> float:
    if not isinstance(time, str):
        return time
    date = datetime.fromisoformat(time)
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


SplitRule = Annotated[HashSplit | PerClassSplit | TemporalSplit, Field(discriminator="type")]


class Synthetic(Section):
    """A graph generated in the job; the other keys are the generator's arguments.

    Attributes:
        type: Generator; its arguments are the other keys of the section.
    """

    model_config = ConfigDict(extra="allow")

    type: Literal["planted_partition", "rmat", "shop", "houses", "ratings", "likes", "noise"]

    @property
    def args(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


#: Keys of `data` that name inputs, outputs and caches. A saved model never sets them.
PLACES = (
    *("mode", "uri", "samples", "synthetic", "type", "args", "cache_dir", "cache_bytes"),
    *("allow_outside", "device_features"),
)


ReverseEdges = Annotated[
    Annotated[bool, Tag("all or none")]
    | Annotated[list[EdgeTypeName], Field(min_length=1), Tag("left out")],
    Discriminator(lambda value: "left out" if isinstance(value, list) else "all or none"),
]


class Data(Section):
    """The source of the graph: uri, synthetic or type; none of them with `fit(data=...)`.

    Attributes:
        uri: Folder or URI of a graph (graph.yaml).
        synthetic: A graph generated in the job.
        type: Dotted path of a class or function that returns a PyG Data or HeteroData; its module,
            also PyG's own, needs --allow-module, because such classes unpickle files.
        args: Arguments of `type`.
        allow_outside: Folders or URIs outside the graph's folder from which graph.yaml may name
            files.
        mode: in_memory: each node of the cluster maps the whole graph. partitioned: `uri` is a
            folder written by raygnn.partition, and an actor for each part answers the workers.
            presampled: as in_memory, with neighborhoods from `samples`.
        samples: With `mode: presampled`, folder or URI written by raygnn.presample.
        cache_bytes: With `mode: partitioned`, bytes of features that each node of the cluster keeps
            in `cache_dir` for its workers, for the nodes of other parts with the most outgoing
            edges; 0 keeps none.
        cache_dir: Cache of ingested graphs; null is $RAYGNN_CACHE_DIR or ~/.cache/raygnn.
        on_error: Treatment of bad rows: fail, or drop and log how many.
        undirected: Add the reverse of each edge within one node type.
        reverse_edges: Add an edge type (d, rev_r, s) for each directed edge type (s, r, d), so that
            messages flow both ways; null adds it where no edge type leads from d to s. A list of
            edge types (`src__rel__dst`) excludes these from what null adds.
        splits: Splits of nodes or links; null uses the split column of the tables.
        feature_dtype: How features are stored; null keeps the tables' type.
        device_features: Whether a GPU holds the features, as stored, and gathers the rows of a
            batch itself. auto does if they take a third of its free memory at most; a CPU and a
            partitioned graph never do.
        standardize: Scale each element of dense features to a mean of 0 and a standard deviation of
            1; flags, words and shares (0 or 1, or between them and often 0) are not scaled.
    """

    uri: NonEmptyText | None = None
    synthetic: Synthetic | None = None
    type: NonEmptyText | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    allow_outside: list[NonEmptyText] = Field(default_factory=list)
    mode: Literal["in_memory", "partitioned", "presampled"] = "in_memory"
    samples: NonEmptyText | None = None
    cache_bytes: NonNegativeWhole = 512 << 20
    cache_dir: NonEmptyText | None = None
    on_error: Literal["fail", "drop"] = "fail"
    undirected: bool = False
    reverse_edges: ReverseEdges | None = None
    splits: SplitRule | None = None
    feature_dtype: Literal["float32", "float16", "bfloat16"] | None = None

    device_features: bool | Literal["auto"] = "auto"
    standardize: bool = True

    # fmt: off
    rules = (
        Rule("partition-written", "on_error undirected reverse_edges feature_dtype allow_outside",
             lambda data: data.mode == "partitioned",
             "it has no effect on a graph that is already partitioned",
             "Remove it, or pass it to raygnn.partition"),
        Rule("data-arguments-alone", "args", lambda data: data.type is None,
             "they are arguments of data.type, which is not set", "Set it"),
    )
    # fmt: on

    @property
    def names_a_graph(self) -> bool:
        return bool(self.uri or self.synthetic or self.type)

    @property
    def component(self) -> Component | None:
        return None if self.type is None else Component(type=self.type, args=self.args)

    def broken_rules(self) -> Iterable[Problem]:
        sources = [name for name in ("uri", "synthetic", "type") if getattr(self, name) is not None]
        if len(sources) > 1:
            rule = f"data.{sources[0]} is set too, and a run has one source"
            remedy = f"Set the other one to null, or delete it (--data.{sources[0]}!)"
            yield Problem((sources[1],), rule, remedy, id="data-source-twice")
        if self.mode == "partitioned" and self.uri is None:
            rule, remedy = "data.mode is partitioned", "Set a folder written by raygnn.partition"
            yield Problem(("uri",), rule, remedy, id="partition-uri")
        if (self.mode == "presampled") != (self.samples is not None):
            rule = f"data.mode is {self.mode}, and neighborhoods are only read with presampled"
            remedy = "Set both, samples to a folder written by raygnn.presample, or neither"
            yield Problem(("samples",), rule, remedy, id="samples-mode")
