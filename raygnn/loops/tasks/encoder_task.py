from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raygnn.config import Component, Config, LoadedConfig, build
from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.links.message_graph import Messages
from raygnn.data.links.split import LinkSplit
from raygnn.data.past_labels import PastLabels
from raygnn.errors import ConfigError
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.task import EvalOutput, Task
from raygnn.loops.tasks.build_encoder import (
    build_encoder,
    feature_store,
    find_shared_leaves,
    graph_store,
)
from raygnn.loops.tasks.build_sampler import (
    build_sampler,
    find_fanouts,
    with_all_neighbors,
    with_own_neighborhoods,
)
from raygnn.loops.tasks.exact_encoding import check_exact, encode_exactly
from raygnn.loops.tasks.find_inputs import make_spec
from raygnn.loops.tasks.node_classification.target import find_past_labels
from raygnn.loops.tasks.target import TaskArguments, TaskTarget
from raygnn.metrics import as_metric
from raygnn.models.exact import ExactOptions, KeptBlocks
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.graph_inputs import reads_src_degree
from raygnn.parallel.shared_rows import computed_by_all
from raygnn.sampling.batch_sequence import BatchSequence, BatchT
from raygnn.sampling.loader import NeighborLoader, RowPlan
from raygnn.sampling.protocols import FeatureStore, GraphStore
from raygnn.sampling.whole_graph import WholeGraph, WholeGraphLoader

_MAX_CHECKED = 100_000  # nodes whose edges are counted for a warning
_MANY = 0.3  # share of nodes without messages that is worth a warning
_BATCHES_AT_A_TIME = 16


class EncoderTask(Task[BatchT]):
    """Base of tasks with one encoder, built from `env.spec`, and one target.

    A subclass declares the class of its target, and builds model and loaders. `target` is made on
    first use, which only happens in training.
    """

    target_class: ClassVar[type[TaskTarget]]

    #: `task.args`.
    Options: ClassVar[type[TaskArguments]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "target_class" in vars(cls):
            cls.Options = cls.target_class.Arguments

    spec: ModelSpec

    def __init__(self, **args: Any) -> None:
        self.arguments: TaskArguments = self.target_class.Arguments.of(args)
        self._sharing: tuple[EncoderTask[Any], ...] = ()
        self._loaders: dict[str, Any] = {}
        self._every: dict[str, Tensor] = {}  # embeddings of all nodes, of an exact evaluation
        self._samplers: dict[tuple[int, bool, bool], Any] = {}
        self._message_graphs: dict[str, GraphStore] = {}
        self._kept_blocks: dict[int, KeptBlocks] = {}  # of exact encodings, by message graph
        self._whole_graphs: dict[frozenset[tuple[str, str]], WholeGraph] = {}

    @cached_property
    def config(self) -> Config:
        return self.env.loaded.config

    def find_spec(self, loaded: LoadedConfig, bundle: Bundle) -> ModelSpec:
        self.target = self.target_class.find(bundle, loaded.config, self.arguments)
        return make_spec(loaded, bundle, self.target)

    @cached_property
    def target(self) -> Any:
        return self.target_class.of(self.env.bundle, self.config, self.arguments, self.spec.output)

    @cached_property
    def graph(self) -> GraphStore:
        return self._store(None)

    def links(self) -> Sequence[LinkSplit]:
        """Splits of the learned links or edges. Empty for node tasks."""
        return ()

    @property
    def is_inductive(self) -> bool:
        """Whether validation links carry no messages in the test either."""
        return False

    @property
    def sharing_tasks(self) -> Sequence[EncoderTask[Any]]:
        """The tasks that train the encoder; only this one unless `share_encoder` names others."""
        return self._sharing or (self,)

    def share_encoder(self, tasks: Sequence[EncoderTask[Any]]) -> None:
        """Sets all tasks of one encoder: held-out links of any carry no messages."""
        self._sharing = tuple(tasks)

    def message_store(self, split: str) -> GraphStore:
        if split not in self._message_graphs:
            links = tuple(link for task in self.sharing_tasks for link in task.links())
            inductive = any(task.is_inductive for task in self.sharing_tasks)
            messages = Messages(links, split, inductive)  # type: ignore[arg-type]
            self._message_graphs[split] = self._store(messages) if links else self.graph
        return self._message_graphs[split]

    def _store(self, messages: Messages | None) -> GraphStore:
        return graph_store(self.env.bundle, self.env.parts, messages)

    def silent_nodes(
        self, node_type: str, chosen: np.ndarray | None = None, what: str = "the nodes"
    ) -> list[str]:
        """A warning if many of the `chosen` nodes, by default all, get no messages."""
        graph = self.graph
        nodes = range(graph.num_nodes(node_type)) if chosen is None else chosen
        if not len(nodes):
            return []
        fanouts = find_fanouts(self.config, graph.edge_types)
        along = [t for t, hops in fanouts.items() if any(hops)]
        looked_at = np.asarray(nodes[:: -(-len(nodes) // _MAX_CHECKED)])
        degrees = [graph.degrees(t, looked_at) for t in along if t[2] == node_type]
        silent = looked_at[sum(degrees, np.zeros(len(looked_at), np.int64)) == 0]
        share = len(silent) / len(looked_at)
        if share <= _MANY:
            return []
        away = [graph.neighbor_degrees(t, silent) for t in along if t[0] == node_type]
        share_away = np.count_nonzero(sum(away, np.zeros(len(silent), np.int64))) / len(silent)
        text = (
            f"{share:.0%} of {what} of type {node_type!r} receive no messages: they have no "
            "incoming edges."
        )
        if share_away:
            text += (
                f" {share_away:.0%} of these have outgoing edges; data.reverse_edges: true "
                "lets messages flow both ways."
            )
        return [text]

    @cached_property
    def features(self) -> FeatureStore:
        """One store for all tasks that share the encoder."""
        first, env = self.sharing_tasks[0], self.env
        if first is not self:
            return first.features
        return feature_store(env.loaded, env.bundle, self.spec, env.parts, env.device)

    def sampler(self, split: str, graph: GraphStore, *, is_disjoint: bool = False) -> Any:
        """The sampler of a split; in an exact evaluation with times it samples all neighbors.

        `is_disjoint`: each seed has its own neighborhood, whatever the config says.
        """
        loaded, config = self.env.loaded, self.config
        is_exact = config.training.eval == "exact" and not config.evaluates_by_layers
        takes_all = is_exact and split != "train"
        key = id(graph), takes_all, is_disjoint
        if key not in self._samplers:
            chosen = with_all_neighbors(loaded, graph) if takes_all else loaded
            chosen = with_own_neighborhoods(chosen) if is_disjoint else chosen
            self._samplers[key] = build_sampler(chosen, graph)
        return self._samplers[key]

    def loader(self, split: str) -> Any:
        if split not in self._loaders:
            self._loaders[split] = self.build_loader(split)
        return self._loaders[split]

    def build_model(self) -> nn.Module:
        return self.build_head(self.build_encoder())

    def build_encoder(self) -> GraphEncoder:
        """The configured encoder. Raises a ConfigError if exact evaluation is impossible."""
        config = self.config
        width = None if config.model.args.get("out_channels") is not None else self.encoder_width
        encoder = build_encoder(self.env.loaded, self.env.bundle, self.spec, width)
        if config.evaluates_by_layers:
            check_exact(encoder, config.model.type)
        return encoder

    @property
    def encoder_width(self) -> int:
        return self.config.embedding_width

    def build_head(self, encoder: GraphEncoder) -> nn.Module:
        """The model of the task around an encoder, which it has as attribute `encoder`.

        Raises a ConfigError if the task overrides `build_model` instead, which cannot be shared.
        """
        raise ConfigError(
            f"task.type={self.config.task.type!r} is invalid: it shares no encoder. Train it "
            "alone, or give its class `build_head` in the place of `build_model`. [tasks-no-head]"
        )

    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        loader = self.loader(split)
        assert loader is not None
        with closing(loader.iterate(0, stop=num_batches)) as batches:
            for batch in batches:
                yield self.judge(batch.to(self.env.device))

    def judge(self, batch: BatchT) -> EvalOutput:
        raise NotImplementedError(f"{type(self).__name__}.judge")

    @abstractmethod
    def build_loader(self, split: str) -> BatchSequence[BatchT] | None: ...

    def neighbor_loader(
        self,
        split: str,
        seeds: np.ndarray,
        node_type: str,
        columns: Mapping[str, str] = MappingProxyType({}),
        plan: RowPlan | None = None,
    ) -> NeighborLoader | WholeGraphLoader | None:
        """Batches of nodes with their neighborhoods, or on the whole graph; None without nodes.

        Args:
            seeds: int64 [num_seeds], dense ids, or positions in the rows of the plan.
            columns: further node columns, by their name in the batch.
            plan: rows of a training table.
        """
        if len(seeds) == 0:
            return None
        env, config = self.env, self.config
        if config.sampling.is_full:
            full = self._whole_graph(frozenset({**self.spec.node_columns, **columns}.items()))
            share = {"rank": env.rank, "world_size": env.world_size}
            return WholeGraphLoader(full, seeds, node_type, split=split, seed=config.seed, **share)
        options = self.loader_options(split)
        options["columns"] = {**self.spec.node_columns, **columns}
        return NeighborLoader(
            seeds=seeds, node_type=node_type, plan=plan, past=self._past_labels, **options
        )

    @cached_property
    def _past_labels(self) -> tuple[str, PastLabels] | None:
        return find_past_labels(self.spec, self.env.bundle)

    def _whole_graph(self, columns: frozenset[tuple[str, str]]) -> WholeGraph:
        if columns not in self._whole_graphs:
            self._whole_graphs[columns] = WholeGraph(
                self.graph,
                self.features,
                find_fanouts(self.config, self.graph.edge_types),
                columns=dict(columns),
                edge_columns=self.spec.batch_edge_columns,
                device=self.env.device,
                src_degrees=self._reads_src_degree(),
            )
        return self._whole_graphs[columns]

    def loader_options(self, split: str) -> dict[str, Any]:
        """Arguments of a split's loaders: stores, sampler, columns, batches, this rank's share."""
        env, config, graph = self.env, self.config, self.message_store(split)
        settings = config.loader_plan(split)
        samples = None if env.samples is None else env.samples.of_split(split, config.seed)
        return {
            "graph": graph,
            "features": self.features,
            "sampler": self.sampler(split, graph),
            "columns": self.spec.node_columns,
            "edge_columns": self.spec.batch_edge_columns,
            "batch_size": settings.batch_size,
            "split": split,
            "seed": config.seed,
            "shuffle": split == "train",
            "rank": env.rank,
            "world_size": env.world_size,
            "num_threads": settings.num_threads,
            "prefetch_batches": settings.prefetch_batches,
            "device": env.device,
            "samples": samples,
            "src_degrees": self._reads_src_degree(),
            "shared_leaves": find_shared_leaves(config, self.spec),
            "pads": split == "train" and self._pads_batches(),
        }

    def _pads_batches(self) -> bool:
        """Padding is off with sparse features and partitioned graphs."""
        if not self.pads or self.env.parts is not None:
            return False
        features, none = self.features, np.empty(0, np.int64)
        return not any(
            column in features.columns(node_type)
            and features.gather_sparse(node_type, column, none) is not None
            for node_type in self.graph.node_types
            for column in self.spec.node_columns
        )

    def _reads_src_degree(self) -> bool:
        loaded = self.env.loaded
        return reads_src_degree(loaded.config, loaded.allow_modules)

    def encode_exactly(
        self, encoder: GraphEncoder, graph: GraphStore, node_types: Sequence[str]
    ) -> dict[str, Tensor]:
        """Embeddings of all nodes of these types, layer by layer, on the device if they fit there.
        Collective: all ranks call.
        """
        in_fp32 = self.config.training.precision == "fp32"
        compute = computed_by_all(self.env.scratch, in_fp32)
        kept = self._kept_blocks.setdefault(id(graph), KeptBlocks())
        options = ExactOptions(device=self.env.device, compute=compute, kept=kept)
        return encode_exactly(encoder, graph, self.features, self.spec, node_types, options=options)

    def encode_as_of(
        self, split: str, node_type: str, nodes: np.ndarray, times: np.ndarray
    ) -> Tensor:
        """Embeddings of nodes from their own neighborhoods as of times, [num_nodes, channels].

        Collective: all ranks must call.

        Args:
            split: its messages and fanouts are used.
            times: [num_nodes], in the unit of the graph's times.
        """
        env, encoder = self.env, self.model.encoder
        assert isinstance(encoder, GraphEncoder)
        rows = SeedRows("rows", node_type, len(nodes), nodes, times, None, None, {})
        alone = {"shuffle": False, "samples": None, "rank": 0, "world_size": 1}
        options = {**self.loader_options(split), **alone}
        options["sampler"] = self.sampler(split, options["graph"], is_disjoint=True)
        seeds = np.arange(len(nodes))
        loader = NeighborLoader(seeds=seeds, node_type=node_type, plan=RowPlan(rows), **options)

        def rows_of(first: int, last: int) -> Tensor:
            batches = first // loader.batch_size, -(-last // loader.batch_size)
            with closing(loader.iterate(0, *batches)) as made:
                moved = (batch.to(env.device) for batch in made)
                parts = [encoder(batch)[node_type][batch.seed_index].float() for batch in moved]
            return torch.cat(parts).cpu()

        size = loader.batch_size * _BATCHES_AT_A_TIME
        chunks = [(i, min(i + size, len(nodes))) for i in range(0, len(nodes), size)]
        width, what = self.config.embedding_width, f"{node_type} as of their times"
        with closing(loader):
            embeddings = computed_by_all(env.scratch, is_fp32=True)(chunks, rows_of, width, what)
        return embeddings.to(env.device)

    def build_metrics(self) -> Sequence[Any]:
        chosen = self.config.metrics or [Component(type=name) for name in self.metric_names()]
        num_outputs, problem = self.metric_problem()
        injected: Any = {"num_outputs": num_outputs, "problem": problem}
        allowed = self.env.loaded.allow_modules
        built = [build(metric, "metric", allowed, **injected) for metric in chosen]
        return [as_metric(metric, **injected) for metric in built]

    def metric_problem(self) -> tuple[int, str]:
        """Number of outputs and problem, for metrics. Tasks with several problems override it."""
        ((problem, num_outputs),) = self.target_class.problems({})
        return num_outputs, problem

    def metric_names(self) -> Sequence[str]:
        _, problem = self.metric_problem()
        return self.target_class.default_metrics[problem]

    def close(self) -> None:
        for loader in self._loaders.values():
            if loader is not None:
                loader.close()
