"""What the benchmarks share: sizes, options, interleaved timing, tables and JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

import raygnn


@dataclass(frozen=True)
class Scale:
    """A size of graph, batch and model.

    Attributes:
        rounds: repetitions of each measurement.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    hidden_channels: int
    batch_size: int
    fanouts: tuple[int, ...]
    rounds: int


SMOKE = Scale("smoke", 20_000, 400_000, 32, 8, 64, 256, (15, 10, 5), 3)
REFERENCE = Scale("reference", 1 << 21, 40_000_000, 128, 47, 256, 1024, (15, 10, 5), 20)
#: The shape of ogbn-products, each of its 61.9 M undirected edges both ways.
PRODUCTS = Scale("products", 2_449_029, 123_718_280, 100, 47, 256, 1024, (15, 10, 5), 5)
SCALES = {scale.name: scale for scale in (SMOKE, REFERENCE, PRODUCTS)}

Case = Callable[[], float | None]
Clock = Callable[[], float]


def parser(
    description: str | None,
    *,
    in_rounds: bool = False,
    scales: Collection[str] = (SMOKE.name, REFERENCE.name),
) -> argparse.ArgumentParser:
    """The options of every benchmark.

    Args:
        in_rounds: whether it repeats its cases, with options of how often and by what clock.
        scales: those to choose from.
    """
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--scale", choices=scales, default="smoke", help="smoke: under a minute; or larger"
    )
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--work", default="build/benchmarks", metavar="DIR", help="for graphs")
    options.add_argument("--json", metavar="FILE", help="default: NAME-SCALE.json in DIR")
    if in_rounds:
        options.add_argument("--rounds", type=int, metavar="N", help="default: the scale's")
        options.add_argument(
            "--clock",
            choices=CLOCKS,
            default="wall",
            help="of what runs on one thread; cpu where the machine has other work",
        )
    return options


def chosen_scale(options: argparse.Namespace) -> Scale:
    """The scale of the options, with their number of rounds."""
    scale = SCALES[options.scale]
    return scale if options.rounds is None else replace(scale, rounds=options.rounds)


#: What seconds are counted by. Processor time is that of all threads of the process: on a machine
#: with other work to do, it still says what one thread takes.
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def interleaved(
    cases: Mapping[str, Case], rounds: int, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each case in each round, after one round to warm up.

    A round runs every case once, so that a disturbance of the machine meets all of them. A case
    that returns a number has timed itself.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            took = timed(case, clock)
            if number > 0:
                seconds[name].append(took)
    return seconds


def timed(case: Case, clock: Clock = time.perf_counter) -> float:
    """Seconds of a case, its own count where it returns one."""
    began = clock()
    counted = case()
    return clock() - began if counted is None else counted


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each case."""
    return {name: statistics.median(values) for name, values in seconds.items()}


@dataclass(frozen=True)
class Row:
    """One line of a result.

    Attributes:
        against: what the ratio is to, such as "1 thread" or "torch-sparse, stated".
        ratio: this value over that one, or that one over this; `against` says which is good.
        aim: the ratio or value that is aimed at, in words.
    """

    what: str
    value: float
    unit: str
    ratio: float | None = None
    against: str = ""
    aim: str = ""
    note: str = ""


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    titles = ("what", "value", "ratio", "aim", "note")
    return markdown([titles, *(_cells(row) for row in rows)])


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table of cells, the first line its titles."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    return "\n".join([padded[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *padded[1:]])


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f} x {row.against}"
    return (row.what, f"{_shown(row.value)} {row.unit}", ratio, row.aim, row.note)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def publish(name: str, options: argparse.Namespace, rows: Sequence[Row], **more: Any) -> None:
    """Prints the table, with the machine it was made on, and writes it as JSON.

    Args:
        more: further parts of the JSON record.
    """
    if options.scale != REFERENCE.name:  # aims are for the reference scale
        rows = [replace(row, aim="") for row in rows]
    print(f"{name}, scale {options.scale}, {machine()['text']}\n")
    print(table(rows), flush=True)
    path = Path(options.json or Path(options.work) / f"{name}-{options.scale}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "benchmark": name,
        "command": ["python", *sys.argv],
        "scale": asdict(SCALES[options.scale]),
        "device": options.device,
        "machine": machine(),
        "rows": [asdict(row) for row in rows],
        **more,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What the figures were made on."""
    cpus = len(os.sched_getaffinity(0))
    memory_gib = psutil.virtual_memory().total / 2**30
    found = {
        "cpu": _cpu_model(),
        "num_cpus": cpus,
        "memory_gib": round(memory_gib, 1),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "raygnn": raygnn.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    gpu = "no GPU" if found["gpu"] is None else found["gpu"]
    text = f"{cpus} CPUs of {found['cpu']}, {memory_gib:.0f} GiB, {gpu}, load {found['load']:.1f}"
    return {**found, "text": text}


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
