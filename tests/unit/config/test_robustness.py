"""Whatever a config holds, loading it gives a config or a ConfigError, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.config import Config, ConfigError, LoadedConfig, load_config
from raygnn.config.section import Section, sections_in
from tests.errors import raises


def _keys(section: type[Section]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield name
        for inner in sections_in(field.annotation):
            yield from _keys(inner)


_KEYS = sorted(set(_keys(Config)))
_ODD = ["__type", "__value_type", "value", "hash", "a__b__c", "", "0", "nope", "api_key"]
_WORDS = [
    *["GCN", "torch.nn.Linear", "val/loss", "test/x", "temporal", "hash", "ReduceLROnPlateau"],
    *["${seed}", "${env:HOME}", "${env:NO_SUCH}", "${", "$${", "${model.args}", "", "auto", "str"],
    *["os.system", "best", "2024-01-01", "per_class", "StepLR", "inf", "../x"],
]
_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2**65)
    | st.floats()
    | st.sampled_from(_WORDS)
    | st.text(max_size=3)
)
_trees = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_KEYS + _ODD), inner, max_size=4)
    ),
    max_leaves=12,
)
_top = st.dictionaries(st.sampled_from(sorted(Config.model_fields)), _trees, max_size=5)
_tokens = st.lists(
    st.builds(
        "--{}.{}{}".format,
        st.sampled_from(sorted(Config.model_fields)),
        st.sampled_from([*_KEYS, "0", "args.0", "splits.type"]),
        st.sampled_from(["", "!", "=1", "=null", "=[1]", "={a: 1}", "={", "=${seed}"]),
    )
    | st.text(max_size=6),
    max_size=3,
)


def _load(source: Any, tokens: list[str]) -> LoadedConfig | ConfigError:
    try:
        return load_config(source, tokens)
    except ConfigError as error:
        return error


@settings(max_examples=150)
@given(raw=_top, tokens=_tokens)
def test_a_config_or_an_error_of_ours(raw: dict[str, Any], tokens: list[str]) -> None:
    loaded = _load(raw, tokens)
    if isinstance(loaded, ConfigError):
        assert all(" is invalid: " in problem for problem in loaded.problems)
        return
    assert load_config(loaded.saved_yaml()).saved == loaded.saved
    assert loaded.fingerprint()


def _deep(levels: int) -> dict[str, Any]:
    raw: dict[str, Any] = {}
    for _ in range(levels):
        raw = {"args": raw}
    return raw


_itself: dict[str, Any] = {}
_itself["args"] = _itself


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (_deep(1_500), ("document-depth", 64)),
        (_itself, ("document-depth", 64)),
        ({"seed": 10**5_000}, ("document-number-range", "a number")),
        ({"job_name": "\ud800"}, ("document-character",)),
        ({"model": {"type": "GCN", "args": {1: 2}}}, ("config-key-not-text", "model.args.1")),
        ("sampling: {fanouts: [1180591620717411303424]}", ("document-number-range", "line 1")),
        ("sampling: {fanouts: [1e30]}", ("config-type", "sampling.fanouts.0=1e+30", "a whole")),
        (
            "model: {type: GCN, args: {k: {__value_type: int, value: .inf}}}",
            ("component-value", "model.args.k.value=inf", "int"),
        ),
        ("loader: [1]\ndata: 2020-13-45", ("config-type", "loader=")),
    ],
)
def test_values_that_nothing_can_hold(raw: Any, rule: str) -> None:
    with raises(*rule):
        load_config(raw)
