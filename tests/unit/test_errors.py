"""Stable ids of errors: in the message, on every error, and on the page that lists them."""

from __future__ import annotations

import pickle
import re
from collections import defaultdict

import pytest

from docs.errors import ERRORS, PAGE, page, sites
from raygnn.data.ingest.decode import GAPS, without_table_remedies
from raygnn.data.ingest.findings import REPAIR
from raygnn.errors import (
    ConfigError,
    DataError,
    PreemptedError,
    Problem,
    RaygnnError,
    TrainingError,
)
from raygnn.parallel.agreement import agreement
from tests.errors import raises


def test_every_error_with_words_of_its_own_has_an_id():
    without = {s.where for s in sites() if s.id is None and re.search(r"\w\w", _words(s.cause))}
    # Lists problems, each with its id; the last line names the page of the format.
    assert without == {"raygnn/config/validation.py:validate_file"}


def _words(template: str) -> str:
    """A template without what it fills in."""
    return re.sub(r"\{[^{}]*\}", "", template)


def test_ids_are_an_area_and_what_is_wrong_there():
    ill_formed = {s.id for s in sites() if s.id and not re.fullmatch(r"[a-z]+(-[a-z0-9]+)+", s.id)}
    assert ill_formed == set()


def test_an_id_has_one_exit_status():
    found = defaultdict(set)
    for site in sites():
        found[site.id].add(site.status)
    del found[None]
    assert {id for id, statuses in found.items() if len(statuses) > 1} == set()


def test_the_committed_page_is_what_the_generator_writes():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m docs.errors"


def test_the_page_shows_causes_and_remedies_without_code():
    lines = page().splitlines()
    (dangling,) = (line for line in lines if "(dangling)" in line and "on_error" in line)
    assert dangling == (
        "| `edges-dangling` | 2 | ids that node type {node_type} does not have (dangling). "
        "| Add the nodes, or set data.on_error=drop to leave these edges out. |"
    )
    assert [line for line in lines if "redact" in line or "!r}" in line] == []


def test_the_message_ends_with_the_id():
    error = DataError("3 edges lead nowhere.", id="edges-dangling")
    assert str(error) == "3 edges lead nowhere. [edges-dangling]"
    assert error.id == "edges-dangling"


def test_user_code_may_raise_without_an_id():
    error = TrainingError("see [1] and [the-paper] for why")
    assert (str(error), error.id, error.ids) == ("see [1] and [the-paper] for why", None, ())


@pytest.mark.parametrize("kind", ERRORS.values(), ids=lambda kind: kind.__name__)
def test_errors_keep_their_id_when_pickled(kind):
    arguments = ("SIGTERM",) if kind is PreemptedError else ()
    error = kind("it is wrong", *arguments, id="area-what")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.id, vars(copy)) == (str(error), "area-what", vars(error))
    assert str(copy).count("[area-what]") == 1


def test_each_problem_of_a_config_ends_with_its_own_id():
    problems = [Problem((key,), "it is wrong", "Correct it", f"config-{key}", "1") for key in "ab"]
    error = ConfigError([*problems, problems[0].text("line 2")])
    assert error.problems[1] == "b=1 is invalid: it is wrong. Correct it. [config-b]"
    assert error.ids == ("config-a", "config-b")


@pytest.mark.parametrize("kind", [ConfigError, DataError])
def test_one_invalid_value_is_named_with_rule_and_remedy(kind):
    error = kind.invalid("a.b", "x" * 200, "it is long", "Shorten it", id="area-what")
    assert str(error) == f"a.b='{'x' * 119}... is invalid: it is long. Shorten it. [area-what]"


def test_what_quotes_its_cause_keeps_the_id_of_the_cause():
    cause = DataError("3 edges lead nowhere.", id="edges-dangling")
    for quoting in (
        RaygnnError(f"In validation: {cause}"),
        RaygnnError(f"In validation: {cause}", id="run-rank-failed"),
    ):
        assert str(quoting) == f"In validation: {cause}"
        assert quoting.ids == ("edges-dangling",)


def test_a_failure_of_one_rank_has_the_id_of_its_cause_on_all_ranks():
    with raises("edges-dangling", "Rank 0", "DataError"), agreement("reading"):
        raise DataError("3 edges lead nowhere.", id="edges-dangling")
    noted = DataError("3 edges lead nowhere.", id="edges-dangling")
    noted.add_note("in on_setup of Mine")
    with raises("edges-dangling", "(in on_setup of Mine)"), agreement("reading"):
        raise noted
    with raises("run-rank-failed", "Rank 0", "ZeroDivisionError"), agreement("reading"):
        raise ZeroDivisionError("division by zero")


def test_no_remedy_for_rows_of_a_request_is_to_drop_them() -> None:
    remedies = {site.remedy for site in sites() if "data.on_error=drop" in site.remedy}
    texts = {text for remedy in remedies for text in remedy.split(" / ")}
    assert {REPAIR, GAPS} < texts
    assert [text for text in texts if "on_error" in without_table_remedies(text)] == []
    assert without_table_remedies(f"x. {REPAIR} [id-a]\ny. {GAPS} [id-b]") == (
        "x. Repair the rows. [id-a]\ny. Give these rows values. [id-b]"
    )
