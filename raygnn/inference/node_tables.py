"""Tables of a model's results for nodes: original ids, and embeddings or predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from raygnn.data.tables.read_ids import as_plain_texts
from raygnn.errors import DataError
from raygnn.inference.embeddings import Embeddings
from raygnn.loops.task import Task

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


# Rows that pass through the head at a time.
_ROWS_AT_A_TIME = 1 << 14


class NodeTables:
    """Makes tables of nodes.

    Args:
        what: embeddings, predictions or probabilities.
        nodes: int64, dense ids, by node type, whose positions `range` uses; None for all nodes.
    """

    def __init__(
        self,
        what: str,
        task: Task,
        model: nn.Module,
        nodes: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._what = what
        self._nodes = nodes
        self._task = task
        self._model = model

    def range(self, embeddings: Embeddings, node_type: str, first: int, last: int) -> pa.Table:
        """The nodes of a range that begins at a multiple of the alignment."""
        bundle = self._task.env.bundle
        if self._nodes is None:
            ids = bundle.ids(node_type).slice(first, last - first)
        else:
            ids = bundle.take_ids(node_type, self._nodes[node_type][first:last])
        return self.of_rows(ids, embeddings.rows(node_type, first, last))

    def of_rows(self, ids: pa.Array, rows: Tensor) -> pa.Table:
        """Nodes with these ids and embeddings. Raises a DataError for infinite and NaN values."""
        ids = as_plain_texts(ids)
        columns: Mapping[str, Any] = {"embedding": rows.float().numpy()}
        if self._what != "embeddings":
            rows = self._outputs(rows)
            columns = self._task.output_columns(self._what, rows)
        check_finite(rows, ids)
        return pa.table({"id": ids, **{name: arrow_column(c) for name, c in columns.items()}})

    @torch.no_grad()
    def _outputs(self, rows: Tensor) -> Tensor:
        predictor: Any = self._model
        device = self._task.env.device
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
            f"{ids[int(wrong[0])].as_py()!r}. Check their features for extreme values, and the "
            "metrics of the model.",
            id="infer-not-finite",
        )


def cut(num_rows: int, size: int, alignment: int = 1) -> list[tuple[int, int]]:
    """Ranges (first, last + 1) of `size` rows, rounded up to a multiple of `alignment`."""
    size = -(-size // alignment) * alignment
    return [(first, min(first + size, num_rows)) for first in range(0, num_rows, size)]
