"""Checks of this machine and of stored graphs and models: `python -m raygnn.doctor [URI ...]`."""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from raygnn import __version__
from raygnn.command_line import command, command_parser, exit_process
from raygnn.console import count, give_result, show
from raygnn.data.cache import CACHE_VARIABLE
from raygnn.data.checksums import Checksum, changed_files, find_damage
from raygnn.data.filesystem import delete, exists, is_remote, join, read_bytes, redact, write_bytes
from raygnn.data.storage_retry import is_storage_error
from raygnn.errors import RaygnnError

_DESCRIPTION = """\
Checks Python, packages, cores, memory, GPU, cache and cluster, and prints what to set.
Reads all files of a bundle, a partitioned graph, presampled neighborhoods or a model,
and compares them with their checksums.
"""
_EXAMPLES = """
raygnn doctor
raygnn doctor gs://bucket/runs /mnt/shared/runs
raygnn doctor ~/.cache/raygnn/bundles/*/ runs/shop
"""
_PACKAGES = ("ray", "torch", "torch_geometric", "numba", "pyarrow")
_OLDEST_PYTHON = (3, 11)
_SHOWN_FILES = 10
_GB = 1e9
_LITTLE_MEMORY_BYTES = 4e9
_LITTLE_DISK_BYTES = 10e9
_LITTLE_SHARED_MEMORY_BYTES = 1e9  # Ray's object store; containers often have 64 MB


@dataclass(frozen=True)
class Check:
    """A line of the doctor's output.

    Attributes:
        level: ok, warn or fail.
        remedy: what to set; empty if nothing is wrong.
    """

    level: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5} {self.what}" + (f". {self.remedy}" if self.remedy else "")


def findings(uris: Sequence[str] = ()) -> Iterator[Check]:
    """Checks everything without starting Ray.

    Args:
        uris: bundles, partitioned graphs, presampled sets and models, whose files are compared with
            their checksums, and folders or buckets that runs will write to.
    """
    yield from _software()
    yield from _machine()
    yield from _cache()
    yield _cluster()
    for uri in uris:
        try:
            checks = [check for name, check in _STORED.items() if exists(join(uri, name))]
            for check in checks[:1] or [_place]:
                yield from check(uri)
        except Exception as error:
            if isinstance(error, RaygnnError) and error.id != "data-uri":
                yield Check("fail", str(error))
            elif is_storage_error(error) or isinstance(error, RaygnnError | ImportError):
                what = f"{redact(uri)} cannot be used: {type(error).__name__}: {redact(str(error))}"
                remedy = "Check the path, and the rights or credentials of this user"
                yield Check("fail", what, remedy)
            else:
                raise


def _software() -> Iterator[Check]:
    python = platform.python_version()
    is_old = sys.version_info < _OLDEST_PYTHON
    remedy = "Install Python 3.11 or newer" if is_old else ""
    yield Check("fail" if is_old else "ok", f"Python {python}, raygnn {__version__}", remedy)
    if sys.platform != "linux":
        yield Check("warn", f"{sys.platform} is not tested", "Run on Linux")
    for name in _PACKAGES:
        try:
            yield Check("ok", f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Check("fail", f"{name} is missing", "Install raygnn again")


def _machine() -> Iterator[Check]:
    import psutil
    import torch

    cores, all_cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    yield Check("ok", f"{cores} of {all_cores} CPU cores, torch uses {torch.get_num_threads()}")
    free, remedy = psutil.virtual_memory().available, "Close programs, or take a larger machine"
    yield _of_size(free, "of memory are free", _LITTLE_MEMORY_BYTES, remedy)
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Check(
            "ok", f"{count(len(names), 'GPU')}: {', '.join(names)}, CUDA {torch.version.cuda}"
        )
    elif any(Path("/dev").glob("nvidia[0-9]*")):
        build = torch.version.cuda or "the CPU"
        yield Check(
            "warn",
            f"there is a GPU, and torch {torch.__version__} (built for {build}) does not see it",
            "Install a torch for the driver's CUDA, or set CUDA_VISIBLE_DEVICES",
        )
    else:
        yield Check("ok", "no GPU: training runs on CPU cores")
    shared = Path("/dev/shm")
    if shared.is_dir():
        size, remedy = shutil.disk_usage(shared).total, "Start the container with --shm-size=2g"
        yield _of_size(size, "of shared memory", _LITTLE_SHARED_MEMORY_BYTES, remedy)


def _of_size(size: float, of: str, little: float, remedy: str) -> Check:
    is_little, text = size < little, f"{size / _GB:.1f} GB {of}"
    return Check("warn" if is_little else "ok", text, remedy if is_little else "")


def _cache() -> Iterator[Check]:
    from raygnn.data.cache import cache_folder

    try:
        folder = cache_folder(None, "bundles").parent
    except RaygnnError as error:
        yield Check("fail", str(error), f"Set {CACHE_VARIABLE} to a local folder")
        return
    free, remedy = shutil.disk_usage(folder).free, f"Set {CACHE_VARIABLE} to one on a larger disk"
    yield _of_size(free, f"free in the cache {folder}", _LITTLE_DISK_BYTES, remedy)


def _cluster() -> Check:
    from raygnn.runtime.connection import ADDRESS_VARIABLE, choose_ray

    try:
        choice = choose_ray()
    except RaygnnError as error:
        return Check("fail", str(error))
    if choice.warning:
        return Check("warn", choice.warning)
    address = os.environ.get(ADDRESS_VARIABLE)
    variable = f"{ADDRESS_VARIABLE}={address}" if address else f"{ADDRESS_VARIABLE} is not set"
    return Check("ok", f"{variable}: Ray is {choice.reason}")


def _place(uri: str) -> Iterator[Check]:
    name, content = join(uri, f".raygnn-doctor-{uuid.uuid4().hex}"), b"raygnn"
    write_bytes(name, content)
    data = read_bytes(name)
    delete(name)
    if data != content:
        what = f"{redact(uri)} returns other bytes than were written"
        yield Check("fail", what, "Name another place")
        return
    where = "bucket" if is_remote(uri) else "folder"
    note = "" if is_remote(uri) else "; on a cluster all machines must mount it"
    yield Check("ok", f"{where} {redact(uri)} can be written and read{note}")


def _bundle(uri: str) -> Iterator[Check]:
    from raygnn.data.bundle import Bundle
    from raygnn.data.bundle_record import BundleRecord
    from raygnn.data.cache import NOTE, noted_files
    from raygnn.data.ingest.build_bundle import check_arrays

    remedy = "Remove the folder; the next run builds it again"
    record = BundleRecord.load(Path(uri))
    check_arrays(Bundle.open(uri))
    yield from _files(f"bundle {uri}", uri, record.file_sizes, record.checksums, remedy)
    for note in Path(uri).rglob(NOTE):
        what, listed = f"derived arrays {note.parent}", noted_files(note.parent)
        if listed is None:
            yield Check("fail", f"{what} are damaged: {NOTE} has changed", remedy)
        else:
            yield from _files(what, str(note.parent), *listed, remedy)


def _parts(uri: str) -> Iterator[Check]:
    from raygnn.data.partition.record import PartitionRecord, check_part, part_name

    record = PartitionRecord.load(uri)
    for part in range(record.num_parts):
        folder = join(uri, part_name(part))
        listed = check_part(folder, record.fingerprint, part)
        what, remedy = f"part {part} in {redact(uri)}", "Copy the part again, or partition again"
        yield from _files(what, folder, listed.file_sizes, listed.checksums, remedy)


def _samples(uri: str) -> Iterator[Check]:
    from raygnn.sampling.sample_record import SampleRecord, load_plan

    load_plan(uri)
    record = SampleRecord.load(uri)
    record.check_files(uri)
    remedy = "Remove these files, and run the same raygnn presample again"
    what = f"neighborhoods {redact(uri)}"
    yield from _files(what, uri, record.file_sizes, record.checksums, remedy)


def _model(uri: str) -> Iterator[Check]:
    from raygnn.loops.model_spec import SPEC_FILE
    from raygnn.outputs.model_export import saved_digests

    digests = saved_digests(read_bytes(join(uri, SPEC_FILE)))
    changed = [
        name
        for name, digest in digests.items()
        if hashlib.sha256(read_bytes(join(uri, name))).hexdigest() != digest
    ]
    remedy = "Copy it from its run again"
    yield _compared(f"model {redact(uri)}", len(digests), changed, remedy)


def _files(
    what: str, folder: str, sizes: Mapping[str, int], checksums: Mapping[str, Checksum], remedy: str
) -> Iterator[Check]:
    if damage := find_damage(folder, sizes, checksums):
        yield Check("fail", f"{what} is damaged: {damage}", remedy)
    else:
        yield _compared(what, len(checksums), changed_files(folder, checksums), remedy)


def _compared(what: str, num_files: int, changed: Sequence[str], remedy: str) -> Check:
    if changed:
        shown = ", ".join(changed[:_SHOWN_FILES]) + (", ..." if len(changed) > _SHOWN_FILES else "")
        return Check("fail", f"{what} is damaged: {shown} changed after writing", remedy)
    if num_files == 0:
        remedy = "Only names, sizes and pointers could be checked"
        return Check("warn", f"{what} was written without checksums", remedy)
    return Check("ok", f"{what}: {count(num_files, 'file')} as written")


_STORED: dict[str, Callable[[str], Iterator[Check]]] = {
    "bundle.json": _bundle,
    "partition.json": _parts,
    "samples.json": _samples,
    "model.json": _model,
}


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn doctor", _EXAMPLES, description=_DESCRIPTION)
    parser.add_argument(
        "uri", nargs="*", help="folder or bucket for runs, or a stored graph or model to check"
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    checks = []
    for finding in findings(options.uri):
        checks.append(asdict(finding))
        show(f"{finding}\n")
    give_result(checks=checks)
    return 1 if any(check["level"] == "fail" for check in checks) else 0


main = command(_run, build_parser, interrupted="not everything was checked")

if __name__ == "__main__":
    exit_process(main)
