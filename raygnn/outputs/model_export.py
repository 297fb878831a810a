"""Saved models: safetensors, the config that built it, its spec."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from raygnn.console import warn
from raygnn.data.checksums import dump_record, parse_record
from raygnn.data.filesystem import exists, join, open_fs, read_bytes, redact, write_bytes
from raygnn.errors import CheckpointError, RunError
from raygnn.loops.model_spec import MODEL_FILE, SPEC_FILE, TREES_FILE
from raygnn.outputs.checkpoints.store import CONFIG, find_checkpoint


def write_model(
    weights: Mapping[str, Tensor],
    uri: str,
    config_yaml: str,
    spec: str | None,
    write: Callable[[str, bytes], None] = write_bytes,
    trees: str | None = None,
) -> str:
    """Writes a model to a folder on any fsspec URI, and returns the weights' URI.

    Equal weights give equal bytes.

    Args:
        spec: for inference, as JSON; None if the task has none.
        trees: text of LightGBM, if the model blends it.
    """
    tensors = {
        name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in weights.items()
    }
    fs, path = open_fs(uri)
    fs.makedirs(path, exist_ok=True)
    # Safetensors writes several entries of metadata in an order of chance.
    files = {
        MODEL_FILE: save(tensors, metadata={"format": "pt"}),
        CONFIG: config_yaml.encode(),
        **({} if trees is None else {TREES_FILE: trees.encode()}),
    }
    for name, content in files.items():
        write(join(uri, name), content)
    if spec is not None:
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        record = {**parse_record(spec), "sha256": digests}
        write(join(uri, SPEC_FILE), (dump_record(record) + "\n").encode())
    return join(uri, MODEL_FILE)


def read_weights(uri: str) -> dict[str, Tensor]:
    """Reads weights from a safetensors file, and verifies the sha256 in its `model.json`, if any.

    Raises:
        CheckpointError: the weights have changed since `model.json` was written.
        SafetensorError: they are not a safetensors file.
    """
    weights: dict[str, Tensor] = load(_verified(uri))
    return weights


def read_trees(uri: str) -> str:
    """Reads LightGBM's text of a model's folder, and verifies it as `read_weights`."""
    return _verified(join(uri, TREES_FILE)).decode()


def _verified(uri: str) -> bytes:
    content = read_bytes(uri)
    folder, _, name = uri.rpartition("/")
    if name in (MODEL_FILE, TREES_FILE) and exists(join(folder or ".", SPEC_FILE)):
        digest = saved_digests(read_bytes(join(folder or ".", SPEC_FILE))).get(name)
        if digest not in (None, hashlib.sha256(content).hexdigest()):
            raise CheckpointError(
                f"{redact(uri)} is damaged: its sha256 is not that in {SPEC_FILE}. Copy all files "
                "of the model from its run again. [model-weights-damaged]"
            )
    return content


def saved_digests(spec: bytes) -> dict[str, str]:
    try:
        digests = parse_record(spec).get("sha256", {})
    except ValueError as error:
        raise RunError(
            f"{SPEC_FILE} is damaged: {error}. Copy it from its run again. [model-file-damaged]"
        ) from error
    return digests if isinstance(digests, dict) else {}


def export_checkpoint(source: str, out: str) -> str:
    """Writes a model like a finished run, and returns the weights' URI: the best weights so far of
    a run's folder, or those of a checkpoint, or their moving average if the run has one. Raises a
    CheckpointError if there is no complete checkpoint, or it is damaged.
    """
    store, name, is_run = find_checkpoint(source)
    if name is None:
        raise CheckpointError(
            f"--export={redact(source)!r} is invalid: it has no complete checkpoint. Set the "
            "folder of a run, or one of the folders in its checkpoints. [checkpoint-export]"
        )
    manifest = store.verify(name)
    state, _ = store.load(name, rank=0)
    best = state["best"]["weights"] if is_run else None
    spec = None
    if SPEC_FILE in manifest["files"]:
        spec = store.read(name, SPEC_FILE, manifest).decode()
    config_yaml = store.read(name, CONFIG, manifest).decode()
    if spec is not None and (parse_record(spec).get("nodes") or {}).get("table") is not None:
        warn(
            "a checkpoint holds the GNN alone. What predicts beside it (task.args.blend) is chosen "
            "at the end of a run, whose folder is the complete model"
        )
    return write_model(best or _own_weights(state), out, config_yaml, spec)


def _own_weights(state: dict[str, Any]) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = dict(state["model"])
    for name, average in (state["average"] or {}).items():
        weights[name] = average.to(weights[name].dtype)
    return weights
