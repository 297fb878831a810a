"""Any module with PyG's usual `forward(x, edge_index, ...)`, on a sampled subgraph."""

from __future__ import annotations

import atexit
import inspect
import linecache
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from raygnn.errors import ConfigError, DataError
from raygnn.sampling.batch import EdgeRecord, NodeRecord
from raygnn.sampling.sparse_features import SparseFeatures

#: What blocks and PyG's modules call the columns of edges.
EDGE_ATTR, EDGE_WEIGHT = "edge_attr", "edge_weight"
# What `forward` may take beside node features and edges, by the name of its parameter.
EDGE_INPUTS = (EDGE_WEIGHT, EDGE_ATTR)

#: Ends of the names of modules that PyG generates, and the start of others; see its `template.py`.
_GENERATED = ("_propagate", "_edge_updater")
_GENERATED_SEQUENTIAL = "torch_geometric.nn.sequential_"


_PROCESS = os.getpid()


def remove_generated_modules() -> None:
    """Removes the files of modules that PyG has generated for message passing of this process.

    PyG writes one for each class to the temporary folder and leaves it there. `inspect` still finds
    their source, which TorchScript reads. A forked process leaves the files of its parent alone.
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
    """Applies a module to the union of the sampled neighborhoods and keeps the seeds' rows.

    The module sees one graph for all of its layers. It is called with x and edge_index by position,
    and with `edge_weight` and `edge_attr` by name where its `forward` has such a parameter and the
    batch has the column. x is a sparse tensor of torch where the features are sparse and the
    module's class sets `takes_sparse_input`.

    Args:
        module: its `forward` takes (x, edge_index, ...) and returns a row per node of the subgraph,
            or a dictionary of such tensors.
    Raises:
        ConfigError: its `forward` needs something else.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        remove_generated_modules()  # workers of Ray end without `atexit`
        parameters = list(inspect.signature(module.forward).parameters.values())
        self._optional = _edge_inputs(module, parameters)

    def forward(self, nodes: NodeRecord, edges: EdgeRecord) -> Any:
        """Encodes the seeds of a batch.

        Returns:
            [num_seeds, channels], or a dictionary of such.
        Raises:
            DataError: the module needs an edge column that the graph does not have.
            ConfigError: the module does not return a row per node.
        """
        inputs = {}
        for name, is_needed in self._optional.items():
            if name in edges.columns:
                inputs[name] = edges.columns[name]
            elif is_needed:
                raise DataError(
                    f"model.type={type(self.module).__name__!r} is invalid: its forward() needs "
                    f"{name}, which the graph does not have. Declare it for the edge type in "
                    f"graph.yaml, or give the parameter a default.",
                    id="model-edge-input-missing",
                )
        x = nodes.columns["x"]
        x = x.to_coo() if isinstance(x, SparseFeatures) else x
        out = self.module(x, edges.edge_index, **inputs)
        if isinstance(out, Mapping):
            return {name: self._seeds(rows, nodes) for name, rows in out.items()}
        return self._seeds(out, nodes)

    def _seeds(self, out: Any, nodes: NodeRecord) -> Tensor:
        num_nodes = len(nodes.n_id)
        if not isinstance(out, Tensor) or out.dim() == 0 or out.shape[0] != num_nodes:
            got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(
                f"model.type={type(self.module).__name__!r} is invalid: its forward() returned "
                f"{got} for {num_nodes} nodes. Return a tensor with one row per node of "
                f"edge_index's graph, or a dictionary of such tensors.",
                id="model-result",
            )
        return out[: nodes.num_seeds]


def needed_edge_inputs(module_class: type[nn.Module]) -> list[str]:
    """Of `EDGE_INPUTS`, those that a module's `forward` cannot do without."""
    parameters = inspect.signature(module_class.forward).parameters
    return [
        name
        for name in EDGE_INPUTS
        if name in parameters and parameters[name].default is inspect.Parameter.empty
    ]


def _edge_inputs(module: nn.Module, parameters: list[inspect.Parameter]) -> dict[str, bool]:
    """The edge inputs that `forward` takes, and whether it needs them."""
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    further = [p for p in parameters if p not in positional[:2]]
    needed = [p for p in further if p.default is p.empty and p.kind not in _VARIADIC]
    unknown = [p.name for p in needed if p.name not in EDGE_INPUTS]
    if (len(positional) < 2 and not takes_any) or unknown:
        shown = ", ".join(p.name for p in parameters)
        raise ConfigError(
            f"model.type={type(module).__name__!r} is invalid: its forward({shown}) cannot be "
            f"called with (x, edge_index). Take these two first, then any of "
            f"{', '.join(EDGE_INPUTS)}, and give every other parameter a default.",
            id="model-forward",
        )
    names = {p.name: p in needed for p in further}
    return {name: names[name] for name in EDGE_INPUTS if name in names}


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
