"""Opens the bundle of the config's `data` section, always through graph tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from raygnn import __version__
from raygnn.config import LoadedConfig, build
from raygnn.config.registry import GENERATORS
from raygnn.console import say, warn
from raygnn.data.bundle import Bundle
from raygnn.data.cache import build_once, cache_folder
from raygnn.data.filesystem import exists, join, read_text, reading_input, redact
from raygnn.data.fit_rows import fit_transforms, has_transforms
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.manifest import manifest_folder, manifest_uri
from raygnn.data.partition.record import RECORD_NAME
from raygnn.data.transforms.fitted import Transforms
from raygnn.errors import ConfigError
from raygnn.loops.tasks.target import target_class
from raygnn.outputs.run_folder import SNAPSHOTS, RunFolder
from raygnn.runtime.sources import keep_snapshots, with_datasets, with_snapshots

if TYPE_CHECKING:
    from raygnn.data.tables.graph_tables import GraphTables
    from raygnn.inference.new_rows import TablesSource
    from raygnn.outputs.saved_model import SavedModel


def check_source(loaded: LoadedConfig, data: Any) -> None:
    """Raises a ConfigError unless there is one source of the graph, in the config or as `data`:
    `GraphTables`, or a PyG `Data` or `HeteroData`.
    """
    section = loaded.config.data
    if data is not None and section.names_a_graph:
        raise ConfigError(
            "data is set twice: fit(data=...) and the config. Remove one. [data-source-twice]"
        )
    if data is None and not section.names_a_graph:
        raise ConfigError(
            "data.uri=None is invalid: the config has no graph. Set data.uri to a folder with "
            "graph.yaml, or data.synthetic, or data.type. [data-source-missing]"
        )


def open_bundle(
    loaded: LoadedConfig,
    data: Any,
    on_cluster: bool = False,
    transforms: Transforms = MappingProxyType({}),
) -> Bundle:
    """Opens the bundle of the graph of `check_source`, building it first if needed. Raises a
    DataError if its tables are invalid.

    Generated graphs and PyG objects are first written as graph tables into the cache.

    Args:
        on_cluster: Ray, which must be running, ingests tables that are not small.
        transforms: of features transformed as in an earlier training.
    """
    uri = tables_uri(loaded, data)
    return open_tables(loaded, uri, on_cluster, transforms)


def open_trial_bundle(
    loaded: LoadedConfig, sweep: LoadedConfig, bundle_path: str, given_tables: str | None
) -> Bundle:
    """Opens the bundle of a trial: the sweep's, unless the trial varies the ingest.

    `given_tables`: passed to the sweep instead of the config's.
    """
    if _ingested(loaded) == _ingested(sweep):
        bundle = Bundle.open(bundle_path)
        if not has_transforms(bundle) or _fitted_on(loaded) == _fitted_on(sweep):
            return bundle
    check_source(loaded, given_tables)
    return open_training_tables(loaded, given_tables or tables_uri(loaded, None))


def run_tables(loaded: LoadedConfig, folder: RunFolder, data: Any = None) -> str:
    """URI of the tables of a run; one that resumes reads the snapshots of its first start."""
    record = join(folder.uri, SNAPSHOTS)
    resumes = data is None and not loaded.config.run.overwrite and folder.read_starts()
    if resumes and exists(record):
        uri = str(json.loads(read_text(record))["graph"])
        if keep_snapshots(uri):
            say(f"snapshots of the run's first start: {uri}")
            return uri
        warn("the snapshots of the run's first start are gone; it reads the rows of now")
    return tables_uri(loaded, data)


def tables_uri(loaded: LoadedConfig, data: Any) -> str:
    """URI of the configured graph's tables, written first if needed; see `check_source`."""
    check_source(loaded, data)
    section = loaded.config.data
    if section.mode == "partitioned":
        raise ConfigError(
            "data.mode='partitioned' is invalid: only training and raygnn infer read parts. Set it "
            "to in_memory, and data.uri to the tables of the graph. [partition-training-only]"
        )
    cache_dir = section.cache_dir
    uri = section.uri or ""
    if uri and _holds_parts_alone(uri):
        raise ConfigError(
            f"data.uri={redact(uri)!r} is invalid: it is a partitioned graph. Set data.mode to "
            "partitioned, or data.uri to the tables. [partition-as-tables]"
        )
    if data is not None:
        uri = _write_data(data, cache_dir)
    elif section.synthetic is not None:
        uri = _write_synthetic(section.synthetic.type, section.synthetic.args, cache_dir)
    elif section.component is not None:
        made = build(section.component, "dataset", loaded.allow_modules)
        uri = _write_data(_single_graph(made), cache_dir)
    else:
        uri = _of_files(loaded, uri)
    return uri


def _of_files(loaded: LoadedConfig, uri: str, *, progress: Callable[[str], None] = say) -> str:
    section = loaded.config.data
    allowed = section.allow_outside
    return with_snapshots(uri, section.cache_dir, allow_outside=allowed, progress=progress)


def _holds_parts_alone(uri: str) -> bool:
    manifest = manifest_uri(uri)
    with reading_input(manifest):
        return not exists(manifest) and exists(join(uri, RECORD_NAME))


def open_tables(
    loaded: LoadedConfig,
    uri: str,
    on_cluster: bool = False,
    transforms: Transforms = MappingProxyType({}),
    progress: Callable[[str], None] = say,
) -> Bundle:
    """Opens the bundle of graph tables, building it first if needed; see `open_bundle`."""
    section = loaded.config.data
    options = replace(ingest_options(loaded, uri), transforms=dict(transforms))
    uri = _of_files(loaded, uri)
    progress(f"graph: {redact(uri)}")
    if not on_cluster:
        return ingest(uri, options, section.cache_dir, progress=progress)
    from raygnn.runtime.ingest import ingest_on_cluster

    return ingest_on_cluster(uri, options, section.cache_dir, progress)


def open_training_tables(loaded: LoadedConfig, uri: str, on_cluster: bool = False) -> Bundle:
    """Opens the bundle of graph tables to train on, with transforms fitted without test rows.

    Ingest fits transforms on the training rows of a node split column. Those of a rule or of a
    training table are only known with a bundle: then transforms are fitted again, and the tables
    ingested with them. Lines of both ingests are printed once; bundle and columns are those of the
    last.
    """
    printed: set[str] = set()
    outcome: list[str] = []

    def progress(line: str) -> None:
        if ".features." in line or line.startswith(("ingest: wrote", "ingest: reusing")):
            outcome.append(line)
        elif line not in printed:
            say(line)
            printed.add(line)

    try:
        bundle, config = open_tables(loaded, uri, on_cluster, progress=progress), loaded.config
        kind = target_class(config.task.type)
        has_rows = bundle.training_tables or any(e.time is not None for e in bundle.label_edges)
        is_known = config.data.splits is None and not has_rows
        if is_known or kind is None or not has_transforms(bundle):
            return bundle
        found = kind.find(bundle, config, kind.Arguments.of(config.task.args))
        rows = found.fit_rows(bundle, config)
        if rows.are_all:
            return bundle
        outcome.clear()
        transforms = fit_transforms(uri, ingest_options(loaded), bundle, rows, progress)
        return open_tables(loaded, uri, on_cluster, transforms, progress)
    finally:
        for line in outcome:
            say(line)


def ingest_options(loaded: LoadedConfig, uri: str | None = None) -> IngestOptions:
    """`uri`: of other tables than the config's."""
    section = loaded.config.data
    reverse = section.reverse_edges
    # A graph.yaml of snapshots also names the files of the user's folder.
    own = [manifest_folder(named) for named in (section.uri, uri) if named is not None]
    return IngestOptions(
        on_error=section.on_error,
        undirected=section.undirected,
        reverse_edges=tuple(reverse) if isinstance(reverse, list) else reverse,
        feature_dtype=section.feature_dtype,
        allow_outside=(*section.allow_outside, *own),
    )


def tables_source(saved: SavedModel, uri: str | None = None) -> TablesSource | None:
    """The tables of a graph, by default the config's, for a model; None for one without tables."""
    from raygnn.inference.new_rows import TablesSource  # with torch, which the driver may not need

    if uri is None and saved.loaded.config.data.mode != "partitioned":
        uri = saved.loaded.config.data.uri
    options = replace(ingest_options(saved.loaded, uri), transforms=dict(saved.spec.transforms))
    if uri is None:
        return None
    return TablesSource(_of_files(saved.loaded, uri, progress=lambda _: None), options)


def _ingested(loaded: LoadedConfig) -> tuple[Any, ...]:
    section = loaded.config.data
    return section.uri, section.synthetic, section.component, ingest_options(loaded)


def _fitted_on(loaded: LoadedConfig) -> tuple[Any, ...]:
    config = loaded.config
    if config.data.splits is None:
        return config.task, config.tasks
    return config.data.splits, config.seed, config.task, config.tasks


def _write_synthetic(generator: str, arguments: dict[str, Any], cache_dir: str | None) -> str:
    synthetic_tables = import_module(GENERATORS).synthetic_tables
    text = json.dumps([__version__, generator, arguments], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()
    return _write_once(
        cache_dir, f"synthetic-{key[:20]}", lambda: synthetic_tables(generator, **arguments)
    )


def _write_data(data: Any, cache_dir: str | None) -> str:
    from raygnn.data.tables.graph_tables import GraphTables, rows_to_read
    from raygnn.data.tables.pyg import tables_from_pyg, unread_attributes

    is_tables = isinstance(data, GraphTables)
    tables, kind = (data, "tables") if is_tables else (tables_from_pyg(data), "pyg")
    if is_tables and (streamed := rows_to_read(tables)):
        return with_datasets(*streamed, cache_dir)
    if not is_tables and (unread := unread_attributes(data)):
        say(f"attributes of data that are not read: {', '.join(unread)}")
    return _write_once(cache_dir, f"{kind}-{_content_key(tables)[:20]}", lambda: tables)


def _content_key(tables: GraphTables) -> str:
    """sha256 over the tables' schemas, buffers and column roles."""
    digest = hashlib.sha256()
    parts: list[tuple[Any, Any]] = [*tables.nodes.items(), *tables.edges.items()]
    parts += [*tables.label_edges.items(), *tables.training_tables.items()]
    for name, rows in sorted(parts, key=lambda part: str(part[0])):
        table = rows.table.combine_chunks()
        digest.update(repr((name, replace(rows, table=None), table.schema)).encode())
        for column in table.columns:
            for chunk in column.chunks:
                for buffer in chunk.buffers():
                    digest.update(b"" if buffer is None else memoryview(buffer))
    return digest.hexdigest()


def _write_once(cache_dir: str | None, name: str, make: Callable[[], GraphTables]) -> str:
    from raygnn.data.tables.graph_tables import write_tables

    def build(folder: Path) -> None:
        write_tables(make(), str(folder), num_shards=2)

    # A cache that is whole need not be writable.
    return str(build_once(cache_folder(cache_dir, "tables") / name, build))


def _single_graph(dataset: Any) -> Any:
    """The graph itself, or the only one of a PyG dataset. Raises a ConfigError for several."""
    if hasattr(dataset, "edge_types") or hasattr(dataset, "edge_index"):
        return dataset
    if len(dataset) != 1:
        raise ConfigError(
            f"data.type={type(dataset).__name__!r} is invalid: it holds {len(dataset)} graphs. "
            "Give a dataset of one graph, or a function that returns one. [data-several-graphs]"
        )
    return dataset[0]
