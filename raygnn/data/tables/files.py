"""The files of a table: listed by pattern, with a format by suffix, opened from anywhere."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from raygnn.config.section import NonNegativeWhole, Section
from raygnn.data import filesystem
from raygnn.data.filesystem import redact
from raygnn.data.storage_retry import is_of_content, is_transient
from raygnn.errors import DataError

TableFormat = Literal["parquet", "csv"]

_FORMATS: dict[str, TableFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".csv.gz": "csv",
    ".tsv.gz": "csv",
}
# Below this a remote file is fetched in one request; above it, by ranges of the read columns.
_WHOLE_FILE_BYTES = 64 << 20
# Names of the value that changes with an object's content, in order of preference.
_VERSION_KEYS = ("etag", "ETag", "e_tag", "md5Hash", "crc32c", "generation")
# Many writers name shards like this: a table with missing shards is rejected.
_NUMBER = "-of-"
_MAX_NAMED = 5
# Regular expressions of more take minutes on one long name.
_MAX_STARS = 3
_STARS = re.compile(r"\*+")
_NUMBERED = re.compile(rf"(.*?)\d+{_NUMBER}(\d+\..*)")


class CsvFormat(Section):
    """How the text files of a table are read.

    The header line determines a separator that is None. Without a header, columns are called 0, 1,
    and so on.
    """

    separator: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    header: bool = True
    skip_lines: NonNegativeWhole = 0


PLAIN_CSV = CsvFormat()


@dataclass(frozen=True)
class TableFile:
    """One file of a table.

    Attributes:
        name: path in messages, relative to the graph's folder.
        version: the store's version mark, if any.
        modified: modification time on a local disk.
    """

    uri: str
    name: str
    format: TableFormat
    size: int
    version: str | None = None
    modified: float | None = None
    csv: CsvFormat = PLAIN_CSV


_RELATIVE = (
    "the pattern, which is relative to graph.yaml's folder, and that the tables were written"
)


def list_files(
    folder: str,
    patterns: Sequence[str],
    place: str,
    roots: Sequence[str] | None = None,
    csv: CsvFormat | None = None,
) -> list[TableFile]:
    """Lists the files of a table, each pattern's sorted by name.

    Args:
        place: the field in messages, such as `node_types.user.files`.
        roots: the only folders that patterns may lead to; null for a user's patterns.
        csv: format of text files, which may then have any suffix.
    Raises:
        DataError: a pattern matches nothing, a file of unknown format, or only some of the files of
            a numbered set such as `part-00000-of-00002.parquet`; or as `match_files`.
    """
    files: dict[str, TableFile] = {}
    for pattern in patterns:
        matches = match_files(folder, pattern, place, roots)
        if not matches:
            raise DataError(
                f"{place}={pattern!r} is invalid: no file matches it in {redact(folder)}. Check "
                f"{'the path' if roots is None else _RELATIVE}. [data-files-missing]"
            )
        if _NUMBER not in pattern:  # else it asks for some of them
            _check_numbers([path for path, _ in matches], f"{place}={pattern!r}")
        for path, info in matches:
            files.setdefault(path, _table_file(folder, path, info, place, csv))
    return list(files.values())


def named_files(uri: str, option: str) -> list[TableFile]:
    """The Parquet or CSV files that an option of a command names, perhaps by a pattern."""
    folder, slash, name = uri.rpartition("/")
    return list_files(folder or slash or ".", [name], option)


def _check_numbers(paths: Sequence[str], place: str) -> None:
    tables = Counter(
        (match[1], match[2]) for match in map(_NUMBERED.fullmatch, paths) if match is not None
    )
    for (before, after), num_files in tables.items():
        total = int(after.partition(".")[0])
        if num_files < total:
            raise DataError(
                f"{place} is invalid: {num_files} of {total} files "
                f"{redact(before)}*{_NUMBER}{after} exist. Write the others. [data-shards-missing]"
            )


def match_files(
    folder: str, pattern: str, place: str, roots: Sequence[str] | None = None
) -> list[tuple[str, Mapping[str, Any]]]:
    """The files of a pattern below a folder, by name, with the store's information.

    Raises a DataError if the pattern leads out of `roots`, or to something that is not a regular
    file. `place`: the pattern's field in messages.
    """
    place = f"{place}={pattern!r}"
    located = filesystem.join(folder, pattern)
    if roots is not None:
        check_below(located, roots, place)
        if any(len(_STARS.findall(part)) > _MAX_STARS for part in pattern.split("/")):
            raise DataError(
                f"{place} has a name of more than {_MAX_STARS} wildcards. Use fewer. [data-pattern]"
            )
    fs, path = filesystem.open_fs(located)
    if filesystem.is_remote(located):
        # Listings are cached per process; tables may have been rewritten since.
        fs.invalidate_cache()
    try:
        matched = _match(fs, path, folder, pattern)
    except (ValueError, OSError) as error:
        if is_transient(error):
            raise
        raise DataError(
            f"{place} is invalid: {error}. Correct the pattern. [data-pattern]"
        ) from error
    kept = []
    for name in sorted(matched):
        info = matched[name]
        # Names that begin so are markers of the writers (_SUCCESS, .part.crc), as Spark has it.
        if info["type"] == "directory" or name.rpartition("/")[2].startswith(("_", ".")):
            continue
        uri = fs.unstrip_protocol(name) if filesystem.is_remote(located) else name
        if roots is not None and not filesystem.is_remote(located):  # links are local
            check_below(uri, roots, f"{place} with {redact(name)}")
        filesystem.check_regular(uri, f"{place} with {redact(name)}")
        kept.append((uri, info))
    return kept


def _match(
    fs: fsspec.AbstractFileSystem, path: str, folder: str, pattern: str
) -> dict[str, Mapping[str, Any]]:
    if not glob.has_magic(pattern):
        try:
            return {path: fs.info(path)}
        except FileNotFoundError:
            return {}
    root = filesystem.open_fs(folder)[1].rstrip("/")
    relative = path[len(root) :] if path.startswith(root) else ""
    entries: dict[str, Mapping[str, Any]] = fs.glob(
        glob.escape(root) + relative if relative else path, detail=True
    )
    return entries


def check_below(uri: str, roots: Sequence[str], place: str) -> None:
    """Raises a DataError if a file named by data is outside of its roots."""
    if not filesystem.is_below(uri, roots):
        raise DataError(
            f"{place} is invalid: it leads out of {redact(roots[0])}. Allow its folder with "
            "data.allow_outside. [data-outside]"
        )


#: The end of a file's name that numbers it.
NUMBERED_STEM = re.compile(r"[-_.]?(part[-_.]?)?\d+([-_]of[-_]\d+)?$")
_DATED_STEM = re.compile(r"([-_.]?\d+)+$")


def unread_files(folder: str, read: Collection[str]) -> Iterator[str]:
    """Lines about files that look like more rows of tables, which graph.yaml does not read.

    Args:
        folder: of graph.yaml.
        read: paths that it reads, relative to the folder. Those outside are left out.
    """
    inside = [name for name in read if not name.startswith(("/", "..")) and "://" not in name]
    known, parents = set(inside), dict.fromkeys(name.rpartition("/")[0] for name in inside)
    for parent in parents:
        start = f"{parent}/" if parent else ""
        groups: dict[tuple[str, str], list[str]] = {}
        for name in _names(filesystem.join(folder, parent) if parent else folder):
            if (found := suffix_and_format(name)) is not None:
                stem = NUMBERED_STEM.sub("", name[: -len(found[0])])
                groups.setdefault((_DATED_STEM.sub("", stem), found[0]), []).append(start + name)
        for (stem, suffix), names in groups.items():
            new = [name for name in names if name not in known]
            if stem and 0 < len(new) < len(names):
                more = f" and {len(new) - _MAX_NAMED} more" if len(new) > _MAX_NAMED else ""
                yield (
                    f"{stem}: graph.yaml does not read {', '.join(new[:_MAX_NAMED])}{more}; set "
                    f"files: {start}{stem}*{suffix}"
                )


def _names(folder: str) -> list[str]:
    fs, path = filesystem.open_fs(folder)
    return sorted(str(found).rsplit("/", 1)[-1] for found in fs.ls(path, detail=False))


def suffix_and_format(uri: str) -> tuple[str, TableFormat] | None:
    name = uri.lower()
    return next(((end, kind) for end, kind in _FORMATS.items() if name.endswith(end)), None)


def is_parquet(uri: str) -> bool:
    suffix = suffix_and_format(uri)
    return suffix is not None and suffix[1] == "parquet"


def _table_file(
    folder: str, uri: str, info: Mapping[str, Any], place: str, csv: CsvFormat | None
) -> TableFile:
    suffix = suffix_and_format(uri)
    if suffix is None and csv is None:
        raise DataError(
            f"{place} is invalid: {redact(uri)} has none of the suffixes {', '.join(_FORMATS)}. "
            "Rename it, or set csv, as csv: {separator: ','}. [data-file-format]"
        )
    version = next((str(info[key]) for key in _VERSION_KEYS if info.get(key)), None)
    modified = None if filesystem.is_remote(uri) else info.get("mtime")
    kind: TableFormat = "csv" if suffix is None else suffix[1]
    name = _short_name(folder, uri)
    return TableFile(uri, name, kind, info["size"], version, modified, csv or PLAIN_CSV)


def _short_name(folder: str, uri: str) -> str:
    root_fs, root = filesystem.open_fs(folder)
    path = root_fs._strip_protocol(uri)
    prefix = root.rstrip("/") + "/"
    return path.removeprefix(prefix) if path.startswith(prefix) else redact(uri)


def is_tab_separated(uri: str) -> bool:
    return uri.lower().removesuffix(".gz").endswith(".tsv")


@contextmanager
def open_stream(uri: str) -> Iterator[pa.NativeFile]:
    """Opens a file for reading from its start, decompressed by suffix."""
    fs, path = filesystem.open_fs(uri)
    with fs.open(path, "rb") as file, pa.PythonFile(file, mode="r") as raw:
        if uri.lower().endswith(".gz"):
            with pa.CompressedInputStream(raw, "gzip") as stream:
                yield stream
        else:
            yield raw


@contextmanager
def open_parquet(uri: str, footer_only: bool = False) -> Iterator[pq.ParquetFile]:
    """Opens a Parquet file. Raises a DataError if it is not Parquet, or is truncated.

    `footer_only`: reads only schema and row counts, without downloading a remote file.
    """
    fs, path = filesystem.open_fs(uri)
    try:
        if not filesystem.is_remote(uri):
            with pq.ParquetFile(path, memory_map=True) as file:
                yield file
        elif not footer_only and fs.size(path) <= _WHOLE_FILE_BYTES:
            with pq.ParquetFile(pa.BufferReader(fs.cat_file(path))) as file:
                yield file
        else:
            with fs.open(path, "rb") as raw, pq.ParquetFile(raw, pre_buffer=True) as file:
                yield file
    except (pa.ArrowException, ValueError, OSError, EOFError) as error:  # Ray's types: ValueError
        if is_transient(error) and not is_of_content(error):
            raise
        raise DataError(
            f"{redact(os.fspath(uri))} cannot be read as Parquet: {error}. Write the file again. "
            "[table-parquet-unreadable]"
        ) from error


def read_parquet(uri: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads a Parquet file, or columns in this order. Raises a DataError if it is unreadable."""
    with open_parquet(uri) as file:
        table = file.read(None if columns is None else list(columns))
    return table if columns is None else table.select(columns)


def concat_files(tables: Sequence[pa.Table], names: Sequence[str]) -> pa.Table:
    """Concatenates the tables of files.

    Raises a DataError if no type fits a column of two files.
    """
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowTypeError as error:
        first: dict[str, tuple[pa.Field, str]] = {}
        for table, name in zip(tables, names, strict=True):
            for field in table.schema:
                before, where = first.setdefault(field.name, (field, name))
                both = [pa.schema([before]), pa.schema([field])]
                try:
                    pa.unify_schemas(both, promote_options="permissive")
                except pa.ArrowTypeError:
                    raise DataError(
                        f"column {field.name!r} is {before.type} in {redact(where)} but "
                        f"{field.type} in {redact(name)}. Write one schema. [table-column-types]"
                    ) from error
        raise


def write_parquet(table: pa.Table, uri: str) -> None:
    """Writes a table to one file, a local path or any fsspec URI, and makes its folder."""
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    filesystem.write_bytes(uri, buffer.getvalue().to_pybytes())
