"""The target of link prediction: links, their splits, and their candidates."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt

from raygnn.config import Config
from raygnn.config.registry import SLOTS
from raygnn.config.section import Component, Rule
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType, edge_type_name, parse_edge_type
from raygnn.data.fit_rows import FitRows
from raygnn.data.links.split import LinkSplit, find_label_edges, time_unit_of
from raygnn.data.links.supervision import KnownLinks, SupervisionEdges, known_positives
from raygnn.data.links.supervision import make_supervision as split_links
from raygnn.data.partition.part import Pairs
from raygnn.data.time_units import check_time_units, time_unit, window_as_time
from raygnn.errors import ConfigError, DataError, RuleError
from raygnn.loops.model_spec import Output
from raygnn.loops.tasks.link_rules import (
    SAMPLER_RULES,
    forward_types,
    reverse_types,
    split_rule,
    with_reverses,
)
from raygnn.loops.tasks.target import TaskArguments, TaskTarget
from raygnn.models.graph_inputs import keeps_links
from raygnn.recommender.known_links import LinkHistory


@dataclass(frozen=True)
class LinkOutput(Output):
    """The links that a model scores.

    Attributes:
        edge_types: learned relations in the decoder's order, all between the same node types.
        labels: links are label edges instead of message edges.
        factors: a linear recommender ranks beside the encoder.
        by_time: links are rows of (anchor, time, targets).
    """

    key = "links"

    edge_types: tuple[EdgeType, ...]
    labels: bool = False
    factors: bool = False
    by_time: bool = False

    @property
    def ends(self) -> tuple[str, str]:
        anchor, _, target = self.edge_types[0]
        return anchor, target

    @property
    def links(self) -> tuple[EdgeType, ...]:
        return self.edge_types

    def check_predicts(self, what: str, node_types: Sequence[str]) -> None:
        raise ConfigError(
            f"what={what!r} is invalid: the model predicts links, not labels. Set embeddings, or "
            "ask for the top-k neighbors of anchors. [infer-what-links]"
        )

    def to_content(self) -> Mapping[str, Any]:
        return {**super().to_content(), "edge_types": [edge_type_name(t) for t in self.edge_types]}

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> Self:
        edge_types = [parse_edge_type(name) for name in content["edge_types"]]
        return super().of_content({**content, "edge_types": edge_types})


_INNER_PRODUCT = Component(type="inner_product")
#: Losses of scores alone: others would read the recommender's rows in evaluation.
_SCORE_LOSSES = {"retrieval", "softmax", "margin", "bpr", "link_binary_cross_entropy"}


def _check_ks(value: bool | list[int] | None) -> bool | list[int] | None:
    if not isinstance(value, bool | None) and not (value and min(value) > 0):
        rule = "it is true, false, or the k of hits, recall and NDCG"
        raise RuleError(rule, "Set a list as [10, 20]", id="task-full-ranking")
    return value


class LinkTargetArguments(TaskArguments):
    task = "link_prediction"

    edge_type: str | list[str] | None = None
    labels: bool = False
    decoder: Component = _INNER_PRODUCT
    num_random_negatives: NonNegativeInt | Literal["all"] = 512
    num_random_negatives_eval: PositiveInt = 512
    negatives: Literal["uniform", "degree"] = "uniform"
    seeds: Literal["links", "anchors"] = "links"
    max_labels_per_anchor: PositiveInt | None = None
    remove_accidental_hits: bool = True
    logq_correction: bool | None = None
    cold_share: Annotated[float, Field(ge=0, lt=1)] | None = None
    disjoint_train_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    test_messages: Literal["transductive", "inductive"] = "transductive"
    full_ranking: Annotated[bool | list[int] | None, AfterValidator(_check_ks)] = None

    # fmt: off
    rules = (
        Rule("task-all-negatives", "num_random_negatives",
             lambda args: args.competes_with_all
             and (args.logq_correction or args.negatives != "uniform"),
             "nothing is drawn, so task.args.negatives and task.args.logq_correction change "
             "nothing",
             "Leave these out, or set a number"),
    )
    # fmt: on

    @property
    def competes_with_all(self) -> bool:
        """Whether a training link competes with all nodes of the target type."""
        return self.num_random_negatives == "all"


@dataclass(frozen=True)
class LinkTarget(TaskTarget):
    """The links of a task and their splits.

    Attributes:
        links: link splits for `message_graph`, one for each pair of reverse types.
        has_own_messages: a training batch's links are among its messages, as raygnn's model
            declares; unknown for a user's own.
    """

    Arguments = LinkTargetArguments
    output_class = LinkOutput
    default_metrics = MappingProxyType({"link_prediction": ("mrr", "hits", "auc", "ap")})
    own_metrics = ("full_",)

    arguments: LinkTargetArguments
    output: LinkOutput
    links: tuple[LinkSplit, ...]
    splits: dict[str, SupervisionEdges]
    reverse_types: dict[EdgeType, EdgeType]
    has_own_messages: bool = False
    # fmt: off
    rules: ClassVar[tuple[Rule, ...]] = (
        *SAMPLER_RULES,
        Rule("sampling-disjoint-links", "sampling.disjoint", lambda config: True,
             "a batch of links encodes each node once, for all of its links", "Set it to false"),
        Rule("task-all-temporal", "sampling.temporal",
             lambda config: config.task.args.get("num_random_negatives") == "all",
             "num_random_negatives: all would encode all nodes for each group of links",
             "Leave it out, or set a number of negatives"),
    )
    # fmt: on

    @classmethod
    def problems(cls, args: Mapping[str, Any]) -> list[tuple[str, int]]:
        num_random = args.get(
            "num_random_negatives_eval", cls.Arguments().num_random_negatives_eval
        )
        return [("link_prediction", 1 + num_random if isinstance(num_random, int) else 2)]

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        return self.output.edge_types

    @property
    def node_types(self) -> tuple[str, str]:
        return self.output.ends

    def known(self, bundle: Bundle, split: str, *, both_ways: bool = False) -> KnownLinks:
        """Links of a split and of the splits before it, so that no choice by validation depends on
        the links of the test.
        """
        links = [replace(self.links[0], edge_type=edge_type) for edge_type in self.edge_types]
        known = (known_positives(bundle, link, split, both_ways=both_ways) for link in links)
        return KnownLinks(tuple(known), is_one_type=both_ways)

    @property
    def by_time(self) -> bool:
        """Whether links are rows of (anchor, time, targets)."""
        return self.links[0].by_time

    def times(self, split: str) -> np.ndarray:
        """[num_rows], time of each row of a split of links by time."""
        edges = self.splits[split]
        assert edges.times is not None
        return np.asarray(edges.times[edges.indptr[:-1]])

    def ranks_by_default(self, bundle: Bundle) -> bool:
        """Whether evaluation encodes all targets at all times of a split's rows."""
        evaluated = [split for split in ("val", "test") if self.splits[split].num_links]
        num_times = max((len(np.unique(self.times(split))) for split in evaluated), default=0)
        return num_times * bundle.num_nodes(self.node_types[1]) <= MOST_RANKED

    @property
    def is_one_type(self) -> bool:
        return self.node_types[0] == self.node_types[1]

    def not_competing(self, bundle: Bundle, split: str) -> KnownLinks:
        """Known links that are not negatives or candidates in sampled batches.

        Of links by time, the other links of the row: a target may be linked again at another time.

        Training only knows its own links. If it also excluded those of validation and test, these
        would be the only pairs that it neither raises nor lowers. Between nodes of one type, a link
        is known in both directions. It has the split of its reverse, so a held-out link never has a
        reverse that carries messages, while a candidate might.
        """
        if self.by_time:
            return KnownLinks.of_rows(self.splits[split])
        return self.known(bundle, split, both_ways=self.is_one_type)

    @classmethod
    def pairs_read(cls, bundle: Bundle, arguments: LinkTargetArguments) -> Pairs | None:
        return dict.fromkeys(with_reverses(bundle, _find_edge_types(bundle, arguments)), ())

    @classmethod
    def find(cls, bundle: Bundle, config: Config, arguments: LinkTargetArguments) -> LinkTarget:
        edge_types = _find_edge_types(bundle, arguments)
        by_time = _are_by_time(bundle, config, arguments, edge_types)
        factors = _has_factors(bundle, config, arguments, edge_types, by_time=by_time)
        output = LinkOutput(edge_types, arguments.labels, factors, by_time)
        return cls.of(bundle, config, arguments, output)

    @classmethod
    def of(
        cls, bundle: Bundle, config: Config, arguments: LinkTargetArguments, output: LinkOutput
    ) -> LinkTarget:
        if broken := cls.problems_with(config):
            raise ConfigError(broken)
        edge_types = output.edge_types
        rule = split_rule(config)
        by_time = _are_by_time(bundle, config, arguments, edge_types)
        links = tuple(
            LinkSplit(
                edge_type,
                labels=arguments.labels,
                rule=rule,
                seed=config.seed,
                disjoint_train_ratio=arguments.disjoint_train_ratio,
                by_time=by_time,
            )
            for edge_type in edge_types
        )
        splits = split_links(bundle, *links)
        if config.sampling.temporal is not None:
            _check_temporal(splits, arguments, by_time)
            labels = {
                f"label edges {edge_type_name(label.edge_type)}": label.time_unit
                for label in bundle.label_edges
                if label.edge_type in edge_types and arguments.labels
            }
            check_time_units(bundle, config.sampling.temporal.column, labels)
        return cls(
            arguments=arguments,
            output=output,
            links=_one_direction(bundle, links),
            splits=splits,
            reverse_types=reverse_types(bundle),
            has_own_messages=config.model.type in SLOTS["model"].names and keeps_links(config),
        )

    def fit_rows(self, bundle: Bundle, config: Config) -> FitRows:
        """Rows until the end of training if time splits the links, or if links are rows with times;
        else all rows.
        """
        rule = config.data.splits
        is_temporal = self.by_time if rule is None else rule.type == "temporal"
        if not is_temporal:
            return FitRows()
        times, unit = self.splits["train"].times, time_unit_of(bundle, self.links[0])
        return FitRows.until_last(times, unit)

    def summary(self, bundle: Bundle) -> Iterator[str]:
        sizes = ", ".join(f"{name} {edges.num_links:,}" for name, edges in self.splits.items())
        if self.by_time:
            rows = ", ".join(f"{name} {e.num_anchors:,}" for name, e in self.splits.items())
            sizes += f"; rows of anchor and time: {rows}"
        names = [edge_type_name(edge_type) for edge_type in self.edge_types]
        more = f" and {len(names) - 1} more relations" if names[1:] else ""
        yield f"links {names[0]}{more}: {sizes}"
        yield from self._limits(bundle)
        yield from self._silent_anchors()

    def _limits(self, bundle: Bundle) -> Iterator[str]:
        anchor_type, target_type = self.node_types
        has_links = np.zeros(bundle.num_nodes(anchor_type), bool)
        for edges in self.splits.values():
            has_links[edges.anchors] = True
        if not has_links.all():
            others = f"{np.sum(~has_links):,} nodes of type {anchor_type}"
            yield f"{others} have no such links and are no anchors"
        num_targets = bundle.num_nodes(target_type)
        num_random = self.arguments.num_random_negatives
        if num_random == "all":
            yield (
                "task.args.num_random_negatives=all: each batch encodes and scores all "
                f"{num_targets:,} nodes of type {target_type}"
            )
        elif num_random > num_targets:
            yield (
                f"task.args.num_random_negatives: there are {num_targets:,} nodes of "
                f"type {target_type}, so some repeat"
            )
        most = most_candidates(bundle, self.output)
        if self.arguments.num_random_negatives_eval > most:
            yield (
                f"task.args.num_random_negatives_eval: each link competes with at most {most:,}, "
                f"the other nodes of type {target_type}"
            )

    def _silent_anchors(self) -> Iterator[str]:
        arguments = self.arguments
        carry_messages = not arguments.labels and not arguments.disjoint_train_ratio
        if arguments.seeds == "links" or not carry_messages or self.has_own_messages:
            return
        num_links = np.diff(self.splits["train"].indptr)
        cap = arguments.max_labels_per_anchor
        silent = np.count_nonzero(num_links <= (np.inf if cap is None else cap))
        if silent:
            yield (
                f"warning: task.args.seeds=anchors keeps all links of {silent:,} of "
                f"{len(num_links):,} anchors out of their own messages in training. Set seeds: "
                "links, or a smaller max_labels_per_anchor"
            )


#: Encoded targets up to which a full ranking is the default (links by time encode each target at
#: each time of a split).
MOST_RANKED = 50_000


def ranks_all_by_default(
    config: Config, ends: tuple[str, str], num_targets: int, *, is_encoder: bool
) -> bool:
    """Whether links are ranked among all targets in evaluation if the config does not say."""
    return (
        is_encoder
        and ends[0] != ends[1]
        and num_targets <= MOST_RANKED
        and config.sampling.temporal is None
        and config.data.mode != "partitioned"
    )


def _has_factors(
    bundle: Bundle,
    config: Config,
    arguments: LinkTargetArguments,
    edge_types: tuple[EdgeType, ...],
    *,
    by_time: bool,
) -> bool:
    """Whether a `LinearRecommender` ranks beside the encoder."""
    (anchor, _, target), model = edge_types[0], config.model
    num_targets = bundle.num_nodes(target)
    fits = (
        model.type in SLOTS["model"].names
        and {loss.type for loss in config.losses} <= _SCORE_LOSSES
        and len(edge_types) == 1
        and arguments.decoder == _INNER_PRODUCT
        and arguments.full_ranking is not False
    )
    if by_time:
        fits &= num_targets <= MOST_RANKED and config.data.mode == "in_memory"
        fits = fits and find_dated_links(bundle, config, (anchor, target)) is not None
    else:
        fits &= edge_types[0] in bundle.edge_types
        fits &= ranks_all_by_default(config, (anchor, target), num_targets, is_encoder=True)
    configured = model.args.get("node_embeddings", "auto")
    if not fits and (configured is True or model.type == "EASE"):
        key, value = ("type", "EASE") if model.type == "EASE" else ("args.node_embeddings", True)
        rule = (
            "the linear recommender needs one relation between two node types that carries "
            "messages, or label edges with times and sampling.temporal, an inner product, "
            f"and a full ranking of at most {MOST_RANKED:,} targets, in one part"
        )
        remedy = "Set model: Hetero, or change the task"
        raise ConfigError.invalid(f"model.{key}", value, rule, remedy, id="model-link-rows")
    return fits and configured is not False


def find_dated_links(bundle: Bundle, config: Config, ends: tuple[str, str]) -> LinkHistory | None:
    """Links that rows of (anchor, time) know, with the column and window of temporal sampling."""
    temporal = config.sampling.temporal
    assert temporal is not None
    column, window = temporal.column, None
    if temporal.window is not None:
        window = window_as_time(temporal.window, time_unit(bundle, column))
    return LinkHistory.of_bundle(bundle, ends, column, window)


def most_candidates(bundle: Bundle, output: LinkOutput) -> int:
    anchor_type, target_type = output.ends
    return max(bundle.num_nodes(target_type) - (2 if anchor_type == target_type else 1), 0)


def _are_by_time(
    bundle: Bundle, config: Config, arguments: LinkTargetArguments, edge_types: Sequence[EdgeType]
) -> bool:
    if config.sampling.temporal is None or not arguments.labels or arguments.disjoint_train_ratio:
        return False
    for edge_type in edge_types:
        positive, negative = (
            find_label_edges(bundle, edge_type, sign) for sign in ("positive", "negative")
        )
        carries_messages = edge_type in bundle.edge_types
        if positive is None or positive.time is None or negative is not None or carries_messages:
            return False
    return True


def _check_temporal(
    splits: Mapping[str, SupervisionEdges], arguments: LinkTargetArguments, by_time: bool
) -> None:
    if any(edges.num_links and edges.times is None for edges in splits.values()):
        raise DataError(
            "sampling.temporal is invalid: the links have no times. Declare the time of their edge "
            "type or label edges in graph.yaml, or leave it out. [links-no-times]"
        )
    if arguments.full_ranking and not by_time:
        raise ConfigError(
            "task.args.full_ranking=True is invalid: with sampling.temporal, each link has "
            "embeddings as of its time. Set it to false. [task-full-ranking-temporal]"
        )


def _find_edge_types(bundle: Bundle, arguments: LinkTargetArguments) -> tuple[EdgeType, ...]:
    available = list(bundle.label_edge_columns if arguments.labels else bundle.edge_types)
    if arguments.labels and not available:
        raise ConfigError(
            "task.args.labels=True is invalid: there are no label edges in the graph. Declare "
            "label_edges in graph.yaml, or set it to false. [links-label-edges-missing]"
        )
    names = [edge_type_name(edge_type) for edge_type in available]
    shown = ", ".join(names[:10])
    shown += f" and {len(names) - 10} more" if names[10:] else ""
    if arguments.edge_type is None:
        forward = forward_types(bundle, available)
        if len(forward) == 1:
            return (forward[0],)
        raise ConfigError(
            f"task.args.edge_type=None is invalid: there are several. Set one of: {shown}. "
            "[task-edge-type-missing]"
        )
    named = arguments.edge_type
    if not named:
        raise ConfigError(
            f"task.args.edge_type={named!r} is invalid: no links match. Set one of: {shown}. "
            "[task-edge-type-unknown]"
        )
    chosen: dict[str, None] = {}
    for pattern in [named] if isinstance(named, str) else named:
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise ConfigError(
                f"task.args.edge_type={pattern!r} is invalid: the graph has no such links. Set one "
                f"of: {shown}; or a pattern with *. [task-edge-type-unknown]"
            )
        chosen.update(dict.fromkeys(matching))
    edge_types = tuple(parse_edge_type(name) for name in chosen)
    if len({(source, target) for source, _, target in edge_types}) > 1:
        raise ConfigError(
            f"task.args.edge_type={named!r} is invalid: node types differ: {', '.join(chosen)}. "
            "Name edge types with the same source and target. [task-edge-types-differ]"
        )
    return edge_types


def _one_direction(bundle: Bundle, links: Sequence[LinkSplit]) -> tuple[LinkSplit, ...]:
    seen: set[EdgeType] = set()
    forward = []
    for link in links:
        reverse = None
        if link.edge_type in bundle.edge_types:
            reverse = bundle.reverse_of(link.edge_type)
        if reverse not in seen:
            forward.append(link)
        seen.add(link.edge_type)
    return tuple(forward)
