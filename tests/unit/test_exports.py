"""What `import icestream` offers: every source, loaded when it is first used."""

from __future__ import annotations

import subprocess
import sys

import icestream
from icestream.contracts import registry


def test_every_public_name_exists() -> None:
    assert sorted(icestream.__all__) == icestream.__all__
    assert all(getattr(icestream, name).__name__ == name for name in icestream.__all__)


def test_every_built_in_source_is_public_with_its_options() -> None:
    ours = [name for name in registry.names("sources") if registry.is_ours("sources", name)]
    assert ours

    for name in ours:
        source = registry.find("sources", name)

        assert {source.__name__, source.options_type.__name__} <= set(icestream.__all__)
        assert getattr(icestream, source.__name__) is source
        assert getattr(icestream, source.options_type.__name__) is source.options_type


def test_import_loads_no_package_of_an_extra() -> None:
    extras = {"confluent_kafka", "fastavro", "httptools", "psycopg", "uvicorn"}
    script = f"import sys, icestream\nprint(*sorted({extras!r} & sys.modules.keys()))"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == ""
