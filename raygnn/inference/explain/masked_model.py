"""A model on one batch, whose rows and edges masks multiply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import MessagePassing

from raygnn.data.edge_types import EdgeType
from raygnn.errors import ConfigError
from raygnn.models.encoder import MLP, BlockEncoder, OverBlocks
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.relative_time import RelativeTime
from raygnn.models.sparse_input import Features, dense, formed
from raygnn.models.subgraph_module import SubgraphModule
from raygnn.sampling.batch import Batch, Block, HeteroBlock


class MaskedModel:
    """Called as `model(x, edge_mask)`: all types of a batch become one PyG graph.

    raygnn's encoders read blocks: before each layer, every edge of its block gets its own row, the
    source's times the mask. An edge has one mask in all layers. Self-edges of the graph have none,
    because attention replaces them. In a PyG module, the messages of each convolution are
    multiplied by the masks of the edge type whose `edge_index` it is called with.

    Columns of `RelativeTime` are masked like features, and are behind these.

    Attributes:
        x: [num_nodes, num_elements], differences from `typical`, block-diagonal over node types: a
            type's elements are 0 in the rows of others. Categories are embedded.
        edge_index: int64 [2, num_edges], concatenated over edge types, with rows of x.
        rows, elements: rows and columns of x, by node type.
        edges: columns of `edge_index`, by edge type.
        masks_edges: whether masks reach the model's edges, as `check_layers` finds.
    Args:
        model: with an `encoder`, in evaluation mode.
        batch: a batch of one seed.
        head: computes the explained [1, num_outputs] from the encoder's output by node type.
        typical: what masked elements become, by node type; see `typical_rows`. Default: 0.
    Raises:
        ConfigError: the model reads neither features nor edges.
    """

    def __init__(
        self,
        model: Any,
        batch: Batch,
        head: Callable[[Mapping[str, Any]], Tensor],
        typical: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self.model = model
        self._head = head
        self._num_masked_calls = 0
        self._batch = batch
        encoder: GraphEncoder = model.encoder
        inputs = {name: _input_rows(encoder, name, x) for name, x in _inputs(encoder, batch)}
        self._num_features = {name: x.shape[1] for name, x in inputs.items()}
        self._base: dict[str, Tensor] = {}
        appended = _appended(encoder, batch)
        for name in dict.fromkeys([*inputs, *appended]):
            parts = [rows[name] for rows in (inputs, appended) if name in rows]
            x = torch.cat(parts, dim=1)
            base = typical.get(name, x.new_zeros(x.shape[1])).repeat(len(x), 1)
            # Nodes of the last hop, which sample no edges, keep their counts and times.
            num, num_features = _num_expanded(batch, name), self._num_features.get(name, 0)
            base[num:, num_features:] = x[num:, num_features:]
            inputs[name], self._base[name] = x - base, base
        self.rows = _ranges({name: len(nodes.n_id) for name, nodes in batch.nodes.items()})
        self.elements = _ranges({name: x.shape[1] for name, x in inputs.items()})
        self.edges = _ranges({t: e.edge_index.shape[1] for t, e in batch.edges.items()})
        num_nodes = sum(map(len, self.rows.values()))
        device = batch.input_id.device
        self.x = torch.zeros(num_nodes, sum(map(len, self.elements.values())), device=device)
        for name, x in inputs.items():
            self.x[_slice(self.rows[name]), _slice(self.elements[name])] = x
        self.edge_index = torch.cat(
            [self._flat(edge_type) for edge_type in batch.edges]
            or [torch.zeros(2, 0, dtype=torch.int64, device=device)],
            dim=1,
        )
        self.masks_edges = _reads_edges(encoder) and self.edge_index.shape[1] > 0
        if not self.masks_edges and not self.elements:
            raise ConfigError(
                "explain is invalid: the model reads only learned rows of nodes, neither features "
                "nor edges, which nothing masks. Explain another model. [explain-nothing-read]"
            )

    def __call__(self, x: Tensor, edge_mask: Tensor | None = None) -> Tensor:
        """The explained [1, num_outputs]. `edge_mask`: [num_edges]; None masks no edge."""
        encoder: GraphEncoder = self.model.encoder
        every = {
            name: x[_slice(self.rows[name]), _slice(elements)] + self._base[name]
            for name, elements in self.elements.items()
        }
        rows = {name: every[name][:, :num] for name, num in self._num_features.items()}
        columns = {name: each[:, self._num_features.get(name, 0) :] for name, each in every.items()}
        with self._reading(encoder, rows, columns, edge_mask):
            return self._head(encoder(self._batch_of(encoder, rows)))

    @property
    def hides_edges(self) -> bool:
        """Whether the model may read edges that masks do not reach."""
        return isinstance(self.model.encoder.module, SubgraphModule) and not self.masks_edges

    def _inner_convolutions(self) -> list[MessagePassing]:
        return [
            conv
            for conv in self.model.encoder.module.modules()
            if isinstance(conv, MessagePassing) and not isinstance(conv, OverBlocks)
        ]

    def check_layers(self) -> None:
        """Raises a ConfigError if masks of ones change the output of the user's own layers."""
        if not self.masks_edges or not self._inner_convolutions():
            return
        self._num_masked_calls = 0
        ones = self.x.new_ones(self.edge_index.shape[1])
        with torch.no_grad():
            plain, masked = self(self.x), self(self.x, ones)
        if isinstance(self.model.encoder.module, SubgraphModule):
            self.masks_edges = self._num_masked_calls > 0
        if not torch.allclose(plain, masked, rtol=1e-3, atol=1e-4):
            raise ConfigError(
                f"explain is invalid: {type(self.model.encoder.module).__name__} reads more of an "
                "edge than its source's row. Read block.src_degree, or explain a built-in model. "
                "[explain-layer]"
            )

    def _flat(self, edge_type: EdgeType) -> Tensor:
        starts = [self.rows[name].start for name in (edge_type[0], edge_type[2])]
        index = self._batch.edges[edge_type].edge_index
        return index + torch.tensor(starts, device=index.device).unsqueeze(1)

    def _batch_of(self, encoder: GraphEncoder, rows: Mapping[str, Tensor]) -> Batch:
        nodes = dict(self._batch.nodes)
        for name, x in rows.items():
            if name not in encoder.categories:
                nodes[name] = replace(nodes[name], columns={**nodes[name].columns, "x": x})
        return replace(self._batch, nodes=nodes)

    @contextmanager
    def _reading(
        self,
        encoder: GraphEncoder,
        rows: Mapping[str, Tensor],
        columns: Mapping[str, Tensor],
        edge_mask: Tensor | None,
    ) -> Iterator[None]:
        times = encoder.relative_time
        if times is not None:
            encoder.relative_time = cast("RelativeTime", _GivenColumns(times, columns))
        handles = [
            module.register_forward_hook(lambda *_, x=rows[name]: x)
            for name, module in encoder.categories.items()
            if name in rows
        ]
        module: Any = encoder.module
        if edge_mask is not None and isinstance(module, SubgraphModule):
            handles += self._mask_messages(edge_mask)
        elif edge_mask is not None:
            hook = partial(self._with_masked_edges, edge_mask.unsqueeze(1))
            handles += [layer.register_forward_pre_hook(hook) for layer in module.layers]
        try:
            yield
        finally:
            encoder.relative_time = times
            for handle in handles:
                handle.remove()

    def _mask_messages(self, mask: Tensor) -> list[Any]:
        """Multiplies the messages of convolutions by masks, until the returned hooks are removed.

        A convolution's edge type is that of the `edge_index` it is called with.
        """
        types = {id(edges.edge_index): t for t, edges in self._batch.edges.items()}
        called_with: dict[nn.Module, EdgeType | None] = {}

        def note(conv: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found = (types.get(id(value)) for value in (*args, *kwargs.values()))
            called_with[conv] = next(filter(None, found), None)

        def multiply(conv: MessagePassing, _: Any, messages: Any) -> Any:
            edge_type = called_with.get(conv)
            if edge_type is None or not isinstance(messages, Tensor):
                return messages
            self._num_masked_calls += 1
            factors = mask[_slice(self.edges[edge_type])]
            num_messages = messages.size(conv.node_dim)
            if num_messages != len(factors):  # the convolution has replaced self-edges
                src, dst = self._batch.edges[edge_type].edge_index
                factors = factors[src != dst]
                factors = functional.pad(factors, (0, num_messages - len(factors)), value=1.0)
            shape = [1] * messages.dim()
            shape[conv.node_dim] = -1
            return messages * factors.view(shape)

        return [
            handle
            for conv in self._inner_convolutions()
            for handle in (
                conv.register_forward_pre_hook(note, with_kwargs=True),
                conv.register_message_forward_hook(multiply),
            )
        ]

    def _with_masked_edges(
        self, mask: Tensor, layer: nn.Module, inputs: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Adds a row per edge after a layer's source rows, for all blocks of the layer."""
        x, block, *others = inputs
        if isinstance(block, HeteroBlock):
            x = {name: formed(rows) for name, rows in x.items()}
            expanded, new = _expanded(x, block, {t: mask[_slice(r)] for t, r in self.edges.items()})
            return expanded, new, *others
        ((source, relation, target),) = self.edges
        name = source
        wrapped = HeteroBlock(
            blocks={(source, relation, target): block},
            num_src={name: block.num_src},
            num_dst={name: block.num_dst},
        )
        rows, new = _expanded({name: dense(x)}, wrapped, {(source, relation, target): mask})
        return rows[name], new.blocks[source, relation, target], *others


@dataclass(frozen=True)
class _GivenColumns:
    """Stands for `RelativeTime`, with columns that were computed before."""

    times: RelativeTime
    columns: Mapping[str, Tensor]

    @property
    def node_types(self) -> tuple[str, ...]:
        return self.times.node_types

    def joined(self, batch: Batch, node_type: str, inputs: Mapping[str, Features]) -> Tensor:
        return self.times.join(node_type, inputs, self.columns[node_type])


@torch.no_grad()
def _appended(encoder: GraphEncoder, batch: Batch) -> dict[str, Tensor]:
    """The columns of `RelativeTime`, [num_nodes, channels] by node type."""
    times = encoder.relative_time
    if times is None:
        return {}
    rows = encoder.rows_without_times(batch)
    return {
        name: times.appended(batch, name, rows) for name in times.node_types if name in batch.nodes
    }


def _num_expanded(batch: Batch, node_type: str) -> int:
    """Nodes of a type whose neighbors are sampled, or all if the type has no neighbors."""
    sizes = [len(e.dst_ptr) - 1 for t, e in batch.edges.items() if t[2] == node_type]
    return max(sizes, default=len(batch.nodes[node_type].n_id))


def typical_rows(encoder: GraphEncoder, batches: Iterable[Batch]) -> dict[str, Tensor]:
    """Mean rows of the nodes of batches, [num_elements] by node type. Columns of `RelativeTime` are
    those of nodes whose neighbors are sampled.
    """
    found: dict[str, list[list[Tensor]]] = {}
    for batch in batches:
        features = {n: _input_rows(encoder, n, x) for n, x in _inputs(encoder, batch)}
        appended = _appended(encoder, batch)
        for name in dict.fromkeys([*features, *appended]):
            parts = [features[name]] if name in features else []
            parts += [appended[name][: _num_expanded(batch, name)]] if name in appended else []
            found.setdefault(name, []).append(parts)
    means = {
        name: [torch.cat(rows).mean(dim=0) for rows in zip(*each, strict=True)]
        for name, each in found.items()
    }
    return {name: torch.cat(parts).nan_to_num() for name, parts in means.items()}


def _expanded(
    x: Mapping[str, Tensor], block: HeteroBlock, masks: Mapping[EdgeType, Tensor]
) -> tuple[dict[str, Tensor], HeteroBlock]:
    """A layer's rows with one more per edge, and its blocks with these as sources. `masks`:
    [num_edges of the batch, 1]; a block has the first edges.
    """
    origins = {name: [torch.arange(len(rows), device=rows.device)] for name, rows in x.items()}
    factors = {name: [rows.new_ones(len(rows), 1)] for name, rows in x.items()}
    sources: dict[EdgeType, Tensor] = {}
    for edge_type, edges in block.blocks.items():
        name, _, target = edge_type
        if not edges.num_edges:
            sources[edge_type] = edges.edge_index[0]
            continue
        src, dst = edges.edge_index
        begin = sum(map(len, origins[name]))
        e_id = torch.arange(begin, begin + len(src), device=src.device)
        is_self = (src == dst) if name == target else torch.zeros_like(src, dtype=torch.bool)
        sources[edge_type] = torch.where(is_self, src, e_id)
        origins[name].append(src)
        factors[name].append(masks[edge_type][: len(src)].to(x[name].dtype))
    order = {name: torch.cat(parts) for name, parts in origins.items()}
    rows = {name: x[name][order[name]] * torch.cat(factors[name]) for name in x}
    blocks = {
        t: _with_sources(edges, sources[t], order[t[0]], masks[t]) if t[0] in order else edges
        for t, edges in block.blocks.items()
    }
    return rows, replace(block, blocks=blocks, num_src={n: len(o) for n, o in order.items()})


def _with_sources(block: Block, src: Tensor, order: Tensor, mask: Tensor) -> Block:
    attr = block.edge_attr
    if attr is not None:
        attr = attr * mask[: len(attr)].reshape(-1, *[1] * (attr.dim() - 1)).to(attr.dtype)
    return replace(
        block,
        edge_index=torch.stack([src, block.edge_index[1]]),
        num_src=len(order),
        src_in_degree=_taken(block.src_in_degree, order),
        src_degree=_taken(block.src_degree, order),
        edge_attr=attr,
    )


def _taken(degree: Tensor | None, order: Tensor) -> Tensor | None:
    return None if degree is None else degree[order]


def _inputs(encoder: GraphEncoder, batch: Batch) -> Iterator[tuple[str, Any]]:
    module = encoder.module
    if isinstance(module, BlockEncoder):
        inputs = module.inputs_of(batch)
        yield from ((n, x) for n, x in inputs.items() if n not in module.embedded_types)
    else:
        yield from ((n, nodes.columns["x"]) for n, nodes in batch.nodes.items())


@torch.no_grad()
def _input_rows(encoder: GraphEncoder, node_type: str, x: Any) -> Tensor:
    rows: Tensor = dense(x)
    if node_type in encoder.categories:
        rows = encoder.categories[node_type](rows)
    return rows.float()


def _reads_edges(encoder: GraphEncoder) -> bool:
    module = encoder.module
    if isinstance(module, SubgraphModule):  # masks reach layers of PyG's class only
        return any(isinstance(layer, MessagePassing) for layer in module.modules())
    return not isinstance(module, MLP) and getattr(module, "reads_messages", True)


def _ranges(sizes: Mapping[Any, int]) -> dict[Any, range]:
    ends = functional.pad(torch.tensor(list(sizes.values()), dtype=torch.int64).cumsum(0), (1, 0))
    bounds = ends.tolist()
    return {key: range(bounds[i], bounds[i + 1]) for i, key in enumerate(sizes)}


def _slice(span: range) -> slice:
    return slice(span.start, span.stop)
