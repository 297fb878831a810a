"""A dotted path that the command line does not allow is refused, and nothing is imported or run."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from raygnn.config import Component, build, load_config
from raygnn.config.registry import SLOTS
from raygnn.errors import ConfigError
from tests.fuzz.cases import cases

_TRAP = "fuzz_trap"  # a module in the current folder, which writes a file when it is imported

_PATHS = [
    *("os.system", "subprocess.Popen", "builtins.eval", "pickle.loads", "shutil.rmtree"),
    *("importlib.import_module", "posix.system", "code.InteractiveInterpreter", "pty.spawn"),
    *("torch.load", "torch.hub.load", "torch.package.PackageImporter", "torch.jit.load"),
    *("torch.utils.benchmark.Timer", "torch.os.system", "torch.nn.modules.module.os.system"),
    *("torch.nn.Module.__init__", "torch.nn.Linear.__class__", "torch._utils._rebuild_tensor"),
    *("torch_geometric.nn.sequential.Sequential", "torch_geometric.io.fs.torch_load"),
    *("torch_geometric.data.download_url", "torch_geometric.datasets.planetoid.osp.join"),
    *("torchmetrics.multimodal.CLIPScore", "raygnn.train.main", "raygnn.config.source.Path"),
    *("raygnn.worker.os.system", "raygnn.models.torch.load", "raygnn.data.filesystem.fsspec"),
    *(
        f"{_TRAP}.Trap",
        f"{_TRAP}.trap",
        f"raygnn.{_TRAP}.Trap",
        f"torch.{_TRAP}",
        f"{_TRAP}.os.system",
    ),
]


def _mutated(path: str, draw: random.Random) -> str:
    parts = path.split(".")
    kind = draw.randrange(8)
    if kind == 1:
        parts.insert(
            draw.randrange(len(parts) + 1), draw.choice(["__builtins__", "os", "", "..", "a b"])
        )
    elif kind == 2:
        parts[-1] += draw.choice([" ", "()", ":main", "\n", "\u200b", "\uff4f", "[0]"])
    elif kind == 3:
        parts = [draw.choice(["torch", "raygnn", "torch_geometric", "my_pkg"]), *parts]
    elif kind == 4:
        parts = [part.upper() for part in parts]
    elif kind == 5:
        parts = parts * draw.choice([2, 30])
    elif kind == 6:
        parts = [*parts, "__globals__", "system"]
    return ".".join(parts)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", cases(full=50, short=10))
def test_paths_that_are_not_allowed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    (tmp_path / f"{_TRAP}.py").write_text(
        f"open({str(mark)!r}, 'w').close()\nclass Trap: pass\ndef trap(*a, **k): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("os.system", lambda *_: mark.touch())
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: mark.touch())
    draw = random.Random(seed)
    path = _mutated(draw.choice(_PATHS), draw)
    args: dict[str, Any] = draw.choice([{}, {"command": f"touch {mark}"}, {"a": {"__type": path}}])
    slot = draw.choice(sorted(SLOTS))
    nested = Component(type="GCN", args={"hidden_channels": 8, "a": {"__type": path, **args}})
    with pytest.raises(ConfigError):
        build(Component(type=path, args=args), slot, ("my_pkg",))
    with pytest.raises(ConfigError):
        build(nested, "model", ("my_pkg",), in_channels=3, num_nodes=4)
    for section in (
        {"model": {"type": path, "args": args}},
        {"data": {"type": path, "args": args}},
        {"callbacks": [{"type": path, "args": args}, {"on_log": path}]},
        {"init_env": path, "loop": path, "training": {"grad_reduction": path}},
        {"losses": [{"type": path}], "loggers": [path]},
    ):
        _load(section)
    assert not mark.exists()
    assert _TRAP not in sys.modules


def _load(section: dict[str, Any]) -> None:
    """A path into a library may load: it is resolved by the worker, and refused there."""
    try:
        load_config(section)
    except ConfigError as error:
        assert error.problems  # noqa: PT017 - either end is fine
