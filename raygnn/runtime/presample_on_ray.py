"""Presampling on a cluster: Ray Data runs the samplers, on all nodes."""

from __future__ import annotations

import math
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray.data

from raygnn.config import LoadedConfig
from raygnn.data.bundle import Bundle
from raygnn.data.checksums import Checksum
from raygnn.data.filesystem import exists, join, redact
from raygnn.errors import DataError, RaygnnError, RunError
from raygnn.loops.model_spec import ModelSpec
from raygnn.runtime.connection import quiet_ray_data
from raygnn.runtime.ingest import lent_cpus
from raygnn.runtime.node_bundle import BundlePlace, bundle_on_this_node
from raygnn.runtime.stored_samples import Loaders, sampled_loaders
from raygnn.sampling.sample_record import PLAN_NAME, SampleFile, SamplePlan
from raygnn.sampling.stored_samples import Written, write_file

_BLOCKS_OF_A_CPU = 64  # tasks of Ray Data; a task writes several files where there are more
_FILE_KEYS = ("split", "epoch", "first", "last")


@dataclass(frozen=True)
class PresampleJob:
    """Settings of a sampling task, for the set in folder `uri`. Crosses process boundaries."""

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
        place = BundlePlace.here(str(bundle.path), loaded.config.data.cache_dir)
        return cls(loaded, place, spec, uri, plan)


#: State of this process, by the set's folder. Ray runs one task of a process at a time.
_opened: dict[str, Loaders] = {}


def _write_files(rows: dict[str, np.ndarray], job: PresampleJob) -> dict[str, list[Any]]:
    written, error = [(0, 0, 0)] * len(rows["name"]), b""
    try:
        for i, row in enumerate(zip(*(rows[key] for key in _FILE_KEYS), strict=True)):
            split, *numbers = row
            file = SampleFile(str(split), *map(int, numbers))
            size, sums = write_file(job.uri, job.plan, _loaders(job), file)
            written[i] = (size, *sums)
    except RaygnnError as raised:
        error = pickle.dumps(raised)
    except Exception:  # noqa: BLE001 (the driver raises it again)
        error = pickle.dumps(traceback.format_exc())
    columns = dict(zip(("size", "ends", "whole"), zip(*written, strict=True), strict=True))
    return {
        "name": list(rows["name"]),
        **{name: list(values) for name, values in columns.items()},
        "error": [error] * len(written),
    }


def _loaders(job: PresampleJob) -> Loaders:
    if job.uri not in _opened:
        _check_seen(job.uri)
        bundle = Bundle.open(bundle_on_this_node(job.bundle))
        _opened[job.uri] = sampled_loaders(job.loaded, bundle, job.spec)
    return _opened[job.uri]


def _check_seen(uri: str) -> None:
    if not exists(join(uri, PLAN_NAME)):
        raise DataError(
            f"--out={redact(uri)!r} is invalid: a node of the cluster does not see this folder. "
            "Set a bucket, or a folder of a file system that all nodes share.",
            id="presample-not-shared",
        )


def write_on_ray(job: PresampleJob, files: Sequence[SampleFile]) -> Written:
    """Writes files on all nodes: a process for each CPU that Ray lends, which maps the graph.

    Yields name, size and checksums of each file, in no order. Raises a DataError if a node does not
    see the folder of the set, a RunError if a task failed otherwise.
    """
    rows = [{"name": f.name, **{key: getattr(f, key) for key in _FILE_KEYS}} for f in files]
    num_blocks = min(len(rows), _BLOCKS_OF_A_CPU * math.ceil(sum(lent_cpus()[1].values())))
    with quiet_ray_data():
        written = ray.data.from_items(rows, override_num_blocks=max(1, num_blocks)).map_batches(
            _write_files, fn_kwargs={"job": job}, batch_size=1, num_cpus=1
        )
        for row in written.iter_rows():
            if row["error"]:
                raise _failure(pickle.loads(row["error"]), row["name"])
            yield row["name"], int(row["size"]), Checksum(int(row["ends"]), int(row["whole"]))


def _failure(error: RaygnnError | str, name: str) -> RaygnnError:
    if isinstance(error, RaygnnError):
        return error
    return RunError(f"presample failed while writing {name}: {error}", id="presample-failed")
