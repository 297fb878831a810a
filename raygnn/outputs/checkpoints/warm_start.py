from __future__ import annotations

from fnmatch import fnmatchcase

from safetensors import SafetensorError
from torch import Tensor, nn

from raygnn.config.training_section import InitFrom
from raygnn.data.filesystem import absolute, exists, join, open_fs, redact
from raygnn.errors import CheckpointError, ConfigError
from raygnn.loops.model_spec import MODEL_FILE
from raygnn.outputs.checkpoints.store import STATE, CheckpointStore
from raygnn.outputs.model_export import read_weights
from raygnn.parallel.sharded_tables import ShardedTables


def warm_start(module: nn.Module, settings: InitFrom, folder: str = "") -> list[str]:
    """Loads and freezes the chosen weights of a fresh model; returns the loaded names. Raises a
    CheckpointError if there is nothing to load or a shape differs, a ConfigError for a pattern that
    matches nothing.
    """
    state = module.state_dict()
    weights = _held(_read(absolute(settings.uri, folder)), ShardedTables(module))
    meant = [name for name in state if _matches(name, settings.include)]
    meant = [name for name in meant if not _matches(name, settings.exclude)]
    if not meant:
        raise ConfigError(
            f"checkpoint.init_from.include={settings.include!r} is invalid: it matches no weight "
            f"of the model. The model has: {', '.join(state)}. [init-no-weights]"
        )
    missing = [name for name in meant if name not in weights]
    if missing and settings.strict:
        raise CheckpointError(
            f"checkpoint.init_from.uri={redact(settings.uri)!r} is invalid: it lacks {missing}. "
            "Exclude them, or set checkpoint.init_from.strict to false. [init-weights-missing]"
        )
    loaded = [name for name in meant if name in weights]
    for name in loaded:
        if weights[name].shape != state[name].shape:
            raise CheckpointError(
                f"checkpoint.init_from.uri={redact(settings.uri)!r} is invalid: the shape of "
                f"{name} is {list(weights[name].shape)}, here {list(state[name].shape)}. Exclude "
                "it, or set model.args as they were. [init-weights-shape]"
            )
    module.load_state_dict({name: weights[name] for name in loaded}, strict=False)
    _freeze(module, settings.freeze)
    return loaded


def _freeze(module: nn.Module, patterns: list[str]) -> None:
    for pattern in patterns:
        fitting = [p for name, p in module.named_parameters() if fnmatchcase(name, pattern)]
        if not fitting:
            names = ", ".join(name for name, _ in module.named_parameters())
            raise ConfigError(
                f"checkpoint.init_from.freeze={pattern!r} is invalid: it matches no weight. The "
                f"model has: {names}. [init-freeze]"
            )
        for parameter in fitting:
            parameter.requires_grad_(False)


def _read(uri: str) -> dict[str, Tensor]:
    fs, path = open_fs(uri)
    if fs.isfile(path):
        return _load(uri)
    if exists(join(uri, MODEL_FILE)):
        return _load(join(uri, MODEL_FILE))
    if exists(join(uri, STATE)):
        root, _, name = uri.rstrip("/").rpartition("/")
        store = CheckpointStore(root)
        store.verify(name)
        state, _ = store.load(name, rank=0)
        if isinstance(state.get("model"), dict):
            return state["model"]
    raise CheckpointError(
        f"checkpoint.init_from.uri={redact(uri)!r} is invalid: no {MODEL_FILE} and no checkpoint "
        "is there. Set the folder of a trained model or of a checkpoint. [init-nothing-there]"
    )


def _held(weights: dict[str, Tensor], tables: ShardedTables) -> dict[str, Tensor]:
    held = {
        name: weights[name][tables.share_of(name).ids(num_rows)]
        for name, num_rows in tables.num_rows.items()
        if name in weights and len(weights[name]) == num_rows
    }
    return weights | held


def _load(uri: str) -> dict[str, Tensor]:
    try:
        return read_weights(uri)
    except SafetensorError as error:
        raise CheckpointError(
            f"checkpoint.init_from.uri={redact(uri)!r} is invalid: it is damaged: {error}. Set the "
            "folder of a trained model or checkpoint. [init-damaged]"
        ) from error


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
