"""One cache of several users: it serves them, or the message names data.cache_dir."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.tables.graph_tables import write_tables
from raygnn.errors import RaygnnError
from raygnn.prepare.synthetic import synthetic_tables

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for other users")

ANNE, BOB = 60_001, 60_002
GROUP = 60_000


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that all users can walk through; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="raygnn-shared-"))
    folder.chmod(0o755)
    tables = synthetic_tables("planted_partition", num_nodes=30, num_classes=2, seed=0)
    write_tables(tables, str(folder / "graph"), 1)
    yield folder
    shutil.rmtree(folder)


def _use(place: Path, user: int, umask: int = 0o022, undirected: bool = False) -> str:
    """Opens the graph as a user; gives the error message."""
    _open(place, place / "of-root", undirected)  # imports and compiles; other users may not
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of threads, none of which is needed
        child = os.fork()
    if child == 0:
        told = "nothing: it died"
        try:
            os.setgroups([GROUP])
            os.setgid(GROUP)
            os.setuid(user)
            os.umask(umask)
            _open(place, place / "cache", undirected)
            told = ""
        except RaygnnError as error:
            told = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 (the parent fails with it)
            told = traceback.format_exc()
        finally:
            os.write(writing, told.encode()[:4096])
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        message = pipe.read()
    os.waitpid(child, 0)
    return message


def _open(place: Path, cache: Path, undirected: bool) -> None:
    bundle = ingest(place / "graph", IngestOptions(undirected=undirected), cache)
    bundle.csr(bundle.edge_types[0])


def _make_cache(place: Path, mode: int) -> None:
    (place / "cache").mkdir()
    os.chown(place / "cache", ANNE, GROUP)
    (place / "cache").chmod(mode)


def test_a_group_shares_a_cache(place: Path) -> None:
    _make_cache(place, 0o2775)
    assert _use(place, ANNE, 0o002) == ""
    assert _use(place, BOB, 0o002) == ""
    assert _use(place, BOB, 0o002, undirected=True) == ""  # a bundle of his own
    assert _use(place, ANNE, 0o002, undirected=True) == ""


def test_what_is_there_serves_those_who_may_only_read(place: Path) -> None:
    _make_cache(place, 0o755)
    assert _use(place, ANNE) == ""
    assert _use(place, BOB) == ""
    message = _use(place, BOB, undirected=True)
    assert message.startswith("ResourceError: data.cache_dir: ")


@pytest.mark.parametrize("mode", [0o1777, 0o2770])
def test_a_cache_that_others_may_not_read_is_named(place: Path, mode: int) -> None:
    """By a umask, also where the folder is sticky as /tmp is."""
    _make_cache(place, mode)
    assert _use(place, ANNE, 0o077) == ""
    message = _use(place, BOB, 0o077)
    assert message.startswith("ResourceError: data.cache_dir: ")
    assert "Permission denied" in message
