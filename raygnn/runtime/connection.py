"""Joins the Ray of this process: the cluster of its environment, the user's own, or a new one."""

from __future__ import annotations

import logging
import os
import pwd
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from raygnn.console import count, say, warn
from raygnn.errors import ResourceError
from raygnn.loops.signals import Terminated, signals_as_notices
from raygnn.runtime.ray_internals import attribute, internal

ADDRESS_VARIABLE = "RAY_ADDRESS"
_ADDRESS = re.compile(r"(?:\w+://)?\[?([^/\[\]]+)\]?:(\d+)/?")
#: A head that is just being started answers within some seconds.
_ANSWERS_WITHIN_S = 15.0
#: A head that was started before answers immediately.
_SESSION_WITHIN_S = 5.0


def connect(meanwhile: Callable[[], None] = lambda: None) -> None:
    """Joins the Ray of this job, notebook or user, or starts a local one, and prints which. Raises
    a ResourceError if no cluster answers at `RAY_ADDRESS`, or Ray cannot be started.

    `meanwhile`: called in a thread while Ray starts; its exceptions are raised here.
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
    show_worker_lines()
    nodes = len(ray.nodes())
    cpus = ray.cluster_resources().get("CPU", 0)
    say(
        f"Ray {ray.__version__}: {count(nodes, 'node')}, {cpus:g} CPUs, "
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
    except Exception as error:
        # Ray raises plain exceptions if a local Ray does not start in time.
        raise _not_started(address, str(error).rstrip(".")) from error
    if causes:
        raise Terminated if causes[0] == "SIGTERM" else KeyboardInterrupt
    logging.getLogger("ray").setLevel(logging.WARNING)
    url: str | None = context.dashboard_url
    return url


def _not_started(address: str | None, cause: str) -> ResourceError:
    if address == "local":
        return ResourceError(
            f"Ray cannot be started: {cause}. See /tmp/ray/session_latest/logs, start again when "
            f"the machine is less busy, or set {ADDRESS_VARIABLE} to a running head. "
            "[ray-not-started]"
        )
    return ResourceError(
        f"Ray cannot be joined at {os.environ.get(ADDRESS_VARIABLE)!r}: {cause}. Set "
        f"{ADDRESS_VARIABLE} to the address of a head, or to local. [cluster-unreachable]"
    )


class RayChoice(NamedTuple):
    """The Ray to use.

    Attributes:
        address: for `ray.init`; None joins the Ray that the user started on this machine.
        reason: why this one, and how to choose another one.
        warning: an expected Ray that does not answer; else empty.
    """

    address: str | None
    reason: str
    warning: str = ""


def choose_ray() -> RayChoice:
    """Chooses the cluster of `RAY_ADDRESS`, else a Ray that this user started here, else a new one.

    `ray start` writes its address to a file. Ray itself joins that address whoever started it, and
    waits minutes if its head has died. Raises a ResourceError if no cluster answers at
    `RAY_ADDRESS`.
    """
    address, here = os.environ.get(ADDRESS_VARIABLE), RayChoice("local", "started on this machine")
    if address == "local":
        return here
    if address:
        check_address(address)
        return RayChoice(address, f"joined by {ADDRESS_VARIABLE}")
    file = Path(internal("ray._common.utils", "get_ray_address_file")(None))
    try:
        running, owner = file.read_text("utf-8").strip(), file.stat().st_uid
    except (FileNotFoundError, PermissionError):
        return here
    if owner == os.getuid():
        session = _session_name(running)
        if session is None:
            return here._replace(
                warning=f"no Ray answers at {running}, the address in {file}: its head probably "
                "ended without `ray stop`. A local Ray is started; delete the file, or set "
                f"{ADDRESS_VARIABLE}=local, to skip this check"
            )
        folder = file.parent / session
        owner = folder.stat().st_uid if session and folder.is_dir() else -1
    if owner == os.getuid():
        return RayChoice(
            None, f"joined the one at {running} ({ADDRESS_VARIABLE}=local starts another)"
        )
    return RayChoice(
        "local",
        f"started beside that of {_user_name(owner)} ({ADDRESS_VARIABLE}={running} joins that one)",
    )


def check_address(address: str) -> None:
    """Raises a ResourceError if nothing answers at an address; Ray itself would wait minutes."""
    if address == "auto":
        try:
            address = internal("ray._private.services", "canonicalize_bootstrap_address")("auto")
        except ConnectionError as error:
            raise _unreachable("auto", error) from error
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return
    host = f"[{match[1]}]" if ":" in match[1] else match[1]
    end_s = time.monotonic() + _ANSWERS_WITHIN_S
    while True:
        try:
            socket.create_connection((match[1], int(match[2])), timeout=_ANSWERS_WITHIN_S).close()
            if _session_name(f"{host}:{match[2]}") is None:
                raise ConnectionError("it accepts connections, but does not answer as a Ray head")
        except (OSError, OverflowError) as error:
            if time.monotonic() < end_s:
                time.sleep(0.5)
                continue
            raise _unreachable(address, error) from error
        return


def _unreachable(address: str, cause: Exception) -> ResourceError:
    return ResourceError(
        f"{ADDRESS_VARIABLE}={address!r} is invalid: no Ray cluster answers ({cause}). Start its "
        "head, set another address, or local for Ray on this machine. [cluster-unreachable]"
    )


def _session_name(address: str) -> str | None:
    """Session of the head at an address: empty if it wants another token or is the server of Ray
    clients, None without a head.
    """
    import grpc
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    codes = grpc.StatusCode
    tokens = internal("ray._raylet", "AuthenticationTokenLoader").instance()
    token = attribute(tokens, "get_raw_token")(ignore_auth_mode=True)
    metadata = [("authorization", f"Bearer {token}")] if token else []
    question = gcs_service_pb2.InternalKVGetRequest(key=b"session_name", namespace=b"session")
    with internal("ray._private.grpc_utils", "init_grpc_channel")(
        address, options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        head: Any = gcs_service_pb2_grpc.InternalKVGcsServiceStub(channel)
        try:
            answer = head.InternalKVGet(
                question, timeout=_SESSION_WITHIN_S, wait_for_ready=True, metadata=metadata
            )
        except grpc.RpcError as error:
            return "" if error.code() in (codes.UNAUTHENTICATED, codes.UNIMPLEMENTED) else None
    name: str = answer.value.decode("utf-8", "replace")
    return name


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return "another user"


@contextmanager
def quiet_ray_data() -> Iterator[None]:
    """Keeps Ray Data's bars, plans and traces out of the log, because raygnn reports progress and
    errors itself.
    """
    import ray.data

    context, log = ray.data.DataContext.get_current(), logging.getLogger("ray.data")
    settings = ("enable_progress_bars", "print_on_execution_start")
    before, level = {name: getattr(context, name) for name in settings}, log.level
    for name in settings:
        setattr(context, name, False)
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
        for name, value in before.items():
            setattr(context, name, value)
