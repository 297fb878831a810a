"""Houses whose prices follow their size and their neighbors': a regression with a known best."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pyarrow as pa

from raygnn.data.convert.split_option import SPLIT_HELP, declare_split
from raygnn.data.synthetic.arguments import checked, field
from raygnn.data.synthetic.draws import draw_integers, draw_normal, draw_permutation
from raygnn.data.tables.graph_tables import GraphTables, NodeRows, edge_rows

_MEAN_PRICE = 250_000.0
_SIZE_M2 = (120.0, 40.0)  # mean and standard deviation
_PRICE_PER_M2 = 2000.0
_PRICE_PER_M2_AROUND = 3500.0  # of the mean of the neighbors' sizes


@checked
def houses(
    num_houses: Annotated[int, field("the number of houses", low=3)] = 3000,
    num_streets: Annotated[
        int, field("the number of streets; a house has two neighbors in each", low=1)
    ] = 3,
    noise: Annotated[float, field("the standard deviation of the prices' noise", low=0)] = 10_000.0,
    split: Annotated[str, field(SPLIT_HELP)] = "hash:0.6,0.2,0.2",
    split_seed: Annotated[int | None, field("the seed of the split (default: seed)")] = None,
    seed: Annotated[int, field("the seed")] = 0,
) -> GraphTables:
    """Node type house with size and year, edge type (house, near, house), regression target price.

    Prices lie around 250,000. They follow the house's own size and the mean size of its neighbors,
    plus noise; the year says nothing. With the defaults a linear fit of the own size reaches an R2
    of 0.65, one of both sizes 0.99.
    """
    size = _SIZE_M2[0] + _SIZE_M2[1] * draw_normal(seed, "sizes", (num_houses,)).astype(float)
    year = 1900 + draw_integers(seed, "years", num_houses, 120)
    source, target = _draw_streets(num_houses, num_streets, seed)
    size_around = np.bincount(target, size[source]) / (2 * num_streets)
    price = (
        _MEAN_PRICE
        + _PRICE_PER_M2 * (size - _SIZE_M2[0])
        + _PRICE_PER_M2_AROUND * (size_around - _SIZE_M2[0])
        + noise * draw_normal(seed, "noise", (num_houses,))
    )
    table = pa.table({"id": np.arange(num_houses), "size": size, "year": year, "price": price})
    nodes = NodeRows(table, "id", {"x": ["size", "year"]}, {"price": "price"})
    nodes = declare_split(nodes, split, seed if split_seed is None else split_seed, None)
    return GraphTables({"house": nodes}, {("house", "near", "house"): edge_rows(source, target)})


def _draw_streets(num_houses: int, num_streets: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Both directions of each edge; a street is a closed walk past all houses."""
    walks = [draw_permutation(seed, f"street {i}", num_houses) for i in range(num_streets)]
    first = np.concatenate(walks)
    second = np.concatenate([np.roll(walk, -1) for walk in walks])
    return np.concatenate([first, second]), np.concatenate([second, first])
