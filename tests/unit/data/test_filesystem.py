from __future__ import annotations

import os
from pathlib import Path

import pytest

from raygnn.data.filesystem import is_remote, join, open_fs, read_text, redact, write_text
from raygnn.errors import DataError


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


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        read_text(tmp_path / "none")


def test_unknown_scheme_is_named() -> None:
    with pytest.raises(DataError, match=r"uri='nope://\*\*\*@a' is invalid: Protocol not known"):
        open_fs("nope://user:pw@a")
