"""Results in memory: rows by original ids, as arrays, tensors or a DataFrame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

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
