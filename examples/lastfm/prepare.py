"""Last.fm artist recommendation with trust between users, from the files of LightGCN-PyTorch:

    python examples/lastfm/prepare.py DIR build/lastfm

A tenth of the pairs of data1.txt is for validation. Their edges carry no messages in training.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from raygnn.data.links.split import pair_split
from raygnn.data.tables.columns import split_column
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables

TEST = 3


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Ids of both ends, int64 [2, num_rows], and the last column."""
    rows = np.loadtxt(path, ndmin=2).T
    return rows[:2].astype(np.int64), rows[-1]


def main(folder: Path, out: str) -> None:
    """Writes graph.yaml and tables into `out`."""
    (users, artists), counts = read(folder / "data1.txt")
    (test_users, test_artists), test_counts = read(folder / "test1.txt")
    trusts, _ = read(folder / "trustnetwork.txt")
    codes = pair_split(("user", users), ("artist", artists), (0.9, 0.1, 0.0), seed=0)
    labels = edge_rows(
        np.concatenate([users, test_users]),
        np.concatenate([artists, test_artists]),
        weight=np.concatenate([counts, test_counts]),
    )
    split = split_column(np.concatenate([codes, np.full(len(test_users), TEST, codes.dtype)]))
    labels = replace(labels, table=labels.table.append_column("split", split), split="split")
    tables = GraphTables(
        nodes={"user": node_rows(np.arange(1, 1893)), "artist": node_rows(np.arange(1, 4490))},
        edges={
            ("user", "listens", "artist"): edge_rows(users, artists, weight=counts),
            ("user", "trusts", "user"): edge_rows(*trusts),
        },
        label_edges={(("user", "listens", "artist"), "positive"): labels},
    )
    write_tables(tables, out, overwrite=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
