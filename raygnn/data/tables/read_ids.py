"""Ids of nodes that a user lists, in a file or in memory, as dense ids."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.bundle import Bundle
from raygnn.data.filesystem import redact
from raygnn.data.id_map import IdKind
from raygnn.data.tables import csv_tables
from raygnn.data.tables.files import (
    TableFile,
    concat_files,
    named_files,
    open_parquet,
    read_parquet,
)
from raygnn.errors import DataError

_EXAMPLES = 5

#: Original ids in memory.
Ids: TypeAlias = pa.Array | np.ndarray | Sequence[int] | Sequence[str]


def read_ids(uri: str, column: str | None, kind: IdKind, option: str) -> pa.Array:
    """Reads a column of ids from Parquet or CSV files.

    Args:
        uri: a file, or a pattern of files in one folder.
        column: null uses the only column, or the one named id.
        kind: kind of the ids, which CSV files do not determine.
        option: the file's option in messages.
    Raises:
        DataError: the file or column is missing or unreadable.
    """
    return read_id_files(named_files(uri, option), column, kind, option)


def read_id_files(
    files: Sequence[TableFile], column: str | None, kind: IdKind, option: str
) -> pa.Array:
    return pa.chunked_array([_read(file, column, kind, option) for file in files]).combine_chunks()


def read_pairs(uri: str, kinds: Sequence[IdKind], option: str) -> pa.Table:
    """Reads the first two columns of Parquet or CSV files as ids; see `read_ids`."""
    files = named_files(uri, option)
    names = column_names(files[0])
    if len(names) < 2:
        raise DataError.invalid(
            option, uri, "it has one column", "Give two: of sources and targets", id="model-pairs"
        )
    ends = zip(names, kinds, strict=False)
    columns = [read_id_files(files, column, kind, option) for column, kind in ends]
    return pa.table(columns, names=["source", "target"])


def column_names(file: TableFile) -> Sequence[str]:
    if file.format == "csv":
        return csv_tables.read_header(file.uri, file.name, file.csv)
    with open_parquet(file.uri) as parquet:
        names: list[str] = parquet.schema_arrow.names
        return names


def read_columns(
    files: Sequence[TableFile], names: Sequence[str] | None, place: str, ids: Collection[str] = ()
) -> pa.Table:
    """Reads columns of a table (None reads all) unchanged, in the order of its files and rows.

    Leading zeros of `ids` count in CSV. Raises a DataError if a column is missing.
    """
    wanted = None if names is None else tuple(dict.fromkeys(names))
    for file in files:
        _check_there(wanted or (), column_names(file), file, place)
    texts = [file for file in files if file.format == "csv"]
    sniffs = [
        csv_tables.CsvSniff(file.uri, file.name, wanted or tuple(column_names(file)), file.csv)
        for file in texts
    ]
    read = dict(zip(texts, csv_tables.read_together(sniffs, ids), strict=True)) if texts else {}
    tables = [read[file] if file in read else read_parquet(file.uri, wanted) for file in files]
    return concat_files(tables, [file.name for file in files])


def _check_there(
    wanted: Sequence[str], present: Sequence[str], file: TableFile, place: str
) -> None:
    if lacking := [name for name in wanted if name not in present]:
        raise DataError(
            f"columns={lacking} is invalid: {redact(file.name)} of {place} lacks it. Name some of: "
            f"{', '.join(present)}. [infer-columns-unknown]"
        )


def dense_ids(bundle: Bundle, node_type: str, ids: Ids, option: str) -> np.ndarray:
    """Distinct int64 dense ids, in order. Raises a DataError for none or unknown ids."""
    dense = look_up_ids(bundle, node_type, ids, option)
    _, first = np.unique(dense, return_index=True)
    return dense[np.sort(first)]


def original_ids(bundle: Bundle, node_type: str, dense: np.ndarray) -> pa.Array:
    return as_plain_texts(bundle.take_ids(node_type, dense))


def as_plain_texts(ids: pa.Array) -> pa.Array:
    return ids.cast(pa.string()) if pa.types.is_large_string(ids.type) else ids


def look_up_ids(bundle: Bundle, node_type: str, ids: Ids, option: str) -> np.ndarray:
    """int64 dense ids with repeats, in order. Raises a DataError for none or unknown ids."""
    try:
        values = ids if isinstance(ids, pa.Array | np.ndarray) else pa.array(ids)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise DataError(
            f"{option} has ids of several types ({error}). Give one type. [infer-ids-kinds]"
        ) from error
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    if isinstance(values, np.ndarray):
        values = pa.array(values)
    if bundle.id_map(node_type).kind == "int" and pa.types.is_floating(values.type):
        with contextlib.suppress(pa.ArrowInvalid):  # fractions are an error below
            values = pc.cast(values, pa.int64())  # pandas reads integers with gaps as 16562.0
    if not len(values):
        raise DataError(
            f"{option} is invalid: it lists no ids. Give at least one. [infer-ids-empty]"
        )
    dense = bundle.id_map(node_type).lookup(values)
    unknown = np.flatnonzero(dense < 0)
    if len(unknown):
        shown = pa.array(values).take(pa.array(unknown[:_EXAMPLES])).to_pylist()
        raise DataError(
            f"{option} is invalid: {len(unknown):,} of {len(dense):,} ids are not nodes of type "
            f"{node_type!r}, such as {shown}. Give ids of the node table. [infer-ids-unknown]"
        )
    return dense


def _read(file: TableFile, column: str | None, kind: IdKind, option: str) -> pa.Array:
    name = _column(column_names(file), column, file.name, option)
    if file.format == "csv":
        value = pa.int64() if kind == "int" else pa.string()
        batches = csv_tables.read_batches(file.uri, file.name, {name: value}, file.csv)
        return pa.chunked_array([b.column(name) for b in batches], value).combine_chunks()
    read = read_parquet(file.uri, [name]).column(name).combine_chunks()
    return pc.cast(read, read.type.value_type) if pa.types.is_dictionary(read.type) else read


def _column(names: Sequence[str], column: str | None, file: str, option: str) -> str:
    if column is None:
        if len(names) == 1 or "id" in names:
            return "id" if "id" in names else names[0]
        raise DataError(
            f"{option} is invalid: {redact(file)} has the columns {', '.join(names)}. Name one "
            f"with {option}-column. [infer-ids-column]"
        )
    if column not in names:
        raise DataError(
            f"{option}-column={column!r} is invalid: {redact(file)} has {', '.join(names)}. Name "
            "one of these. [infer-ids-column]"
        )
    return column
