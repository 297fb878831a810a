"""Time of the engine's later steps, by the number of sampler threads and without any sampling.

    python benchmarks/engine_steps.py --scale reference --device cuda

Each case is a run of `raygnn.train.fit` in this process, on a graph whose features the device
holds. "ready batches" repeats a few batches that were made beforehand, so that nothing competes
with the thread of training. With CUDA graphs, a GPU also samples the batches by itself. Cases of
the host are repeated without CUDA graphs.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from harness import SCALES, Case, Row, Scale, parser, publish
from rmat_graph import RmatGraph
from training import engine_config

import raygnn.train
from raygnn.loops.engine import Engine
from raygnn.sampling.batch_assembler import BatchAssembler
from raygnn.sampling.batch_sequence import BatchSequence
from raygnn.sampling.sampled_sequence import SampledSequence

_STEPS = {"smoke": 12, "reference": 900}
_NUM_READY = 24  # batches that are repeated
_STARTS = 3  # the first of as many parts of a run's steps is its start


def step_ms(
    scale: Scale,
    tables: Path,
    work: Path,
    device: str,
    *,
    threads: int | None,
    ready: bool = False,
    graphs: bool = True,
    change: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> tuple[float, float]:
    """Milliseconds of a step after the start of a run, and of these, waiting for batches.

    `threads`: of the sampler; None lets the device sample. `change`: of the config.
    """
    steps = _STEPS[scale.name]
    config = engine_config(
        scale,
        tables,
        work,
        "engine-steps",
        steps,
        use_gpu=device == "cuda",
        sampler_threads=threads,
        device_features=True,
        cuda_graphs=graphs,
    )
    config = change(config)
    began: list[tuple[float, float]] = []
    step, iterate = Engine._step, BatchSequence.iterate

    def timed_step(self: Engine, *args: Any) -> None:
        began.append((time.perf_counter(), self.loader_wait_s))
        step(self, *args)

    def repeated(self: Any, epoch: int, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        if self.split != "train":
            yield from iterate(self, epoch, start, stop)
            return
        with contextlib.closing(iterate(self, epoch, start, stop)) as batches:
            made = list(itertools.islice(batches, _NUM_READY))
        yield from itertools.cycle(made)

    host_samples = patch.object(SampledSequence, "sample_on_device", lambda self: "a benchmark")
    with (
        contextlib.nullcontext() if threads is None else host_samples,
        patch.object(Engine, "_step", timed_step),
        patch.object(BatchSequence, "iterate", repeated if ready else iterate),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        raygnn.train.fit(config)
    (first, first_wait), (last, last_wait) = began[steps // _STARTS], began[-1]
    per_step = 1e3 / (len(began) - 1 - steps // _STARTS)
    return per_step * (last - first), per_step * (last_wait - first_wait)


def padded_batches(loader: Any, num_batches: int) -> dict[str, Case]:
    """Padded batches of a thread, and the part of them that the host makes beside a device."""
    loader._pads, loader._device = True, torch.device("cpu")
    with patch.object(BatchAssembler, "columns_of_host", return_value=[]):  # as on a GPU
        reason = loader.sample_on_device()
    assert reason is None, reason
    indices = itertools.cycle(range(loader.num_batches - 1))

    def make(function: Callable[[int, int], Any]) -> Case:
        def run() -> None:
            for index in itertools.islice(indices, num_batches):
                function(0, index)

        return run

    host_part = loader._device_batches._make_part
    return {"padded batch": make(loader.make), "of it, beside a device": make(host_part)}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__)
    options.add_argument("--threads", type=int, nargs="+", default=[12, 6, 3], metavar="N")
    chosen = options.parse_args(argv)
    scale, work = SCALES[chosen.scale], Path(chosen.work)
    graph = RmatGraph(scale.num_nodes, scale.num_edges, scale.num_features, scale.num_classes)
    tables = graph.tables(work)
    rows = []
    of_host = {"ready batches": 1, **{f"{n} sampler threads": n for n in chosen.threads}}
    on_cuda = chosen.device == "cuda"
    for graphs in (True, False) if on_cuda else (True,):
        cases = {"sampled on the device": None} if on_cuda and graphs else {}
        for name, threads in {**cases, **of_host}.items():
            ready = name == "ready batches"
            options = {"threads": threads, "ready": ready, "graphs": graphs}
            found = step_ms(scale, tables, work, chosen.device, **options)
            name += "" if graphs else ", without CUDA graphs"
            rate = 1e3 * scale.batch_size / found[0]
            note = f"{found[1]:.1f} ms wait for batches, {rate:,.0f} seeds/s"
            rows.append(Row(name, found[0], "ms", note=note))
    publish("engine_steps", chosen, rows)


if __name__ == "__main__":
    main()
