"""Command line and Python entry of serving: `python -m raygnn.serve RUN --graph URI`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from raygnn.command_line import (
    add_allow_module,
    add_as_of,
    check_model_argument,
    command_parser,
    exit_process,
    exit_status_of,
)
from raygnn.console import printing, say
from raygnn.data.filesystem import absolute
from raygnn.errors import ConfigError

if TYPE_CHECKING:
    from raygnn.inference.open_graph import OpenGraph
    from raygnn.serving.answers import Answers
    from raygnn.serving.event_intake import EventIntake
    from raygnn.trained_model import TrainedModel

TOKEN_VARIABLE = "RAYGNN_SERVE_TOKEN"
_MIN_TOKEN_LENGTH = 16

_USAGE = """\
raygnn serve MODEL --graph URI [options] [--section.key value ...]

Answers predictions, embeddings, scores of pairs and top-k neighbors over HTTP until it is stopped.
MODEL is the folder of a finished run or of an exported model; it and the graph may be any fsspec
URI. The keys of data, sampling, loader and training are set as in raygnn.infer. The page
http://HOST:PORT/docs lists the requests. See docs/serving.md.
"""
_EXAMPLES = """
raygnn serve runs/papers --graph graph
RAYGNN_SERVE_TOKEN=... raygnn serve runs/shop --graph gs://bucket/graph --host 0.0.0.0
"""


@dataclass(frozen=True)
class Server:
    """A served model. `with raygnn.serve.start(...) as server` stops it at the end.

    Attributes:
        url: its address.
        stop: stops it; Ray continues.
        wait_until_gone: blocks while the model is served. Raises a ResourceError when it is deleted
            from Ray Serve.
    """

    url: str
    stop: Callable[[], None]
    wait_until_gone: Callable[[], None]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(
    model: str | PathLike[str],
    graph: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    task: str | None = None,
    precomputed: bool = False,
    as_of: str | int | float | None = None,
    columns: Sequence[str] = (),
    follow: str | PathLike[str] | None = None,
    record: str | PathLike[str] | None = None,
    allow_modules: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    no_auth: bool = False,
    **options: Any,
) -> Server:
    """Serves a model on Ray Serve, and returns when it answers.

    Joins the cluster of the environment, or starts a local Ray. Other servers are not changed.

    Args:
        model: folder or URI of a finished run, or of an exported model.
        graph: folder or URI of the graph with the nodes.
        overrides: of the config, as on the command line.
        task: which task of a model of several tasks.
        precomputed: encodes all nodes exactly before it answers. Otherwise, each is encoded from a
            sampled neighborhood.
        as_of: see `raygnn.infer.predict`.
        columns: columns of node tables that clients may request with `top_k`.
        follow: folder or URI of an event log, created if it is missing. Its rows are part of the
            graph, and `POST /events` appends to it.
        record: local file to which answers are appended, with their requests. Each is then computed
            alone, so that `raygnn.replay.replay` can compute it again.
        allow_modules: modules whose classes the config may name, besides raygnn's and torch's.
        host: listening address. Addresses other than loopback need a token or `no_auth`.
        port: of that address.
        token: clients send it as `Authorization: Bearer TOKEN`. Default: the variable
            `RAYGNN_SERVE_TOKEN`; without it, all clients are allowed.
        no_auth: allows all clients, also from other machines.
        options: `num_replicas`, `num_cpus`, `num_gpus` and `max_queued` of
            `raygnn.runtime.serving.ReplicaOptions`.
    Raises:
        ConfigError: an argument or override is invalid, or packages of the extra are missing.
        DataError: the graph is invalid or does not fit the model.
        RunError: there is no trained model.
        CheckpointError: the model's files are damaged or do not belong together.
        ResourceError: the cluster has no room for the replicas, or they do not start.
    """
    try:
        from raygnn.runtime.serving import ReplicaOptions, Replicas
        from raygnn.serving.app import build_app
        from raygnn.serving.records import Recorder
        from raygnn.serving.web_server import WebServer, is_loopback, listen
    except ImportError as error:
        raise ConfigError(
            f"raygnn.serve cannot be used: {str(error).partition('. ')[0]}. Run "
            "`pip install -e '.[serve]'` in raygnn's folder.",
            id="serve-extra-missing",
        ) from error
    from raygnn.runtime.connection import connect
    from raygnn.trained_model import load

    replica_options = ReplicaOptions(**options)
    replica_options.check()
    if not 1 <= port <= 65_535:
        raise ConfigError(
            f"--port={port!r} is invalid: it must be from 1 to 65535. Set it so, or leave it out.",
            id="serve-option",
        )
    token = None if no_auth else check_token(token or os.environ.get(TOKEN_VARIABLE), host)
    uri = absolute(fspath(model))  # replicas run elsewhere
    keys = [*overrides, "--data.uri", absolute(fspath(graph))]
    # Reports what is wrong here, and leaves the graph in the cache, where replicas map it.
    opened = partial(load, uri, keys, task=task, allow_modules=tuple(allow_modules))
    opened_graph = opened().open(as_of=as_of)
    log = None if follow is None else absolute(fspath(follow))
    events = None if log is None else _intake(opened_graph, log, precomputed=precomputed)
    recorder = None if record is None else Recorder(fspath(record))
    listening = listen(host, port)
    try:
        connect()
        make = partial(_answers, opened, precomputed, as_of, columns, log, record is not None)
        replicas = Replicas(make, replica_options)
    except BaseException:
        listening.close()
        if events is not None:
            events.stop()
        raise
    checks_host = token is None and is_loopback(host)
    app = build_app(
        replicas.ask,
        replicas.check_alive,
        token,
        checks_host=checks_host,
        events=events,
        recorder=recorder,
    )
    web_server = WebServer(app, listening)

    def stop() -> None:
        web_server.stop()
        if events is not None:
            events.stop()
        replicas.stop()
        if recorder is not None:
            recorder.close()

    shown = f"[{host}]" if ":" in host else host
    return Server(f"http://{shown}:{port}", stop, replicas.wait_until_gone)


def check_token(token: str | None, host: str) -> str | None:
    """Checks that clients on other machines need a token that cannot be guessed.

    Raises:
        ConfigError: the token is missing, too short, or not allowed in a header.
    """
    from raygnn.serving.web_server import is_loopback

    if token is None:
        if not is_loopback(host):
            raise ConfigError(
                f"--host={host!r} is invalid: other machines reach it, and there is no token. Set "
                f"{TOKEN_VARIABLE}, or --no-auth if a proxy or firewall checks clients.",
                id="serve-no-token",
            )
        return None
    if len(token) < _MIN_TOKEN_LENGTH or not all(33 <= ord(letter) <= 126 for letter in token):
        raise ConfigError(
            f"the token is invalid: it must have at least {_MIN_TOKEN_LENGTH} letters, digits or "
            "ASCII signs, and no spaces. Make one with `openssl rand -hex 32`.",
            id="serve-token",
        )
    return token


def _answers(
    opened: Callable[[], TrainedModel],
    precomputed: bool,
    as_of: str | int | float | None,
    columns: Sequence[str],
    log: str | None,
    is_alone: bool,
) -> Answers:
    from raygnn.serving.answers import Answers

    with printing(lambda event: None):  # `start` has reported the graph
        how: dict[str, Any] = {"precomputed": precomputed, "as_of": as_of, "columns": columns}
        answers = Answers(opened(), **how, follow=log, is_alone=is_alone)
    answers.follow()
    return answers


def _intake(graph: OpenGraph, log: str, *, precomputed: bool) -> EventIntake:
    from raygnn.data.event_log import EventLog
    from raygnn.inference.logged_rows import LoggedRows
    from raygnn.serving.answers import check_can_follow
    from raygnn.serving.event_intake import EventIntake

    check_can_follow(graph.saved.spec, precomputed=precomputed)
    return EventIntake(LoggedRows.of(graph), EventLog.create(log))


def main(argv: Sequence[str] | None = None) -> int:
    options, remaining = build_parser().parse_known_args(argv)
    return exit_status_of(lambda: _run(options, remaining), interrupted="the server is stopped")


def _run(options: argparse.Namespace, remaining: Sequence[str]) -> None:
    check_model_argument(remaining, _USAGE)
    if options.graph is None:
        raise ConfigError(
            "--graph is missing. Name the folder or URI of a graph.", id="serve-graph-missing"
        )
    chosen = vars(options)
    with start(remaining[0], chosen.pop("graph"), remaining[1:], **chosen) as server:
        say(f"serving {remaining[0]} at {server.url} (all requests: {server.url}/docs)")
        server.wait_until_gone()  # or until a signal


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn serve", _EXAMPLES, usage=_USAGE)
    add = parser.add_argument_group("the server").add_argument
    add("--graph", metavar="URI", help="graph to answer for, any fsspec URI")
    add("--host", default="127.0.0.1", help="default: 127.0.0.1; 0.0.0.0 serves other machines")
    add("--port", type=int, default=8000, help="default: 8000")
    add("--token", help=f"token that clients must send; better in {TOKEN_VARIABLE}")
    add("--no-auth", action="store_true", help="accept all clients, including other machines")
    number: dict[str, Any] = {"metavar": "N"}
    text = "processes with the model (default: 1)"
    add("--replicas", dest="num_replicas", type=int, default=1, help=text, **number)
    text = "CPUs of each replica (default: 1)"
    add("--cpus", dest="num_cpus", type=float, default=1.0, help=text, **number)
    text = "requests that may wait; more get status 429 (default: 200)"
    add("--max-queued", type=int, default=200, help=text, **number)
    add = parser.add_argument_group("answers").add_argument
    add("--task", metavar="NAME", help="task of a model with several tasks")
    add(
        "--columns",
        nargs="+",
        default=(),
        metavar="NAME",
        help="columns of node tables that top_k may return, such as a title",
    )
    text = "event log whose rows are part of the graph, and that POST /events appends to"
    add("--follow", metavar="LOG", help=text)
    add("--record", metavar="FILE", help="append answers to a file for raygnn replay")
    add("--precomputed", action="store_true", help="encode all nodes at the start, exactly")
    add_as_of(add)
    add_allow_module(parser)
    return parser


if __name__ == "__main__":
    exit_process(main)
