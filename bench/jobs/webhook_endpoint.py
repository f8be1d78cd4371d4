"""Listens until it is stopped, and writes its port to a file.

A script: webhook_endpoint.py FOLDER durable|fleeting
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from icestream.sources.webhook import WebhookOptions
from icestream.sources.webhook.server import WebhookServer


def main() -> None:
    folder, durability = Path(sys.argv[1]), sys.argv[2]
    options = WebhookOptions.model_validate(
        {"port": 0, "path": "/events", "spool": str(folder / "spool")}
    )
    endpoint = WebhookServer(options, durable=durability == "durable")
    port_file = folder / "port.new"
    port_file.write_text(str(endpoint.port))
    port_file.replace(folder / "port")
    threading.Event().wait()


if __name__ == "__main__":
    main()
