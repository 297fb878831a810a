"""Runs a function on every worker of a Ray cluster, and passes them requests to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ActorDiedError
from ray.train import (
    FailureConfig,
    LoggingConfig,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
    UserCallback,
)
from ray.train.torch import TorchConfig, TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raygnn.config import Config
from raygnn.console import Event, label_lines, print_with, prints_lines, say, send_to_driver
from raygnn.data.filesystem import arrow_filesystem
from raygnn.errors import LostRankError, RaygnnError, TrainingError
from raygnn.loops.signals import Terminated, signal_handlers_kept, signals_as_notices
from raygnn.parallel.collectives import CUDA_BACKEND, NCCL_ENVIRONMENT
from raygnn.runtime import preflight
from raygnn.runtime.connection import ADDRESS_VARIABLE
from raygnn.runtime.node_bundle import BundlePlace, bundle_on_this_node
from raygnn.runtime.ray_internals import internal
from raygnn.runtime.worker_lines import show_held_lines

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.train import Result


@dataclass(frozen=True)
class Work:
    """The function that every worker runs, `function(job, context)`. Crosses process boundaries.

    Attributes:
        job: a dataclass with a `bundle_path`, which is adapted to each worker's node.
        what: names the work in messages.
        label: prefix of the workers' lines, such as the name of a trial.
        stop_requests: the actor that receives the driver's signals.
        remedy: ends the message of a failure.
    """

    function: Callable[[Any, Any], Any]
    job: Any
    what: str
    label: str = ""
    stop_requests: ActorHandle | None = None
    remedy: str = "Start it again."


def run_on_workers(
    work: Work,
    config: Config,
    resources: preflight.WorkerResources,
    storage_uri: str,
    *,
    num_workers: int | tuple[int, int],
    callbacks: Sequence[UserCallback] = (),
    check: Callable[[], None] | None = None,
) -> Any:
    """Runs the work on every worker, and returns rank 0's result.

    Dead workers are restarted, `scaling.max_failures` times, and those of removed nodes
    `scaling.max_preemptions` times.

    Args:
        storage_uri: folder of Ray Train's own records.
        num_workers: a number, or its bounds.
        callbacks: of Ray Train, called in its controller.
        check: called after a failure. It may raise an error that explains it.
    Raises:
        TrainingError: workers died too often. Other errors are those of a worker.
    """
    scaling = config.scaling
    filesystem, path = arrow_filesystem(storage_uri)
    storage_path, _, name = path.rstrip("/").rpartition("/")
    bundle = BundlePlace.here(work.job.bundle_path, config.data.cache_dir)
    trainer = TorchTrainer(
        _run_worker,
        train_loop_config={"work": work, "bundle": bundle, "sends_events": not prints_lines()},
        torch_config=TorchConfig(
            backend=CUDA_BACKEND if resources.use_gpu else None, timeout_s=int(scaling.timeout_s)
        ),
        scaling_config=ScalingConfig(
            num_workers=num_workers,
            use_gpu=resources.use_gpu,
            resources_per_worker=resources.as_ray(),
            placement_strategy=scaling.placement_strategy,
            accelerator_type=scaling.accelerator_type,
            label_selector=dict(scaling.label_selector) or None,
        ),
        run_config=RunConfig(
            name=name,
            storage_path=storage_path,
            storage_filesystem=filesystem,
            failure_config=FailureConfig(
                max_failures=scaling.max_failures,
                max_preemption_failures=scaling.max_preemptions,
                controller_failure_limit=2,
            ),
            logging_config=LoggingConfig(log_level="WARNING"),
            callbacks=[*callbacks, Failures(work.what, work.label, scaling.max_failures)],
            worker_runtime_env={"env_vars": NCCL_ENVIRONMENT} if resources.use_gpu else None,
        ),
    )
    try:
        with preflight.warn_of_missing_places(config, resources), _address_in_environment():
            if work.stop_requests is None:
                returned = fit_until_signal(trainer).return_value
            else:
                returned = fit_interruptibly(trainer, work.stop_requests).return_value
    except TrainingFailedError as error:
        if check is not None:
            check()
        show_held_lines()
        failures = getattr(error, "worker_failures", {})
        limit = f"is not restarted (scaling.max_failures={scaling.max_failures})"
        reasons = [f"{work.what} failed and {limit}:", *describe_failures(failures)]
        explained = reasons if failures else [f"{work.what} failed: {error}"]
        missing = preflight.missing_places(config, resources)
        if missing is None and not failures:
            missing = preflight.held_resources(resources, scaling.min_workers)
        explained += filter(None, [missing, work.remedy])
        raise TrainingError("\n".join(explained), id="run-workers-died") from error
    if isinstance(returned, RaygnnError):
        raise returned
    return returned


@contextmanager
def _address_in_environment() -> Iterator[None]:
    """Gives the actor that removes placement groups of dead controllers the address of its Ray.

    It calls Ray's state API, which looks for any Ray on the machine and gives up if it finds two.
    The placement group of a stopped trial would then never be freed.
    """
    internal("ray.train.v2._internal.constants", "ENV_VARS_TO_PROPAGATE").add(ADDRESS_VARIABLE)
    before = os.environ.get(ADDRESS_VARIABLE)
    os.environ[ADDRESS_VARIABLE] = ray.get_runtime_context().gcs_address
    try:
        yield
    finally:
        if before is None:
            del os.environ[ADDRESS_VARIABLE]
        else:
            os.environ[ADDRESS_VARIABLE] = before


def _run_worker(config: dict[str, Any]) -> Any:
    """The train function of each worker.

    Errors that a retry would repeat are returned as values, so that Ray restarts workers that died
    and not runs that are wrong. All ranks must return them: if only one did, Ray would consider it
    done while others wait for it.
    """
    from raygnn.parallel.agreement import run_and_sync_errors
    from raygnn.runtime.context import RayWorkerContext

    # A line per report and rank; that of reports is logged under the name of its file.
    reporting = internal("ray.train.v2._internal.execution.context", "__file__")
    for name in ("ray.train", reporting):
        logging.getLogger(name).setLevel(logging.WARNING)
    work: Work = config["work"]
    label_lines(work.label)
    if config["sends_events"]:
        print_with(send_to_driver)
    try:
        path = run_and_sync_errors(
            lambda: bundle_on_this_node(config["bundle"]), "fetching the graph"
        )
        job = replace(work.job, bundle_path=path)
        return work.function(job, RayWorkerContext(work.stop_requests))
    except LostRankError as error:
        # `Failures` prints the rank that died. The traceback of those that waited for it is noise.
        raise error.with_traceback(None) from None
    except RaygnnError as error:
        return error


class Failures(UserCallback):
    """Prints which ranks failed, in Ray Train's controller, if it restarts them."""

    def __init__(self, what: str, label: str, max_failures: int) -> None:
        self._what, self._label, self._max_failures = what, label, max_failures
        self._num_failures = 0

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self._num_failures += 1
        if 0 <= self._max_failures < self._num_failures:
            return  # the driver raises the error
        causes = "; ".join(describe_failures(worker_exceptions))
        text = f"warning: {causes}. {self._what} starts again with new workers"
        send_to_driver(Event("warning", text, self._label))


def describe_failures(failures: Mapping[int, BaseException]) -> list[str]:
    """One line per rank. Leaves out ranks that failed because they lost another one."""
    causes = {
        rank: error for rank, error in failures.items() if not isinstance(error, LostRankError)
    }
    return [f"rank {rank} {_describe(error)}" for rank, error in (causes or failures).items()]


def _describe(error: BaseException) -> str:
    text = str(error).strip()
    died = getattr(error, "health_check_failure", error)
    process = re.search(r"\tpid: (\d+)(?:.*\tip: (\S+))?", text, re.DOTALL)
    if isinstance(died, ActorDiedError) and process is not None:
        return f"died (process {process[1]} on {process[2]})"
    return f"failed: {text.splitlines()[-1] if text else repr(error)}"


class _StopRequests:
    def __init__(self) -> None:
        self._cause: str | None = None
        self._asked = asyncio.Event()

    async def ask(self, cause: str) -> None:
        self._cause = cause
        self._asked.set()

    async def wait(self) -> str | None:
        await self._asked.wait()
        return self._cause

    async def mark(self, text: str) -> None:
        print(text, flush=True)


@contextmanager
def stop_requests() -> Iterator[ActorHandle]:
    """Starts the actor on the driver's machine, and ends it: a notebook keeps the traceback of a
    stopped run, and with it every handle.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    actor = ray.remote(num_cpus=0, scheduling_strategy=here)(_StopRequests).remote()
    try:
        yield actor
    finally:
        ray.kill(actor)


def fit_interruptibly(trainer: Any, requests: ActorHandle) -> Result:
    """`trainer.fit()`, in which SIGTERM and Ctrl-C ask the workers to stop. Ray handles Ctrl-C by
    killing the workers, and only in the main thread, so it runs in another one.
    """
    if threading.current_thread() is not threading.main_thread():
        return trainer.fit()
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(trainer.fit())
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            future.set_exception(error)

    def ask(cause: str) -> None:
        say(f"{cause}: the run stops after its next step. A second signal ends it immediately")
        requests.ask.remote(cause)

    with signals_as_notices(ask):
        threading.Thread(target=run, name="raygnn-fit", daemon=True).start()
        return future.result()


def fit_until_signal(trainer: Any) -> Result:
    """`trainer.fit()` whose workers end at a signal. Raises KeyboardInterrupt or `Terminated`."""
    if threading.current_thread() is not threading.main_thread():
        return trainer.fit()
    was_terminated = False

    def as_ctrl_c(number: int, frame: FrameType | None) -> None:
        nonlocal was_terminated
        was_terminated = True
        signal.raise_signal(signal.SIGINT)

    with signal_handlers_kept():
        signal.signal(signal.SIGTERM, as_ctrl_c)
        try:
            return trainer.fit()
        except (KeyboardInterrupt, SystemExit) as stop:  # Ray ends its workers, and exits with 0
            raise (Terminated if was_terminated else KeyboardInterrupt) from stop
