from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from raygnn.data.added_rows import AddedRows, RowReader
from raygnn.data.bundle import Bundle
from raygnn.data.extended_bundle import Addition
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.manifest import Manifest, manifest_folder
from raygnn.data.tables.files import list_files
from raygnn.data.tables.read_ids import read_columns
from raygnn.errors import ConfigError
from raygnn.outputs.saved_model import SavedModel


@dataclass(frozen=True)
class TablesSource:
    """The tables of a graph, and options of their ingest, with the transforms of training."""

    uri: str
    options: IngestOptions

    def manifest(self) -> Manifest:
        return Manifest.load(self.uri, self.options.allow_outside)

    def columns(self, node_type: str, names: Sequence[str]) -> pa.Table:
        """Columns of a node table, after its `id`. Raises a DataError for unknown columns."""
        table, folder = self.manifest().node_types[node_type], manifest_folder(self.uri)
        place = f"node_types.{node_type}"
        roots = [folder, *self.options.allow_outside]
        files = list_files(folder, table.files, f"{place}.files", roots, table.csv)
        found = read_columns(files, [table.id, *names], place, [table.id])
        return found.select(names).add_column(0, "id", found[table.id])


def row_reader(saved: SavedModel, bundle: Bundle, source: TablesSource | None) -> RowReader:
    """Decoder of new rows. Raises a ConfigError without tables, or if the sampler takes none."""
    sampling, spec = saved.loaded.config.sampling, saved.spec
    if source is None:
        raise _refused("the graph did not come from tables")
    if sampling.ppr is not None:
        raise _refused("sampling by personalised PageRank needs the whole graph")
    columns = {spec.feature, *spec.node_columns, *spec.batch_edge_columns}
    columns |= {sampling.weight or spec.feature}
    if sampling.temporal is not None:
        columns |= {"time", sampling.temporal.column}
    return RowReader(source.uri, bundle, columns, source.options)


def read_new(saved: SavedModel, reader: RowReader, rows: AddedRows | str) -> Addition:
    """Reads new rows, or the tables of a folder or URI. Raises a ConfigError if the model has
    learned rows of their types.
    """
    addition = reader.read_tables(rows) if isinstance(rows, str) else reader.read(rows)
    new = [name for name, num in addition.num_new.items() if num]
    if learned := ", ".join(sorted(saved.spec.embedded_types.intersection(new))):
        raise _refused(f"the model has learned rows of {learned}, which new nodes have not")
    return addition


def _refused(reason: str) -> ConfigError:
    return ConfigError(
        f"new nodes cannot be read: {reason}. Write them into the tables. [rows-not-taken]"
    )
