"""Events posted over HTTP, kept in a spool until they are in the table."""

from icestream.sources.webhook.options import WebhookOptions
from icestream.sources.webhook.source import WebhookSource

__all__ = ["WebhookOptions", "WebhookSource"]
