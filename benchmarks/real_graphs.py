"""What the benchmarks on real graphs share: options, graph tables of the sources, and one Ray."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from raygnn.prepare import __main__ as prepare

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


class DataSet(Protocol):
    """What tables are made of.

    Attributes:
        tables: folder of the graph tables, in the work folder.
        prepare: arguments of `raygnn.prepare` but `--out`, or a script of the examples and its
            folder. `{data}` is the folder of the sources.
    """

    @property
    def dataset(self) -> str: ...
    @property
    def tables(self) -> str: ...
    @property
    def prepare(self) -> tuple[str, ...]: ...


def make_tables(case: DataSet, data: Path, work: Path) -> Path:
    """Writes the graph tables of a data set; returns their folder.

    Raises:
        RuntimeError: the preparer refused.
    """
    folder = work / case.tables
    arguments = [part.format(data=data) for part in case.prepare]
    if arguments[0].endswith(".py"):
        subprocess.run([sys.executable, *arguments, str(folder)], check=True)
        return folder
    if prepare.main([*arguments, "--out", str(folder), "--overwrite"]) != 0:
        raise RuntimeError(f"The tables of {case.dataset} cannot be made, see above.")
    return folder


def mean_and_spread(values: Sequence[float], digits: int) -> str:
    """Mean ± sample standard deviation, which one value alone does not have."""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def start_ray() -> None:
    """Starts one local Ray for all runs; starting it takes several seconds."""
    import ray

    if not ray.is_initialized():
        # The workers' progress lines would bury the script's own.
        ray.init(address="local", log_to_driver=False)


def parser(
    name: str, description: str, cases: Sequence[str], num_seeds: int
) -> argparse.ArgumentParser:
    """The options of both.

    Args:
        name: of the script.
        cases: names that `--only` takes.
    """
    options = argparse.ArgumentParser(prog=f"python benchmarks/{name}.py", description=description)
    add = options.add_argument
    add("--data", required=True, metavar="DIR", help="folder of the graphs as published")
    add("--work", default=f"build/{name}", metavar="DIR", help="default: %(default)s")
    seeds = f"default: 0-{num_seeds - 1}"
    add("--seeds", type=int, nargs="+", default=[*range(num_seeds)], metavar="S", help=seeds)
    add("--only", nargs="+", choices=cases, metavar="NAME", help=", ".join(cases))
    add("--num-workers", type=int, default=2, metavar="N", help="default: 2; 0: without Ray")
    return options
