"""Checks of this machine and its places: `python -m raygnn.doctor [URI ...]`."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from raygnn import __version__
from raygnn.command_line import exit_process
from raygnn.console import show
from raygnn.data.cache import CACHE_VARIABLE
from raygnn.data.filesystem import (
    delete,
    is_remote,
    is_storage_error,
    join,
    read_bytes,
    redact,
    write_bytes,
)
from raygnn.errors import RaygnnError

_PACKAGES = ("ray", "torch", "torch_geometric", "numba", "pyarrow")
_OLDEST_PYTHON = (3, 11)
_GB = 1e9
_LITTLE_MEMORY_BYTES = 4e9
_LITTLE_DISK_BYTES = 10e9
_LITTLE_SHARED_MEMORY_BYTES = 1e9  # Ray's object store; containers often have 64 MB


@dataclass(frozen=True)
class Finding:
    """One line of the doctor.

    Attributes:
        level: ok, warn or fail.
        remedy: what to set; empty where all is well.
    """

    level: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5} {self.what}" + (f". {self.remedy}" if self.remedy else "")


def findings(uris: Sequence[str] = ()) -> Iterator[Finding]:
    """Checks everything, without starting Ray.

    Args:
        uris: folders or buckets that runs are to write to.
    """
    yield from _software()
    yield from _machine()
    yield from _cache()
    yield _cluster()
    for uri in uris:
        yield _place(uri)


def _software() -> Iterator[Finding]:
    python = platform.python_version()
    is_old = sys.version_info < _OLDEST_PYTHON
    remedy = "Install Python 3.11 or newer" if is_old else ""
    yield Finding("fail" if is_old else "ok", f"Python {python}, raygnn {__version__}", remedy)
    if sys.platform != "linux":
        yield Finding("warn", f"{sys.platform} is not tested", "Run on Linux")
    for name in _PACKAGES:
        try:
            yield Finding("ok", f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Finding("fail", f"{name} is missing", "Run pip install raygnn again")


def _machine() -> Iterator[Finding]:
    import psutil
    import torch

    cores, all_cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    yield Finding("ok", f"{cores} of {all_cores} CPU cores, torch uses {torch.get_num_threads()}")
    free = psutil.virtual_memory().available
    little = free < _LITTLE_MEMORY_BYTES
    remedy = "Close other programs, or train on a larger machine" if little else ""
    yield Finding("warn" if little else "ok", f"{free / _GB:.1f} GB of memory are free", remedy)
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("ok", f"{len(names)} GPU(s): {', '.join(names)}, CUDA {torch.version.cuda}")
    elif any(Path("/dev").glob("nvidia[0-9]*")):
        build = torch.version.cuda or "the CPU"
        yield Finding(
            "warn",
            f"there is a GPU, and torch {torch.__version__} (built for {build}) does not see it",
            "Install a torch for the driver's CUDA, or set CUDA_VISIBLE_DEVICES",
        )
    else:
        yield Finding("ok", "no GPU: training runs on CPU cores")
    shared = Path("/dev/shm")
    if shared.is_dir():
        size = shutil.disk_usage(shared).total
        little = size < _LITTLE_SHARED_MEMORY_BYTES
        remedy = "Start the container with --shm-size=2g" if little else ""
        yield Finding("warn" if little else "ok", f"{size / _GB:.1f} GB of shared memory", remedy)


def _cache() -> Iterator[Finding]:
    from raygnn.data.cache import cache_folder

    try:
        folder = cache_folder(None, "bundles").parent
    except RaygnnError as error:
        yield Finding("fail", str(error), f"Set {CACHE_VARIABLE} to a local folder")
        return
    free = shutil.disk_usage(folder).free
    little = free < _LITTLE_DISK_BYTES
    remedy = f"Set {CACHE_VARIABLE} to a folder on a larger disk" if little else ""
    what = f"cache {folder}: {free / _GB:.1f} GB free"
    yield Finding("warn" if little else "ok", what, remedy)


def _cluster() -> Finding:
    from raygnn.runtime.ray_choice import ADDRESS_VARIABLE, choose_ray

    try:
        choice = choose_ray()
    except RaygnnError as error:
        return Finding("fail", str(error))
    if choice.warning:
        return Finding("warn", choice.warning)
    address = os.environ.get(ADDRESS_VARIABLE)
    variable = f"{ADDRESS_VARIABLE}={address}" if address else f"{ADDRESS_VARIABLE} is not set"
    return Finding("ok", f"{variable}: Ray is {choice.reason}")


def _place(uri: str) -> Finding:
    """Whether a folder or bucket can be written to, read and deleted from."""
    name, content = join(uri, f".raygnn-doctor-{uuid.uuid4().hex}"), b"raygnn"
    try:
        write_bytes(name, content)
        found = read_bytes(name)
        delete(name)
    except Exception as error:
        if not (is_storage_error(error) or isinstance(error, RaygnnError | ImportError)):
            raise
        what = f"{redact(uri)} cannot be used: {type(error).__name__}: {redact(str(error))}"
        return Finding("fail", what, "Check the path, and the rights or credentials of this user")
    if found != content:
        what = f"{redact(uri)} gives other bytes than were written"
        return Finding("fail", what, "Name another place")
    where = "bucket" if is_remote(uri) else "folder"
    note = "" if is_remote(uri) else "; on a cluster all machines must mount it"
    return Finding("ok", f"{where} {redact(uri)} can be written and read{note}")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the findings; 1 where something fails."""
    return _report(findings(build_parser().parse_args(argv).uri), show)


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="raygnn doctor",
        description="Checks Python, packages, cores, memory, GPU, cache, cluster, and the places "
        "that are given, and says what to set.",
        epilog="examples:\n  raygnn doctor\n  raygnn doctor gs://bucket/runs /mnt/shared/runs",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("uri", nargs="*", help="folder or bucket that runs are to write to")
    return parser


def _report(found: Iterator[Finding], write: Callable[[str], None]) -> int:
    failed = False
    for finding in found:
        failed |= finding.level == "fail"
        write(f"{finding}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    exit_process(main)
