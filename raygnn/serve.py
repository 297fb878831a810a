"""Command line and Python entry of serving: `python -m raygnn.serve RUN --graph URI`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, NamedTuple

from raygnn import command_line
from raygnn.console import give_result, printing, say
from raygnn.data.filesystem import absolute, join, redact
from raygnn.errors import ConfigError

if TYPE_CHECKING:
    from raygnn.data.compactions import GrownTables
    from raygnn.serving.answers import Answers
    from raygnn.trained_model import TrainedModel

TOKEN_VARIABLE = "RAYGNN_SERVE_TOKEN"
_MIN_TOKEN_LENGTH = 16

_USAGE = """\
raygnn serve MODEL --graph URI [options] [--section.key value ...]

Answers predictions, embeddings, scores of pairs and top-k neighbors over HTTP until it is stopped.
MODEL is the folder of a finished run or of an exported model; it and the graph may be any fsspec
URI. An alias NAME@ALIAS is followed: the model that it names next replaces this one. The keys of
data, sampling, loader and training are set as in raygnn.infer. The page http://HOST:PORT/docs lists
the requests. See docs/serving.md.
"""
_EXAMPLES = """
raygnn serve runs/papers --graph graph
RAYGNN_SERVE_TOKEN=... raygnn serve runs/shop --graph gs://bucket/graph --host 0.0.0.0
"""


class Served(NamedTuple):
    """A model's folder, and the tables that it answers for."""

    model: str
    tables: GrownTables

    def __str__(self) -> str:
        return f"{redact(self.model)} for {redact(self.tables.uri)}"


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
    shadow: str | PathLike[str] | None = None,
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
        model: folder or URI of a finished run, or of an exported model. An alias, `NAME@ALIAS`, is
            followed: the model that it names next is loaded beside this one, checked on the latest
            requests, and replaces it without a failed request.
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
        shadow: another model, also an alias, that is asked the same. Its answers are appended to
            the file of `record` with the suffix `.shadow`.
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
        from raygnn.serving.event_intake import EventIntake
        from raygnn.serving.records import Recorder
        from raygnn.serving.replacement import CurrentReplicas, Follower
        from raygnn.serving.web_server import WebServer, is_loopback, listen
    except ImportError as error:
        raise ConfigError(
            f"raygnn.serve cannot be used: {str(error).partition('. ')[0]}. Run `pip install -e "
            "'.[serve]'` in raygnn's folder. [serve-extra-missing]"
        ) from error
    from raygnn.data.compactions import log_after, newest_tables
    from raygnn.inference.logged_rows import LoggedRows
    from raygnn.outputs.model_registry import find_alias, resolved
    from raygnn.runtime.connection import connect
    from raygnn.serving.answers import check_can_follow
    from raygnn.serving.compaction import overrides_of
    from raygnn.trained_model import load

    replica_options = ReplicaOptions(**options)
    replica_options.check()
    if not 1 <= port <= 65_535:
        raise ConfigError(
            f"--port={port!r} is invalid: it must be from 1 to 65535. Leave it out. [serve-option]"
        )
    token = None if no_auth else check_token(token or os.environ.get(TOKEN_VARIABLE), host)
    alias = find_alias(fspath(model))
    uris = absolute(fspath(graph)), None if follow is None else absolute(fspath(follow))
    graph_uri, log = uris  # replicas run elsewhere
    if shadow is not None and record is None:
        rule, shown = "its answers go beside --record", fspath(shadow)
        raise ConfigError.invalid("--shadow", shown, rule, "Set it", id="serve-shadow")

    def wanted() -> Served:
        uri = first.model if alias is None else join(alias[0].uri, alias[0].current(alias[1]))
        return Served(uri, newest_tables(graph_uri, log))

    def opened(served: Served) -> Callable[[], TrainedModel]:
        keys = overrides_of(overrides, graph_uri, log, served.tables.uri)
        return partial(load, served.model, keys, task=task, allow_modules=tuple(allow_modules))

    def started(served: Served, *, are_beside: bool = True) -> Replicas:
        how: dict[str, Any] = {"precomputed": precomputed, "as_of": as_of, "columns": columns}
        how |= {"follow": log, "start": served.tables[1:], "is_alone": record is not None}
        make = partial(_answers, opened(served), how)
        return Replicas(make, replica_options, are_beside=are_beside)

    def started_beside(served: Served) -> tuple[Replicas, Callable[[], None]]:
        def prepare() -> None:
            if events is not None and log is not None:
                graph = opened(served)().open(as_of=as_of)
                rows = LoggedRows.of(graph, served.tables.position)
                events.replace(rows, log_after(log, served.tables))

        if alias is not None:
            alias[0].version_uri(served.model.rpartition("/")[2])  # compares it with its seal
        return started(served), prepare

    first = Served(absolute(resolved(fspath(model))), newest_tables(graph_uri, log))
    with ExitStack() as stack:
        # Reports what is wrong here, and leaves the graph in the cache, where replicas map it.
        opened_graph = opened(first)().open(as_of=as_of)
        events, recorder = None, None
        if record is not None:
            recorder = Recorder(fspath(record))
            stack.callback(recorder.close)
        if log is not None:
            check_can_follow(opened_graph.saved.spec, precomputed=precomputed)
            rows = LoggedRows.of(opened_graph, first.tables.position)
            events = EventIntake(rows, log_after(log, first.tables))
            stack.callback(events.stop)
        listening = listen(host, port)
        stack.callback(listening.close)
        connect()
        current = CurrentReplicas(first, started(first, are_beside=False))
        stack.callback(current.stop)
        if shadow is not None:
            of_shadow = Recorder(f"{fspath(record or '')}.shadow")
            stack.callback(of_shadow.close)
            beside = Served(absolute(resolved(fspath(shadow))), first.tables)
            current.shadow(started(beside), of_shadow.record_question)
        app = build_app(
            current.ask,
            current.check_alive,
            token,
            checks_host=token is None and is_loopback(host),
            events=events,
            recorder=recorder,
        )
        stack.callback(WebServer(app, listening).stop)
        if alias is not None or log is not None:
            stack.callback(Follower(current, wanted, started_beside).stop)
        stop = stack.pop_all().close
    shown = f"[{host}]" if ":" in host else host
    return Server(f"http://{shown}:{port}", stop, current.wait_until_gone)


def check_token(token: str | None, host: str) -> str | None:
    """Checks that clients on other machines need a token that cannot be guessed.

    Raises:
        ConfigError: the token is missing, too short, or not allowed in a header.
    """
    from raygnn.serving.web_server import is_loopback

    if token is None:
        if not is_loopback(host):
            raise ConfigError(
                f"--host={host!r} is invalid: others reach it without a token. Set "
                f"{TOKEN_VARIABLE} or --no-auth. [serve-no-token]"
            )
        return None
    if len(token) < _MIN_TOKEN_LENGTH or not all(33 <= ord(letter) <= 126 for letter in token):
        raise ConfigError(
            f"the token is invalid: it must have at least {_MIN_TOKEN_LENGTH} letters, digits or "
            "ASCII signs, and no spaces. Make one with `openssl rand -hex 32`. [serve-token]"
        )
    return token


def _answers(opened: Callable[[], TrainedModel], how: Mapping[str, Any]) -> Answers:
    from raygnn.serving.answers import Answers

    with printing(lambda event: None):  # `start` has reported the graph
        answers = Answers(opened(), **how)
    answers.follow()
    return answers


def _run(options: argparse.Namespace, remaining: Sequence[str]) -> None:
    command_line.check_model_argument(remaining, _USAGE)
    if options.graph is None:
        raise ConfigError(
            "--graph is missing. Name the folder or URI of a graph. [serve-graph-missing]"
        )
    chosen = vars(options)
    with start(remaining[0], chosen.pop("graph"), remaining[1:], **chosen) as server:
        text = f"serving {remaining[0]} at {server.url} (all requests: {server.url}/docs)"
        say(text, "serving", url=server.url)
        give_result(url=server.url)
        server.wait_until_gone()  # or until a signal


def build_parser() -> argparse.ArgumentParser:
    parser = command_line.command_parser("raygnn serve", _EXAMPLES, usage=_USAGE)
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
    add("--shadow", metavar="MODEL", help="ask another model too; answers go to FILE.shadow")
    add("--precomputed", action="store_true", help="encode all nodes at the start, exactly")
    command_line.add_as_of(add)
    command_line.add_allow_module(parser)
    return parser


main = command_line.command(_run, build_parser, interrupted="the server is stopped")

if __name__ == "__main__":
    command_line.exit_process(main)
