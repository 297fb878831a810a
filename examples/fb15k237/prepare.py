"""The knowledge graph FB15k-237, from the files of OpenKE:

    python examples/fb15k237/prepare.py DIR build/fb15k237

Each relation is an edge type, r0 to r236 by the numbers in relation2id.txt: R-GCN and DistMult
have parameters for each. The split column marks the links of training, validation and test.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from raygnn.data.tables.columns import split_column
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables

NUM_ENTITIES = 14541


def main(folder: Path, out: str) -> None:
    """Writes graph.yaml and tables into `out`."""
    parts = [
        np.loadtxt(folder / name, np.int64, skiprows=1, ndmin=2)  # the first line counts the rows
        for name in ("train2id.txt", "valid2id.txt", "test2id.txt")
    ]
    split = np.repeat(np.uint8([1, 2, 3]), [len(part) for part in parts])
    head, tail, relation = np.concatenate(parts).T
    edges = {}
    for number in np.unique(relation):
        chosen = relation == number
        rows = edge_rows(head[chosen], tail[chosen])
        table = rows.table.append_column("split", split_column(split[chosen]))
        edges["entity", f"r{number}", "entity"] = replace(rows, table=table, split="split")
    write_tables(
        GraphTables({"entity": node_rows(np.arange(NUM_ENTITIES))}, edges), out, overwrite=True
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
