"""raygnn: distributed GNN training on Ray, from Parquet tables to an evaluated model."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from raygnn.process_start import (
    exit_on_early_interrupt,
    install_lazy_imports,
    keep_kernels,
    wait_briefly,
)

__all__ = ["TrainedModel", "__version__", "load"]

__version__ = "0.1.0"

#: Imported when they are first used, since they need torch.
_LATE = {"load": "raygnn.trained_model", "TrainedModel": "raygnn.trained_model"}

#: Modules that users call, once they are imported.
_ENTRIES = {"train", "tune", "infer", "serve", "prepare", "report"}

exit_on_early_interrupt()
keep_kernels()
install_lazy_imports()
wait_briefly()


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(_ENTRIES & globals().keys())])
