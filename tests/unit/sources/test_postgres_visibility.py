from __future__ import annotations

import numpy as np
import pytest

from icestream.sources.postgres_cdc.pgoutput import Visibility, is_visible

ROUND = 2**32


@pytest.mark.parametrize(
    ("xid", "snapshot", "visible"),
    [
        (740, "741:750:743,746", True),
        (741, "741:750:743,746", True),
        (743, "741:750:743,746", False),
        (746, "741:750:743,746", False),
        (749, "741:750:743,746", True),
        (750, "741:750:743,746", False),
        (751, "741:750:743,746", False),
        (749, "750:750:", True),
        (750, "750:750:", False),
        # After the counter came round: ids near its top are older.
        (ROUND - 6, f"{ROUND + 5}:{ROUND + 9}:", True),
        (8, f"{ROUND + 5}:{ROUND + 9}:{ROUND + 7}", True),
        (7, f"{ROUND + 5}:{ROUND + 9}:{ROUND + 7}", False),
        (9, f"{ROUND + 5}:{ROUND + 9}:", False),
        # Before it comes round: small ids are newer.
        (3, f"{ROUND - 5}:{ROUND - 2}:", False),
        (ROUND - 3, f"{ROUND - 5}:{ROUND - 2}:", True),
        # A snapshot on both sides.
        (ROUND - 1, f"{ROUND - 2}:{ROUND + 4}:{ROUND - 1},{ROUND + 1}", False),
        (1, f"{ROUND - 2}:{ROUND + 4}:{ROUND - 1},{ROUND + 1}", False),
        (ROUND - 2, f"{ROUND - 2}:{ROUND + 4}:{ROUND - 1},{ROUND + 1}", True),
        (3, f"{3 * ROUND + 4}:{3 * ROUND + 4}:", True),
    ],
)
def test_snapshot_sees_ended_transactions(xid: int, snapshot: str, visible: bool) -> None:
    assert is_visible(xid, snapshot) is visible


def test_many_transactions_are_looked_up_at_once() -> None:
    seen = Visibility.parse("5:9:7").sees(np.array([4, 5, 7, 8, 9], np.int64))

    assert seen.tolist() == [True, True, False, True, False]
