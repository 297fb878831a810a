"""The job of every worker of a run. Imports nothing heavy, because the driver builds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raygnn.config import LoadedConfig
from raygnn.outputs.run_folder import RunFolder

if TYPE_CHECKING:
    from raygnn.config.training_section import Training
    from raygnn.loops.model_spec import ModelSpec
    from raygnn.outputs.needs import Needs
    from raygnn.sampling.parts import PartitionedGraph
    from raygnn.sampling.presampled.stored_samples import StoredSamples


@dataclass(frozen=True)
class TrainJob:
    """The job of every worker of a run. Crosses process boundaries.

    Attributes:
        spec: what the model reads and gives; None where the task finds it in the workers, as one
            of the user's own.
        parts: of a partitioned graph, whose outline then is the bundle.
        samples: neighborhoods of the batches, which are read in place of sampling.
        tried: of a dry run, the limits of the run that it tries. It restores its checkpoint and
            compares, and estimates what the whole run takes.
        needs: what it takes of a node.
    """

    loaded: LoadedConfig
    folder: RunFolder
    bundle_path: str
    spec: ModelSpec | None = None
    tried: Training | None = None
    parts: PartitionedGraph | None = None
    samples: StoredSamples | None = None
    needs: Needs | None = None
