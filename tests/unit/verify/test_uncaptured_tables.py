"""What `verify` reports for tables whose changes are not captured."""

from __future__ import annotations

from typing import Any

import pytest

from icestream.sources.postgres_cdc import PostgresCdcOptions
from icestream.sources.postgres_cdc.tables import PgTable, Relation
from icestream.verify.postgres_side import PostgresSide

READ_WHOLE = "its changes are not captured; it is as the pipeline last read it"
REFRESHED = {"name": "rates", "sync_mode": "full_refresh"}


@pytest.mark.parametrize(
    ("extra", "caveat"),
    [
        ({}, ""),
        ({"snapshot": "only"}, READ_WHOLE),
        ({"streams": [REFRESHED]}, READ_WHOLE),
        ({"streams": [REFRESHED, {"name": "orders"}]}, READ_WHOLE),
    ],
)
def test_table_without_captured_changes_may_differ(extra: dict[str, Any], caveat: str) -> None:
    config = {"host": "h", "database": "d", "user": "u", **extra}
    options = PostgresCdcOptions.model_validate(config)
    mode = options.mode_of("public", "rates")
    assert mode is not None
    table = PgTable(Relation(1, "public", "rates", "d", ()), "public.rates", (), (), 0, mode)

    assert PostgresSide(options)._describe(table).caveat == caveat
