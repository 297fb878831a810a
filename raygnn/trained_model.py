"""A trained model in Python: `raygnn.load(RUN)`, then predictions for any graph that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from torch import nn

from raygnn.data.added_rows import AddedRows, Rows
from raygnn.data.bundle import Bundle
from raygnn.data.compactions import start_of
from raygnn.data.event_log import EventLog
from raygnn.data.tables.read_ids import Ids
from raygnn.data.time_units import Time
from raygnn.errors import ConfigError
from raygnn.inference.applied_model import load_module, set_up_task
from raygnn.inference.evaluate import Judged, judge_model
from raygnn.inference.extended_graph import ExtendedGraph
from raygnn.inference.logged_rows import LoggedRows
from raygnn.inference.open_graph import OpenGraph
from raygnn.inference.result_tables import Table
from raygnn.loops.context import local_device
from raygnn.loops.model_spec import ModelSpec, schema_bundle
from raygnn.loops.process import process_prepared
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.to_pyg import to_pyg
from raygnn.outputs.saved_model import SavedModel
from raygnn.runtime.data_checks import open_outline
from raygnn.runtime.data_source import open_bundle, open_tables, tables_source

if TYPE_CHECKING:
    from raygnn.inference.explain.explanations import Explanations


def load(
    model: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    task: str | None = None,
    allow_modules: Sequence[str] = (),
    module: Any = None,
) -> TrainedModel:
    """Loads a trained model, without a graph and without Ray.

    Args:
        model: folder or URI of a finished run, or of an exported model.
        overrides: of the config, as for `raygnn.infer`: keys of `data`, `sampling`, `loader` and
            `training`.
        task: which task of a model of several tasks.
        allow_modules: modules whose classes the model's config may name.
        module: the module or class that was passed to `raygnn.train.fit` as `model`.
    Raises:
        ConfigError: an override is invalid, the model has no such task, or it names a class that is
            not allowed.
        RunError: there is no trained model.
        CheckpointError: the model's files are damaged or do not belong together.
    """
    arguments = (fspath(model), overrides, allow_modules)
    return TrainedModel(partial(SavedModel.open, *arguments, task=task, model=module))


class TrainedModel(nn.Module):
    """A trained model with its transforms, made by `raygnn.load`.

    It reads tables as in training: transforms, standardization and units belong to the model, and
    nothing is fitted to a new graph. The argument `data` of each method is the folder or URI of a
    graph, `GraphTables`, a PyG `Data` or `HeteroData` (nodes are numbered from 0), or a `Bundle`.
    None is the graph named by the overrides of `load`, which may be partitioned. Use `open` for
    several calls on one graph.

    Attributes:
        module: encoder with head or decoder, in evaluation mode, with the weight names of
            `model.safetensors`.
        spec: inputs and outputs of the model, as in `model.json`.
    """

    def __init__(self, open_saved: Callable[..., SavedModel]) -> None:
        super().__init__()
        self._open_saved = open_saved
        self._saved = saved = open_saved()
        config = saved.loaded.config
        device = local_device("auto" if config.scaling.use_gpu else False)
        with process_prepared(saved.loaded):
            task = set_up_task(saved, schema_bundle(saved.spec), device)
            self.module = load_module(saved, task)
        assert task.spec is not None
        self.spec: ModelSpec = task.spec
        self.eval()

    def forward(self, batch: Any) -> Any:
        return self.module(batch)

    def open(
        self,
        data: Any = None,
        *,
        exact: bool | None = None,
        own_batches: bool = False,
        as_of: str | Time | None = None,
    ) -> OpenGraph:
        """Opens a graph for several calls of `predict`, `embed`, `score` and `top_k`.

        Args:
            exact: encodes nodes from all their edges: all nodes layer by layer, a few from their
                full neighborhoods. False samples neighborhoods with the model's fanouts. Default:
                as in the run's evaluation (`training.eval`).
            own_batches: encodes each node, edge or anchor in its own batch, so that its result does
                not depend on the others.
            as_of: for a model with `sampling.temporal`, the time as of which all rows are encoded:
                a date, a number in the unit of the graph's times, or `latest`. None encodes rows
                with times as of their own, others as of the latest time.
        Raises:
            ConfigError: there is no graph, or `as_of` is invalid.
            DataError: the graph is invalid or does not fit the model; lists all problems.
        """
        how: dict[str, Any] = {"exact": exact, "own_batches": own_batches, "as_of": as_of}
        bundle, source = self._bundle(data), None
        if data is None or isinstance(data, str | PathLike):
            uri = None if data is None else fspath(data)
            source = tables_source(self._saved, uri)
        return OpenGraph(self._saved, self.module, bundle, source=source, **how)

    def extended(
        self,
        data: Any,
        nodes: Mapping[str, Rows],
        edges: Mapping[str, Rows] | None = None,
        *,
        exact: bool | None = None,
        as_of: str | Time | None = None,
    ) -> ExtendedGraph:
        """Opens a graph as if its tables also contained new nodes and edges.

        Args:
            data: folder or URI of graph tables.
            nodes: rows by node type, with the columns of the graph's tables.
            edges: rows by edge type, `src__rel__dst`, between known or new nodes.
        Raises:
            ConfigError: the graph did not come from tables, or the model takes no new nodes.
            DataError: rows do not fit the graph's tables.
        """
        graph = self.open(data, exact=exact, own_batches=True, as_of=as_of)
        return ExtendedGraph(graph, AddedRows(nodes, edges or {}))

    def followed(
        self,
        data: str | PathLike[str],
        log: str | PathLike[str],
        position: int | None = None,
        *,
        exact: bool | None = None,
        as_of: str | Time | None = None,
    ) -> ExtendedGraph:
        """Opens a graph with the rows of an event log, as a server that follows it does.

        Args:
            data: folder or URI of graph tables, or of a compaction of the log.
            log: folder or URI of the log. Rows that do not fit the graph are left out.
            position: number of rows to read, such as that of a server's answer. None reads all.
        Raises:
            DataError: the log is damaged, or no append ended at the position.
        """
        graph = self.open(data, exact=exact, own_batches=True, as_of=as_of)
        start = start_of(fspath(data))
        rows = LoggedRows.of(graph, start[0])
        rows.follow(EventLog(fspath(log), *start), position)
        return ExtendedGraph(graph, rows.addition)

    def predict(
        self,
        data: Any = None,
        nodes: Any = None,
        *,
        what: str | None = None,
        rows: Any = None,
        split: str | None = None,
        exact: bool | None = None,
        as_of: str | Time | None = None,
    ) -> Table:
        """Predicts nodes, edges or rows. See `OpenGraph.predict`, and `open` for the others."""
        opened = self.open(data, exact=exact, as_of=as_of)
        return opened.predict(nodes, what=what, rows=rows, split=split)

    def embed(
        self,
        data: Any = None,
        nodes: Ids | None = None,
        *,
        node_type: str | None = None,
        exact: bool | None = None,
        as_of: str | Time | None = None,
    ) -> Table:
        return self.open(data, exact=exact, as_of=as_of).embed(nodes, node_type=node_type)

    def score(
        self,
        data: Any,
        pairs: Any,
        *,
        exact: bool | None = None,
        as_of: str | Time | None = None,
        **options: Any,
    ) -> Table:
        return self.open(data, exact=exact, as_of=as_of).score(pairs, **options)

    def top_k(
        self,
        data: Any,
        anchors: Ids,
        k: int = 10,
        *,
        exact: bool | None = None,
        as_of: str | Time | None = None,
        **options: Any,
    ) -> Table:
        return self.open(data, exact=exact, as_of=as_of).top_k(anchors, k, **options)

    def explain(
        self,
        data: Any,
        nodes: Ids | None = None,
        *,
        rows: Any = None,
        pairs: Any = None,
        edge_type: str | None = None,
        exact: bool | None = None,
        as_of: str | Time | None = None,
        **options: Any,
    ) -> Explanations:
        from raygnn.inference.explain.options import ExplainOptions

        explain_options = ExplainOptions(**options)
        graph = self.open(data, exact=exact, as_of=as_of)
        return graph.explain(nodes, explain_options, rows=rows, pairs=pairs, edge_type=edge_type)

    def evaluate(
        self, data: Any = None, *, split: str | None = None, exact: bool | None = None
    ) -> dict[str, float]:
        """Evaluates the model on a labelled graph with the metrics of its training.

        Args:
            split: train, val or test, from the graph's split column or the model's `data.splits`.
                Default: all labelled nodes; test for models of links or edges.
            exact: as in `open`. Seeds with times are encoded as of their own.
        Returns:
            Metrics by name, without the loss, which a saved model does not contain.
        Raises:
            ConfigError: there is no such split, or a metric's class is not allowed.
            DataError: the graph does not fit, has no labels or other classes, or the split is
                empty.
        """
        return self.judge(data, split=split, exact=exact).metrics

    def judge(
        self,
        data: Any = None,
        *,
        split: str | None = None,
        exact: bool | None = None,
        with_outputs: bool = False,
    ) -> Judged:
        """Evaluates the model as `evaluate` does, with intervals and the rows, perhaps also their
        outputs.
        """
        saved = self._open_saved(with_metrics=True)
        is_exact = saved.loaded.config.training.eval == "exact" if exact is None else exact
        bundle = self._bundle(data)
        how = {"exact": is_exact, "with_outputs": with_outputs}
        return judge_model(saved, self.module, bundle, split, **how)

    def to_pyg(self) -> nn.Module:
        """The encoder as PyG's own module, with a copy of the weights.

        Its output equals `embed` on graphs without self-edges and repeated edges, given features as
        the model reads them (`OpenGraph.to_pyg`).

        Raises:
            ConfigError: PyG has no equivalent module.
        """
        encoder = self.module.encoder
        assert isinstance(encoder, GraphEncoder)
        name = self._saved.loaded.config.model.type
        return to_pyg(encoder, name, list(self.spec.edge_inputs.values()))

    def _bundle(self, data: Any) -> Bundle:
        loaded, transforms = self._saved.loaded, self.spec.transforms
        if isinstance(data, Bundle):
            return data
        if isinstance(data, str | PathLike):
            return open_tables(loaded, fspath(data), transforms=transforms)
        section = loaded.config.data
        if data is None and not section.names_a_graph:
            raise ConfigError(
                "data=None is invalid: it has no graph. Name one, as in model.predict('GRAPH') "
                f"(the training graph is {self._saved.graph}). [data-source-missing]"
            )
        if data is None and section.mode == "partitioned":
            return open_outline(loaded)
        return open_bundle(loaded, data, transforms=transforms)
