"""The trained model as others load it: safetensors, the config that built it, its signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from safetensors.torch import save
from torch import Tensor

from raygnn.data.filesystem import join, open_fs, write_bytes
from raygnn.loops.signature import MODEL_FILE, SIGNATURE_FILE


def write_model(
    weights: Mapping[str, Tensor],
    uri: str,
    config_yaml: str,
    signature: str | None,
    write: Callable[[str, bytes], None] = write_bytes,
) -> str:
    """Writes a model to a folder on any fsspec URI, and returns the weights' URI.

    Equal weights make the same bytes.

    Args:
        signature: for inference, as JSON; None where the task offers none.
        write: writes a file, given its URI.
    """
    tensors = {
        name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in weights.items()
    }
    fs, path = open_fs(uri)
    fs.makedirs(path, exist_ok=True)
    # Safetensors writes several entries of metadata in an order of chance.
    content = save(tensors, metadata={"format": "pt"})
    write(join(uri, MODEL_FILE), content)
    write(join(uri, "config.yaml"), config_yaml.encode())
    if signature is not None:
        write(join(uri, SIGNATURE_FILE), signature.encode())
    return join(uri, MODEL_FILE)
