from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from raygnn.data.filesystem import (
    exists,
    is_below,
    is_remote,
    join,
    open_fs,
    read_text,
    redact,
    write_text,
)
from raygnn.data.storage_retry import MAX_TRIES, is_transient, retried
from tests.errors import raises


def test_join() -> None:
    assert join("a/b", "c", "d") == "a/b/c/d"
    assert join("gs://bucket/", "c") == "gs://bucket/c"
    assert join("a", "gs://bucket/x") == "gs://bucket/x"
    assert join("gs://bucket", "/x") == "/x"


def test_is_remote(tmp_path: Path) -> None:
    assert not is_remote(tmp_path)
    assert not is_remote("a:b/c")
    assert not is_remote("file:///a")
    assert is_remote("memory://a")
    assert is_remote("gs://a/b")


def test_redact_takes_out_credentials() -> None:
    assert redact("s3://key:secret@host/x") == "s3://***@host/x"
    signed = "https://h/x?X-Goog-Signature=abc&a=1&access_token=t"
    assert redact(signed) == "https://h/x?X-Goog-Signature=***&a=1&access_token=***"
    assert redact("https://user:p@ss@host/x?storage_key=1&design=2") == (
        "https://***@host/x?storage_key=***&design=2"
    )
    assert redact("/a/b@c") == "/a/b@c"


@pytest.mark.parametrize("base", ["local", "memory://raygnn-test-text"])
def test_text_reads_back(base: str, tmp_path: Path) -> None:
    uri = join(str(tmp_path) if base == "local" else base, "a", "b.txt")
    write_text(uri, "one")
    write_text(uri, "zwölf\n")
    assert read_text(uri) == "zwölf\n"


def test_write_leaves_no_other_files(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "x")
    assert os.listdir(tmp_path) == ["a"]


def test_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path also with the folder in which it was looked for."""
    with raises("data-file-missing"):
        read_text(tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    with raises("data-file-missing", str(tmp_path)):
        read_text("none")


def test_unknown_scheme_is_named() -> None:
    with raises("data-uri", "nope://***@a"):
        open_fs("nope://user:pw@a")


@pytest.mark.parametrize(
    "uri",
    ["zip://missing", "zip://a::/nowhere.zip", "tar://x", "github://x", "a\0b", "zip://a::FILE"],
)
def test_a_uri_that_no_second_try_opens_is_wrong(uri: str, tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(b"no archive")
    uri = uri.replace("FILE", str(tmp_path / "damaged"))
    for read in (read_text, exists):
        with raises("data-uri"):
            read(uri)


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", "file:///dev/zero"):
        with raises("data-file-irregular"):
            read_text(path)


def test_what_lies_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    folder = str(tmp_path / "a")
    for inside in (folder, f"{folder}/b", f"{tmp_path}/link/b", f"{folder}/../a/b"):
        assert is_below(inside, [folder])
        assert is_below(inside, ["gs://b", f"file://{folder}/"])
    for outside in (
        str(tmp_path),
        f"{folder}b",
        f"{folder}/../b",
        f"gs://{folder}",
        f"{folder}::x",
    ):
        assert not is_below(outside, [folder])
    for inside in ("gs://b/g", "gs://b/g/x", "gs://b//g/x", "gs://b/h/../g/x"):
        assert is_below(inside, ["gs://b/g/"])
    for outside in ("gs://b/gx", "gs://b", "s3://b/g/x", "gs://b/g/%2e%2e/x", "gs://b/g/x::/etc/x"):
        assert not is_below(outside, ["gs://b/g"])
    assert is_below("simplecache::gs://b/g/x", ["simplecache::gs://b/g"])
    assert not is_below("simplecache::gs://b/g/x", ["gs://b/g"])


def test_hdfs_without_java_is_one_short_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(uri: str) -> None:
        raise OSError("Unable to load libjvm\ndlopen(/usr/lib/jvm/libjvm.so) failed\ndlopen(/b)")

    monkeypatch.setattr("fsspec.core.url_to_fs", fail)
    with raises("data-uri", "hdfs://host/a", "Unable to load libjvm. ") as caught:
        open_fs("hdfs://host/a")
    assert "dlopen" not in str(caught.value)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)


def _failing(error: BaseException, times: int) -> tuple[list[int], Callable[..., str]]:
    calls: list[int] = []

    @retried
    def operation() -> str:
        calls.append(len(calls))
        if len(calls) <= times:
            raise error
        return "done"

    return calls, operation


def test_what_fails_twice_succeeds_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    calls, operation = _failing(OSError(errno.EIO, "at s3://key:secret@host/x"), 2)
    with caplog.at_level(logging.WARNING):
        assert operation() == "done"
    assert len(calls) == 3
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("storage failed: OSError: ")
    assert first.endswith("(2 of 6)")
    assert second.endswith("(3 of 6)")
    assert "secret" not in first


def test_what_stays_down_is_raised_with_the_number_of_tries() -> None:
    calls, operation = _failing(TimeoutError("no answer"), 99)
    with pytest.raises(TimeoutError, match="no answer") as caught:
        operation()
    assert len(calls) == MAX_TRIES
    assert caught.value.__notes__[0].startswith(f"tried {MAX_TRIES} times in ")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EROFS, "Read-only file system"),
        FileNotFoundError("x"),
        PermissionError("x"),
        ValueError("x"),
    ],
)
def test_what_cannot_pass_is_raised_at_once(error: Exception) -> None:
    calls, operation = _failing(error, 1)
    with pytest.raises(type(error)):
        operation()
    assert len(calls) == 1


def test_errors_of_store_clients_may_pass() -> None:
    kind = type("HttpError", (Exception,), {"__module__": "gcsfs.retry"})
    assert is_transient(kind("503"))
    assert is_transient(ConnectionResetError())
    assert not is_transient(KeyError("x"))
    assert not is_transient(OSError("Forbidden: https://storage.googleapis.com/not-mine"))
