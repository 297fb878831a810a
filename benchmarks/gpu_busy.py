"""How busy a GPU is in a trace of training, and with which kernels.

    python benchmarks/gpu_busy.py RUN/logs/profiler/rank-0.*.pt.trace.json.gz

Traces are those of the config's section `profiler`.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter

_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_MOST_SHOWN = 12


def main(path: str) -> None:
    """Prints the busy share, the kernels of a step, and those that take longest."""
    with gzip.open(path, "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    steps = {event["name"] for event in events if event["name"].startswith("ProfilerStep#")}
    on_gpu = sorted((e for e in events if e.get("cat") in _ON_GPU), key=lambda e: e["ts"])
    if not on_gpu:
        sys.exit(f"{path} has no kernels of a GPU")
    busy, end = 0.0, on_gpu[0]["ts"]
    times: Counter[str] = Counter()
    for event in on_gpu:
        first, last = event["ts"], event["ts"] + event["dur"]
        busy += max(0.0, last - max(first, end))
        end = max(end, last)
        times[event["name"].split("<")[0].removeprefix("void ")] += event["dur"]
    span = end - on_gpu[0]["ts"]
    num_steps = max(1, len(steps))
    print(f"busy {busy / span:.0%} of {span / num_steps / 1e3:.2f} ms a step; ", end="")
    print(f"{len(on_gpu) / num_steps:.0f} kernels and copies a step")
    for name, total in times.most_common(_MOST_SHOWN):
        print(f"{total / num_steps / 1e3:8.3f} ms a step  {name}")


if __name__ == "__main__":
    main(sys.argv[1])
