"""Presampling on a cluster: Ray Data runs the samplers, on all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from raygnn.config import LoadedConfig
from raygnn.data.bundle import Bundle
from raygnn.data.checksums import Checksum
from raygnn.data.filesystem import exists, join, redact
from raygnn.errors import DataError, RaygnnError, RunError
from raygnn.loops.model_spec import ModelSpec
from raygnn.runtime.node_bundle import BundlePlace, bundle_on_this_node
from raygnn.runtime.ray_tasks import run_tasks
from raygnn.runtime.stored_samples import Loaders, sampled_loaders
from raygnn.sampling.sample_record import PLAN_NAME, SampleFile, SamplePlan
from raygnn.sampling.stored_samples import Written, write_file


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


def _write(job: PresampleJob, file: SampleFile) -> tuple[int, Checksum]:
    return write_file(job.uri, job.plan, _loaders(job), file)


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
    for number, outcome in run_tasks(partial(_write, job), dict(enumerate(files))):
        name = files[number].name
        if isinstance(outcome.error, RaygnnError):
            raise outcome.error
        if outcome.error is not None:
            raise RunError(
                f"presample failed while writing {name}: {outcome.error}", id="presample-failed"
            )
        yield name, *outcome.result
