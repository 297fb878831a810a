"""Modules with PyG's `forward`, computed over the subgraph of a batch."""

from __future__ import annotations

import atexit
import inspect
import linecache
import os
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from raygnn.data.edge_types import EdgeType
from raygnn.errors import ConfigError, DataError
from raygnn.models.encoder import BlockEncoder
from raygnn.models.sparse_input import Features, dense
from raygnn.sampling.batch import Batch, NodeRecord
from raygnn.sampling.sparse_features import SparseFeatures

#: Names of edge columns in blocks and in PyG's modules.
EDGE_ATTR, EDGE_WEIGHT = "edge_attr", "edge_weight"
# Further inputs of `forward`, by the name of its parameter.
EDGE_INPUTS = (EDGE_WEIGHT, EDGE_ATTR)
#: Ends of the names of modules that PyG generates, and the start of others; see its `template.py`.
_GENERATED = ("_propagate", "_edge_updater")
_GENERATED_SEQUENTIAL = "torch_geometric.nn.sequential_"
_PROCESS = os.getpid()


def remove_generated_modules() -> None:
    """Removes the files of modules that PyG generated for message passing in this process.

    PyG writes one per class to the temporary folder and leaves it there. `inspect` still finds
    their source, which TorchScript reads. A forked process keeps its parent's files.
    """
    if os.getpid() != _PROCESS:
        return
    for name, module in list(sys.modules.items()):
        if name.endswith(_GENERATED) or name.startswith(_GENERATED_SEQUENTIAL):
            path = Path(getattr(module, "__file__", None) or "")
            is_temporary = path.parent == Path(tempfile.gettempdir())
            if is_temporary and path.name.startswith(f"{name}_") and path.exists():
                source = path.read_text()
                linecache.cache[str(path)] = len(source), None, source.splitlines(True), str(path)
                path.unlink()
                Path(cache_from_source(str(path))).unlink(missing_ok=True)


atexit.register(remove_generated_modules)


class SubgraphModule(nn.Module):
    """Applies a module to the union of the sampled neighborhoods, and returns the seeds' rows.

    All layers of the module see one graph. It is called with x and edge_index by position, and with
    `edge_weight` and `edge_attr` by name if its `forward` has these parameters and the batch has
    the columns. x is a sparse torch tensor if the features are sparse and the module's class sets
    `takes_sparse_input`.

    Args:
        module: its `forward` takes (x, edge_index, ...) and returns a row per node of the subgraph,
            or a dictionary of such tensors.
    Raises:
        ConfigError: its `forward` requires other arguments.
    """

    #: Suffix of the names of `forward`'s parameters.
    suffix = ""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        remove_generated_modules()  # workers of Ray end without `atexit`
        parameters = list(inspect.signature(module.forward).parameters.values())
        self._optional = _edge_inputs(module, parameters, self.suffix)

    def forward(self, batch: Batch, rows: Mapping[str, Features]) -> dict[str, Any]:
        """Encodes the seeds of a batch: by node type [num_seeds of the type, channels], or a
        dictionary of these.

        Args:
            rows: by node type, inputs of the module.
        Raises:
            DataError: the module needs an edge column that the graph lacks.
            ConfigError: the module does not return a row per node.
        """
        ((node_type, nodes),), (edges,) = batch.nodes.items(), batch.edges.values()
        inputs = {name: edges.columns[name] for name in self._edge_columns(edges.columns)}
        x = rows[node_type]
        x = x.to_coo() if isinstance(x, SparseFeatures) else x
        out = self.module(x, edges.edge_index, **inputs)
        if isinstance(out, Mapping):
            return {node_type: {name: self._seeds(each, nodes) for name, each in out.items()}}
        return {node_type: self._seeds(out, nodes)}

    def _edge_columns(self, present: Collection[str]) -> list[str]:
        for name, is_needed in self._optional.items():
            if is_needed and name not in present:
                raise DataError(
                    f"model.type={type(self.module).__name__!r} is invalid: its forward() needs "
                    f"{name}, which the graph does not have. Declare it for the edge type in "
                    "graph.yaml, or give the parameter a default. [model-edge-input-missing]"
                )
        return [name for name in self._optional if name in present]

    def _seeds(self, out: Any, nodes: NodeRecord) -> Tensor:
        num_nodes = len(nodes.n_id)
        if not isinstance(out, Tensor) or out.dim() == 0 or out.shape[0] != num_nodes:
            got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(
                f"model.type={type(self.module).__name__!r} is invalid: its forward() returned "
                f"{got} for {num_nodes} nodes. Return a tensor with one row per node of "
                "edge_index's graph, or a dictionary of such tensors. [model-result]"
            )
        return out[: nodes.num_seeds]


class TypedSubgraphModule(SubgraphModule):
    """Applies a module with PyG's `forward(x_dict, edge_index_dict)` to the sampled neighborhoods.

    As from PyG's loaders, it gets an entry for each node type and edge type, empty if the batch has
    none, and `edge_attr_dict` and `edge_weight_dict` if its `forward` has these parameters. It
    returns rows by node type, or the rows of the seeds' type. Lazy parameters (`Linear(-1, 16)`)
    are initialized here. `widths` and `edge_types` are those of `GraphEncoder`.
    """

    suffix = "_dict"

    def __init__(
        self, module: nn.Module, widths: Mapping[str, int], edge_types: Sequence[EdgeType]
    ) -> None:
        super().__init__(module)
        self._widths, self._edge_types = dict(widths), tuple(edge_types)

    def initialize(self, edge_widths: Mapping[str, Mapping[EdgeType, int]]) -> None:
        """Initializes lazy parameters in a forward pass over one node of each type.

        `edge_widths`: by `edge_attr` and `edge_weight`, width by edge type that has it.
        """
        if not any(isinstance(p, UninitializedParameter) for p in self.module.parameters()):
            return
        x = {name: torch.zeros(1, width) for name, width in self._widths.items()}
        edge_index = {edge_type: torch.zeros(2, 1).long() for edge_type in self._edge_types}
        columns = {
            f"{name}_dict": {
                edge_type: torch.ones(1, width) if name == EDGE_ATTR else torch.ones(1)
                for edge_type, width in widths.items()
            }
            for name, widths in edge_widths.items()
            if name in self._optional
        }
        was_training = self.module.training
        with torch.no_grad():
            self.module.eval()(x, edge_index, **columns)
        self.module.train(was_training)

    def forward(self, batch: Batch, rows: Mapping[str, Features]) -> dict[str, Any]:
        like = next(iter(batch.nodes.values())).n_id
        x = {
            name: dense(rows[name]) if name in rows else torch.zeros(0, width, device=like.device)
            for name, width in self._widths.items()
        }
        edge_index = {
            edge_type: batch.edges[edge_type].edge_index
            if edge_type in batch.edges
            else like.new_zeros(2, 0)
            for edge_type in self._edge_types
        }
        columns: dict[str, dict[EdgeType, Tensor]] = {}
        for edge_type, edges in batch.edges.items():
            for name, column in edges.columns.items():
                columns.setdefault(name, {})[edge_type] = column
        inputs = {f"{name}_dict": columns[name] for name in self._edge_columns(columns)}
        out = self.module(x, edge_index, **inputs)
        if isinstance(out, Tensor):
            seeded = [name for name, nodes in batch.nodes.items() if nodes.num_seeds]
            out = dict.fromkeys(seeded[:1], out)
        return {
            name: self._seeds(out[name], batch.nodes[name]) for name in batch.nodes if name in out
        }


def takes_dictionaries(module_class: type) -> bool:
    """Whether the first parameter of a module's `forward` is named like `x_dict`."""
    if issubclass(module_class, BlockEncoder):
        return False
    parameters = list(inspect.signature(module_class.forward).parameters)  # type: ignore[attr-defined]
    return len(parameters) > 1 and parameters[1].endswith("_dict")


def needed_edge_inputs(module_class: type[nn.Module]) -> list[str]:
    parameters = inspect.signature(module_class.forward).parameters
    suffix = "_dict" if takes_dictionaries(module_class) else ""
    defaults = {name: parameters.get(f"{name}{suffix}") for name in EDGE_INPUTS}
    return [name for name, p in defaults.items() if p is not None and p.default is p.empty]


def _edge_inputs(
    module: nn.Module, parameters: list[inspect.Parameter], suffix: str
) -> dict[str, bool]:
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    further = [p for p in parameters if p not in positional[:2]]
    needed = [p for p in further if p.default is p.empty and p.kind not in _VARIADIC]
    known = {f"{name}{suffix}": name for name in EDGE_INPUTS}
    unknown = [p.name for p in needed if p.name not in known]
    if (len(positional) < 2 and not takes_any) or unknown:
        shown = ", ".join(p.name for p in parameters)
        raise ConfigError(
            f"model.type={type(module).__name__!r} is invalid: its forward({shown}) cannot be "
            f"called with (x{suffix}, edge_index{suffix}). Take these two first, then any of "
            f"{', '.join(known)}, and give every other parameter a default. [model-forward]"
        )
    names = {p.name: p in needed for p in further}
    return {known[name]: names[name] for name in known if name in names}


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
