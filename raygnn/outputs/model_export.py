"""The trained model as others load it: safetensors, the config that built it, its spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from safetensors.torch import save
from torch import Tensor

from raygnn.data.filesystem import exists, join, open_fs, redact, write_bytes
from raygnn.errors import CheckpointError
from raygnn.loops.model_spec import MODEL_FILE, SPEC_FILE
from raygnn.outputs.checkpoints.names import MANIFEST
from raygnn.outputs.checkpoints.store import CONFIG, CheckpointStore


def write_model(
    weights: Mapping[str, Tensor],
    uri: str,
    config_yaml: str,
    spec: str | None,
    write: Callable[[str, bytes], None] = write_bytes,
) -> str:
    """Writes a model to a folder on any fsspec URI, and returns the weights' URI.

    Equal weights make the same bytes.

    Args:
        spec: for inference, as JSON; None where the task offers none.
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
    if spec is not None:
        write(join(uri, SPEC_FILE), spec.encode())
    return join(uri, MODEL_FILE)


def export_checkpoint(source: str, out: str) -> str:
    """Writes a model as a finished run leaves it, and returns the weights' URI.

    Args:
        source: a run's folder, of which the best weights so far are taken, or a checkpoint, of
            which its own are. Where the run keeps an average of the weights, that is meant.
        out: folder on any fsspec URI.
    Raises:
        CheckpointError: there is no whole checkpoint, or it is damaged.
    """
    store, name, is_run = _find(source)
    manifest = store.verify(name)
    state, _ = store.load(name, rank=0)
    best = state["best"]["weights"] if is_run else None
    spec = None
    if SPEC_FILE in manifest["files"]:
        spec = store.read(name, SPEC_FILE, manifest).decode()
    config_yaml = store.read(name, CONFIG, manifest).decode()
    return write_model(best or _own_weights(state), out, config_yaml, spec)


def _find(source: str) -> tuple[CheckpointStore, str, bool]:
    """The store and name of the checkpoint that is meant, and whether by a run's folder."""
    source = source.rstrip("/")
    if exists(join(source, MANIFEST)):
        root, _, name = source.rpartition("/")
        return CheckpointStore(root or "."), name, False
    store = CheckpointStore(join(source, "checkpoints"))
    found, _ = store.newest_valid(store.names())
    if found is None:
        raise CheckpointError(
            f"--export={redact(source)!r} is invalid: no whole checkpoint is there. Set the folder "
            "of a run, or one of the folders in its checkpoints.",
            id="checkpoint-export",
        )
    return store, found, True


def _own_weights(state: dict[str, Any]) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = dict(state["model"])
    for name, average in (state["average"] or {}).items():
        weights[name] = average.to(weights[name].dtype)
    return weights
