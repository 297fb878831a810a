"""The trained model as others load it: safetensors, the config that built it, its signature."""

from __future__ import annotations

from safetensors.torch import save
from torch import nn

from raygnn import __version__
from raygnn.data.filesystem import join, open_fs, write_text
from raygnn.loops.model_signature import MODEL_FILE, SIGNATURE_FILE, ModelSignature


def export_model(
    module: nn.Module, uri: str, config_yaml: str, signature: ModelSignature | None = None
) -> str:
    """Writes a model to a folder on any fsspec URI, and returns the weights' URI.

    Args:
        signature: for inference; None where the task offers none.
    """
    tensors = {
        name: tensor.detach().to("cpu").contiguous().clone()
        for name, tensor in module.state_dict().items()
    }
    fs, path = open_fs(join(uri, MODEL_FILE))
    fs.makedirs(fs._parent(path), exist_ok=True)
    fs.pipe_file(path, save(tensors, metadata={"format": "pt", "raygnn": __version__}))
    write_text(join(uri, "config.yaml"), config_yaml)
    if signature is not None:
        write_text(join(uri, SIGNATURE_FILE), signature.to_json())
    return join(uri, MODEL_FILE)
