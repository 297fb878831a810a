"""The model of a run or of one checkpoint as a folder of its own, without a graph or a worker."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from raygnn.data.filesystem import exists, join, redact
from raygnn.errors import CheckpointError
from raygnn.loops.signature import SIGNATURE_FILE
from raygnn.outputs.checkpoints.name import MANIFEST
from raygnn.outputs.checkpoints.store import CONFIG, CheckpointStore
from raygnn.outputs.saved_model.export import write_model


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
    signature = None
    if SIGNATURE_FILE in manifest["files"]:
        signature = store.read(name, SIGNATURE_FILE, manifest).decode()
    config_yaml = store.read(name, CONFIG, manifest).decode()
    return write_model(best or _own_weights(state), out, config_yaml, signature)


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
            "of a run, or one of the folders in its checkpoints."
        )
    return store, found, True


def _own_weights(state: dict[str, Any]) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = dict(state["model"])
    for name, average in (state["average"] or {}).items():
        weights[name] = average.to(weights[name].dtype)
    return weights
