"""Validated inference requests. Imports nothing heavy, because the driver builds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.extended_bundle import Addition
from raygnn.data.tables.read_ids import Ids, dense_ids
from raygnn.errors import ConfigError
from raygnn.inference.output_folder import OutputFolder
from raygnn.inference.seed_times import SeedTimes
from raygnn.loops.model_spec import ModelSpec
from raygnn.outputs.saved_model import SavedModel

if TYPE_CHECKING:
    from raygnn.data.links.supervision import SeedEdges
    from raygnn.sampling.loader import RowPlan
    from raygnn.sampling.parts import PartitionedGraph

WHAT = ("embeddings", "predictions", "probabilities")
Score = Literal["inner_product", "decoder"]
SCORES: tuple[Score, ...] = get_args(Score)


@dataclass(frozen=True)
class TableRequest:
    """A row for each node of some types, or for each edge of the type that a model predicts.

    Attributes:
        what: columns besides the ids; one of `WHAT`.
        node_types: one table each. Empty for edges.
        nodes: int64, distinct dense ids, ascending, by node type; None for all nodes.
        plan: rows of (node, time) of the only type, instead of nodes.
        edges: the edges; None for all of the type.
    """

    what: str
    node_types: tuple[str, ...]
    nodes: Mapping[str, np.ndarray] | None = None
    plan: RowPlan | None = None
    edges: SeedEdges | None = None

    @classmethod
    def of(
        cls, spec: ModelSpec, what: str | None, node_types: tuple[str, ...] = ()
    ) -> TableRequest:
        """Completes and validates a request. Raises a ConfigError if the model has no such output.

        Args:
            what: default: predictions for node and edge tasks, else embeddings.
            node_types: default: the task's: the predicted type, or both ends of links.
        """
        output = spec.output
        chosen = what or next(iter(output.predictions), "embeddings")
        if output.predicted_edges is not None and chosen != "embeddings":
            if node_types:
                raise ConfigError(
                    f"node_type={node_types[0]!r} is invalid: the model predicts edges. Leave it "
                    "out, or set what to embeddings. [infer-node-type-other]"
                )
            output.check_predicts(chosen, ())
            return cls(chosen, ())
        ConfigError.check_choice("what", chosen, WHAT, "unknown output", id="infer-what-unknown")
        wanted = node_types or tuple(dict.fromkeys(output.ends))
        for name in wanted:
            check_node_type(spec, name, "node_type")
        if chosen != "embeddings":
            output.check_predicts(chosen, wanted)
        return cls(chosen, wanted)

    def num_rows(self, bundle: Bundle, node_type: str) -> int:
        if self.plan is not None:
            return self.plan.rows.num_rows
        return bundle.num_nodes(node_type) if self.nodes is None else len(self.nodes[node_type])

    def of_new(self, addition: Addition, bundle: Bundle) -> Self:
        """The request for new nodes only. Raises a ConfigError without any of its types."""
        new = [name for name, number in addition.num_new.items() if number]
        wanted = tuple(name for name in self.node_types if name in new)
        if not wanted:
            raise ConfigError(
                f"--new-nodes is invalid: it has no nodes of type {' or '.join(self.node_types)}. "
                f"Set --node-type to one of: {', '.join(new)}. [append-no-nodes]"
            )
        first = {name: bundle.num_nodes(name) for name in wanted}
        nodes = {name: first[name] + np.arange(addition.num_new[name]) for name in wanted}
        return replace(self, node_types=wanted, nodes=nodes)

    @property
    def takes_all(self) -> bool:
        """Whether all nodes of some types are encoded."""
        return self.nodes is None and self.plan is None and bool(self.node_types)


class TopKOptions(BaseModel):
    """Options of top-k, for the command line, Python, and server requests."""

    model_config = ConfigDict(extra="forbid")

    edge_type: str | None = Field(
        None, description="src__rel__dst: the relation to score, one that the model knows"
    )
    anchor_type: str | None = Field(
        None, description="node type of the anchors (default: the task's)"
    )
    target_type: str | None = Field(
        None, description="node type of the neighbors (default: the task's)"
    )
    filter_known: bool = Field(
        False, description="leave out targets that the anchor already links to at that time"
    )
    score: Score | None = Field(
        None,
        description=f"{' or '.join(SCORES)} (default: decoder with an edge type or edge labels)",
    )
    columns: tuple[str, ...] = Field(
        (), description="more columns of the neighbors' table to write, such as a title"
    )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Validates options by name. Raises a ConfigError for unknown or invalid ones."""
        try:
            return cls(**options)
        except ValidationError as error:
            check_score_name(options.get("score") or SCORES[0])
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise ConfigError(
                f"{name}={first['input']!r} is invalid: {first['msg']}. The options are: "
                f"{', '.join(cls.model_fields)}. [infer-top-k-option]"
            ) from error

    def ends(self, spec: ModelSpec) -> tuple[str, str]:
        """Node types of anchors and targets. Raises a ConfigError if the model does not embed them
        or `edge_type` differs.
        """
        task_ends = spec.output.ends
        ends = (self.anchor_type or task_ends[0], self.target_type or task_ends[1])
        options = ("anchor_type", "targets")
        for name, fixed, option in zip(ends, task_ends, options, strict=True):
            check_node_type(spec, name, option)
            if self.edge_type is not None and name != fixed:
                raise ConfigError(
                    f"{option}={name!r} is invalid: links of {self.edge_type} lead from "
                    f"{task_ends[0]!r} to {task_ends[1]!r}. Leave it out. [infer-node-type-fixed]"
                )
        return ends


@dataclass(frozen=True)
class TopKRequest:
    """The best-scored targets of each anchor.

    Attributes:
        anchors: int64, dense ids, distinct unless there are `rows`.
        filter_known: edge types whose links are excluded; with times, only earlier links.
        relation: number of the model's relation; None if not chosen.
        columns: `id` and further columns of the targets' table.
        rows: of anchors, each ranked as of its time; None for anchors as of the moment.
    """

    k: int
    anchors: np.ndarray
    anchor_type: str
    target_type: str
    filter_known: tuple[EdgeType, ...] = ()
    score: Score = "inner_product"
    relation: int | None = None
    columns: pa.Table | None = None
    rows: SeedRows | None = None

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        bundle: Bundle,
        k: int,
        anchors: Ids,
        options: TopKOptions,
        read_columns: Callable[[str, tuple[str, ...]], pa.Table] | None,
    ) -> TopKRequest:
        """Completes and validates a request. Raises a ConfigError if the model has no such output,
        a DataError if an anchor is not in the graph.

        `read_columns` reads columns of a node table; None for a graph without tables.
        """
        edge_type = options.edge_type
        relation = None if edge_type is None else relation_of(spec, edge_type)
        anchor, target = options.ends(spec)
        score = options.score or (None if relation is None else "decoder")
        if relation is None and (anchor, target) != spec.output.ends:
            score = score or "inner_product"
        request = cls(
            k,
            dense_ids(bundle, anchor, anchors, "--anchors"),
            anchor,
            target,
            known_types(spec, bundle, anchor, target, relation) if options.filter_known else (),
            find_score(spec, score, relation),
            relation,
            None if not options.columns else _columns(read_columns, target, options.columns),
        )
        check_k(k, bundle, anchor, target)
        return request

    @property
    def node_types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.anchor_type, self.target_type)))

    @property
    def takes_all(self) -> bool:
        return self.rows is None


def _columns(
    read: Callable[[str, tuple[str, ...]], pa.Table] | None, node_type: str, names: tuple[str, ...]
) -> pa.Table:
    if read is None:
        rule, remedy = "the graph did not come from tables", "Leave them out"
        raise ConfigError.invalid(
            "columns", list(names), rule, remedy, id="infer-columns-no-tables"
        )
    return read(node_type, names)


@dataclass(frozen=True)
class OutputOptions:
    """Options of the tables to write.

    Attributes:
        is_file: the only table becomes one file.
        rows_per_file: sampled embeddings round it up to whole batches.
        chunk_size: rows on the device at a time in exact encoding.
    """

    uri: str
    is_file: bool = False
    overwrite: bool = False
    rows_per_file: int = 65_536
    chunk_size: int = 30_000

    def check(self) -> None:
        for option, value in (
            ("--rows-per-file", self.rows_per_file),
            ("--chunk-size", self.chunk_size),
        ):
            if value < 1:
                raise ConfigError(
                    f"{option}={value!r} is invalid: below 1. Set 1 or more. [infer-scaling]"
                )


@dataclass(frozen=True)
class InferenceJob:
    """The job of every worker. Crosses process boundaries.

    Attributes:
        times: encoding times of nodes and edges; None for a model without times.
        parts: of a partitioned graph, whose outline is the bundle.
    """

    model: SavedModel
    bundle_path: str
    request: TableRequest | TopKRequest
    times: SeedTimes | None
    output: OutputFolder
    options: OutputOptions
    parts: PartitionedGraph | None = None
    addition: Addition | None = None


def check_no_new_nodes(new_nodes: object) -> None:
    """Raises a ConfigError if predictions of edges are requested for new nodes."""
    if new_nodes is not None:
        raise ConfigError(
            f"new_nodes={str(new_nodes)!r} is invalid: new nodes have no edges to predict. Set "
            "what to embeddings, or write edges. [infer-new-nodes-edges]"
        )


def relation_of(spec: ModelSpec, name: str) -> int:
    """The number of a model's relation `src__rel__dst`. Raises a ConfigError for others."""
    links = spec.output.links
    if not links:
        raise ConfigError(
            f"--edge-type={name!r}: the model predicts labels. Remove it. [infer-edge-type-unused]"
        )
    names = [edge_type_name(edge_type) for edge_type in links]
    if name not in names:
        raise ConfigError(
            f"--edge-type={name!r} is invalid: the model was not trained on such links. Set one "
            f"of: {_listed(links)}. [infer-edge-type-unknown]"
        )
    return names.index(name)


def check_k(k: int, bundle: Bundle, anchor_type: str, target_type: str) -> None:
    """Raises a ConfigError unless an anchor has k targets."""
    is_same = anchor_type == target_type
    num_candidates = bundle.num_nodes(target_type) - is_same
    if not 1 <= k <= num_candidates:
        others = "other " if is_same else ""
        raise ConfigError(
            f"--top-k={k!r} is invalid: there are {num_candidates:,} {others}nodes of type "
            f"{target_type!r}. Set at least 1 and at most this number. [infer-top-k]"
        )


def check_score_name(score: object) -> None:
    ConfigError.check_choice("--score", score, SCORES, "unknown score", id="infer-score-unknown")


def find_score(spec: ModelSpec, score: str | None, relation: int | None) -> Score:
    """The score to compute: default the predicted number of a model of edges, else the inner
    product. Raises a ConfigError if the model does not have it, or only with a relation.
    """
    links, is_edges = spec.output.links, spec.output.predicted_edges is not None
    chosen = score or ("decoder" if is_edges else "inner_product")
    check_score_name(chosen)
    if chosen == "inner_product":
        return "inner_product"
    if is_edges and not spec.output.is_score:
        raise ConfigError(
            f"--score={score!r} is invalid: the model predicts no number for each pair of nodes. "
            "Predict the edges, or set inner_product, which is untrained. [infer-score-edges]"
        )
    if not links and not is_edges:
        raise ConfigError(
            "--score='decoder': the model has none. Set inner_product. [infer-score-no-decoder]"
        )
    if relation is None and len(links) > 1:
        raise ConfigError(
            "--score='decoder' is invalid: it differs between the edge types of the links. Set "
            f"--edge-type to one of: {_listed(links)}. [infer-score-edge-type]"
        )
    return "decoder"


def known_types(
    spec: ModelSpec, bundle: Bundle, anchor_type: str, target_type: str, relation: int | None = None
) -> tuple[EdgeType, ...]:
    """Edge types whose links are known: the task's (of `relation`, if given), else all between the
    two types. Raises a ConfigError without any.
    """
    labels = [edges.edge_type for edges in bundle.label_edges if edges.sign == "positive"]
    every = dict.fromkeys([*bundle.edge_types, *labels])
    between = tuple(t for t in every if (t[0], t[2]) == (anchor_type, target_type))
    task_links = spec.output.links
    task_links = task_links if relation is None else (task_links[relation],)
    known = tuple(t for t in task_links if t in between)
    if not between or (relation is not None and not known):
        what = "edges" if relation is None else f"{edge_type_name(task_links[0])} links"
        raise ConfigError(
            f"--filter-known is invalid: the graph has no {what} from {anchor_type!r} to "
            f"{target_type!r}. Leave it out. [infer-filter-known]"
        )
    return known or between


def check_node_type(spec: ModelSpec, name: str, option: str) -> None:
    """Raises a ConfigError unless a model embeds a node type."""
    known, rule = spec.node_types, "the model does not know this node type"
    ConfigError.check_choice(option, name, known, rule, id="infer-node-type-unknown")


def _listed(links: Sequence[EdgeType]) -> str:
    names = [edge_type_name(edge_type) for edge_type in links]
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if names[10:] else "")
