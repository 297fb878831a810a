from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

from raygnn.console import say, warn
from raygnn.errors import ResourceError
from raygnn.loops.signals import Terminated, signals_as_notices
from raygnn.runtime.ray_choice import ADDRESS_VARIABLE, choose_ray


def connect(meanwhile: Callable[[], None] = lambda: None) -> None:
    """Joins the Ray of this job, notebook or user, or starts a local one, and prints which.

    Args:
        meanwhile: called in a thread while Ray starts; its exceptions are raised here.
    Raises:
        ResourceError: no cluster answers at `RAY_ADDRESS`, or Ray cannot be started.
    """
    # The controller asks workers for reports at this interval; its default of 2 s would make
    # every validation wait. It is read when Ray Train starts.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")
    # Ray Train also logs what its workers print, and each line would come twice.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    import ray

    from raygnn.runtime.worker_lines import show_worker_lines

    if ray.is_initialized():
        show_worker_lines()
        meanwhile()
        return
    started = time.monotonic()
    choice = choose_ray()
    if choice.warning:
        warn(choice.warning)
    # Ray's start is spent waiting for other processes, and what comes next needs torch.
    with ThreadPoolExecutor(1, thread_name_prefix="raygnn-imports") as thread:
        thread.submit(import_module, "torch")
        checked = thread.submit(meanwhile)
        dashboard = _start(choice.address)
    checked.result()
    logging.getLogger("ray.data").setLevel(logging.WARNING)  # its plans bury the ingest's lines
    show_worker_lines()
    nodes = len(ray.nodes())
    cpus = ray.cluster_resources().get("CPU", 0)
    say(
        f"Ray {ray.__version__}: {nodes} node(s), {cpus:g} CPUs, "
        f"{time.monotonic() - started:.1f} s, {choice.reason}"
        + (f", dashboard http://{dashboard}" if dashboard else "")
    )


def _start(address: str | None) -> str | None:
    """Calls `ray.init`, and raises a signal that arrived meanwhile afterwards: interrupting it can
    take the process down later. Returns host and port of the dashboard, if any.
    """
    import ray

    causes: list[str] = []

    def note(cause: str) -> None:
        causes.append(cause)
        say(f"{cause}: stopping as soon as Ray has started")

    try:
        with signals_as_notices(note):
            # `connect` summarizes everything but errors in one line.
            context = ray.init(address, logging_level=logging.ERROR)
    except SystemExit as stop:  # Ray's answer to SIGTERM, with status 15
        raise Terminated from stop
    except (ConnectionError, RuntimeError, ValueError) as error:
        variable = os.environ.get(ADDRESS_VARIABLE)
        raise ResourceError(
            f"Ray cannot be started or joined: {error}. {ADDRESS_VARIABLE} is {variable!r}: set it "
            "to the address of a running head, or to local to start Ray on this machine.",
            id="cluster-unreachable",
        ) from error
    if causes:
        raise Terminated if causes[0] == "SIGTERM" else KeyboardInterrupt
    logging.getLogger("ray").setLevel(logging.WARNING)
    url: str | None = context.dashboard_url
    return url
