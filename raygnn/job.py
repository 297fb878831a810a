from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raygnn.config import LoadedConfig
from raygnn.outputs.run_folder import RunFolder

if TYPE_CHECKING:
    from raygnn.config.training_section import Training
    from raygnn.loops.model_spec import ModelSpec
    from raygnn.outputs.worker_memory import Needs
    from raygnn.sampling.parts import PartitionedGraph
    from raygnn.sampling.stored_samples import StoredSamples


@dataclass(frozen=True)
class TrainJob:
    """The job of every worker of a run. Crosses process boundaries.

    Imports nothing heavy, because the driver builds it.

    Attributes:
        spec: inputs and outputs of the model; None if a user's own task finds them in the workers.
        parts: the parts of a partitioned graph, whose outline is the bundle.
        samples: stored neighborhoods, read instead of sampling.
        tried: limits of the run that a dry run tries. A dry run restores its checkpoint, compares
            the weights, and estimates the cost of the whole run.
        needs: resources of a worker on its node.
    """

    loaded: LoadedConfig
    folder: RunFolder
    bundle_path: str
    spec: ModelSpec | None = None
    tried: Training | None = None
    parts: PartitionedGraph | None = None
    samples: StoredSamples | None = None
    needs: Needs | None = None
