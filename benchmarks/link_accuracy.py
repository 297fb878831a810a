"""Link prediction on real graphs, beside plain PyG on the whole graph.

    python benchmarks/link_accuracy.py --data DIR

Each case trains `examples/...yaml` with `raygnn.train.fit`, once per seed, on a local Ray. The
plain run (`plain_pyg_links.py`) is the same encoder on the whole graph in one process, on the same
split, until validation has not improved for the same patience. Before that both sides try the same
small grid with the first seed, and the point of the best validation is taken. Cases that recommend
are also compared with popularity, iALS and EASE, from training and validation links. DIR holds the
graphs as published; benchmarks/README.md says where they come from.

Exit status: 0 if every case reaches its aims, else 1.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch
from harness import markdown
from plain_pyg_links import (
    MAX_STEPS,
    VALIDATE_EVERY,
    LinkGraph,
    auc_and_ap,
    link_metrics,
    recommend_simply,
    train_links,
)
from real_graphs import EXAMPLES, make_tables, mean_and_spread, parser, start_ray
from safetensors.torch import load_model

import raygnn.train
from raygnn.config import LoadedConfig, load_config
from raygnn.loops.task import TaskEnvironment
from raygnn.loops.tasks.exact_encoding import encode_exactly
from raygnn.loops.tasks.link_prediction.task import LinkPrediction
from raygnn.runtime.data_source import open_bundle
from raygnn.sampling.stores import LocalFeatureStore

#: What a point of a grid is called, and the overrides that make it.
Axis = Mapping[str, Sequence[str]]


def values(key: str, *choices: str) -> Axis:
    """An axis over the values of one key."""
    return {f"{key.rpartition('.')[2]} {choice}": (f"--{key}", choice) for choice in choices}


@dataclass(frozen=True)
class Case:
    """One data set.

    Attributes:
        tables: folder of the graph tables, in the work folder.
        prepare: arguments of `raygnn.prepare` but `--out`; `{data}` is the folder of the sources.
        metrics: of the test.
        aims: least mean of a metric; one without an aim has to be as good as the plain run's.
        grid: both sides try every combination of the axes.
        chosen: what raygnn's grid ends with; the example says the same.
        plain: overrides of the plain run.
        plain_chosen: what its grid ends with.
    """

    name: str
    dataset: str
    config: str
    tables: str
    prepare: tuple[str, ...]
    metrics: tuple[str, ...]
    grid: tuple[Axis, ...]
    chosen: str
    plain: tuple[str, ...]
    plain_chosen: str
    aims: Mapping[str, float]

    @property
    def points(self) -> dict[str, list[str]]:
        """Overrides by the name of the point."""
        return {
            ", ".join(names): [
                word for axis, name in zip(self.grid, names, strict=True) for word in axis[name]
            ]
            for names in product(*self.grid)
        }


BINARY = (
    "--losses",
    "[{type: link_binary_cross_entropy}]",
    "--model.args.normalize_output",
    "false",
)
NO_TRUST = (
    "{user__listens__artist: [-1, -1, -1], artist__rev_listens__user: [-1, -1, -1], "
    "user__trusts__user: [0, 0, 0], user__rev_trusts__user: [0, 0, 0]}"
)
CASES = (
    Case(
        name="cora",
        dataset="Cora",
        config="cora_link.yaml",
        tables="cora",
        prepare=("npz", "{data}/cora_planetoid.npz"),
        metrics=("auc", "ap"),
        grid=(
            values("optimizer.args.lr", "0.005", "0.01"),
            values("model.args.dropout", "0.0", "0.3"),
        ),
        chosen="lr 0.01, dropout 0.3",
        plain=BINARY,
        plain_chosen="lr 0.005, dropout 0.3",
        aims={"auc": 0.91, "ap": 0.92},
    ),
    Case(
        name="lastfm",
        dataset="LastFM",
        config="lastfm/ablp.yaml",
        tables="lastfm",
        prepare=(str(EXAMPLES / "lastfm/prepare.py"), "{data}/lastfm"),
        metrics=("full_recall@20", "full_ndcg@20"),
        grid=(
            {
                "softmax": (),
                "bpr": ("--losses", "[{type: bpr}]", "--optimizer.args.weight_decay", "2.0e-6"),
            },
            {"trust": (), "no trust": ("--sampling.fanouts", NO_TRUST)},
            values("optimizer.args.lr", "0.02", "0.05"),
        ),
        chosen="softmax, trust, lr 0.02",
        plain=("--early_stopping.patience", "6"),  # 120 steps, as the example's
        plain_chosen="bpr, trust, lr 0.02",
        aims={},
    ),
    Case(
        name="citeulike",
        dataset="CiteULike",
        config="citeulike/hetero.yaml",
        tables="citeulike",
        prepare=(str(EXAMPLES / "citeulike/prepare.py"), "{data}/citeulike"),
        metrics=("full_recall@20", "full_ndcg@20"),
        grid=(),
        chosen="",
        plain=(
            *("--model", "{type: LightGCN, args: {out_channels: 64}}"),
            *("--sampling.fanouts", "[-1, -1, -1]", "--losses", "[{type: bpr}]"),
            *("--optimizer.args.lr", "0.02", "--early_stopping.patience", "6"),
        ),
        plain_chosen="",
        aims={},
    ),
    Case(
        name="facebook",
        dataset="Facebook pages",
        config="facebook_links.yaml",
        tables="facebook_pages",
        prepare=(str(EXAMPLES / "facebook/prepare.py"), "{data}/facebook_pages"),
        metrics=("full_mrr", "full_hits@50"),
        grid=(values("optimizer.args.lr", "0.005", "0.01"),),
        chosen="lr 0.005",
        plain=BINARY,
        plain_chosen="lr 0.01",
        aims={},
    ),
)


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        side: raygnn or plain PyG.
        point: of the grid.
        num_workers: of raygnn.
        validation: best value of the metric that early stopping watches.
    """

    case: str
    side: str
    point: str
    seed: int
    num_workers: int
    validation: float
    test: dict[str, float]
    seconds: float


class Bench:
    """Runs cases, and keeps what each run gave in a file."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.work = Path(args.work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.file = Path(args.json or self.work / "link_accuracy.json")
        self.runs: list[Run] = []
        self.chosen: dict[tuple[str, str], str] = {}
        if args.resume and self.file.exists():
            self.runs = [Run(**run) for run in json.loads(self.file.read_text())]

    def measure(self, case: Case) -> None:
        """Searches, then trains with every seed, first raygnn, then plain PyG."""
        sides = {"raygnn": case.chosen, "plain PyG": case.plain_chosen}
        if self.args.skip_plain:
            del sides["plain PyG"]
        for side, chosen in sides.items():
            self.chosen[case.name, side] = chosen
            if self.args.grid == "small":
                self._search(case, side, chosen)
            for seed in self.args.seeds:
                run = self._run(case, side, self.chosen[case.name, side], seed)
                test = ", ".join(f"{name} {value:.4f}" for name, value in run.test.items())
                _say(f"{case.dataset}, {side}, {run.point}, seed {seed}: test {test}")

    def results(self, case: Case, side: str) -> list[Run]:
        """The runs of the chosen point, one of each seed."""
        wanted = (case.name, side, self.chosen.get((case.name, side)))
        return [
            run
            for run in self.runs
            if (run.case, run.side, run.point) == wanted and run.seed in self.args.seeds
        ]

    def _search(self, case: Case, side: str, before: str) -> None:
        """Chooses by validation alone: what runs of the grid give on test is not looked at."""
        runs = [self._run(case, side, point, self.args.seeds[0]) for point in case.points]
        best = max(runs, key=lambda run: run.validation).point
        note = "" if best == before else f" (the example and the last search say {before})"
        _say(f"{case.dataset}, {side}: {best} has the best validation{note}")
        self.chosen[case.name, side] = best

    def _run(self, case: Case, side: str, point: str, seed: int) -> Run:
        workers = self.args.num_workers if side == "raygnn" else 0
        wanted = (case.name, side, point, seed, workers)
        for run in self.runs:
            if (run.case, run.side, run.point, run.seed, run.num_workers) == wanted:
                return run
        started = time.perf_counter()
        train = self._train if side == "raygnn" else self._train_plainly
        validation, test = train(case, point, seed)
        seconds = round(time.perf_counter() - started, 1)
        run = Run(*wanted, validation, test, seconds)
        self.runs.append(run)
        self.file.write_text(json.dumps([asdict(run) for run in self.runs], indent=1) + "\n")
        _say(
            f"{case.dataset}, {side}, {point}, seed {seed}: validation {validation:.4f}, "
            f"{seconds:.0f} s"
        )
        return run

    def _train(self, case: Case, point: str, seed: int) -> tuple[float, dict[str, float]]:
        if self.args.num_workers:
            start_ray()
        overrides = [
            *self.overrides(case, seed),
            *("--scaling.num_workers", str(self.args.num_workers)),
            *("--run.storage_path", str(self.work / "runs"), "--run.name", f"{case.name}-{seed}"),
            *("--run.overwrite", "true", *case.points[point]),
        ]
        loaded = load_config(EXAMPLES / case.config, overrides)
        assert loaded.config.early_stopping is not None
        metrics = raygnn.train.fit(EXAMPLES / case.config, overrides).metrics
        test = {name.removeprefix("test/"): value for name, value in metrics.items()}
        if "auc" in case.metrics:
            test |= _standard_auc(loaded, self.work / "runs" / f"{case.name}-{seed}")
        validation = metrics[loaded.config.early_stopping.monitor]
        return validation, {name: test[name] for name in case.metrics}

    def _train_plainly(self, case: Case, point: str, seed: int) -> tuple[float, dict[str, float]]:
        overrides = [*self.overrides(case, seed), *case.plain, *case.points[point]]
        loaded = load_config(EXAMPLES / case.config, overrides)
        config, bundle = loaded.config, open_bundle(loaded, None)
        graph = LinkGraph.of_bundle(bundle, config)
        run = train_links(graph, config)
        if "auc" in case.metrics:
            return run.validation, auc_and_ap(graph, run.rows, "test", seed)
        ks = [int(name.partition("@")[2]) for name in case.metrics if "@" in name]
        found = link_metrics(graph, run.rows, "test", tuple(dict.fromkeys(ks)))
        return run.validation, {name: found[name] for name in case.metrics}

    def overrides(self, case: Case, seed: int) -> list[str]:
        return ["--data.uri", str(self.work / case.tables), "--seed", str(seed)]


def _standard_auc(loaded: LoadedConfig, folder: Path) -> dict[str, float]:
    """AUC and AP of a run's model in the protocol of graph auto-encoders; see `auc_and_ap`."""
    bundle = open_bundle(loaded, None)
    task = LinkPrediction(**loaded.config.task.args)
    task.setup(TaskEnvironment(loaded, bundle, 0, 1, torch.device("cpu")))
    task.model = task.build_model()
    load_model(task.model, folder / "model.safetensors")
    (node_type,) = set(task.node_types)
    rows = encode_exactly(
        task.model.encoder,
        task.message_store("test"),
        LocalFeatureStore(bundle),
        task.spec,
        [node_type],
    )
    graph = LinkGraph.of_bundle(bundle, loaded.config)
    return auc_and_ap(graph, rows[node_type], "test", loaded.config.seed)


def table(bench: Bench, cases: Iterable[Case]) -> tuple[str, bool]:
    """The results as a Markdown table, mean ± standard deviation, and whether all aims are met."""
    titles = ("data set", "metric", "raygnn", "plain PyG", "aim", "verdict", "s / run")
    lines, all_met = [titles], True
    for case in cases:
        runs = [bench.results(case, side) for side in ("raygnn", "plain PyG")]
        seconds = " / ".join(
            f"{statistics.mean(run.seconds for run in of):.0f}" for of in runs if of
        )
        for metric in case.metrics:
            ours, plain = ([run.test[metric] for run in of] for of in runs)
            aim = case.aims.get(metric, statistics.mean(plain) if plain else math.nan)
            met = statistics.mean(ours) >= aim
            all_met &= met
            cells = (
                *(case.dataset, metric.removeprefix("full_"), _shown(ours), _shown(plain)),
                f"{aim:.2f}" if metric in case.aims else "as plain",
                "pass" if met else "FAIL",
                seconds,
            )
            lines.append(cells)
    return markdown(lines), all_met


def simple_table(bench: Bench, cases: Iterable[Case]) -> str:
    """Simple recommenders as a Markdown table."""
    lines = []
    for case in cases:
        loaded = load_config(EXAMPLES / case.config, bench.overrides(case, seed=0))
        graph = LinkGraph.of_bundle(open_bundle(loaded, None), loaded.config)
        for name, rows in recommend_simply(graph):
            found = link_metrics(graph, rows, "test", (20,))
            shown = (f"{found[metric]:.4f}" for metric in case.metrics)
            lines.append((case.dataset, name, *shown))
    return markdown([("data set", "model", "recall@20", "ndcg@20"), *lines]) if lines else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    args = _parser().parse_args(argv)
    bench = Bench(args)
    cases = [case for case in CASES if args.only is None or case.name in args.only]
    for case in cases:
        _announce(case, args)
        make_tables(case, Path(args.data), bench.work)
        bench.measure(case)
    text, all_met = table(bench, cases)
    print(text)
    recommending = [case for case in cases if "full_recall@20" in case.metrics]
    print(simple_table(bench, recommending))
    return 0 if all_met else 1


def _announce(case: Case, args: argparse.Namespace) -> None:
    config = load_config(EXAMPLES / case.config, []).config
    stopping, every = config.early_stopping, config.training.validate_every
    of_plain = load_config(EXAMPLES / case.config, [*case.plain]).config.early_stopping
    assert stopping is not None
    assert of_plain is not None
    num_epochs = every.epochs if every is not None else 1
    if args.grid == "small":
        _say(f"{case.dataset}, grid of both sides: {'; '.join(case.points)}")
    _say(
        f"{case.dataset}, stopping rule of both sides: {stopping.monitor} has not improved for "
        f"{stopping.patience} validations (plain PyG: {of_plain.patience}); the best weights are "
        f"tested. raygnn validates every "
        f"{num_epochs} epochs, at most {config.training.max_epochs}; plain PyG every "
        f"{VALIDATE_EVERY} steps, each over all links, at most {MAX_STEPS}"
    )


def _shown(values: Sequence[float]) -> str:
    return mean_and_spread(values, 4) if values else "not run"


def _say(text: str) -> None:
    print(f"[link_accuracy] {text}", flush=True)


def _parser() -> argparse.ArgumentParser:
    names = [case.name for case in CASES]
    options = parser("link_accuracy", "Link prediction beside plain PyG.", names, num_seeds=3)
    add = options.add_argument
    add("--grid", choices=("small", "none"), default="small", help="none: take what was chosen")
    add("--skip-plain", action="store_true", help="without the plain runs")
    add("--json", metavar="FILE", help="every run; default: link_accuracy.json in the work folder")
    add("--resume", action="store_true", help="go on from what that file has")
    return options


if __name__ == "__main__":
    sys.exit(main())
