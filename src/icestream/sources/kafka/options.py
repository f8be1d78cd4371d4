"""Options of the Kafka source, and what they become for librdkafka."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from icestream.contracts.options import NULL_AS_TEXT, Options
from icestream.formats.lookup import FormatName, find_format
from icestream.formats.schema_registry import RegistryOptions
from icestream.sources.kafka.database import DatabaseOptions

_LOADS_CODE = re.compile(
    r"plugin\.library\.paths|ssl\.engine\..*|ssl\.providers|sasl\.kerberos\.kinit\.cmd"
    r"|.*_cb|.*callback.*|.*\.class|interceptor\..*|.*deserializer|.*serializer|opaque"
    r"|sasl\.oauthbearer\.assertion\..*|default\.topic\.config"
)
_RESERVED = frozenset(
    {
        "bootstrap.servers", "metadata.broker.list", "enable.auto.commit", "enable.partition.eof",
        "enable.auto.offset.store", "auto.offset.reset", "isolation.level", "logger", "log_level",
    }
)  # fmt: skip
_JAVA_HINTS = {
    "sasl.jaas.config": "Use `sasl.username` and `sasl.password` instead.",
    "ssl.truststore.location": "Use `ssl.ca.location`, a PEM file, instead.",
    "ssl.truststore.password": "Use `ssl.ca.location`, a PEM file without a password, instead.",
}


def _split_commas(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _as_texts(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {str(name).removeprefix("kafka."): _as_text(text) for name, text in value.items()}


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
ClientOptions = Annotated[dict[str, SecretStr], BeforeValidator(_as_texts)]
Extra = Literal["key", "headers", "timestamp", "topic", "partition", "offset"]


class StartingPoint(Options):
    """Where to start reading: a timestamp, or offsets."""

    timestamp: int | datetime | None = Field(
        None,
        description="Timestamp to start at: ISO 8601 (UTC without a zone) or epoch milliseconds.",
    )
    offsets: dict[str, dict[int, Annotated[int, Field(ge=0)]]] | None = Field(
        None, description="Offset to start at, by topic and partition; others start at earliest."
    )

    @model_validator(mode="after")
    def _refuse_both(self) -> StartingPoint:
        if (self.timestamp is None) == (self.offsets is None):
            raise ValueError("needs either `timestamp` or `offsets`")
        return self

    @property
    def millis(self) -> int | None:
        """The timestamp in epoch milliseconds."""
        if isinstance(self.timestamp, datetime):
            zoned = self.timestamp
            if zoned.tzinfo is None:
                zoned = zoned.replace(tzinfo=timezone.utc)
            return int(zoned.timestamp() * 1000)
        return self.timestamp


class KafkaOptions(Options):
    """Options of `connector: kafka`."""

    brokers: Names = Field(
        min_length=1,
        description="Bootstrap brokers as `host:port`, in a list or separated by commas.",
    )
    topics: Names = Field((), description="Topics to read.")
    topic_pattern: str | None = Field(
        None, description="Regular expression for full topic names, instead of `topics`."
    )
    format: FormatName = Field(
        "json",
        description="How values are encoded. Those of Debezium are changes to many tables.",
    )
    schema_: str | None = Field(
        None,
        alias="schema",
        description="Columns: DDL such as `id bigint, at timestamp`, or the path of a .ddl, .avsc "
        "or .json file. By default, taken from the registry, the table or the first records.",
        json_schema_extra={"path": "if_file"},
    )
    schema_registry: RegistryOptions | None = Field(
        None, description="Schema registry for Avro records."
    )
    unavailable_value: str = Field(
        "__debezium_unavailable_value",
        description="What Debezium writes for an unchanged large value: its setting "
        "`unavailable.value.placeholder`.",
    )
    unrepresentable: Annotated[Literal["fail", "null"], NULL_AS_TEXT] = Field(
        "fail",
        description="What to do with a Debezium value that the Iceberg type cannot hold, such as "
        "a date outside the years 1 to 9999 or PostgreSQL's `infinity`: `fail` treats it as a "
        "bad record (see `on_error`), `null` stores a null and logs the count.",
    )
    database: DatabaseOptions | None = Field(
        None,
        description="The database that Debezium captures, for `icestream verify` to compare its "
        "tables with; `run` does not connect to it.",
    )
    starting: Literal["earliest", "latest"] | StartingPoint = Field(
        "earliest",
        description="Where to start when the pipeline has no checkpoint yet: `earliest`, `latest`, "
        "`{timestamp: ...}` or `{offsets: {topic: {partition: offset}}}`.",
    )
    include: tuple[Extra, ...] = Field(
        (), description="Record metadata to add as columns `kafka_key`, `kafka_headers`, ..."
    )
    max_batch_mb: int = Field(
        1024,
        ge=1,
        description="Approximate maximum size of a batch in MiB, in addition to the sink's "
        "`max_batch_rows`. Record sizes are estimated from samples.",
    )
    options: ClientOptions = Field(
        default_factory=dict,
        description="librdkafka settings, such as `security.protocol` or `sasl.username`.",
    )

    @model_validator(mode="after")
    def _check_combinations(self) -> KafkaOptions:
        if any("@" in broker for broker in self.brokers):
            raise ValueError(
                "`brokers` contains a user or a password, and broker addresses are logged; use "
                "`sasl.username` and `sasl.password` under `options` instead"
            )
        if self.topics and self.topic_pattern is not None:
            raise ValueError("`topics` and `topic_pattern` are mutually exclusive\nRemove one.")
        if not self.topics and self.topic_pattern is None:
            raise ValueError(
                "names no topics\nAdd `topics`, e.g. `topics: [orders]`, or `topic_pattern`."
            )
        if self.topic_pattern is not None:
            try:
                re.compile(self.topic_pattern)
            except re.error as exc:
                raise ValueError(f"topic_pattern is not a regular expression: {exc}") from None
        self._fits_format()
        for name in self.options:
            _refuse_setting(name)
        return self

    def _fits_format(self) -> None:
        chosen = find_format(self.format)
        missing = chosen.missing_option(
            schema=self.schema_ is not None, registry=self.schema_registry is not None
        )
        if missing is not None:
            raise ValueError(f"format {self.format!r} needs {missing}")
        if not chosen.gives_changes:
            if self.database is not None:
                raise ValueError(
                    f"`database` is for Debezium's formats, and the format is {self.format!r}: "
                    "remove `database`"
                )
            return
        for name, is_given in (("schema", self.schema_ is not None), ("include", self.include)):
            if is_given:
                raise ValueError(f"format {self.format!r} has its own columns: remove `{name}`")

    def client_settings(self) -> dict[str, Any]:
        """Return librdkafka's settings with secrets in plain text: never log or show them."""
        settings = {name: value.get_secret_value() for name, value in self.options.items()}
        return {
            "client.id": "icestream",
            # A dead address should fail while a person still waits.
            "socket.connection.setup.timeout.ms": 5000,
            **settings,
            "bootstrap.servers": ",".join(self.brokers),
        }


def _refuse_setting(name: str) -> None:
    hint = _JAVA_HINTS.get(name)
    if hint is not None:
        raise ValueError(f"option {name!r} is for Java clients. {hint}")
    if name in _RESERVED:
        raise ValueError(f"option {name!r} is set by icestream itself")
    if _LOADS_CODE.fullmatch(name):
        raise ValueError(f"option {name!r} loads code or runs a command, and is not allowed")
