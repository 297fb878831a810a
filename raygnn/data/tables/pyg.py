"""PyG's Data and HeteroData as graph tables. Imports torch only for a conversion."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from raygnn.data.edge_types import EdgeType
from raygnn.data.filesystem import naming_missing, open_fs, redact
from raygnn.data.tables.clean_up import MASK_NAMES, normalize_rows, split_nodes
from raygnn.data.tables.columns import Features, SparseRows
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, NodeRows, edge_rows, node_rows
from raygnn.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

_HOMOGENEOUS_NODE = "node"
_HOMOGENEOUS_EDGE: EdgeType = ("node", "to", "node")
# what torch's restricted unpickler raises, by the kind of damage
_LOAD_ERRORS = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    RuntimeError,
    EOFError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
)
_NODE_NAMES = frozenset({"x", "y", "n_id", "time", "num_nodes", *MASK_NAMES})
_EDGE_NAMES = frozenset({"edge_index", "adj_t", "edge_attr", "edge_weight", "edge_time", "time"})


def load_pyg(uri: str) -> Any:
    """Loads a Data or HeteroData that was saved with torch.save; unpickles nothing else.

    Args:
        uri: path or fsspec URI.
    Raises:
        DataError: the file is missing, of another format, or needs unpickling of other classes.
    """
    import torch
    from torch_geometric.data import Data, HeteroData, data, storage

    where = redact(uri)
    classes = [
        Data,
        HeteroData,
        data.DataEdgeAttr,
        data.DataTensorAttr,
        storage.BaseStorage,
        storage.NodeStorage,
        storage.EdgeStorage,
        storage.GlobalStorage,
    ]
    fs, path = open_fs(uri)
    try:
        with (
            naming_missing(where),
            fs.open(path, "rb") as file,
            torch.serialization.safe_globals(classes),
        ):
            is_archive = zipfile.is_zipfile(file)
            file.seek(0)
            loaded = torch.load(file, map_location="cpu", weights_only=True) if is_archive else None
    except _LOAD_ERRORS as error:
        raise DataError(
            f"{where} needs unpickling, which could run code of the file. Build the graph in "
            "Python, and pass it to raygnn.data.tables.pyg.tables_from_pyg. (torch says: "
            f"{_first_line(error)}) [prepare-pyg-pickled]"
        ) from error
    if not is_archive:
        raise DataError(f"{where} is not of torch.save. Save it so. [prepare-pyg-unreadable]")
    if not isinstance(loaded, Data | HeteroData):
        raise DataError(
            f"{where} holds a {type(loaded).__name__}, not a Data or HeteroData. Save the graph "
            "itself, as in torch.save(dataset[0], path). [prepare-pyg-kind]"
        )
    return loaded


def tables_from_pyg(data: Any, normalize: bool = False) -> GraphTables:
    """Converts a Data or HeteroData, or a dataset of a single one.

    Reads from nodes: x, y, train_mask, val_mask, test_mask, time, n_id (original ids, else 0..N-1);
    from edges: edge_index or adj_t, edge_attr, edge_weight, time or edge_time. Edges are kept
    unchanged. The types of a Data are "node" and ("node", "to", "node").

    Args:
        normalize: divides each row of x by its sum.
    Raises:
        DataError: an attribute is invalid, or the number of nodes is unknown.
    """
    from torch_geometric.data import Data

    data = _single_graph(data)
    notes: list[str] = []
    nodes: dict[str, NodeRows] = {}
    edges: dict[EdgeType, EdgeRows] = {}
    ids: dict[str, np.ndarray] = {}
    if isinstance(data, Data):
        node_stores, edge_stores = {_HOMOGENEOUS_NODE: data}, {_HOMOGENEOUS_EDGE: data}
    else:
        node_stores = {name: data[name] for name in data.node_types}
        edge_stores = {edge_type: data[edge_type] for edge_type in data.edge_types}
    for name, store in node_stores.items():
        where = "data" if isinstance(data, Data) else f"data[{name!r}]"
        ids[name] = _node_ids(store, where)
        nodes[name], node_notes = _node_rows(store, ids[name], where, normalize)
        notes += node_notes
    for edge_type, store in edge_stores.items():
        where = "data" if isinstance(data, Data) else f"data[{edge_type!r}]"
        edges[edge_type] = _edge_rows(store, ids[edge_type[0]], ids[edge_type[2]], where)
    if unread := unread_attributes(data):
        notes.append(f"attributes not written: {', '.join(unread)}")
    return GraphTables(nodes, edges, tuple(dict.fromkeys(notes)))


def unread_attributes(data: Any) -> list[str]:
    """Names of attributes of a graph that `tables_from_pyg` does not read."""
    names = {name for store in _single_graph(data).stores for name in store}
    return sorted(names - _NODE_NAMES - _EDGE_NAMES)


def _single_graph(data: Any) -> Any:
    from torch_geometric.data import Data, Dataset, HeteroData

    if isinstance(data, Dataset):
        if len(data) != 1:
            raise DataError(
                f"data has {len(data):,} graphs. Pass one, as in dataset[0]. [prepare-pyg-several]"
            )
        data = data[0]
    if not isinstance(data, Data | HeteroData):
        raise DataError(
            f"data is a {type(data).__name__}, not Data or HeteroData. Pass one. [prepare-pyg-kind]"
        )
    return data


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "GLOBAL" in line]
    return (lines or str(error).splitlines() or [type(error).__name__])[0][:200]


def _node_ids(store: Any, where: str) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyG guesses, with a warning, from the largest edge end
        try:
            num_nodes = store.num_nodes
        except UserWarning:
            num_nodes = None
    if num_nodes is None:
        raise DataError(f"{where}: it has no x. Set {where}.num_nodes. [prepare-pyg-num-nodes]")
    if "n_id" not in store:
        return np.arange(num_nodes)
    return _rows(store["n_id"], int(num_nodes), f"{where}.n_id", max_ndim=1)


def _node_rows(
    store: Any, ids: np.ndarray, where: str, normalize: bool
) -> tuple[NodeRows, tuple[str, ...]]:
    num_nodes = len(ids)
    features: dict[str, Features] = {}
    if store.get("x") is not None and 0 not in store["x"].shape[1:]:
        x = _features(store["x"], num_nodes, f"{where}.x")
        features["x"] = normalize_rows(x) if normalize else x
    labels = None
    if store.get("y") is not None:
        labels = _labels(_rows(store["y"], num_nodes, f"{where}.y", max_ndim=2))
    time = None
    if store.get("time") is not None and not _is_edge_attr(store, "time"):
        time = _rows(store["time"], num_nodes, f"{where}.time", max_ndim=1)
    nodes = node_rows(ids, features, {} if labels is None else {"y": labels}, time=time)
    masks = {
        name: store[name].detach().cpu().numpy()
        for name in MASK_NAMES
        if store.get(name) is not None
    }
    if labels is None and not masks:
        return nodes, ()
    return split_nodes(nodes, masks, where)


def _edge_rows(store: Any, source_ids: np.ndarray, target_ids: np.ndarray, where: str) -> EdgeRows:
    source, target, value = _edge_ends(store, where)
    for ends, ids, row in ((source, source_ids, 0), (target, target_ids, 1)):
        outside = np.flatnonzero((ends < 0) | (ends >= len(ids)))
        if len(outside):
            raise DataError(
                f"{where}.edge_index: row {row} has {len(outside):,} entries outside [0, "
                f"{len(ids)}), first {ends[outside[:5]].tolist()} at {outside[:5].tolist()}. Set "
                "the right num_nodes. [prepare-pyg-edges-outside]"
            )
    num_edges = len(source)
    found = {
        name: _rows(store[name], num_edges, f"{where}.{name}", max_ndim=2)
        for name in ("edge_attr", "edge_weight", "edge_time", "time")
        if store.get(name) is not None and (name != "time" or _is_edge_attr(store, name))
    }
    features = {
        name: values
        for name, values in found.items()
        if name == "edge_attr" and 0 not in values.shape[1:]
    }
    weight = found.get("edge_weight", value)
    time = found.get("edge_time", found.get("time"))
    return edge_rows(
        source_ids[source],
        target_ids[target],
        features,
        None if weight is None else weight.reshape(num_edges),
        None if time is None else time.reshape(num_edges),
    )


def _edge_ends(store: Any, where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    if store.get("edge_index") is not None:
        index = store["edge_index"].detach().cpu().numpy()
        if index.ndim != 2 or index.shape[0] != 2 or index.dtype.kind not in "iu":
            raise DataError(
                f"{where}.edge_index has shape {index.shape} and type {index.dtype}, but must be "
                "integers of shape (2, num_edges). Transpose or cast it. [prepare-pyg-edges-shape]"
            )
        return index[0], index[1], None
    adjacency = store.get("adj_t")
    if adjacency is None:
        raise DataError(f"{where}: it has no edges. Set edge_index. [prepare-pyg-edges-missing]")
    if hasattr(adjacency, "coo"):  # torch_sparse's and PyG's own SparseTensor
        target, source, value = adjacency.coo()
    else:
        coo = adjacency.to_sparse_coo().coalesce()
        (target, source), value = coo.indices(), coo.values()
    values = None if value is None else value.detach().cpu().numpy()
    if values is not None and (values == 1).all():
        values = None
    return source.cpu().numpy(), target.cpu().numpy(), values


def _is_edge_attr(store: Any, name: str) -> bool:
    return "edge_index" in store and bool(store.is_edge_attr(name))


def _features(x: Tensor, num_nodes: int, where: str) -> Features:
    import torch

    if x.layout == torch.strided:
        return _rows(x, num_nodes, where, max_ndim=None)
    coo = x.detach().cpu().to_sparse_coo().coalesce()
    rows, indices = coo.indices().numpy()
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=num_nodes), out=indptr[1:])
    return SparseRows(indptr, indices, coo.values().float().numpy(), x.shape[1])


def _rows(tensor: Tensor, num_rows: int, where: str, max_ndim: int | None) -> np.ndarray:
    import torch

    too_deep = max_ndim is not None and tensor.dim() > max_ndim
    if tensor.dim() == 0 or len(tensor) != num_rows or too_deep or tensor.is_complex():
        raise DataError(
            f"{where} has shape {tuple(tensor.shape)} and type {tensor.dtype}, but needs "
            f"{num_rows:,} rows of numbers. Give these, or delete it. [prepare-pyg-rows]"
        )
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()  # numpy has no bfloat16; nothing is lost
    array: np.ndarray = tensor.numpy()
    return array


def _labels(y: np.ndarray) -> np.ndarray:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype == np.bool_ or (y.ndim == 2 and np.isin(y, (0, 1)).all()):
        return y.astype(np.uint8)
    return y
