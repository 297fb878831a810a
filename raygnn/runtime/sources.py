"""Reads sources and Ray datasets into snapshots, and names them in a graph.yaml of files.

Everything after that reads files.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from raygnn.console import say
from raygnn.data.cache import Claim, cache_errors, cache_folder
from raygnn.data.file_lock import locked
from raygnn.data.filesystem import absolute, exists, is_below, is_remote, join, write_text
from raygnn.data.manifest import Manifest, manifest_folder
from raygnn.data.tables.files import check_below
from raygnn.data.tables.snapshot import RECORD, Snapshots, read_record
from raygnn.data.tables.source import Read, Source, database_file, open_database, select
from raygnn.errors import (
    ConfigError,
    DataError,
    RaygnnError,
    ResourceError,
    choose_from,
    did_you_mean,
)
from raygnn.loops.signals import Terminated
from raygnn.redaction import redact_text
from raygnn.runtime.connection import connect, quiet_ray_data


def with_snapshots(
    uri: str,
    cache_dir: str | None,
    *,
    refresh: bool = False,
    allow_outside: Sequence[str] | None = (),
    progress: Callable[[str], None] = say,
) -> str:
    """URI of the graph's tables as files: of `uri` itself, or of snapshots of its sources.

    Sources without a snapshot are read, and with `refresh` all of them. Their snapshots become
    current together.

    Args:
        allow_outside: folders besides the graph's that may have databases to read; None allows all.
    Raises:
        DataError: graph.yaml or a source is invalid, or a source cannot be read.
    """
    manifest, folder = Manifest.load(uri, allow_outside or ()), absolute(manifest_folder(uri))
    sources = _sources(manifest, folder)
    if not sources:
        return uri
    roots = None if allow_outside is None else [folder, *allow_outside]
    paths = read_sources(sources, cache_dir, refresh=refresh, roots=roots)
    for name, path in paths.items():
        progress(f"snapshot of {name}: {read_record(path)}")
    files = {
        name: [join(folder, pattern) for pattern in table.files]
        for name, table in manifest.all_tables.items()
    }
    return _write_graph(manifest, files, paths, cache_dir)


def places_outside(uri: str) -> list[str]:
    """Local databases and files of a graph's sources that are not in its folder."""
    folder = absolute(manifest_folder(uri))
    places = [p for s in _sources(Manifest.load(uri), folder).values() for p in _places(s)]
    return sorted({absolute(place) for place in places if not is_below(place, [folder])})


def _sources(manifest: Manifest, folder: str) -> dict[str, Source]:
    """The sources of a graph with absolute paths, by table."""
    return {
        name: located(table.read, folder)
        for name, table in manifest.all_tables.items()
        if table.read is not None
    }


def read_sources(
    sources: Mapping[str, Source],
    cache_dir: str | None,
    *,
    refresh: bool = False,
    roots: Sequence[str] | None = None,
) -> dict[str, Path]:
    """The snapshot of each source, by table. See `with_snapshots`.

    Args:
        sources: with absolute paths.
        roots: folders that may have databases to read; None allows all.
    """
    snapshots = {name: Snapshots.of(source, cache_dir) for name, source in sources.items()}
    paths = {name: each.current() for name, each in snapshots.items()}
    folders = sorted(str(each.folder) for each in snapshots.values())
    lock = cache_folder(cache_dir, _FOLDER) / f"{_hash(' '.join(folders))}.lock"
    if refresh or None in paths.values():
        with cache_errors(lock.parent, "rows"), locked(str(lock), say):
            before = {name: each.current() for name, each in snapshots.items()}
            taken: dict[Path, Path] = {}
            with ExitStack() as stack:
                opened = cache(lambda url: stack.enter_context(open_database(url)))
                for name, each in snapshots.items():
                    if each.folder not in taken and (refresh or before[name] is None):
                        with named_failures(name):
                            if roots is not None:
                                for place in _places(sources[name]):
                                    check_below(place, roots, f"{place!r}")
                            taken[each.folder] = each.take(_batches(sources[name], opened))
                    paths[name] = taken.get(each.folder) or before[name]
            for each in snapshots.values():
                if each.folder in taken:
                    each.use(taken[each.folder])
                    each.remove_old()
    return {name: path for name, path in paths.items() if path is not None}


def with_datasets(manifest: Manifest, rows: Mapping[str, Any], cache_dir: str | None) -> str:
    """URI of tables whose rows are given: Ray datasets, or Arrow tables, by name of the table."""
    paths, snapshots = {}, Snapshots.of(Source(type="dataset"), cache_dir)
    for name, table in rows.items():
        is_arrow = isinstance(table, pa.Table)
        with named_failures(name):
            batches = table.to_batches() if is_arrow else _dataset_batches(table)
            paths[name] = snapshots.take(batches)
        say(f"snapshot of {name}: {read_record(paths[name])}")
    uri = _write_graph(manifest, {}, paths, cache_dir)
    snapshots.remove_old()
    return uri


def snapshot_records(uri: str | None) -> dict[str, dict[str, Any]]:
    """Records of the snapshots that a graph.yaml of `with_snapshots` names, by table."""
    if uri is None or is_remote(uri) or Path(manifest_folder(uri)).name != _FOLDER:
        return {}
    paths = _snapshots_of(uri)
    return {name: asdict(read_record(p)) for name, p in paths.items() if (p / RECORD).exists()}


def keep_snapshots(uri: str) -> bool:
    """Keeps the snapshots that a graph.yaml of `with_snapshots` names, until this process ends.

    Returns whether all of them still exist.
    """
    if not exists(uri):
        return False
    paths = [*_snapshots_of(uri).values()]
    for path in paths:
        if path not in _claims:
            with suppress(ResourceError):  # of a cache that this user may only read
                _claims[path] = Claim(path, "rows")
    return all((path / RECORD).exists() for path in paths)


def _snapshots_of(uri: str) -> dict[str, Path]:
    folder = Path(manifest_folder(uri))
    files = {name: table.files[0] for name, table in Manifest.load(uri).all_tables.items()}
    return {
        name: (folder / file).parent
        for name, file in files.items()
        if not (is_remote(file) or Path(file).is_absolute())
    }


_FOLDER = "snapshots"
_claims: dict[Path, Claim] = {}


def _write_graph(
    manifest: Manifest,
    files: Mapping[str, Sequence[str]],
    paths: Mapping[str, Path],
    cache_dir: str | None,
) -> str:
    root = cache_folder(cache_dir, _FOLDER)
    read = {
        name: [f"{path.relative_to(root).as_posix()}/*.parquet"] for name, path in paths.items()
    }
    text = manifest.with_files({**files, **read}).dump()
    path = root / f"graph-{_hash(text)}.yaml"
    if not path.exists():
        write_text(path, text)
    keep_snapshots(str(path))
    return str(path)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@contextmanager
def named_failures(table: str) -> Iterator[None]:
    """Reports a failure of any driver or reader as an error of the table's source."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise DataError(f"{table}: {error}") from error
    except (RaygnnError, Terminated):
        raise
    except Exception as error:
        cause = getattr(error, "cause", None) or error  # of a task of Ray
        if isinstance(cause, ImportError) and cause.name:
            module = cause.name.partition(".")[0]
            package = _PACKAGES.get(module, module)
            raise DataError(
                f"{table} needs {package}: {cause}. Run pip install {package}. [source-package]"
            ) from error
        text = " ".join(redact_text(str(cause)).split())[:_MAX_CAUSE]
        raise DataError(
            f"{table} cannot be read ({type(cause).__name__}: {text}). Check the source, and that "
            "it can be reached from here; nothing of it was stored. [source-unreadable]"
        ) from error


#: Packages that are named differently from their module.
_PACKAGES = {
    "bson": "pymongo",
    "google": "google-cloud-bigquery google-cloud-bigquery-storage",
    "lance": "pylance",
    "snowflake": "snowflake-connector-python",
}
_MAX_CAUSE = 500


def _batches(source: Source, opened: Callable[[str], Read]) -> Iterator[Any]:
    if source.type == "sql":
        url, query = source.args["url"], source.args.get("query")
        yield from opened(url)(query or select(url, source.args["table"]))
        return
    connect()
    with quiet_ray_data():
        yield from _dataset_batches(_reader(source)(**source.args))


def _reader(source: Source) -> Callable[..., Any]:
    import ray.data

    readers = {
        name.removeprefix("read_"): function
        for name, function in inspect.getmembers(ray.data, inspect.isfunction)
        if name.startswith("read_") and name not in _OF_OBJECTS
    }
    if source.type not in readers:
        choices = sorted([*readers, "sql"])
        remedy = choose_from(source.type, choices)
        raise ConfigError.invalid("type", source.type, "no such reader", remedy, id="source-type")
    arguments = inspect.signature(readers[source.type]).parameters.values()
    names = [a.name for a in arguments if a.kind in (a.POSITIONAL_OR_KEYWORD, a.KEYWORD_ONLY)]
    is_open = any(a.kind == a.VAR_KEYWORD for a in arguments)
    if unknown := [
        name
        for name in source.args
        if name not in names and (not is_open or did_you_mean(name, names))
    ]:
        remedy = choose_from(unknown[0], names, f"Arguments of {source.type}")
        raise ConfigError.invalid(
            unknown[0], source.args[unknown[0]], "unknown argument", remedy, id="source-argument"
        )
    required = [a.name for a in arguments if a.name in names and a.default is a.empty]
    if missing := [name for name in required if name not in source.args]:
        raise ConfigError.invalid(
            "type", source.type, f"it needs {', '.join(missing)}", "Set them", id="source-argument"
        )
    return readers[source.type]


#: Readers whose arguments are Python objects.
_OF_OBJECTS = ("read_datasource", "read_sql")


def _dataset_batches(dataset: Any) -> Iterator[Any]:
    """Blocks of a Ray dataset, in the order of its rows."""
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow")
    finally:
        options.preserve_order = before


def located(source: Source, folder: str) -> Source:
    """The source with absolute paths; relative ones start at the graph's folder."""
    return Source(type=source.type, **_with_places(source.args, "", partial(join, folder)))


def _places(source: Source) -> list[str]:
    """Local databases and files that the arguments name."""
    found: list[str] = []

    def note(path: str) -> str:
        found.append(path)
        return path

    _with_places(source.args, "", note)
    return found


_PLACES = frozenset(["path", "paths", "uri", "root", "warehouse", "location"])


def _with_places(value: Any, key: str, change: Callable[[str], str]) -> Any:
    """A copy of arguments with changed paths of local files, also in lists and mappings."""
    if isinstance(value, Mapping) and key != "connection_parameters":  # of Snowflake
        return {name: _with_places(inner, name, change) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_places(inner, key, change) for inner in value]
    if not isinstance(value, str):
        return value
    if (path := database_file(value)) is not None:
        return f"{value.partition('://')[0]}:///{quote(absolute(change(path)))}"
    is_path = not _PLACES.isdisjoint(re.split(r"\W|_", key))
    is_local = (is_path and not is_remote(value)) or value.startswith(("file:", "local:"))
    return absolute(change(value)) if is_local else value
