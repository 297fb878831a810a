"""A bundle without the edges that may not carry messages in training, validation or test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raygnn.data.arrays import create_array, index_dtype
from raygnn.data.bundle import Bundle, Csc, Csr, SparseColumn
from raygnn.data.cache import build_once
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.links import kernels as link_kernels
from raygnn.data.links.folder import link_folder, message_codes, message_types
from raygnn.data.links.split import LinkSplit

Split = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Messages:
    """Arguments of `message_graph`: the edges that carry messages. Crosses process boundaries."""

    links: tuple[LinkSplit, ...]
    split: Split
    inductive: bool = False

    @property
    def name(self) -> str:
        names = (link.fingerprint for link in self.links)
        return ".".join([*names, self.split, "inductive" if self.inductive else ""])


def message_graph(
    bundle: Bundle, links: Sequence[LinkSplit], split: Split, inductive: bool = False
) -> Bundle:
    """The graph that carries messages in a split, as a bundle.

    Training has the training edges (without those only for supervision), validation all training
    edges, and test also those of validation or, if `inductive`, only those of training. The reverse
    of an edge follows it, in its own type or in the reverse type. Edge types without a link split,
    and edges of no split, are always included. An edge in several splits carries messages if all
    of them allow it. The filtered arrays are made once per node, on demand, and mapped.

    Raises a DataError if a link split cannot be made.
    """
    for link in links:
        link_folder(bundle, link)
    return MessageGraph(bundle, Messages(tuple(links), split, inductive))


class MessageGraph(Bundle):
    """The graph of `message_graph`. Columns keep all edges; `e_id` gives the included ones."""

    def __init__(self, bundle: Bundle, messages: Messages) -> None:
        super().__init__(bundle.path, bundle._record)
        self._derived = bundle._derived
        self._whole, self._messages = bundle, messages
        self._links_of: dict[EdgeType, tuple[LinkSplit, ...]] = {}
        for link in {link.fingerprint: link for link in messages.links}.values():
            for edge_type in message_types(bundle, link):
                self._links_of[edge_type] = (*self._links_of.get(edge_type, ()), link)

    def __reduce__(self) -> tuple[Callable[..., Bundle], tuple[Any, ...]]:
        messages = self._messages
        return message_graph, (self._whole, messages.links, messages.split, messages.inductive)

    @property
    def fingerprint(self) -> str:
        return f"{self._whole.fingerprint}.{self._messages.name}"

    def column(self, type_: str | EdgeType, name: str) -> np.ndarray | SparseColumn:
        return self._whole.column(type_, name)

    def codes(self, link: LinkSplit, edge_type: EdgeType) -> np.ndarray:
        return message_codes(self._whole, link, edge_type)

    def num_edges(self, edge_type: EdgeType) -> int:
        return int(self.csc(edge_type).indptr[-1])

    def csc(self, edge_type: EdgeType) -> Csc:
        csc = self._whole.csc(edge_type)
        if edge_type not in self._links_of:
            return csc
        return Csc(*self._filtered(edge_type, "in", csc.indptr, csc.indices, None))

    def csr(self, edge_type: EdgeType) -> Csr:
        csr = self._whole.csr(edge_type)
        if edge_type not in self._links_of:
            return csr
        return Csr(*self._filtered(edge_type, "out", csr.indptr, csr.indices, csr.e_id))

    def _filtered(
        self,
        edge_type: EdgeType,
        direction: str,
        indptr: np.ndarray,
        indices: np.ndarray,
        e_id: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        last_stage, held_too = self._stage(edge_type)
        name = edge_type_name(edge_type)

        def build(folder: Path) -> None:
            codes = self._joined_codes(edge_type)
            if e_id is not None:
                codes = codes[e_id]
            bounds = np.zeros_like(indptr)
            link_kernels.count_messages(indptr, codes, last_stage, held_too, bounds)
            np.save(folder / "indptr.npy", bounds)
            positions = np.zeros(0, np.int32) if e_id is None else e_id
            dtypes = {"indices": indices.dtype, "e_id": index_dtype(len(indices))}
            out = (
                create_array(folder / f"{part}.npy", (int(bounds[-1]),), dtype)
                for part, dtype in dtypes.items()
            )
            link_kernels.keep_messages(indices, codes, positions, last_stage, held_too, *out)

        folder = build_once(
            self._derived / "messages" / f"{self._edges_name(edge_type)}.{direction}",
            build,
            f"the message edges of {name}",
        )
        return self._adjacency(folder)

    def _joined_codes(self, edge_type: EdgeType) -> np.ndarray:
        stage, held = link_kernels.STAGE_MASK, link_kernels.HELD
        first, *others = (self.codes(link, edge_type) for link in self._links_of[edge_type])
        for codes in others:
            first = np.maximum(first & stage, codes & stage) | (first | codes) & held
        return first

    def _edges_name(self, edge_type: EdgeType) -> str:
        links = self._links_of.get(edge_type)
        if links is None:
            return self._whole._edges_name(edge_type)
        last_stage, held_too = self._stage(edge_type)
        stage = f"{last_stage}{'' if held_too else '-free'}"
        names = "+".join(sorted(link.fingerprint for link in links))
        return f"{names}.{edge_type_name(edge_type)}.{stage}"

    def _stage(self, edge_type: EdgeType) -> tuple[int, bool]:
        split, inductive = self._messages.split, self._messages.inductive
        last_stage = 2 if split == "test" and not inductive else 1
        # Without a disjoint share, training and validation have one graph.
        holds = any(link.disjoint_train_ratio for link in self._links_of[edge_type])
        return last_stage, split != "train" or not holds
