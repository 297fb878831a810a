"""Names and forms of secrets, and that no value of a random config reaches what is written."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from raygnn.config import Config, ConfigError, load_config
from raygnn.config.registry import SLOTS
from raygnn.config.section import sections_in
from raygnn.outputs.loggers import flat_config
from raygnn.redaction import is_secret_name, redact, redact_text

SECRET = "hunter2-very-secret"

_NAMES = [
    "password", "passwd", "pwd", "pass", "passphrase", "db_password", "dbPassword",
    "PGPASSWORD", "MYSQL_PWD", "userpassword", "secret", "client_secret", "clientSecret",
    "secretAccessKey", "AWS_SECRET_ACCESS_KEY", "aws_access_key_id", "api_key", "apiKey",
    "x-api-key", "apikey", "API-Key", "token", "access_token", "accessToken", "refreshToken",
    "id_token", "authToken", "HF_TOKEN", "GITHUB_TOKEN", "aws_session_token", "bearer",
    "authorization", "Authorization", "proxy-authorization", "auth", "basic_auth", "cookie",
    "Set-Cookie", "session_id", "sessionid", "private_key", "privateKey", "ssh_key",
    "signing_key", "signingKey", "encryption_key", "master_key", "account_key", "AccountKey",
    "storage_key", "SharedAccessKey", "sas", "connection_string", "connectionString",
    "conn_str", "dsn", "SENTRY_DSN", "webhook_url", "slackWebhook", "jwt", "otp",
    "credentials", "creds", "license_key", "github_pat", "hmac_key", "service_account_key",
    "service_account_key_json", "APP__DB__PASSWORD", "csrf_token",
]  # fmt: skip

_READABLE = [
    "tokenizer", "max_tokens", "num_tokens", "max_token_length", "token_dim",
    "max_labels_per_anchor", "key", "keys", "primary_key", "foreign_key", "public_key",
    "feature_key", "sort_key", "monitor", "author", "authors", "passes", "compass", "bypass",
    "first_pass_through", "hidden_channels", "label", "feature", "signature", "design",
    "secretary", "keyboard", "monkey", "path", "tokenization",
]  # fmt: skip


@pytest.mark.parametrize("name", _NAMES)
def test_usual_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)
    assert is_secret_name(f"loggers.0.args.{name}")
    assert redact({name: SECRET}) == {name: "***"}
    assert redact({"name": name, "value": SECRET})["value"] == "***"
    assert redact([f"--{name}", SECRET, "x"]) == [f"--{name}", "***", "x"]
    for text in ("{}={} b", "{}: {}", '"{}": "{}"', "{}='{}'", "https://h/x?a=1&{}={}&c=2"):
        assert SECRET not in redact_text(text.format(name, SECRET))


@pytest.mark.parametrize("name", _READABLE)
def test_names_that_stay_readable(name: str) -> None:
    assert not is_secret_name(name)
    assert redact({name: "x"}) == {name: "x"}
    assert redact_text(f"{name}=x") == f"{name}=x"


def _keys(section: Any) -> set[str]:
    inner = [s for field in section.model_fields.values() for s in sections_in(field.annotation)]
    return set(section.model_fields).union(*(_keys(s) for s in inner))


def test_keys_of_the_config_and_injected_arguments_stay_readable() -> None:
    names = _keys(Config) | {name for slot in SLOTS.values() for name in slot.injected}
    assert [name for name in sorted(names) if is_secret_name(name)] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ("curl -H 'authorization: Basic YTpi' x", "curl -H 'authorization: ***' x"),
        ("sent Bearer abcdefgh123", "sent Bearer ***"),
        ("Cookie: a=b; c=d", "Cookie: ***"),
        ('Digest username="me", nonce="n", response="6629fae4" b', "Digest *** b"),
        (
            "a -----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----\nb",
            "a ***\nb",
        ),
        ("cut -----BEGIN PRIVATE KEY-----\nMIIE", "cut ***"),
        ("with ghp_0123456789abcdefghijABCDEFGHIJ012345.", "with ***."),
        ("key AIzaSyA0123456789abcdefghijABCDEFGHIJ012", "key ***"),
        ("curl -u me:hunter2 https://h/x", "curl -u *** https://h/x"),
        ("['curl', '-u', 'me:hunter2']", "['curl', '-u', '***']"),
        ("sort -u a.csv", "sort -u a.csv"),
        ("AccountName=n;AccountKey=ab==;Suffix=x", "AccountName=n;AccountKey=***;Suffix=x"),
        ("https://h/x?pwd=hunter2&b=1", "https://h/x?pwd=***&b=1"),
        ("https://h/x?sig=ab%2Bc", "https://h/x?sig=***"),
        ("https://h/x?X-Amz-Signature=abc", "https://h/x?X-Amz-Signature=***"),
        ("see https://u:p@h/a and ftp://t@h", "see https://***@h/a and ftp://***@h"),
        ("gs://bucket/a@b/c", "gs://bucket/a@b/c"),
        ("me@host", "me@host"),
        ("run --password hunter2 --x 3", "run --password *** --x 3"),
        ("{'url': 'https://h/x?pwd=abc', 'b': 1}", "{'url': 'https://h/x?pwd=***', 'b': 1}"),
        ("['run', '--password', 'a b']", "['run', '--password', '***']"),
        ("{'name': 'API_KEY', 'value': 'a b'}", "{'name': 'API_KEY', 'value': '***'}"),
        ("{'password': 'a b', 'x': 1}", "{'password': '***', 'x': 1}"),
        ("token=${env:HF} b", "token=${env:HF} b"),
        ("Authorization: Bearer ${env:HF}", "Authorization: Bearer ${env:HF}"),
        ("gs://bucket/token/x", "gs://bucket/token/x"),
        ("token://bucket/x", "token://bucket/x"),
        ("token.yaml:3: a is invalid", "token.yaml:3: a is invalid"),
        ("the password is long", "the password is long"),
    ],
)
def test_secrets_by_their_form(text: str, shown: str) -> None:
    assert redact_text(text) == shown
    assert redact_text(shown) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([["Authorization", "x y"]], [["Authorization", "***"]]),
        ([["password", "x"], ["user", "y"]], [["password", "***"], ["user", "y"]]),
        (["-u", "me:hunter2", "x"], ["-u", "***", "x"]),
        ({"Name": "PASSWORD", "Value": "x"}, {"Name": "PASSWORD", "Value": "***"}),
        ({"name": "SEED", "value": "1"}, {"name": "SEED", "value": "1"}),
        (["token", "count"], ["token", "count"]),  # columns of a table
        ({"word__has__token": [3, -1]}, {"word__has__token": [3, -1]}),  # fanouts
        ({"token": 16}, {"token": 16}),  # rows of a node type
        ({"password": 1234}, {"password": "***"}),
        ({"secret": {"a": "b"}}, {"secret": "***"}),
        ({"hf_token": "${env:HF}"}, {"hf_token": "${env:HF}"}),
        ({"token": None, "secret": ""}, {"token": None, "secret": ""}),
        ([1, None, "s3://a:b@c", SecretStr("abc")], [1, None, "s3://***@c", "***"]),
        ({"password": ["a", "b"]}, {"password": "***"}),
        ({"use_token": True}, {"use_token": True}),
    ],
)
def test_secrets_in_lists_and_pairs(value: Any, shown: Any) -> None:
    assert redact(value) == shown


@pytest.mark.parametrize(
    "text",
    [
        "a=" * 100_000,
        "a" * 200_000,
        "a://" * 50_000,
        ":" * 200_000,
        "a='" * 60_000,
        "--a " * 50_000,
        "'" * 200_000,
    ],
)
def test_long_texts_take_linear_time(text: str) -> None:
    start = time.process_time()
    redact_text(text)
    assert time.process_time() - start < 5


def test_a_text_is_cut_at_a_million_characters() -> None:
    shown = redact_text("ab" * 600_000)
    assert shown == "ab" * 500_000 + "... (200,000 more characters)"


_secrets = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=12, max_size=20).map(
    "zq{}".format
)
_forms = st.sampled_from(
    [
        lambda name, secret: {name: secret},
        lambda name, secret: {name: [secret, {"a": secret}]},
        lambda name, secret: {"env": [{"name": name, "value": secret}]},
        lambda name, secret: {"argv": ["run", f"--{name}", secret]},
        lambda name, secret: {"command": f"run --{name}={secret} --x 1"},
        lambda name, secret: {"uri": f"https://u:{secret}@h/x?{name}={secret}&a=1"},
        lambda name, secret: {"header": f"Authorization: Bearer {secret}"},
        lambda name, secret: {"text": f"a=1;{name}={secret};b=2"},
        lambda name, secret: {"text": json.dumps({name: secret})},
    ]
)
_args = st.recursive(
    st.builds(
        lambda form, name, secret: (form(name, secret), secret),
        _forms,
        st.sampled_from(_NAMES),
        _secrets,
    ),
    lambda inner: st.builds(
        lambda key, pair: ({key: [1, pair[0]]}, pair[1]),
        st.sampled_from(["a", "b", "settings"]),
        inner,
    ),
    max_leaves=3,
)


@settings(max_examples=100)
@given(given_args=_args)
def test_no_secret_of_a_random_config_is_written_or_told(
    given_args: tuple[dict[str, Any], str],
) -> None:
    args, secret = given_args
    callback = {"type": "mine.C", "args": args}
    loaded = load_config({"callbacks": [callback]}, allow_modules=["mine"])
    assert loaded.config.callbacks[0].args == args  # type: ignore[union-attr]
    assert secret not in loaded.saved_yaml()  # config.yaml, report.html and trackers are of it
    assert secret not in str(flat_config(loaded.saved))
    assert secret not in repr(loaded)
    assert load_config(loaded.saved_yaml(), allow_modules=["mine"]).saved == loaded.saved
    with pytest.raises(ConfigError) as caught:
        load_config({"callbacks": [{**callback, "kwargs": args}], "seed": args})
    assert secret not in str(caught.value)
