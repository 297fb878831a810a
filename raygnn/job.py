"""What every worker of a run is given; light to import, since the driver makes it."""

from __future__ import annotations

from dataclasses import dataclass

from raygnn.config import LoadedConfig
from raygnn.outputs.run_folder import RunFolder


@dataclass(frozen=True)
class TrainJob:
    """What every worker of a run is given. Crosses process boundaries.

    Attributes:
        dry_run: after the first checkpoint, restore it and compare.
    """

    loaded: LoadedConfig
    folder: RunFolder
    bundle_path: str
    dry_run: bool = False
