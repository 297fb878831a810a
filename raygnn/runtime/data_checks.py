"""Checks of data and task before a worker starts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from raygnn.config import Component, Config, LoadedConfig, LossTerm, resolve
from raygnn.config.registry import SLOTS
from raygnn.console import say, warn
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import (
    BundleRecord,
    EdgeRecord,
    LabelEdgeRecord,
    NodeRecord,
    PartsFit,
    TrainingTableRecord,
)
from raygnn.data.edge_types import EdgeType, edge_type_name, resolve_fanouts, type_name
from raygnn.data.filesystem import absolute, redact
from raygnn.data.fit_rows import FitRows, has_transforms
from raygnn.data.manifest import EdgeTable, LabelEdgeTable, Manifest, NodeTable
from raygnn.data.pagerank_graph import neighborhood_graph
from raygnn.data.partition.fit import OpenOutline, RowsToFit
from raygnn.data.partition.part import Outline, Pairs
from raygnn.data.partition.record import PartitionRecord
from raygnn.data.time_units import time_unit, window_as_time
from raygnn.errors import ConfigError, RaygnnError
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks.target import DeclaredTimes, target_class
from raygnn.runtime.data_source import ingest_options

if TYPE_CHECKING:
    from raygnn.sampling.parts import PartitionedGraph


def check_schema(loaded: LoadedConfig, uri: str) -> None:
    """Checks `graph.yaml`, before tables are read. Raises a ConfigError if the model does not
    support the number of types, or the fanouts name others. A user's own task may need neither.
    """
    config, manifest = loaded.config, Manifest.load(uri)
    if config.task.type not in SLOTS["task"].names:
        return
    added = ingest_options(loaded).added_reverses(manifest.edge_types)
    edge_types = [*(table.type for table in manifest.edge_types), *added.values()]
    if is_of_raygnn(config.model):
        from raygnn.models.graph_inputs import check_types

        model_class = resolve(config.model, "model")
        assert isinstance(model_class, type)
        num_node_types = len(manifest.node_types)
        check_types(config.model.type, model_class, num_node_types, len(edge_types))
    _check_fanouts(config, edge_types)


def _check_fanouts(config: Config, edge_types: Sequence[EdgeType]) -> None:
    resolved = resolve_fanouts(config.sampling.fanouts, edge_types)
    if not all(map(any, zip(*resolved.values(), strict=True))):
        key, fanouts = "sampling.fanouts", config.sampling.fanouts
        rule, remedy = "a hop samples no neighbors", "Set some number other than 0 in each hop"
        raise ConfigError.invalid(key, fanouts, rule, remedy, id="sampling-hop-empty")


def with_task_defaults(loaded: LoadedConfig, tables: str | None = None) -> LoadedConfig:
    """Completes the config by the task's defaults for the graph. Keys of the config stay.

    `tables`: URI of graph tables instead of the config's source.
    """
    config, kind = loaded.config, target_class(loaded.config.task.type)
    uri = tables or config.data.uri
    if uri is None or kind is None:
        return loaded
    try:
        found = kind.defaults(config, _declared_times(config, uri))
    except RaygnnError:  # reported when the graph is opened
        return loaded
    if "sampling" in found:
        say(
            "sampling.temporal: each row or edge sees the graph up to its own time "
            f"(strategy {found['sampling']['temporal'].strategy})"
        )
    return loaded.with_values(found)


def _declared_times(config: Config, uri: str) -> DeclaredTimes:
    if config.data.mode == "partitioned":
        whole = PartitionRecord.load(absolute(uri)).whole
        nodes = [_roles(record) for record in whole.nodes.values()]
        edges = [(edge_type_name(record.type), _roles(record)) for record in whole.edges]
        labels = [(edge_type_name(record.type), _roles(record)) for record in whole.label_edges]
        tables = {record.name: "time" in _roles(record) for record in whole.training_tables}
    else:
        manifest = Manifest.load(uri)
        nodes = [_declared_roles(table) for table in manifest.node_types.values()]
        edges = [(edge_type_name(t.type), _declared_roles(t)) for t in manifest.edge_types]
        labels = [(edge_type_name(t.type), _declared_roles(t)) for t in manifest.label_edges]
        rows = manifest.training_tables.items()
        tables = {name: table.time is not None for name, table in rows}
    has_times = any("time" in roles for roles in [*nodes, *(roles for _, roles in edges)])
    # If a type has both, the task learns the edges unless `task.args.label_edges` is set.
    learned = {name: "time" in roles for name, roles in (*labels, *edges) if "label" in roles}
    return DeclaredTimes(has_times, tables, learned)


def _roles(record: NodeRecord | EdgeRecord | LabelEdgeRecord | TrainingTableRecord) -> set[str]:
    return {column.role for column in record.columns}


def _declared_roles(table: NodeTable | EdgeTable | LabelEdgeTable) -> set[str]:
    labels = {"label"} if table.labels else set()
    return labels | ({"time"} if table.time is not None else set())


def open_outline(loaded: LoadedConfig) -> Outline:
    """The outline of the configured partitioned graph, built on this node for every worker. Raises
    a ConfigError if the config needs more than parts can answer, a DataError if a part is missing,
    damaged, or of another partition.
    """
    section = loaded.config.data
    assert section.uri is not None
    say(f"parts of {redact(section.uri)}")
    record = PartitionRecord.load(absolute(section.uri))
    schema = Bundle(Path(section.uri), record.whole)
    check_parts_suffice(loaded.config, schema)
    pairs = pairs_read(loaded.config, schema)
    return Outline.build(section.uri, section.cache_dir, pairs, say)


@contextmanager
def graph_parts(
    bundle: Bundle, config: Config, *, on_ray: bool
) -> Iterator[PartitionedGraph | None]:
    """The parts of an outline, mapped by this process or by actors; None for a complete graph."""
    if not isinstance(bundle, Outline):
        yield None
    elif on_ray:
        from raygnn.runtime.part_actors import part_actors

        with part_actors(bundle, config) as parts:
            yield parts
    else:
        from raygnn.sampling.parts import map_parts

        yield map_parts(config.data.uri or "", bundle)


def check_parts_suffice(config: Config, outline: Bundle) -> None:
    """Raises a ConfigError for temporal sampling on a partitioned graph of several types of which
    one has no reverse. `outline`: types and columns of the graph, possibly without rows.
    """
    from raygnn.sampling.partitioned_stores import no_times_of_types

    is_one_graph = len(outline.node_types) == 1 and len(outline.edge_types) == 1
    has_reverses = all(outline.reverse_of(t) not in (None, t) for t in outline.edge_types)
    if config.sampling.temporal is not None and not (is_one_graph or has_reverses):
        raise no_times_of_types(config.sampling.temporal.column)


def rows_to_fit(loaded: LoadedConfig, uri: str) -> RowsToFit:
    """Finds the training rows of a run in the parts of graph tables."""
    data = loaded.config.data.model_copy(update={"mode": "in_memory"})
    config = loaded.config.model_copy(update={"data": data})
    config = with_task_defaults(replace(loaded, config=config), uri).config
    kind = target_class(config.task.type)

    def find(graph: BundleRecord, open_outline: OpenOutline) -> FitRows:
        if kind is None:
            return FitRows()
        arguments = kind.Arguments.of(config.task.args)
        outline = open_outline(kind.pairs_read(Bundle(Path(uri), graph), arguments))
        return kind.find(outline, config, arguments).fit_rows(outline, config)

    sections = config.model_dump(mode="json", include={"task", "tasks", "data", "seed"})
    sections["data"] = sections["data"]["splits"]
    return RowsToFit(json.dumps(sections, sort_keys=True), find)


def pairs_read(config: Config, schema: Bundle) -> Pairs | None:
    """Pairs for `Outline.build`. Raises a ConfigError if `task.args` name something unknown."""
    kind = target_class(config.task.type)
    assert kind is not None
    return kind.pairs_read(schema, kind.Arguments.of(config.task.args))


def is_of_raygnn(component: Component | LossTerm) -> bool:
    """Whether a component is raygnn's. A user's own is imported only in workers."""
    return component.type.startswith("raygnn.") or "." not in component.type


def find_spec(loaded: LoadedConfig, bundle: Bundle) -> ModelSpec | None:
    """Determines inputs and outputs of a built-in task's run, and reports them.

    A user's own tasks, models and losses are imported only in the workers: of a task nothing is
    checked here, of a model only the target and, with `training.eval: exact`, the class. None if
    the workers determine the spec.

    Raises:
        ConfigError: `task.args` or the fanouts name something that the graph lacks.
        DataError: labels or features are missing, or a split is empty.
    """
    config, kind = loaded.config, target_class(loaded.config.task.type)
    if kind is None:
        return None
    tables, bundle = bundle, neighborhood_graph(config, bundle)
    _check_fanouts(config, bundle.edge_types)
    if (temporal := config.sampling.temporal) is not None and temporal.window is not None:
        window_as_time(temporal.window, time_unit(bundle, temporal.column))
    target = kind.find(bundle, config, kind.Arguments.of(config.task.args))
    if config.evaluates_by_layers:
        from raygnn.loops.tasks.exact_encoding import check_exact_class

        model_class = resolve(config.model, "model", loaded.allow_modules)
        check_exact_class(model_class, config.model.type)
    spec = None
    if is_of_raygnn(config.model):
        from raygnn.loops.tasks.find_inputs import check_inputs, make_spec

        losses = [loss for of_task in config.single_tasks for loss in of_task.losses]
        if all(is_of_raygnn(loss) or loss.type.startswith("torch.") for loss in losses):
            spec = make_spec(loaded, bundle, target)
        else:
            check_inputs(loaded, bundle, target)
    if spec is not None:
        _say_unread(config, tables, spec)
        _warn_of_unseen(config, bundle, spec)
    _say_learned(bundle, target.arguments.feature)
    _say_fitted(config, bundle, target.fit_rows(bundle, config))
    for line in target.summary(bundle):
        say(line)
    return spec


def _say_fitted(config: Config, bundle: Bundle, rows: FitRows) -> None:
    columns = [info for type_ in bundle.types for info in bundle.columns(type_).values()]
    if not any(info.role == "feature" for info in columns):
        return
    fit = bundle.parts_fit or PartsFit(str(FitRows()), FitRows().digest)
    if bundle.is_of_parts and fit.digest != rows.digest:
        line = f"transforms and standardization: fitted on {fit.rows}"
        ends = fit.until, rows.until
        if rows.are_all or (ends[0] is not None and ends[1] is not None and ends[0] <= ends[1]):
            say(line)
        else:
            warn(
                f"{line}, but this run trains on {rows}. Partition the tables again into another "
                "folder, with --config"
            )
        return
    if config.data.splits is None and rows.are_all and has_transforms(bundle):
        say("transforms: fitted on the training rows of split columns, otherwise on all rows")
        return
    line = f"transforms and standardization: fitted on {rows}"
    if config.data.splits is None or not rows.are_all:
        say(line)
    elif {each.task.type for each in config.single_tasks} == {"link_prediction"}:
        say(f"{line} of nodes, since data.splits splits links only")
    else:
        warn(f"{line}, including the validation and test rows of data.splits")


_MOST_UNREAD = 4  # columns that a line names


def _say_unread(config: Config, bundle: Bundle, spec: ModelSpec) -> None:
    read: dict[str | EdgeType, set[str | None]] = {}
    for name in bundle.node_types:
        read[name] = {spec.feature} if name in spec.widths else set()
    for edge_type in bundle.edge_types:
        if bundle.reverse_of(edge_type) not in read:  # a reverse has the same columns
            read[edge_type] = {*spec.edge_columns, config.sampling.weight}
    unread = [
        f"{column} of {type_name(type_)}"
        for type_, columns in read.items()
        for column, info in bundle.columns(type_).items()
        if info.role in ("feature", "weight") and column not in columns
    ]
    if unread:
        more = f" and {len(unread) - _MOST_UNREAD} more" if unread[_MOST_UNREAD:] else ""
        say(f"columns that the model does not read: {', '.join(unread[:_MOST_UNREAD])}{more}")


def _warn_of_unseen(config: Config, bundle: Bundle, spec: ModelSpec) -> None:
    read = {name for name, hops in spec.fanouts.items() if any(hops)}
    fanouts = resolve_fanouts(config.sampling.fanouts, bundle.edge_types)
    configured = [edge_type_name(edge_type) for edge_type, hops in fanouts.items() if any(hops)]
    unseen = [name for name in configured if name not in read]
    if unseen and read:  # a model without messages reads none
        warn(
            f"all edges of {', '.join(unseen)} are later than the last training row, so the model "
            "cannot learn from them and does not read them"
        )


def _say_learned(bundle: Bundle, feature: str) -> None:
    without = [name for name in bundle.node_types if feature not in bundle.columns(name)]
    if without and bundle.node_types[1:]:
        say(
            f"node types without feature {feature!r}: {', '.join(without)}; the model learns "
            "a row for each of their nodes"
        )
