"""Presampling on a cluster: Ray Data runs the samplers, on all nodes."""

from __future__ import annotations

import math
import pickle
import traceback
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray.data

from raygnn.config import LoadedConfig
from raygnn.data.bundle import Bundle
from raygnn.data.filesystem import exists, join, redact
from raygnn.errors import DataError, RaygnnError, RunError
from raygnn.loops.model_spec import ModelSpec
from raygnn.runtime.ingest import lent_cpus, quiet_ray_data
from raygnn.runtime.node_bundle import BundlePlace, bundle_on_this_node
from raygnn.runtime.stored_samples import Loaders, sampled_loaders
from raygnn.sampling.presampled.record import PLAN_NAME, SampleFile, SamplePlan
from raygnn.sampling.presampled.writing import write_file

_BLOCKS_OF_AN_ACTOR = 64  # files beyond these share blocks, which Ray Data schedules
_FILE_KEYS = ("split", "epoch", "first", "last")


@dataclass(frozen=True)
class PresampleJob:
    """What an actor samples by. Crosses process boundaries.

    Attributes:
        uri: folder of the set, which has its plan.
    """

    loaded: LoadedConfig
    bundle: BundlePlace
    spec: ModelSpec | None
    uri: str
    plan: SamplePlan

    @classmethod
    def here(
        cls,
        loaded: LoadedConfig,
        bundle: Bundle,
        spec: ModelSpec | None,
        uri: str,
        plan: SamplePlan,
    ) -> PresampleJob:
        """Of a bundle of this node, which others are sent."""
        place = BundlePlace.here(str(bundle.path), loaded.config.data.cache_dir)
        return cls(loaded, place, spec, uri, plan)


class _FileWriter:
    """An actor of Ray Data: samples files of a set from the graph on its node."""

    def __init__(self, job: PresampleJob) -> None:
        self._job = job
        self._loaders: Loaders | None = None

    def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        """Bytes of the files, or the error; see `raygnn.runtime.ingest` on why as data."""
        sizes, error = [0] * len(rows["split"]), b""
        try:
            for i, row in enumerate(zip(*(rows[key] for key in _FILE_KEYS), strict=True)):
                split, *numbers = row
                file = SampleFile(str(split), *map(int, numbers))
                sizes[i] = write_file(self._job.uri, self._job.plan, self._opened(), file)
        except RaygnnError as raised:
            error = pickle.dumps(raised)
        except Exception:  # noqa: BLE001 (the driver raises it again)
            error = pickle.dumps(traceback.format_exc())
        return {"name": list(rows["name"]), "size": sizes, "error": [error] * len(sizes)}

    def _opened(self) -> Loaders:
        if self._loaders is None:
            job = self._job
            _check_seen(job.uri)
            bundle = Bundle.open(bundle_on_this_node(job.bundle))
            self._loaders = sampled_loaders(job.loaded, bundle, job.spec)
        return self._loaders


def _check_seen(uri: str) -> None:
    if not exists(join(uri, PLAN_NAME)):
        raise DataError(
            f"--out={redact(uri)!r} is invalid: a node of the cluster does not see this folder. "
            "Set a bucket, or a folder of a file system that all nodes share.",
            id="presample-not-shared",
        )


def write_on_ray(job: PresampleJob, files: Sequence[SampleFile]) -> Generator[tuple[str, int]]:
    """Writes files on all nodes: an actor for each CPU that Ray lends, which maps the graph.

    Yields:
        Name and bytes of each file, in no order.
    Raises:
        DataError: a node does not see the folder of the set.
        RunError: an actor failed otherwise.
    """
    num_actors = min(len(files), max(1, math.floor(sum(lent_cpus()[1].values()))))
    rows = [{"name": f.name, **{key: getattr(f, key) for key in _FILE_KEYS}} for f in files]
    with quiet_ray_data():
        written = ray.data.from_items(
            rows, override_num_blocks=min(len(rows), _BLOCKS_OF_AN_ACTOR * num_actors)
        ).map_batches(
            _FileWriter,
            fn_constructor_args=(job,),
            batch_size=1,
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=num_actors),
        )
        for row in written.iter_rows():
            if row["error"]:
                raise _failure(pickle.loads(row["error"]), row["name"])
            yield row["name"], int(row["size"])


def _failure(error: RaygnnError | str, name: str) -> RaygnnError:
    if isinstance(error, RaygnnError):
        return error
    return RunError(f"presample failed while writing {name}: {error}", id="presample-failed")
