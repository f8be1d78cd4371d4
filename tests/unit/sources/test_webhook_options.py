from __future__ import annotations

from typing import Any

import pytest

from icestream.sources.webhook import WebhookOptions, WebhookSource


def options(**given: Any) -> WebhookOptions:
    return WebhookOptions.model_validate({"port": 8480, **given})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_authentication(host: str) -> None:
    assert options(host=host).auth is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "hooks.example.com"])  # noqa: S104
@pytest.mark.parametrize("auth", [None, {"type": "none"}])
def test_other_addresses_need_authentication(host: str, auth: dict[str, str] | None) -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        options(host=host, auth=auth)
    assert (
        f"host {host!r} is reachable from other hosts, and anyone could send: add `auth`, e.g. "
        "`auth: {type: bearer, secrets: ${WEBHOOK_TOKEN}}`"
    ) in str(caught.value)
    assert options(host=host, auth={"type": "bearer", "secrets": "t"}).host == host


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "/a", "streams": {"b": "/b"}}, "needs `path` or `streams`, not both"),
        ({"streams": {"a": "/a", "b": "/a"}}, "two `streams` have the same path"),
        ({"burst": 5}, "`burst` needs `rate_per_sec`"),
        (
            {"max_body_kb": 1025, "max_spool_mb": 4},
            "`max_spool_mb` of 4 is too small for `max_body_kb` of 1025: four such bodies must fit",
        ),
        ({"path": "a"}, "not the path of a URL. Begin it with `/`, e.g. `/events`."),
        ({"remember_days": 3}, "greater than or equal to 4"),
    ],
)
def test_conflicting_options_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        options(**given)
    assert message in str(caught.value)


def test_default_spool_is_named_by_port() -> None:
    assert options().spool == ".icestream/webhook-8480"
    assert options(spool="elsewhere").spool == "elsewhere"


def test_stream_is_a_column_if_there_are_several() -> None:
    several = WebhookSource(options(streams={"orders": "/o", "refunds": "/r"}, include=["number"]))
    extra = several.extra_columns()
    assert extra is not None
    assert extra.names == ["webhook_number", "webhook_stream"]
    assert WebhookSource(options()).extra_columns() is None


def test_columns_are_those_of_schema_and_include() -> None:
    source = WebhookSource(options(schema="id bigint, at timestamp", include=["event_id"]))
    schema = source.schema()
    assert schema is not None
    assert schema.names == ["id", "at", "webhook_event_id"]
    assert source.declares()
    assert WebhookSource(options()).schema() is None


def test_identity_names_port_and_paths() -> None:
    assert WebhookSource(options(streams={"b": "/z", "c": "/a"})).identity() == "webhook 8480 /a,/z"
