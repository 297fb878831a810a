"""The trained model as others load it: safetensors beside the config that built it."""

from __future__ import annotations

from safetensors.torch import save
from torch import nn

from raygnn import __version__
from raygnn.data.filesystem import join, open_fs, write_text

MODEL_FILE = "model.safetensors"


def export_model(module: nn.Module, uri: str, config_yaml: str) -> str:
    """Writes weights and config to a folder on any fsspec URI, and returns the weights' URI."""
    tensors = {
        name: tensor.detach().to("cpu").contiguous().clone()
        for name, tensor in module.state_dict().items()
    }
    fs, path = open_fs(join(uri, MODEL_FILE))
    fs.makedirs(fs._parent(path), exist_ok=True)
    fs.pipe_file(path, save(tensors, metadata={"format": "pt", "raygnn": __version__}))
    write_text(join(uri, "config.yaml"), config_yaml)
    return join(uri, MODEL_FILE)
