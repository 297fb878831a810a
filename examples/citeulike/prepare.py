"""CiteULike recommendation of articles, in the published split of LightGCN++:

    python examples/citeulike/prepare.py DIR build/citeulike

DIR has `train.txt`, `valid.txt` and `test.txt` with lines "user article 1".
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from raygnn.data.tables.columns import split_column
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables


def main(folder: Path, out: str) -> None:
    """Writes graph.yaml and tables into `out`."""
    parts = [
        np.loadtxt(folder / f"{name}.txt", np.int64, usecols=(0, 1), ndmin=2)
        for name in ("train", "valid", "test")
    ]
    users, articles = np.concatenate(parts).T
    codes = np.repeat(np.arange(1, 4, dtype=np.uint8), [len(part) for part in parts])
    saves = edge_rows(users, articles)
    table = saves.table.append_column("split", split_column(codes))
    tables = GraphTables(
        {"user": node_rows(np.unique(users)), "article": node_rows(np.unique(articles))},
        {("user", "saves", "article"): replace(saves, table=table, split="split")},
    )
    write_tables(tables, out, overwrite=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
