"""A file of answers has whole lines, whatever happens to its server or its disk."""

from __future__ import annotations

import io
from pathlib import Path

from raygnn.serving.messages import AnsweredRows, Predict, Version
from raygnn.serving.records import Recorder, read_records


class _FullDisk(io.FileIO):
    def write(self, line: bytes) -> int:  # type: ignore[override]
        return super().write(line[: len(line) // 2])


def _record(recorder: Recorder, node: int) -> None:
    answer = AnsweredRows([{"id": node}], version=Version("model", "graph"))
    recorder.record_question(Predict(nodes=[node]), answer)


def test_answers_that_are_not_written_whole_are_left_out(tmp_path: Path, caplog):
    path = str(tmp_path / "answers.jsonl")
    recorder = Recorder(path)
    _record(recorder, 1)
    whole, recorder._file = recorder._file, _FullDisk(path, "a+b")
    _record(recorder, 2)
    assert "No space left on device" in caplog.text
    recorder.close()
    recorder._file = whole
    _record(recorder, 3)
    recorder.close()
    with open(path, "ab") as file:  # killed
        file.write(b"x" * 100_000)
    assert len(list(read_records(path))) == 2
    recorder = Recorder(path)
    _record(recorder, 4)
    recorder.close()
    assert [record.rows[0]["id"] for record in read_records(path)] == [1, 3, 4]
    Recorder(str(tmp_path / "empty")).close()
