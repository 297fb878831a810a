"""Makes torch see a CUDA device that it computes on the host, and watches what happens on it.

`load` must come before torch is imported: torch asks once whether there is CUDA.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).with_name("pretended_cuda.cpp")


def build(folder: Path) -> Path:
    """Compiles the device, half a minute; a library of the same source and torch is kept.

    Raises:
        FileNotFoundError: there is no g++.
    """
    if shutil.which("g++") is None:
        raise FileNotFoundError("g++ is not on this machine")
    root = _torch_folder()
    version = (root / "version.py").read_bytes()
    digest = hashlib.blake2b(_SOURCE.read_bytes() + version, digest_size=8).hexdigest()
    library = folder / f"pretended_cuda-{digest}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        headers = [root / "include", root / "include/torch/csrc/api/include"]
        includes = [f"-I{path}" for path in (*headers, sysconfig.get_path("include"))]
        part = library.with_suffix(f".{os.getpid()}")
        flags = ["-std=c++20", "-O0", "-w", "-fPIC", "-shared"]
        libraries = [f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
        subprocess.run(["g++", *flags, *includes, _SOURCE, "-o", part, *libraries], check=True)
        part.rename(library)
    return library


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def load(library: Path) -> None:
    """Registers the device, and imports torch with a `torch.cuda` that knows it."""
    assert "torch" not in sys.modules
    for pattern in ("libgomp*.so*", "libc10.so", "libtorch_cpu.so", "libtorch.so"):
        for path in (_torch_folder() / "lib").glob(pattern):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library))
    _change_torch()


class _Stub:
    """A stream or an event: all work is done when it is asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self


def _change_torch() -> None:
    import torch

    cuda: Any = torch.cuda
    answers = {
        **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), True),
        **dict.fromkeys(("_lazy_init", "set_device", "manual_seed", "manual_seed_all")),
        **dict.fromkeys(("synchronize", "set_rng_state", "empty_cache", "_sleep")),
        **{"device_count": 1, "current_device": 0, "get_device_name": "pretended"},
        **dict.fromkeys(("memory_reserved", "memory_allocated"), 0),
        **{"max_memory_allocated": 1 << 20, "reset_peak_memory_stats": None},
        **{"get_sync_debug_mode": 0, "set_sync_debug_mode": None},
        **{"mem_get_info": (1 << 34, 1 << 34), "is_current_stream_capturing": False},
    }
    for name, value in answers.items():
        setattr(cuda, name, lambda *args, value=value, **kwargs: value)
    cuda.get_rng_state = lambda *args: torch.zeros(16, dtype=torch.uint8)
    cuda.Stream = cuda.Event = cuda.current_stream = cuda.default_stream = _Stub
    cuda.stream = lambda stream: contextlib.nullcontext()
    tensor: Any = torch.Tensor
    empty = torch.empty

    def empty_pinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        made = empty(*args, **kwargs)
        if pin_memory:
            made.untyped_storage().is_page_locked = True
        return made

    torch.empty = empty_pinned
    tensor.pin_memory = _pinned
    tensor.is_pinned = lambda self: getattr(self.untyped_storage(), "is_page_locked", False)
    tensor.record_stream = lambda self, stream: None


def _pinned(tensor: Any) -> Any:
    copy = tensor.clone()
    copy.untyped_storage().is_page_locked = True
    return copy


#: Operators whose CUDA kernels wait for the device, to learn a value or a size.
_WAITING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::bincount",
    "aten::equal",
    "aten::_coalesce",
}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class Record:
    """What happened on the device.

    Attributes:
        waits: operators for which the host would have waited for the device, with their caller.
        mixes: operators with tensors of both devices.
        num_operators: that ran on the device.
        num_launches: those of them that launch kernels: no views, no empty tensors.
    """

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.mixes: Counter[str] = Counter()
        self.num_operators = self.num_launches = 0


@contextlib.contextmanager
def watched(record: Record) -> Iterator[None]:
    """Records what this thread does on the device."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Watcher(TorchDispatchMode):
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            out = operator(*args, **kwargs)
            name = operator._schema.name
            if name in ("aten::copy_", "aten::_to_copy"):
                to, source = (args[:2]) if name == "aten::copy_" else (out, args[0])
                non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
                self._copy(to, source, non_blocking)
            if any(x.is_cuda for x in tensors):
                record.num_operators += 1
                record.num_launches += not _is_free(operator)
                self._judge(name, args, kwargs, tensors)
            return out

        def _copy(self, to: Any, source: Any, non_blocking: bool) -> None:
            if source.is_cuda and not to.is_cuda and not non_blocking:
                record.waits[f"copy to the host{_caller()}"] += 1
            if to.is_cuda and not source.is_cuda and not (non_blocking and source.is_pinned()):
                record.waits[f"copy of pageable memory to the device{_caller()}"] += 1

        def _judge(self, name: str, args: Any, kwargs: Any, tensors: list[Any]) -> None:
            waits = name in _WAITING
            if name in _INDEXING:
                indices = [index for index in args[1] if index is not None]
                fills = name != "aten::index" and args[2].numel() == 1
                waits |= any(index.dtype == torch.bool for index in indices) and not fills
                waits |= any(not index.is_cuda for index in indices)
            waits |= name == "aten::repeat_interleave" and kwargs.get("output_size") is None
            waits |= name == "aten::segment_reduce" and kwargs.get("lengths") is not None
            if waits:
                record.waits[f"{name}{_caller()}"] += 1
            is_copy = name in ("aten::copy_", "aten::_to_copy")
            if not is_copy and any(not x.is_cuda and x.dim() for x in tensors):
                record.mixes[f"{name}{_caller()}"] += 1

    with Watcher(), torch.autograd.set_multithreading_enabled(False):
        yield


def _is_free(operator: Any) -> bool:
    returned = [x.alias_info for x in operator._schema.returns]
    is_view = any(alias is not None and not alias.is_write for alias in returned)
    return is_view or "empty" in operator._schema.name


def _caller() -> str:
    frames = [f for f in traceback.extract_stack() if f"{os.sep}raygnn{os.sep}" in f.filename]
    last = [f"{f.filename.rpartition(os.sep + 'raygnn' + os.sep)[2]}:{f.lineno}" for f in frames]
    return " in " + " < ".join(reversed(last[-3:])) if last else ""


def main() -> None:
    """Runs Python with the device: -m MODULE, -c PROGRAM or a script, and its arguments."""
    load(build(Path(__file__).parents[2] / "build" / "pretended_gpu"))
    kind, *rest = sys.argv[1:]
    if kind == "-c":
        exec(rest[0], {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *rest]
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    main()
