"""Confidence intervals of metrics from the sums of evaluation batches, drawn again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

#: With fewer batches the spread between them says little.
MIN_BATCHES = 20
_NUM_DRAWS = 500
_TAIL = 0.025  # on either side of a 95 % interval
_SEED = 0


def batch_intervals(
    table: Tensor, compute: Callable[[Tensor], Mapping[str, float]]
) -> dict[str, tuple[float, float]]:
    """95 % intervals of what is computed from the column sums of a table of batches.

    Batches are drawn with replacement, whole: rows of a batch need not be independent, as the links
    of one anchor are not. Equal on all ranks. Source: the cluster bootstrap, Davison and Hinkley
    1997, section 3.8; percentiles.

    Args:
        table: float64 [num_batches, num_sums].
        compute: gives metrics by name from [num_sums].
    Returns:
        Lower and upper end by name; of none with fewer than `MIN_BATCHES` batches, and not of a
        metric that is NaN in a draw.
    """
    num_batches = len(table)
    if num_batches < MIN_BATCHES:
        return {}
    generator = torch.Generator().manual_seed(_SEED)
    drawn = torch.randint(num_batches, (_NUM_DRAWS, num_batches), generator=generator)
    counts = torch.zeros(_NUM_DRAWS, num_batches, dtype=torch.float64)
    counts.scatter_add_(1, drawn, torch.ones_like(counts))
    values: dict[str, list[float]] = {}
    for sums in counts @ table:
        for name, value in compute(sums).items():
            values.setdefault(name, []).append(value)
    found = {}
    for name, of_draws in values.items():
        column = torch.tensor(of_draws, dtype=torch.float64)
        if len(column) == _NUM_DRAWS and column.isfinite().all():
            low, high = column.quantile(column.new_tensor([_TAIL, 1 - _TAIL])).tolist()
            found[name] = (low, high)
    return found
