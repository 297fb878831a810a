"""A trained model as a program of torch.export, which runs without raygnn and without PyG."""

from __future__ import annotations

import copy
import io
import json
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MLP

from raygnn.data.standardization import ColumnScale
from raygnn.errors import ConfigError, RunError
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks.labels.output import LabelOutput
from raygnn.losses.seed_losses import in_units
from raygnn.models.to_pyg import to_pyg

#: The file in a program that says what it takes and gives.
NOTE = "raygnn.json"
_TOLERANCE = 1e-5  # of program and model, relative to the largest output


class PlainModel(nn.Module):
    """From tensors of a graph of one type to outputs for all of its nodes.

    Args:
        interaction: from features to what the encoder reads.
        encoder: a module of PyG.
        head: from embeddings to outputs.
        features: how the features are standardised; None leaves them as they are.
        target: the scale of a regression's outputs; None leaves them as they are.
    """

    shift: Tensor
    factor: Tensor
    offset: Tensor

    def __init__(
        self,
        interaction: nn.Module,
        encoder: nn.Module,
        head: nn.Module,
        features: ColumnScale | None,
        target: ColumnScale | None,
    ) -> None:
        super().__init__()
        self.interaction = interaction
        self.encoder, self.head, self._target = encoder, head, target
        self._has_scale = features is not None
        if features is not None:
            for name, part in features.affine()._asdict().items():
                self.register_buffer(name, torch.from_numpy(part))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Gives a row for each node.

        Args:
            x: float32 [num_nodes, width], features as the tables and their transforms give them.
            edge_index: int64 [2, num_edges], along which messages pass from row 0 to row 1.
        Returns:
            float32 [num_nodes, num_outputs]: logits, values in the unit of the target, or
            embeddings of a model of links.
        """
        if self._has_scale:
            x = (x - self.shift) * self.factor + self.offset
        x = self.interaction(x)
        reads_no_edges = isinstance(self.encoder, MLP)
        rows = self.encoder(x) if reads_no_edges else self.encoder(x, edge_index)
        out: Tensor = self.head(rows)
        return out if self._target is None else in_units(out, self._target).float()


def export_program(model: nn.Module, spec: ModelSpec, name: str) -> bytes:
    """The file of a program for graphs of any size, as `torch.export.load` reads it.

    Args:
        model: the trained module, with its encoder, and its head where it has one.
        name: of the model in the config.
    Raises:
        ConfigError: the model reads more than the features and edges of one type, or PyG has no
            module of this kind.
        RunError: the program gives other values than the model.
    """
    node_type, *more = spec.node_types
    if more or len(spec.edge_types) > 1 or spec.embedded_types or spec.edge_inputs:
        raise ConfigError(
            f"model.type={name!r} is invalid for export: a program takes the features of one node "
            "type and the ends of one edge type, and the model reads several types, learned rows "
            "of nodes or columns of edges. Use predict and embed, or raygnn.serve.",
            id="model-export-inputs",
        )
    encoder: Any = model.encoder
    head = copy.deepcopy(getattr(model, "head", nn.Identity()))
    scale = spec.standardization.get(node_type, {}).get(spec.feature)
    interaction = nn.Identity()
    if node_type in encoder.interactions:
        interaction = copy.deepcopy(encoder.interactions[node_type])
    module = to_pyg(encoder, name, after_interactions=True)
    target = getattr(spec.output, "scale", None)
    made = PlainModel(interaction, module, head, scale, target)
    plain = made.float().cpu().eval()
    width = spec.widths[node_type]
    sizes = {"x": {0: torch.export.Dim("num_nodes")}, "edge_index": {1: torch.export.Dim("edges")}}
    with torch.no_grad():
        program = torch.export.export(plain, _random_graph(width, 12, 40), dynamic_shapes=sizes)
        other = _random_graph(width, 31, 0)
        _check_equal(program.module()(*other), plain(*other))
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={NOTE: _note(spec, width)})
    return file.getvalue()


def _random_graph(width: int, num_nodes: int, num_edges: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(num_nodes)
    x = torch.randn(num_nodes, width, generator=draw)
    return x, torch.randint(num_nodes, (2, num_edges), generator=draw)


def _check_equal(found: Tensor, expected: Tensor) -> None:
    distance = float((found - expected).abs().max())
    if not distance <= _TOLERANCE * max(1.0, float(expected.abs().max())):
        raise RunError(
            f"the exported program is wrong: its outputs differ from the model's by {distance:g}. "
            "Use another release of torch.",
            id="model-export-differs",
        )


def _note(spec: ModelSpec, width: int) -> str:
    """What a program takes and gives, as JSON."""
    (node_type,), output = spec.node_types, spec.output
    gives: dict[str, Any] = {"output": "embeddings"}
    if isinstance(output, LabelOutput):
        is_regression = output.problem == "regression"
        gives = {"output": "values" if is_regression else "logits", "label": output.label}
        if not is_regression:
            gives["classes"] = output.shown_classes
    takes = {"node_type": node_type, "feature": spec.feature, "width": width}
    return json.dumps({**takes, **gives})
