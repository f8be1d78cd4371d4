"""`icestream demo --cdc`: a database is mirrored while it changes, and nothing stays of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.command_line import run_icestream

if TYPE_CHECKING:
    from pathlib import Path


def test_demo_mirrors_a_database_that_changes(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    arguments = ("demo", "--cdc", "--seconds", "2", "--output", "json", "--dir", str(kept))
    ended = run_icestream(*arguments, folder=tmp_path, secs=290)
    assert ended.code == 0, ended.err
    found = ended.document
    assert found["folder"] == str(kept)
    assert all(found["changes"].values())
    assert {report["source"]: report["status"] for report in found["verify"]} == {
        "public.customers": "same",
        "public.orders": "same",
    }
    changes = found["changes"]
    orders = sum(row["orders"] for row in found["query"]["rows"])
    assert orders == 1_000 + changes["inserted"] - changes["deleted"]
    assert any(row["gifts"] for row in found["query"]["rows"])
    again = run_icestream(
        "query", "SELECT count(*) AS n FROM public.orders", "--output", "json", folder=kept
    )
    assert again.document["rows"] == [{"n": orders}]
    assert (kept / "password").stat().st_mode & 0o077 == 0
