"""Rows of the most requested nodes in files of a machine, mapped by all its workers."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from raygnn.data.arrays import create_array, open_array
from raygnn.data.cache import Claim, build_once, remove_unclaimed
from raygnn.data.partition.part import Outline
from raygnn.sampling.hot_rows import HotRows, most_wanted, row_bytes, rows_at_a_time
from raygnn.sampling.parts import PartitionedGraph
from raygnn.sampling.protocols import GraphStore
from raygnn.sampling.shares import Share

_LAYOUT = 1  # of the files, and of how nodes are chosen; those of another are not read
_WHAT = "the most wanted rows of other nodes"

Fetch = Callable[[str, str, np.ndarray], Iterable[tuple[Share, np.ndarray]]]


class HotRowCache:
    """Cached dense features of nodes with the highest out-degree, of parts not mapped here.

    Each column has the same share of nodes, in all `cache_bytes`, in files next to the outline. The
    first process requests the degrees and the rows of each column from the parts and writes them;
    others on the machine wait for it. Files depend on the partition, the mapped parts and
    `cache_bytes`, so later runs map them too. The process that chooses nodes removes unused files
    with other parts or another size.

    Args:
        edges: opens the graph's edges; the counts for choosing nodes are not kept.
        fetch: returns stored rows of a column.
    """

    def __init__(
        self,
        outline: Outline,
        graph: PartitionedGraph,
        edges: Callable[[], GraphStore],
        fetch: Fetch,
    ) -> None:
        self._outline, self._graph, self._edges, self._fetch = outline, graph, edges, fetch
        text = json.dumps([_LAYOUT, graph.mapped, graph.cache_bytes])
        self._all = outline.path.with_name(f"{graph.record.fingerprint}-hot")
        self._folder = self._all / hashlib.sha256(text.encode()).hexdigest()[:16]
        self._claim: Claim | None = None
        self._rows: dict[tuple[str, str], HotRows] = {}
        self._lock = threading.Lock()

    def rows(self, node_type: str, column: str) -> HotRows:
        """The cached rows of a column. The first call maps them or fetches them from the parts.

        Raises:
            RaygnnError: a part does not answer.
            ResourceError: the files cannot be written.
        """
        with self._lock:
            if (node_type, column) not in self._rows:
                self._claim = self._claim or Claim(self._folder, _WHAT)
                ids = self._wanted(node_type)
                folder = build_once(
                    self._folder / "rows" / node_type / f"{column}.rows",
                    lambda folder: self._build_rows(node_type, column, ids, folder),
                    _WHAT,
                    needs_note=True,
                )
                self._rows[node_type, column] = HotRows(ids, open_array(folder / "rows.npy"))
            return self._rows[node_type, column]

    def _wanted(self, node_type: str) -> np.ndarray:
        """int64, ascending: nodes of a type with cached rows."""
        folder = build_once(self._folder / "wanted", self._build_wanted, _WHAT, needs_note=True)
        return open_array(folder / f"{node_type}.npy")

    def _build_rows(self, node_type: str, column: str, ids: np.ndarray, folder: Path) -> None:
        none = self._graph.no_rows(node_type, column)
        path, size = folder / "rows.npy", rows_at_a_time(none)
        create_array(path, (len(ids), *none.shape[1:]), none.dtype)
        rows = open_array(path, "r+")
        for start in range(0, len(ids), size):
            for share, found in self._fetch(node_type, column, ids[start : start + size]):
                rows[start + share.positions] = found

    def _build_wanted(self, folder: Path) -> None:
        remove_unclaimed(self._all)
        for node_type, ids in self._choose().items():
            create_array(folder / f"{node_type}.npy", ids.shape, ids.dtype)
            open_array(folder / f"{node_type}.npy", "r+")[:] = ids

    def _choose(self) -> dict[str, np.ndarray]:
        others = {t: self._nodes_of_others(t) for t in self._outline.node_types}
        widths = {
            t: sum(
                row_bytes(self._graph.no_rows(t, name))
                for name, info in self._outline.columns(t).items()
                if not self._outline.holds(t, name) and not info.sparse
            )
            for t in others
        }
        counts = {t: sum(map(len, ids)) for t, ids in others.items()}
        total = sum(counts[t] * widths[t] for t in others)
        share, edges = min(1.0, self._graph.cache_bytes / max(1, total)), self._edges()
        return {t: most_wanted(edges, t, ids, int(share * counts[t])) for t, ids in others.items()}

    def _nodes_of_others(self, node_type: str) -> list[range]:
        first = self._graph.record.first_ids(node_type)
        return [
            range(first[part], first[part + 1])
            for part in range(self._graph.record.num_parts)
            if not self._graph.is_mapped(part)
        ]
