"""Tables of a model's results for nodes and edges: original ids, embeddings or predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.links.split import LinkSplit, time_unit_of
from raygnn.data.links.supervision import SeedEdges
from raygnn.data.tables.read_ids import as_plain_texts, original_ids
from raygnn.errors import ConfigError, DataError
from raygnn.inference.applied_model import AppliedModel
from raygnn.inference.embeddings import Embeddings
from raygnn.inference.job import TableRequest
from raygnn.inference.row_tables import with_times
from raygnn.inference.seed_times import SeedTimes, seed_edges, times_of_pairs
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.task import NodeRows
from raygnn.loops.tasks.build_sampler import build_sampler, with_own_neighborhoods
from raygnn.loops.tasks.edge_prediction.task import EdgeRows
from raygnn.loops.tasks.link_rules import reverse_types
from raygnn.sampling.batch import EdgeBatch
from raygnn.sampling.edge_loader import EdgeLoader, EdgePlan

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """A row for each node, pair or neighbor; `table["prediction"]` is a column as an array.

    Attributes:
        arrow: the rows, with the columns that `raygnn.infer` writes.
    """

    arrow: pa.Table

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __getitem__(self, column: str) -> np.ndarray:
        values = self.arrow.column(column).combine_chunks()
        if isinstance(values, pa.ChunkedArray):  # without rows
            values = pa.concat_arrays(values.chunks)
        if pa.types.is_fixed_size_list(values.type):
            flat = values.flatten().to_numpy(zero_copy_only=False)
            return np.asarray(flat).reshape(len(values), values.type.list_size)
        return np.asarray(values.to_numpy(zero_copy_only=False))

    @property
    def columns(self) -> list[str]:
        return list(self.arrow.column_names)

    def to_numpy(self) -> dict[str, np.ndarray]:
        return {name: self[name] for name in self.columns}

    def to_torch(self) -> dict[str, Tensor]:
        """Tensors by column, copied to the CPU, without text columns."""
        arrays = self.to_numpy()
        return {n: torch.from_numpy(a.copy()) for n, a in arrays.items() if a.dtype.kind in "iuf"}

    def to_pandas(self) -> pd.DataFrame:
        return self.arrow.to_pandas()


#: All parts of a table.
EVERY = slice(None)
# Rows that pass through the head at a time.
_ROWS_AT_A_TIME = 1 << 14


class NodeTables:
    """Makes tables of nodes, or of rows of (node, time)."""

    def __init__(self, request: TableRequest, applied: AppliedModel) -> None:
        self._request, self._applied = request, applied

    def range(self, embeddings: Embeddings, node_type: str, first: int, last: int) -> pa.Table:
        """The nodes of a range that begins at a multiple of the alignment. Raises a DataError for
        infinite and NaN values.
        """
        applied, what, plan = self._applied, self._request.what, self._request.plan
        nodes, bundle = self._request.nodes, applied.bundle
        positions = np.arange(first, last) if nodes is None else nodes[node_type][first:last]
        dense = positions if plan is None else plan.rows.node_ids(positions)
        if self._request.takes_all:
            ids = as_plain_texts(bundle.ids(node_type).slice(first, last - first))
        else:
            ids = original_ids(bundle, node_type, dense)
        rows = embeddings.rows(node_type, first, last)
        columns: Mapping[str, Any] = {"embedding": rows.float().numpy()}
        if what != "embeddings":
            times = applied.times_of(node_type, dense) if plan is None else None
            if plan is not None and applied.times is not None:
                times = plan.latest_times(positions)
            outputs = self._outputs(rows)
            rows = applied.task.completed(applied.model, outputs, NodeRows(dense, times))
            columns = applied.task.output_columns(what, rows)
        check_finite(rows, ids)
        made = {name: arrow_column(column) for name, column in columns.items()}
        table = pa.table({"id": ids, **made})
        return table if plan is None else with_times(table, plan.rows, positions)

    @torch.no_grad()
    def _outputs(self, rows: Tensor) -> Tensor:
        predictor: Any = self._applied.model
        device = self._applied.env.device
        parts = rows.split(_ROWS_AT_A_TIME)
        return torch.cat([predictor.readout(part.to(device)).cpu() for part in parts])


def arrow_column(column: np.ndarray | pa.Array) -> pa.Array:
    """A table column; rows of several numbers are lists of one length."""
    if isinstance(column, pa.Array) or column.ndim == 1:
        return pa.array(column)
    return pa.FixedSizeListArray.from_arrays(pa.array(column.reshape(-1)), column.shape[1])


def check_finite(rows: Tensor, ids: pa.Array, what: str = "nodes") -> None:
    """Raises a DataError with ids of rows that are not finite."""
    wrong = np.flatnonzero(~rows.isfinite().all(dim=1).numpy())
    if len(wrong):
        raise DataError(
            f"the model returns values that are not finite for {len(wrong):,} {what}, such as "
            f"{ids[int(wrong[0])].as_py()!r}. Check their features. [infer-not-finite]"
        )


@dataclass(frozen=True)
class Parts:
    """A table in parts, each computed when it is read.

    Attributes:
        ranges: (first, last + 1) row of each part.
        make: computes a range, by one rank alone.
        share: parts of this rank.
    """

    ranges: Sequence[tuple[int, int]]
    make: Callable[[int, int], pa.Table]
    share: slice

    def __iter__(self) -> Iterator[tuple[int, pa.Table]]:
        """Parts of the share, with their numbers."""
        for part in range(len(self.ranges))[self.share]:
            yield part, self.make(*self.ranges[part])


def cut(num_rows: int, size: int, alignment: int = 1) -> list[tuple[int, int]]:
    """Ranges (first, last + 1) of `size` rows, rounded up to a multiple of `alignment`."""
    size = -(-size // alignment) * alignment
    return [(first, min(first + size, num_rows)) for first in range(0, num_rows, size)]


# With all neighbors, the two neighborhoods of an edge may be large.
_MOST_EXACT = 64


class EdgeTables:
    """Makes tables of edges, each encoded without its own edge as a message.

    Each edge has separate neighborhoods, so its row does not depend on others.

    Args:
        edges: in the order of their positions. Reverse copies are left out.
        one_by_one: each edge is a batch, whose ends share a neighborhood.
    Attributes:
        alignment: tables begin at multiples of it.
        num_rows: number of predicted edges, without reverse copies.
        as_of: time of all edges; None if each has its own, or without times.
    """

    def __init__(
        self, what: str, applied: AppliedModel, edges: SeedEdges, *, one_by_one: bool = False
    ) -> None:
        spec, bundle, options = applied.spec, applied.bundle, {**applied.loader_options}
        loaded = with_own_neighborhoods(applied.sampled_config(), is_disjoint=not one_by_one)
        times = applied.times
        if applied.is_exact:
            options["batch_size"] = min(options["batch_size"], _MOST_EXACT)
        if one_by_one:
            options["batch_size"] = 1
        as_of = None if times is None else times.of(edge_type_name(edges.edge_type))
        self.as_of = None if as_of is None else as_of.time
        self._what, self._applied, self._edges = what, applied, edges
        self._positions = edges.positions_of_rows()
        self.num_rows = len(self._positions)
        self._loader = EdgeLoader(
            applied.stores.graph,
            applied.stores.features,
            EdgePlan(
                edges=edges,
                seeds=self._positions,
                reverse_types=reverse_types(bundle),
                inputs=spec.output.own_columns,
                as_of=self.as_of,
                num_known=spec.output.num_known(bundle),
                sees_pair=not spec.output.links,
            ),
            sampler=build_sampler(loaded, applied.stores.graph),
            columns=spec.node_columns,
            edge_columns=spec.batch_edge_columns,
            **options,
        )
        self.alignment = options["batch_size"]

    def range(self, first: int, last: int) -> pa.Table:
        """The rows of a range that begins at a multiple of the alignment. Raises a DataError for
        values that are not finite.
        """

        def predict(batch: EdgeBatch) -> Tensor:
            prediction, _ = self._applied.model(batch)
            return prediction

        (outputs,) = self._each(first, last, lambda batch: [predict(batch)])
        positions, table_rows = self._positions[first:last], self._edges.table_rows
        task, edge_rows = self._applied.task, EdgeRows(self._edges, positions, self.as_of)
        outputs = task.completed(self._applied.model, outputs, edge_rows)
        columns: Mapping[str, Any] = task.output_columns(self._what, outputs)
        sources, targets = self._ids(positions)
        check_finite(outputs, sources, "edges")
        rows = {} if table_rows is None else {"row": pa.array(table_rows[positions])}
        ends = {"source_id": sources, "target_id": targets}
        made = {name: arrow_column(column) for name, column in columns.items()}
        return pa.table({**rows, **ends, **self._times(positions), **made})

    def batches(self) -> Iterator[EdgeBatch]:
        return self._batches(0, self.num_rows)

    def end_rows(self) -> tuple[Tensor, Tensor]:
        """[num_edges, channels] of the sources and of the targets of all edges, on the CPU."""
        types = self._edges.edge_type[::2]

        def rows(batch: EdgeBatch) -> list[Tensor]:
            encoded = self._applied.encoder(batch)
            return [encoded[name][end] for name, end in zip(types, batch.end_index, strict=True)]

        sources, targets = self._each(0, self.num_rows, rows)
        return sources, targets

    def close(self) -> None:
        self._loader.close()

    def _batches(self, first: int, last: int) -> Iterator[EdgeBatch]:
        size = self.alignment
        assert first % size == 0
        with closing(self._loader.iterate(0, first // size, -(-last // size))) as batches:
            for batch in batches:
                yield batch.to(self._applied.env.device)

    @torch.no_grad()
    def _each(
        self, first: int, last: int, apply: Callable[[EdgeBatch], Sequence[Tensor]]
    ) -> list[Tensor]:
        parts = [
            [rows.float().cpu() for rows in apply(batch)] for batch in self._batches(first, last)
        ]
        return [torch.cat(rows) for rows in zip(*parts, strict=True)]

    def _times(self, positions: np.ndarray) -> dict[str, pa.Array]:
        """`time` of edges of the graph that have times."""
        edges = self._edges
        if edges.indptr is None or edges.times is None:
            return {}
        times = pa.array(edges.times[positions])
        link = LinkSplit(edges.edge_type, labels=not edges.by_target)
        unit = time_unit_of(self._applied.bundle, link)
        return {"time": times if unit is None else times.cast(pa.timestamp(unit))}

    def _ids(self, positions: np.ndarray) -> tuple[pa.Array, pa.Array]:
        source_type, _, target_type = self._edges.edge_type
        sources, targets = self._edges.ends(positions)
        bundle = self._applied.bundle
        return (
            original_ids(bundle, source_type, sources),
            original_ids(bundle, target_type, targets),
        )


def edges_to_predict(spec: ModelSpec, bundle: Bundle) -> SeedEdges:
    """All edges of the type that a model predicts. Raises a DataError without any."""
    edge_type = _edge_type(spec)
    edges = seed_edges(spec, bundle, edge_type)
    if not edges.num_edges:
        raise DataError(
            f"the graph has no edges {edge_type_name(edge_type)}. Give pairs. [infer-no-edges]"
        )
    return edges


def pairs_to_predict(
    spec: ModelSpec,
    bundle: Bundle,
    sources: np.ndarray,
    targets: np.ndarray,
    times: SeedTimes | None,
    relation: int = 0,
) -> SeedEdges:
    """Pairs of int64 dense ids, with the times of edges that they equal. Raises a ConfigError if
    the model reads edge features, which pairs do not have.
    """
    links = spec.output.links
    edge_type = links[relation] if links else _edge_type(spec)
    if spec.output.own_columns:
        raise ConfigError(
            f"pairs is invalid: the model reads {list(spec.output.own_columns)} of edges. Write "
            "pairs as edges of the graph, and predict all edges. [model-pairs-features]"
        )
    pairs = SeedEdges.of_pairs(edge_type, sources, targets)
    if times is None or times.of(edge_type_name(edge_type)) is not None:
        return pairs
    is_known, edge_times = times_of_pairs(seed_edges(spec, bundle, edge_type), sources, targets)
    now = times.moment.time  # edges see what is earlier, other pairs the moment too
    after = now + 1 if isinstance(now, int) else np.nextafter(now, np.inf)
    return replace(pairs, times=np.where(is_known, edge_times, now if links else after))


def _edge_type(spec: ModelSpec) -> EdgeType:
    assert spec.output.predicted_edges is not None
    return spec.output.predicted_edges
