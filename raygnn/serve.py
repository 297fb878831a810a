"""Command line and Python entry of serving: `python -m raygnn.serve RUN --graph URI`."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from types import TracebackType
from typing import TYPE_CHECKING, Any

from raygnn.command_line import (
    add_allow_module,
    check_model_argument,
    command_parser,
    exit_process,
    exit_status_of,
)
from raygnn.console import say
from raygnn.data.filesystem import absolute
from raygnn.errors import ConfigError

if TYPE_CHECKING:
    from raygnn.serving.answers import Answers
    from raygnn.trained_model import TrainedModel

_USAGE = """\
python -m raygnn.serve MODEL --graph URI [options] [--section.key value ...]

Answers predictions, embeddings, scores of pairs and top-k neighbors over HTTP until it is stopped.
MODEL is the folder of a finished run or of an exported model; it and the graph may be any fsspec
URI. The keys of data, sampling, loader and training are set as in raygnn.infer. The page
http://HOST:PORT/docs lists the requests. See docs/serving.md.
"""
_EXAMPLES = """
raygnn serve runs/papers --graph graph
raygnn serve runs/shop --graph gs://bucket/graph --precomputed --replicas 4 --host 0.0.0.0
"""


@dataclass(frozen=True)
class Server:
    """A served model; `with raygnn.serve.start(...) as server` stops it at the end.

    Attributes:
        url: where it answers.
        stop: stops it; Ray goes on.
    """

    url: str
    stop: Callable[[], None]

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start(
    model: str | PathLike[str],
    graph: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    task: str | None = None,
    precomputed: bool = False,
    as_of: str | int | float | None = None,
    allow_modules: Sequence[str] = (),
    **options: Any,
) -> Server:
    """Serves a model on Ray Serve, and returns when it answers.

    Joins the cluster of the environment, or starts a local Ray.

    Args:
        model: folder or URI of a finished run, or of an exported model.
        graph: folder or URI of the graph whose nodes are asked for.
        overrides: of the config, as on the command line.
        task: of a model of several tasks the one that answers.
        precomputed: encodes all nodes before it answers, exactly; otherwise each from a
            neighborhood that is sampled by the model's fanouts.
        as_of: see `raygnn.infer.predict`.
        allow_modules: modules of yours, or of libraries, whose classes the config may name.
        options: `host`, `port`, `num_replicas`, `num_cpus`, `num_gpus` and `max_queued`; see
            `raygnn.runtime.serving.ServeOptions`.
    Raises:
        ConfigError: an argument or override is wrong, or packages of the extra are missing.
        DataError: the graph is wrong, or the model cannot read it.
        RunError: there is no trained model.
        CheckpointError: the model's files are damaged or do not fit each other.
        ResourceError: the cluster has no room for the replicas, or they do not start.
    """
    try:
        from raygnn.runtime.serving import ServeOptions, start_serving
        from raygnn.serving.app import build_app
    except ImportError as error:
        raise ConfigError(
            f"raygnn.serve cannot be used: {error}. Install `pip install 'raygnn[serve]'`.",
            id="serve-extra-missing",
        ) from error
    from raygnn.runtime.connection import connect
    from raygnn.trained_model import load

    chosen = ServeOptions(**options)
    chosen.check()
    uri = absolute(fspath(model))  # replicas run elsewhere
    keys = [*overrides, "--data.uri", absolute(fspath(graph))]
    # Reports what is wrong here, and leaves the graph in the cache, where replicas map it.
    opened = partial(load, uri, keys, task=task, allow_modules=tuple(allow_modules))
    opened().open(as_of=as_of)
    connect()
    make = partial(_answers, opened, precomputed, as_of)
    stop = start_serving(make, build_app, chosen)
    return Server(f"http://{chosen.host}:{chosen.port}", stop)


def _answers(
    opened: Callable[[], TrainedModel], precomputed: bool, as_of: str | int | float | None
) -> Answers:
    """What a replica holds."""
    from raygnn.serving.answers import Answers

    return Answers(opened(), precomputed=precomputed, as_of=as_of)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status, as `raygnn.train` does."""
    options, rest = build_parser().parse_known_args(argv)
    return exit_status_of(lambda: _run(options, rest), interrupted="the server is stopped")


def _run(options: argparse.Namespace, rest: Sequence[str]) -> None:
    check_model_argument(rest, _USAGE)
    if options.graph is None:
        raise ConfigError(
            "--graph is missing. Name the folder or URI of a graph.", id="serve-graph-missing"
        )
    server = start(
        rest[0],
        options.graph,
        rest[1:],
        precomputed=options.precomputed,
        task=options.task,
        as_of=options.as_of,
        allow_modules=options.allow_module,
        host=options.host,
        port=options.port,
        num_replicas=options.replicas,
        num_cpus=options.cpus,
        max_queued=options.max_queued,
    )
    with server:
        say(f"serves {rest[0]} at {server.url}; its page is {server.url}/docs")
        threading.Event().wait()  # until a signal


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = command_parser("python -m raygnn.serve", _USAGE, _EXAMPLES)
    add = parser.add_argument_group("the server").add_argument
    add("--graph", metavar="URI", help="graph whose nodes are asked for, any fsspec URI")
    add("--host", default="127.0.0.1", help="default: 127.0.0.1; 0.0.0.0 answers other machines")
    add("--port", type=int, default=8000, help="default: 8000")
    add("--replicas", type=int, default=1, metavar="N", help="processes with a model (default: 1)")
    add("--cpus", type=float, default=1.0, metavar="N", help="of each replica (default: 1)")
    add(
        "--max-queued",
        type=int,
        default=200,
        metavar="N",
        help="requests that wait; further ones get status 429 (default: 200)",
    )
    add = parser.add_argument_group("answers").add_argument
    add("--task", metavar="NAME", help="the one of a model of several tasks")
    add("--precomputed", action="store_true", help="encode all nodes first, exactly")
    add("--as-of", metavar="TIME", help="date, number or latest (default: times of the rows)")
    add_allow_module(parser)
    return parser


if __name__ == "__main__":
    exit_process(main)
