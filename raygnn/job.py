"""What every worker of a run is given; light to import, since the driver makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raygnn.config import LoadedConfig
from raygnn.outputs.run_folder import RunFolder

if TYPE_CHECKING:
    from raygnn.loops.model_spec import ModelSpec
    from raygnn.sampling.parts import PartitionedGraph


@dataclass(frozen=True)
class TrainJob:
    """What every worker of a run is given. Crosses process boundaries.

    Attributes:
        spec: what the model reads and gives; None where the task finds it in the workers, as one
            of the user's own.
        parts: of a partitioned graph, whose outline then is the bundle.
        dry_run: after the first checkpoint, restore it and compare.
    """

    loaded: LoadedConfig
    folder: RunFolder
    bundle_path: str
    spec: ModelSpec | None = None
    dry_run: bool = False
    parts: PartitionedGraph | None = None
