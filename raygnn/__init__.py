"""Graph neural networks on Ray, from tables to a trained, evaluated and served model.

import raygnn, raygnn.train

result = raygnn.train.fit("train.yaml")
model = raygnn.load(result.path)
model.predict("graph").to_pandas()
"""

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

#: Names imported on first use, because their modules import torch.
_LAZY = {"load": "raygnn.trained_model", "TrainedModel": "raygnn.trained_model"}

#: Submodules with a Python API. `dir(raygnn)` lists the imported ones.
_ENTRIES = {"train", "tune", "infer", "serve", "prepare", "report"}

exit_on_early_interrupt()
keep_kernels()
install_lazy_imports()
wait_briefly()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(_ENTRIES & globals().keys())])
