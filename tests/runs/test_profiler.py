from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import torch
from torch.profiler import ProfilerActivity

from raygnn.config import load_config
from raygnn.config.training_section import Profiler as ProfilerSettings
from raygnn.outputs import profiler as profiling
from tests.errors import raises
from tests.small_runs import run_rank, small_config

# As TensorBoard's profiler plugin looks for traces: (worker).(time).pt.trace.json[.gz]
_NAME = re.compile(r"^(rank-\d+)\.\d+\.pt\.trace\.json\.gz$")


def _config(folder: Any, profiler: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return small_config(
        folder,
        loader={"batch_size": 20, "eval_batch_size": 100},
        training={"max_steps": 8, "log_every": {"steps": 8}},
        profiler=profiler,
        checkpoint={"policy": "none"},
        **changes,
    )


def _steps(content: bytes) -> list[int]:
    """The steps in a trace, as the profiler numbers them."""
    events = json.loads(gzip.decompress(content))["traceEvents"]
    names = [event.get("name", "") for event in events if event.get("ph") == "X"]
    assert any(name.startswith("aten::") for name in names)
    return sorted({int(n.split("#")[1]) for n in names if n.startswith("ProfilerStep#")})


def test_a_schedule_traces_each_of_its_cycles(small_bundle_path, tmp_path, capsys):
    profiler = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2, "record_shapes": True}
    config = _config(tmp_path, profiler, scaling__num_workers=0)
    run_rank(config, small_bundle_path)
    traces = sorted((tmp_path / "run" / "logs" / "profiler").iterdir())
    assert all(_NAME.match(trace.name) for trace in traces)
    assert [_steps(trace.read_bytes()) for trace in traces] == [[2, 3], [6, 7]]
    assert str(traces[0]) in capsys.readouterr().out


def test_batches_bound_a_trace(small_bundle_path, tmp_path):
    profiler = {"begin_batch": 3, "end_batch": 4, "with_stack": True, "profile_memory": True}
    run_rank(_config(tmp_path, profiler, scaling__num_workers=0), small_bundle_path)
    (trace,) = (tmp_path / "run" / "logs" / "profiler").iterdir()
    assert _steps(trace.read_bytes()) == [0, 1]  # a trace counts its own steps from 0


def test_every_option_reaches_torch(monkeypatch):
    """A GPU's part of it too, without one."""
    given: dict[str, Any] = {}
    waited: list[Any] = []
    running = SimpleNamespace(start=lambda: None, step=lambda: None, stop=lambda: None)
    monkeypatch.setattr(profiling, "profile", lambda **options: given.update(options) or running)
    monkeypatch.setattr(profiling, "schedule", lambda **options: options)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    gpu = torch.device("cuda")
    engine = SimpleNamespace(context=SimpleNamespace(rank=0, device=gpu))
    schedule = {"wait": 4, "warmup": 3, "active": 2, "repeat": 5}
    what = {"with_stack": True, "record_shapes": True, "profile_memory": True}
    for sync in (True, False):
        settings = ProfilerSettings(**schedule, **what, sync_timings=sync)
        callback = profiling.Profiler(settings, "memory://traces")
        callback.on_train_start(engine)
        callback.on_train_step_end(engine, None)
    assert {name: given[name] for name in what} == what
    assert given["schedule"] == schedule
    assert given["activities"] == [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    assert waited == [gpu]  # of the one with sync_timings


def test_traces_go_to_any_uri_and_a_short_run_keeps_what_it_has(small_bundle_path, tmp_path):
    fs = fsspec.filesystem("memory")
    if fs.exists("/traces"):
        fs.rm("/traces", recursive=True)
    profiler = {"active": 100, "logs_uri": "memory://traces"}
    run_rank(_config(tmp_path, profiler, scaling__num_workers=0), small_bundle_path)
    (path,) = fs.ls("/traces", detail=False)
    # The last one is what follows the last step: the validation at the end.
    assert _steps(fs.cat_file(path)) == [2, 3, 4, 5, 6, 7, 8]


def test_a_run_that_ends_before_the_first_trace_says_so(small_bundle_path, tmp_path, capsys):
    profiler = {"begin_batch": 100, "end_batch": 101}
    run_rank(_config(tmp_path, profiler, scaling__num_workers=0), small_bundle_path)
    assert "profiler: no step was traced" in capsys.readouterr().out
    assert not Path(tmp_path, "run", "logs", "profiler").exists()


@pytest.mark.parametrize(
    ("profiler", "message"),
    [
        ("{begin_batch: 3}", ("profiler-range-half", "profiler.end_batch")),
        ("{end_batch: 3}", ("profiler-range-half", "profiler.begin_batch")),
        ("{begin_batch: 3, end_batch: 2}", ("profiler-range-order", "profiler.end_batch=2")),
        ("{begin_batch: 3, end_batch: 4, wait: 0}", ("profiler-range-schedule", "profiler.wait=0")),
        ("{active: 0}", ("config-range", "profiler.active=0")),
    ],
)
def test_what_cannot_be_profiled_is_refused(profiler, message):
    with raises(*message):
        load_config(f"profiler: {profiler}")


def test_each_rank_traces_the_steps_of_the_batches(ranks, small_bundle_path, tmp_path):
    folder = tmp_path / "traces"
    config = small_config(
        tmp_path,
        scaling__num_workers=2,
        loader={"batch_size": 20, "eval_batch_size": 100},
        training={"max_steps": 5},
        profiler={"begin_batch": 4, "end_batch": 7, "logs_uri": str(folder)},
        checkpoint={"policy": "none"},
    )
    ranks.run(run_rank, 2, config, small_bundle_path)
    traces = sorted(folder.iterdir())
    assert [trace.name.partition(".")[0] for trace in traces] == ["rank-0", "rank-1"]
    for trace in traces:
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        names = {e["name"] for e in events if e.get("name", "").startswith("ProfilerStep#")}
        # Batches 4 to 7 are in steps 2 to 4 of two ranks; a trace counts its own from 0.
        assert names == {"ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"}
