"""`icestream init kafka://...`: samples topics, and writes the file that reads them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icestream.cli.init import YAML_KEYWORDS, printable, yaml_scalar
from icestream.cli.output import format_count
from icestream.errors import PlanError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


SCHEME = "kafka://"
DEFAULT_PORT = 9092
NAMESPACE = "kafka"
REGISTRY = "${SCHEMA_REGISTRY_URL:-http://localhost:8081}"
MAX_SAMPLE = 200
MAX_LISTED = 60
MAX_TYPE_LENGTH = 100


@dataclass(frozen=True)
class TopicsAddress:
    """The parts of a Kafka URL."""

    brokers: tuple[str, ...]
    topics: tuple[str, ...]


@dataclass(frozen=True)
class TopicSample:
    """What a sample of a topic's records shows.

    Attributes:
        topic: the topic.
        format: the format that its records seem to have.
        records: how many records were sampled.
        columns: the columns of `json` records.
        notes: what the user should know about the guess.
    """

    topic: str
    format: str = "json"
    records: int = 0
    columns: pa.Schema | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_mirrored(self) -> bool:
        """Whether the records are changes to tables, which have their own names."""
        return self.format.startswith("debezium-")


def parse_address(text: str) -> TopicsAddress:
    """Parse `kafka://broker:9092,broker2:9092/topic,topic2`; the port defaults to 9092.

    Raises:
        PlanError: the URL is invalid. The message does not contain a password.
    """
    brokers, _, path = text.removeprefix(SCHEME).partition("/")
    if "@" in brokers:
        raise _invalid_address(
            "it contains a user or a password",
            "Leave them out, and set `sasl.username` and `sasl.password` under `options` in the "
            "file: broker addresses are logged.",
        )
    if "?" in text or "#" in text:
        raise _invalid_address("it has parameters", "Set them under `options` in the file.")
    addresses = tuple(_broker(part.strip()) for part in brokers.split(","))
    topics = tuple(dict.fromkeys(part.strip() for part in path.strip("/").split(",") if part))
    for topic in topics:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic):
            raise _invalid_address(f"{topic!r} is not the name of a topic")
    return TopicsAddress(addresses, topics)


def _broker(text: str) -> str:
    host, _, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not host:
        host, port = text, ""
    if not host or not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host):
        raise _invalid_address("invalid host or port" if host else "the broker is missing")
    if port and not (port.isdecimal() and 0 < int(port) < 65_536):
        raise _invalid_address("invalid host or port")
    return f"{host}:{port or DEFAULT_PORT}"


def _invalid_address(
    why: str, todo: str = "Use e.g. `kafka://host:9092/topic`, with commas between several."
) -> PlanError:
    return PlanError(f"invalid Kafka URL: {why}", where="init", todo=todo)


def sample_topics(address: TopicsAddress) -> list[TopicSample]:
    """Read the first records of each topic, and guess their format.

    Raises:
        PlanError: the URL names no topic, or one that does not exist.
        DependencyError: the Kafka client is not installed.
        UnreachableError: no broker answers.
    """
    from icestream.contracts import registry

    source_type = registry.find("sources", "kafka")
    _require_topics(address)
    samples = []
    for topic in address.topics:
        options = source_type.options_type(brokers=address.brokers, topics=(topic,), format="bytes")
        source = source_type(options)
        try:
            samples.append(guess_format(topic, _first_records(source)))
        finally:
            source.close()
    return samples


def _require_topics(address: TopicsAddress) -> None:
    from icestream.contracts.registry import did_you_mean
    from icestream.sources.kafka.cluster import Cluster
    from icestream.sources.kafka.options import KafkaOptions

    brokers = ",".join(address.brokers)
    try:
        names = Cluster(KafkaOptions(brokers=address.brokers, topic_pattern=".*")).topic_names()
    except UnreachableError as exc:
        raise UnreachableError(
            f"no answer from {brokers}",
            where="init",
            todo="Check that a broker listens there, and that no firewall is in between. Brokers "
            "that need TLS or a password\nare not sampled: write the file with `icestream init`, "
            "and set `options` of the source.",
        ) from exc
    more = len(names) - MAX_LISTED
    listed = ", ".join([*names[:MAX_LISTED], *([f"and {more} more"] if more > 0 else [])])
    there_are = f"Topics of {brokers}: {listed or 'none'}."
    if not address.topics:
        raise PlanError(
            "the URL names no topic",
            where="init",
            todo=f"Write `{SCHEME}{brokers}/TOPIC`. {there_are}",
        )
    for topic in address.topics:
        if topic not in names:
            raise PlanError(
                f"no topic is called {topic!r}",
                where="init",
                todo=f"{did_you_mean(topic, names)}{there_are}",
            )


def _first_records(source: Any) -> list[bytes]:
    """Return the values of the first records of a topic, without tombstones."""
    start = source.initial()
    end = source.limit(start, source.latest(start), MAX_SAMPLE)
    return [
        value
        for split in source.splits(start, end, 1)
        for block in source.read(split)
        for value in block.values.to_pylist()
        if value is not None
    ]


def guess_format(topic: str, values: Sequence[bytes]) -> TopicSample:
    """Return what the values of a topic seem to be."""
    from icestream.formats.json import JsonDecoder

    if not values:
        note = f"topic {topic!r} has no records yet, so its format is a guess"
        return TopicSample(topic, notes=(note,))
    records = [record for record in map(_parse, values) if record is not None]
    if 2 * len(records) <= len(values):
        return _not_json(topic, values)
    if sum(map(_is_change, records)) * 2 > len(records):
        return TopicSample(topic, "debezium-json", len(values))
    bad = len(values) - len(records)
    notes = (f"topic {topic!r}: {bad} of {len(values)} records are not JSON objects",)
    columns = JsonDecoder().infer(values)
    return TopicSample(topic, "json", len(values), columns, notes if bad else ())


def _parse(value: bytes) -> dict[str, Any] | None:
    from icestream.formats.blocks import BadValueError
    from icestream.formats.json import parse_object

    try:
        return parse_object(value)
    except BadValueError:
        return None


def _is_change(record: dict[str, Any]) -> bool:
    """Tell whether a record is a change event of Debezium, with or without its schema."""
    from icestream.formats.debezium.schemaless_json import is_envelope

    payload = record.get("payload")
    return is_envelope(payload if "schema" in record and isinstance(payload, dict) else record)


def _not_json(topic: str, values: Sequence[bytes]) -> TopicSample:
    if all(value[:1] == b"\0" and len(value) > 5 for value in values):
        note = (
            f"topic {topic!r} has records of a schema registry: set the address of the registry in "
            "`schema_registry`, and `format: debezium-avro` if Debezium writes them"
        )
        return TopicSample(topic, "avro", len(values), notes=(note,))
    try:
        for value in values:
            value.decode()
    except UnicodeDecodeError:
        note = f"topic {topic!r} has neither JSON nor text, so its records are kept as bytes"
        return TopicSample(topic, "bytes", len(values), notes=(note,))
    note = f"topic {topic!r} has no JSON objects, so its records are kept as text"
    return TopicSample(topic, "string", len(values), notes=(note,))


def topics_config(address: TopicsAddress, samples: Sequence[TopicSample], schema_name: str) -> str:
    """Return a configuration file that reads the topics into the embedded lake."""
    mirrored = [sample for sample in samples if sample.is_mirrored]
    names = _Names()
    sources: list[str] = []
    sinks: list[str] = []
    pipelines: list[str] = []
    for sample in samples:
        if not sample.is_mirrored:
            name = names.new(sample.topic)
            sources += _source_lines(name, address, [sample])
            sinks += _table_lines(name)
            pipelines.append(f"  {name}: {{source: {name}, sink: {name}}}")
    if mirrored:
        name = names.new("changes" if len(mirrored) > 1 else mirrored[0].topic)
        sources += _source_lines(name, address, mirrored)
        sinks += [
            f"  {names.new('lake')}:",
            "    connector: iceberg      # tables, keys and columns come from the changes",
        ]
        pipelines.append(f"  {name}: {{source: {name}, sink: {sinks[-2].strip(' :')}}}")
    lines = [
        f"# yaml-language-server: $schema={schema_name}",
        f"# $schema: {schema_name}",
        "#",
        "# icestream check   validates this file and tests its connections",
        "# icestream plan    shows what a run would create and change",
        "# icestream run     runs the pipelines; Ctrl-C stops after the current batch",
        'version: "1.0"',
        "",
        "sources:",
        *sources,
        "",
        "sinks:                      # no catalog given: the embedded one, in ./lake",
        *sinks,
        "",
        "pipelines:",
        *pipelines,
    ]
    return "\n".join(lines) + "\n"


@dataclass
class _Names:
    """Names of components and tables, each used once."""

    used: set[str] = field(default_factory=set)

    def new(self, text: str) -> str:
        name = re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_")[:80]
        if not re.match("[a-z]", name) or name in YAML_KEYWORDS:
            name = f"topic_{name}".rstrip("_")
        number, unique = 2, name
        while unique in self.used:
            number, unique = number + 1, f"{name}_{number}"
        self.used.add(unique)
        return unique


def _source_lines(name: str, address: TopicsAddress, samples: Sequence[TopicSample]) -> list[str]:
    chosen = samples[0]
    topics = ", ".join(yaml_scalar(sample.topic) for sample in samples)
    lines = [
        f"  {name}:",
        "    connector: kafka",
        "    config:",
        f"      brokers: {json.dumps(list(address.brokers))}",
        f"      topics: [{topics}]",
        f"      format: {chosen.format}",
    ]
    if chosen.format == "avro":
        lines.append(f'      schema_registry: {{url: "{REGISTRY}"}}')
    return [*lines, *(f"      # {line}".rstrip() for line in _comments(samples))]


def _comments(samples: Sequence[TopicSample]) -> list[str]:
    """Return comment lines: the columns found, and notes."""
    notes = [f"{note[:1].upper()}{note[1:]}." for sample in samples for note in sample.notes]
    columns = samples[0].columns
    if columns is None or not len(columns):
        return list(map(printable, notes))
    shown = [(printable(column.name), column.type) for column in columns][:MAX_LISTED]
    width = min(max(len(name) for name, _ in shown), 40)
    more = len(columns) - MAX_LISTED
    return [
        *map(printable, notes),
        f"Columns of the first {format_count(samples[0].records, 'record')}; a new field becomes a "
        "column:",
        *(f"  {name:<{width}}  {_short(_sql_type(kind))}" for name, kind in shown),
        *([f"  and {more} more"] if more > 0 else []),
    ]


def _sql_type(kind: pa.DataType) -> str:
    """Return a type as `schema` takes it."""
    import pyarrow as pa

    from icestream.formats.values import type_name

    if pa.types.is_list(kind):
        return f"array<{_sql_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        members = (kind.field(index) for index in range(kind.num_fields))
        return f"struct<{', '.join(f'{m.name}: {_sql_type(m.type)}' for m in members)}>"
    return type_name(kind)


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= MAX_TYPE_LENGTH else text[: MAX_TYPE_LENGTH - 3] + "..."


def _table_lines(name: str) -> list[str]:
    return [
        f"  {name}:",
        "    connector: iceberg",
        f"    config: {{namespace: {NAMESPACE}, table: {name}}}",
    ]
