"""Converts an encoder to PyG's own model, with a copy of the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn
from torch_geometric import nn as pyg

from raygnn.errors import ConfigError
from raygnn.models.attention_encoders import GAT, AttentionEncoder, GATv2
from raygnn.models.convolutions import GCN, GIN, GraphSAGE
from raygnn.models.encoder import ACTIVATIONS, MLP, Encoder
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.learned_rows import LightGCN
from raygnn.models.subgraph_module import EDGE_WEIGHT, SubgraphModule, TypedSubgraphModule

_NORMS = {"batch": "BatchNorm", "layer": "LayerNorm"}
_UNKNOWN_TO_PYG = ("residual", "input_projection", "normalize_output")


def to_pyg(
    encoder: GraphEncoder,
    name: str,
    edge_inputs: Collection[str] = (),
) -> nn.Module:
    """PyG's `GCN`, `GraphSAGE`, `GAT`, `GIN`, `MLP` or `LightGCN`, or the wrapped module.

    Outputs are equal in evaluation mode on graphs without self-edges. `MLP` takes only features.
    `LightGCN` numbers the nodes of all types in the order of `node_types`, and its `get_embedding`
    returns them all.

    Args:
        name: the model's name in the config.
        edge_inputs: edge inputs it reads: `edge_attr`, `edge_weight`.
    Raises:
        ConfigError: PyG has no equivalent model.
    """
    module = encoder.module
    make = _MAKERS.get(type(module))
    reason = _reason_against(encoder, edge_inputs) if make else "PyG has no model of this kind"
    if len(encoder.interactions):
        reason = reason or "model.interaction crosses its features, which PyG's models do not"
    if encoder.relative_time is not None:
        reason = reason or "it reads relative times, which PyG's models do not"
    if reason:
        raise ConfigError(
            f"model.type={name!r} is invalid for to_pyg: {reason}. Use predict or embed. These can "
            f"be converted: {', '.join(_NAMES)}; and your own modules. [model-to-pyg]"
        )
    assert make is not None
    parameter = next(module.parameters())
    made: nn.Module = make(module).to(parameter.device, parameter.dtype)
    return made.train(module.training)


def _reason_against(encoder: GraphEncoder, edge_inputs: Collection[str]) -> str | None:
    module = encoder.module
    if isinstance(module, SubgraphModule):
        return None
    options: Any = module.options
    if len(encoder.categories):
        return "its features hold categories, whose embeddings PyG's models do not have"
    if EDGE_WEIGHT in edge_inputs:
        return "it reads edge weights, which PyG counts into the degrees"
    extra = [option for option in _UNKNOWN_TO_PYG if getattr(options, option, False)]
    if extra:
        return f"model.args.{extra[0]}={getattr(options, extra[0])!r} is not an argument of PyG's"
    if options.activation == "prelu":
        return "model.args.activation='prelu' has weights for each layer, which PyG's share"
    if isinstance(module, MLP) and options.jump:
        return f"model.args.jump={options.jump!r} is not an argument of PyG's MLP"
    return None


def _stack(module: Encoder, kind: Callable[..., Any], **arguments: Any) -> Any:
    options = module.options
    made = kind(
        module.in_channels,
        module.hidden_channels,
        module.num_layers,
        module.out_channels,
        dropout=options.dropout,
        act=ACTIVATIONS[options.activation](),
        jk=options.jump,
        **_norm(options.norm),
        **arguments,
    )
    for ours, theirs in zip(module.norms, made.norms, strict=False):  # PyG's last is the identity
        theirs.load_state_dict(ours.state_dict())
    if module.jump is not None:
        made.jk.load_state_dict(module.jump.state_dict())
    if options.jump is not None:
        made.lin.load_state_dict(module.head.state_dict())
    return made


def _norm(name: str | None) -> dict[str, Any]:
    if name is None:
        return {"norm": None}
    return {"norm": _NORMS[name], "norm_kwargs": {"mode": "node"} if name == "layer" else None}


def _with_layers(made: Any, module: Any) -> nn.Module:
    for ours, theirs in zip(module.layers, made.convs, strict=True):
        theirs.load_state_dict(ours.state_dict())
    out: nn.Module = made
    return out


def _gcn(module: GCN) -> nn.Module:
    return _with_layers(_stack(module, pyg.GCN), module)


def _sage(module: GraphSAGE) -> nn.Module:
    return _with_layers(_stack(module, pyg.GraphSAGE, aggr=module.options.aggr), module)


def _gat(module: AttentionEncoder) -> nn.Module:
    options = module.options
    heads = {"heads": options.num_heads, "edge_dim": options.edge_dim}
    made = _stack(module, pyg.GAT, v2=isinstance(module, GATv2), **heads)
    last = made.convs[-1]
    if options.jump is None and options.num_output_heads is not None:
        made.convs[-1] = type(last)(
            last.in_channels,
            last.out_channels,
            heads=options.num_output_heads,
            concat=False,
            edge_dim=options.edge_dim,
        )
    for conv in made.convs:
        conv.dropout = options.attn_dropout
    return _with_layers(made, module)


def _gin(module: GIN) -> nn.Module:
    made = _stack(module, pyg.GIN, train_eps=module.options.train_eps)
    layers: Any = module.layers
    for i, layer in enumerate(layers):
        # PyG's own has another width in the last layer.
        mlp = nn.Sequential(*copy.deepcopy(list(layer.nn)))
        made.convs[i] = pyg.GINConv(mlp, train_eps=module.options.train_eps)
    return _with_layers(made, module)


def _mlp(module: MLP) -> nn.Module:
    options = module.options
    inner = [module.hidden_channels] * (module.num_layers - 1)
    made = pyg.MLP(
        [module.in_channels, *inner, module.out_channels],
        dropout=float(options.dropout),
        act=ACTIVATIONS[options.activation](),
        **_norm(options.norm),
    )
    layers: Any = module.layers
    for layer, theirs in zip(layers, made.lins, strict=True):
        theirs.load_state_dict(layer.lin.state_dict())
    for ours, norm in zip(module.norms, made.norms, strict=True):
        norm.load_state_dict(ours.state_dict())
    out: nn.Module = made
    return out


def _lightgcn(module: LightGCN) -> nn.Module:
    rows = torch.cat([module.inputs.tables[name].rows.weight for name in module.node_types])
    made = pyg.LightGCN(len(rows), module.out_channels, module.num_layers)
    with torch.no_grad():
        made.embedding.weight.copy_(rows)
    out: nn.Module = made
    return out


def _wrapped(module: SubgraphModule) -> nn.Module:
    return copy.deepcopy(module.module)


_MAKERS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    GCN: _gcn,
    GraphSAGE: _sage,
    GAT: _gat,
    GATv2: _gat,
    GIN: _gin,
    MLP: _mlp,
    LightGCN: _lightgcn,
    SubgraphModule: _wrapped,
    TypedSubgraphModule: _wrapped,
}
#: Names of encoders that PyG has.
_NAMES = [kind.__name__ for kind, make in _MAKERS.items() if make is not _wrapped]
