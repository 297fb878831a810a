"""Facebook pages that like each other, from edges.csv, target.csv and features.json of MUSAE:

    python examples/facebook/prepare.py DIR build/facebook_pages

Each like is an edge in both directions. A feature is a word of a page's description.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv

from raygnn.data.tables.clean_up import undirected_edges
from raygnn.data.tables.columns import SparseRows
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables


def main(folder: Path, out: str) -> None:
    """Writes graph.yaml and tables into `out`."""
    ends = pyarrow.csv.read_csv(folder / "edges.csv")
    pages = pyarrow.csv.read_csv(folder / "target.csv").sort_by("id")
    words = json.loads((folder / "features.json").read_text())
    ids = pages["id"].combine_chunks()
    assert ids.to_pylist() == list(range(len(ids)))
    lists = [words[str(page)] for page in range(len(ids))]
    indptr = np.cumsum([0, *map(len, lists)])
    indices = np.concatenate(lists).astype(np.int64)
    rows = SparseRows(indptr, indices, None, int(indices.max()) + 1).canonical()
    nodes = node_rows(
        ids,
        {"x": replace(rows, values=None)},
        {"y": pages["page_type"].combine_chunks().cast("large_string")},
    )
    edges = undirected_edges(ends["id_1"].to_numpy(), ends["id_2"].to_numpy(), len(ids))
    edge_types = {("node", "to", "node"): edge_rows(edges.source, edges.target)}
    write_tables(GraphTables({"node": nodes}, edge_types), out, overwrite=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
