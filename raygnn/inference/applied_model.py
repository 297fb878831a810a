"""A saved model set up on a graph: its task, its module, and options of its loaders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from raygnn.config import LoadedConfig, build
from raygnn.console import warn
from raygnn.data.bundle import Bundle
from raygnn.data.extended_bundle import AddedEdges, Addition, ExtendedBundle
from raygnn.data.filesystem import redact
from raygnn.data.partition.part import Outline
from raygnn.data.past_labels import PastLabels
from raygnn.errors import CheckpointError, ConfigError
from raygnn.inference.seed_times import SeedTimes
from raygnn.loops.boosted_trees import BoostedTrees
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.task import Task, TaskEnvironment
from raygnn.loops.tasks.blended_task import BlendedTask
from raygnn.loops.tasks.build_encoder import feature_store, find_shared_leaves, graph_store
from raygnn.loops.tasks.build_sampler import (
    build_sampler,
    takes_latest,
    with_all_neighbors,
    with_own_neighborhoods,
)
from raygnn.loops.tasks.exact_encoding import target_attributes
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.loops.tasks.link_prediction.target import LinkOutput, find_dated_links
from raygnn.loops.tasks.node_classification.target import find_past_labels
from raygnn.loops.tasks.several_tasks.target import SeveralOutput
from raygnn.loops.tasks.several_tasks.task import trees_of_task, weights_of_task
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.graph_inputs import reads_src_degree
from raygnn.outputs.model_export import read_trees, read_weights
from raygnn.outputs.saved_model import SavedModel
from raygnn.parallel import collectives
from raygnn.recommender.known_links import LinkHistory
from raygnn.recommender.recommender import LinearRecommender
from raygnn.recommender.regression import AnchorRows, LinkBasis, RegressionSettings
from raygnn.sampling.extended_stores import ExtendedFeatureStore, ExtendedGraphStore
from raygnn.sampling.loader import NeighborLoader, RowPlan
from raygnn.sampling.parts import PartitionedGraph, map_parts
from raygnn.sampling.protocols import FeatureStore, GraphStore
from raygnn.sampling.stores import LocalGraphStore
from raygnn.sampling.temporal import as_seed_times


class Stores(NamedTuple):
    """Columns and structure that a model reads from a graph.

    Attributes:
        past: labels whose window is over, by name in a batch.
        links: those that a linear recommender of rows with times reads.
    """

    graph: GraphStore
    features: FeatureStore
    past: tuple[str, PastLabels] | None
    links: LinkHistory | None


@dataclass
class AppliedModel:
    """A trained model, and its task on a graph.

    Attributes:
        task: its environment has the part of the graph that the model reads.
        model: encoder with head or decoder.
        times: encoding times of nodes and edges; None for a model without times.
        is_exact: takes all neighbors instead of the model's fanouts, as always beside a linear
            recommender.
        known: the same without the nodes and edges that were added to the graph; None without any.
    """

    task: Task
    model: nn.Module
    times: SeedTimes | None
    is_exact: bool
    known: AppliedModel | None = None

    def __post_init__(self) -> None:
        self._bases: dict[RegressionSettings, LinkBasis] = {}
        self._rows: dict[RegressionSettings, dict[str, AnchorRows | Tensor]] = {}
        recommender = used_recommender(self.model)
        if recommender is not None and not recommender.by_time:
            self.is_exact = True  # as in the run's evaluation
        self._unnamed_blend = self.task.blend if isinstance(self.task, BlendedTask) else None

    def warn_of_gnn(self) -> None:
        """Names, once, that scores of pairs lack the other rungs of a blend."""
        if self._unnamed_blend is not None:
            words, self._unnamed_blend = self._unnamed_blend.words, None
            warn(
                f"scores are the numbers of the GNN alone, and the model predicts by {words}. For "
                "these, predict edges or pairs"
            )

    @property
    def env(self) -> TaskEnvironment:
        return self.task.env

    @property
    def bundle(self) -> Bundle:
        return self.task.env.bundle

    @property
    def spec(self) -> ModelSpec:
        assert self.task.spec is not None
        return self.task.spec

    @property
    def encoder(self) -> GraphEncoder:
        assert isinstance(self.model.encoder, GraphEncoder)
        return self.model.encoder

    @cached_property
    def stores(self) -> Stores:
        env, spec, bundle = self.env, self.spec, self.bundle
        if self.known is not None:
            known = self.known.stores
            assert isinstance(known.graph, LocalGraphStore)
            assert isinstance(bundle, ExtendedBundle)
            features = ExtendedFeatureStore(bundle, spec.standardization)
            graph = ExtendedGraphStore(known.graph, bundle)
            return known._replace(graph=graph, features=features)
        recommender, links = used_recommender(self.model), None
        if recommender is not None and recommender.by_time:
            anchor, target = spec.output.ends
            links = find_dated_links(bundle, env.loaded.config, (anchor, target))
        return Stores(
            graph_store(bundle, env.parts),
            feature_store(env.loaded, bundle, spec, env.parts, env.device),
            find_past_labels(spec, bundle),
            links,
        )

    def as_of(self, times: SeedTimes | None) -> AppliedModel:
        """The same at other times, with the same stores."""
        applied = copy(self)
        applied.times, applied._bases, applied._rows = times, {}, {}
        return applied

    def times_of(self, node_type: str, nodes: np.ndarray) -> np.ndarray | None:
        """[num_nodes], the times that nodes are encoded at; None without times."""
        if self.times is None:
            return None
        if (as_of := self.times.of(node_type)) is not None:
            return np.full(len(nodes), as_of.time)
        column = self.times.moment.column
        return as_seed_times(self.stores.features.gather(node_type, column, nodes).reshape(-1))

    def basis(self, factors: LinearRecommender) -> LinkBasis:
        """The decomposed links of the graph, with added nodes and links if there are any; for a
        model of rows with times, those known at the moment of the times.
        """
        key = factors.settings
        if key not in self._bases:
            self._bases[key] = self._find_basis(factors)
        return self._bases[key]

    def _find_basis(self, factors: LinearRecommender) -> LinkBasis:
        (edge_type,), bundle = self.spec.output.links, self.bundle
        if self.known is not None:
            assert isinstance(bundle, ExtendedBundle)
            none = np.empty(0, np.int64)
            added = bundle.addition.edges.get(edge_type, AddedEdges(none, none))
            num_nodes = bundle.num_nodes(edge_type[0]), bundle.num_nodes(edge_type[2])
            return self.known.basis(factors).extended(num_nodes, added.sources, added.targets)
        if not factors.by_time:
            graph = graph_store(bundle)
            return LinkBasis.of(LinkHistory.of_edges(graph, bundle, edge_type), factors.settings)
        assert self.stores.links is not None
        assert self.times is not None
        return LinkBasis.of(self.stores.links.as_of(self.times.moment.time), factors.settings)

    def blended(self, node_type: str, encoded: Tensor, nodes: slice | Tensor) -> Tensor:
        """Rows of the encoder, joined with those of a linear recommender, if the model has one.

        Args:
            encoded: [num_nodes, channels].
            nodes: their dense ids.
        """
        recommender, ends = used_recommender(self.model), self.spec.output.ends
        if recommender is None or node_type not in ends:
            return encoded
        key = recommender.settings
        if key not in self._rows:
            rows = recommender.rows(self.basis(recommender), self.target_attributes)
            self._rows[key] = dict(zip(ends, rows, strict=True))
        return recommender.join(encoded, self._rows[key][node_type][nodes])

    @cached_property
    def target_attributes(self) -> np.ndarray | None:
        """Attributes that rank targets without links; see `LinkBasis.rows`."""
        target = self.spec.output.ends[1]
        num_targets = self.bundle.num_nodes(target)
        return target_attributes(self.stores.features, self.spec, target, num_targets)

    @property
    def missing(self) -> list[str]:
        return self.task.missing(self.model)

    def encodes_by_layers(self, node_types: Collection[str]) -> bool:
        """Whether nodes of some types are encoded all together, from all their edges."""
        have_own = self.times is not None and not self.times.own.isdisjoint(node_types)
        return self.is_exact and not takes_latest(self.env.loaded.config) and not have_own

    def extended(self, addition: Addition) -> AppliedModel:
        """The model on the graph with new nodes and edges."""
        task = self.task.extended(ExtendedBundle(self.bundle, addition))
        times = None if self.times is None else self.times.extended(addition)
        return AppliedModel(task, self.model, times, self.is_exact, known=self)

    def loader(
        self, node_type: str, nodes: np.ndarray, plan: RowPlan | None = None, **options: Any
    ) -> NeighborLoader:
        """Batches of nodes with their neighborhoods, as the model reads them.

        Args:
            nodes: int64, dense ids, or positions in the rows of the plan.
            options: of the loader, instead of some of `loader_options`.
        """
        as_of = None if self.times is None else self.times.of(node_type)
        return NeighborLoader(
            self.stores.graph,
            self.stores.features,
            nodes,
            node_type,
            sampler=self._sampler,
            columns=self.spec.node_columns,
            edge_columns=self.spec.batch_edge_columns,
            as_of=None if as_of is None else as_of.time,
            plan=plan,
            past=self.stores.past,
            **{**self.loader_options, **options},
        )

    @cached_property
    def loader_options(self) -> Mapping[str, Any]:
        """Loader options of inference: examples once, in order."""
        env, config = self.env, self.env.loaded.config
        plan = config.loader_plan("test")
        return {
            "batch_size": plan.batch_size,
            "split": "infer",
            "seed": config.seed,
            "shuffle": False,
            "num_threads": plan.num_threads,
            "prefetch_batches": plan.prefetch_batches,
            "device": env.device,
            "src_degrees": reads_src_degree(config, env.loaded.allow_modules),
            "shared_leaves": find_shared_leaves(config, self.spec),
        }

    @cached_property
    def _sampler(self) -> Any:
        return build_sampler(self.sampled_config(), self.stores.graph)

    def sampled_config(self) -> LoadedConfig:
        """The config of samplers, as in the run's evaluation."""
        loaded, output = self.env.loaded, self.spec.output
        if self.is_exact:
            loaded = with_all_neighbors(loaded, self.bundle)
        by_time = isinstance(output, LinkOutput) and output.by_time
        return with_own_neighborhoods(loaded) if by_time else loaded


def used_recommender(model: nn.Module) -> LinearRecommender | None:
    """The linear recommender that an encoder is blended with, if it has a weight."""
    recommender = getattr(model, "factors", None)
    is_used = isinstance(recommender, LinearRecommender) and recommender.is_used
    return recommender if is_used else None


def set_up_task(
    saved: SavedModel, bundle: Bundle, device: torch.device, parts: PartitionedGraph | None = None
) -> Task:
    """The task that a model was trained with, on a graph that fits the model, or `schema_bundle`.

    `parts`: of a partitioned graph, whose outline is the bundle; None maps them here.
    """
    loaded, spec = saved.loaded, saved.spec
    if parts is None and isinstance(bundle, Outline):
        parts = map_parts(loaded.config.data.uri or "", bundle)
    rank, world_size = collectives.rank(), collectives.world_size()
    env = TaskEnvironment(loaded, bundle, rank, world_size, device, spec, parts)
    task: Task = build(loaded.config.task, "task", loaded.allow_modules)
    task.setup(env)
    has_trees = isinstance(spec.output, LabelOutput) and spec.output.has_trees
    if isinstance(task, BlendedTask) and has_trees:
        task.trees = BoostedTrees.of_text(_trees_of(saved))
    return task


def _trees_of(saved: SavedModel) -> str:
    text, whole = read_trees(saved.uri), saved.whole
    if whole is None:
        return text
    assert isinstance(whole.spec.output, SeveralOutput)
    assert saved.task is not None
    return trees_of_task(text, whole.spec.output.tasks, saved.task)


def evaluates_exactly(saved: SavedModel) -> bool:
    """Whether the run's metrics are of embeddings from all edges, as with closed-form rows."""
    output, config = saved.spec.output, saved.loaded.config
    has_factors = isinstance(output, LinkOutput) and output.factors
    return config.training.eval == "exact" or (has_factors and config.sampling.temporal is None)


def warn_of_missing(missing: Sequence[str]) -> None:
    for what in missing:
        warn(f"the graph lacks what the model was judged with: {what}. Predictions may be worse")


def load_module(saved: SavedModel, task: Task) -> nn.Module:
    """The trained model, in float32 and evaluation mode, on the task's device. Raises a
    CheckpointError if the weights are damaged, or do not fit the config's model, a ConfigError if
    the model has no encoder.
    """
    model = task.build_model()
    try:
        weights = read_weights(saved.weights_uri)
        model.load_state_dict(
            weights if saved.task is None else weights_of_task(weights, saved.task)
        )
    except (RuntimeError, SafetensorError) as error:  # torch raises the former
        raise CheckpointError(
            f"{redact(saved.weights_uri)} does not fit the config beside it: {error}. Copy all "
            "files of one run. [model-weights-mismatch]"
        ) from error
    if not isinstance(getattr(model, "encoder", None), GraphEncoder):
        raise ConfigError(
            f"task.type={task.env.loaded.config.task.type!r} is invalid: its model has no "
            "`encoder`, a GraphEncoder. Build it as NodeClassification does. [infer-no-encoder]"
        )
    return model.float().eval().to(task.env.device)
