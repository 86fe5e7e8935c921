"""Topics: which exist, how many partitions they have, and how missing ones are created."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import LoadError, MappingError
from sluice.model.tables import TableId
from sluice.targets.kafka.client import ADMIN_S, ANSWER_S, KicksOut, errors, kafka_error, library
from sluice.targets.kafka.options import MissingTopics, Partitioning
from sluice.targets.kafka.place import Place

_NOT_ORDERED = "messages of one row may then be in two partitions, so that their order is not kept"
_UNKNOWN = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"}


@dataclass(frozen=True, slots=True)
class KnownTopics:
    """The topics that a target wrote to: partitions of each, as of its last message, and its id (KIP-516).

    Records of older versions have no ids, nor has a broker before Kafka 2.8.
    """

    partitions: Mapping[str, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)

    def without(self, topic: str) -> KnownTopics:
        """Return the others."""
        partitions = {name: count for name, count in self.partitions.items() if name != topic}
        return KnownTopics(partitions, {name: topic_id for name, topic_id in self.ids.items() if name != topic})


@dataclass
class Topics:
    """The topics of a cluster, as of one look.

    ``ids``: of those that :meth:`identify` asked for. ``broker``: the id of a broker.
    """

    place: Place
    counts: dict[str, int]
    ids: dict[str, str] = field(default_factory=dict)
    broker: str = ""

    @classmethod
    def look(cls, place: Place, client: Any = None) -> Topics:
        """Ask the brokers for all topics, by ``client`` if given.

        That creates none, even if brokers create topics that are asked for by name.
        """
        admin = client or place.client("AdminClient")
        with errors(place.endpoint, "reading the list of topics", caller=admin):
            listed = admin.list_topics(timeout=ANSWER_S)
        counts = {name: len(topic.partitions) for name, topic in listed.topics.items() if topic.error is None}
        return cls(place, counts, broker=str(next(iter(listed.brokers), "")))

    def topic_of(self, table: TableId) -> str:
        """Return the topic of a table of the target."""
        return self.place.options.topic_of(table, self.place.pipeline, self.place.target)

    @property
    def side(self) -> dict[str, str]:
        """Option -> name of each topic for what is no row."""
        return self.place.options.side_topics_of(self.place.pipeline, self.place.target)

    def identify(self, topics: Iterable[str], client: Any = None) -> None:
        """Ask the brokers for the ids of topics, as far as they are there, by the AdminClient ``client`` if given."""
        from confluent_kafka import TopicCollection

        wanted_topics = [topic for topic in topics if topic in self.counts]
        if not wanted_topics:
            return
        admin = client or self.place.client("AdminClient")
        with errors(self.place.endpoint, "reading the ids of topics", caller=admin):
            for topic, answer in admin.describe_topics(TopicCollection(wanted_topics), request_timeout=ADMIN_S).items():
                try:
                    number = answer.result(ADMIN_S).topic_id
                except library().KafkaException as error:
                    if kafka_error(error).name() not in _UNKNOWN:  # a broker that has not heard of a new one
                        raise
                    continue
                if number.get_most_significant_bits() or number.get_least_significant_bits():
                    self.ids[topic] = str(number)

    def require(self, tables: Iterable[TableId], known_topics: KnownTopics, client: Any = None) -> KnownTopics:
        """Require that each table and side topic has its topic, and that it is the one that is known.

        A missing one is created if the options say so. Returns what is known now. Raises MappingError, LoadError.
        ``client``: see :meth:`identify`.
        """
        wanted_tables: dict[str, TableId | str] = {self.topic_of(table): table for table in tables}
        rows = set(wanted_tables)
        for option, topic in self.side.items():
            if topic in wanted_tables or topic == self.place.ack_topic:
                raise MappingError(
                    f"options.{option} names {topic}, which has other messages already",
                    where=self.place.owner,
                    hint="give it a topic of its own",
                )
            wanted_tables[topic] = f"options.{option}"
        self.identify(wanted_tables, client)
        for topic, table in wanted_tables.items():
            if (error := self.changed(topic, table, known_topics, ordered=topic in rows)) is not None:
                raise error
        missing = {topic: table for topic, table in wanted_tables.items() if topic not in self.counts}
        create_topics = self.place.options.create_topics
        if missing and create_topics.when == "needed":
            for topic in missing:
                create(self.place, topic, create_topics)
            self.counts.update(wait_for(self.place, missing))
            self.identify(missing, client)
            missing = {topic: table for topic, table in missing.items() if topic not in self.counts}
        for topic, table in missing.items():
            raise MappingError(
                f"the topic {topic} for {table} is not there",
                where=str(table),
                hint=f"`sluice check {self.place.pipeline} --apply` makes it; options.create_topics.when: needed lets "
                "a load make it",
            )
        return KnownTopics(
            {**known_topics.partitions, **{topic: self.counts[topic] for topic in wanted_tables}},
            {**known_topics.ids, **{topic: self.ids[topic] for topic in wanted_tables if topic in self.ids}},
        )

    def changed(
        self, topic: str, table: TableId | str, known_topics: KnownTopics, *, ordered: bool = True
    ) -> LoadError | None:
        """Return why a topic is not the one that the target wrote to; None if it is, or if the target never did.

        ``ordered``: its messages are spread over partitions.
        """
        options, pipeline = self.place.options, self.place.pipeline
        before, now = known_topics.partitions.get(topic), self.counts.get(topic)
        if before is None:
            return None
        copy = "; what it had is lost"
        if isinstance(table, TableId):
            copy = f", and copy its rows: `sluice dump start {pipeline} --table SCHEMA.TABLE`"
        if now is None:
            return LoadError(
                f"the topic {topic} for {table} is gone, and with it what the target wrote to it",
                where=str(table),
                hint=f"let `sluice check {pipeline} --apply` make it{copy}",
            )
        if topic in known_topics.ids and self.ids.get(topic, known_topics.ids[topic]) != known_topics.ids[topic]:
            return LoadError(
                f"the topic {topic} for {table} was deleted and made anew: it has the id {self.ids[topic]}, and had "
                f"{known_topics.ids[topic]} when {table} was last written, so that it lacks what was sent before",
                where=str(table),
                hint=f"delete it (`kafka-topics --delete --topic {topic}`), let `sluice check {pipeline} --apply` make "
                f"it{copy}",
            )
        if (
            now != before
            and ordered
            and options.partitions_changed == "stop"
            and options.partitioning is not Partitioning.GLOBAL
        ):
            return LoadError(
                f"topic {topic} has {now} partitions, and had {before} when {table} was last written: keys would "
                "go to other partitions",
                where=str(table),
                hint=f"{_NOT_ORDERED}, and a compacted topic keeps old rows. Set options.partitions_changed: accept; "
                f"or delete the topic, let `sluice check {pipeline} --apply` make it anew{copy}",
            )
        return None

    def require_own(self, tables: Iterable[TableId]) -> None:
        """Raise MappingError if two tables share keys in one topic of merged rows."""
        taken_tables: dict[str, TableId] = {}
        for table in sorted(set(tables)):
            other_table = taken_tables.setdefault(self.topic_of(table), table)
            if other_table != table:
                raise MappingError(
                    f"{other_table} and {table} both go to topic {self.topic_of(table)}: with changes: latest their "
                    "keys would replace each other",
                    where=str(table),
                    hint="put {schema} and {table} into options.topic, write format: maxwell-json (its keys name the "
                    "table), or give the target changes: all",
                )


def create(place: Place, topic: str, how: MissingTopics) -> None:
    """Make a topic; one that is there stays. Raises LoadError."""
    from confluent_kafka.admin import NewTopic

    doing = f"making the topic {topic}"
    try:
        with errors(place.endpoint, doing):
            admin = place.client("AdminClient")
            new_topic = NewTopic(topic, how.partitions, how.replication, config=dict(how.config))
            try:
                admin.create_topics([new_topic])[topic].result(ADMIN_S)
            except library().KafkaException as error:
                if kafka_error(error).name() != "TOPIC_ALREADY_EXISTS":
                    raise
    except KicksOut as error:
        raise LoadError(f"{doing}: {error}") from None


def wait_for(place: Place, topics: Iterable[str]) -> dict[str, int]:
    """Wait until all brokers know the new topics; they learn of them one after the other."""
    names, end = set(topics), time.monotonic() + ANSWER_S
    while True:
        counts = Topics.look(place).counts
        if names <= counts.keys() or time.monotonic() > end:
            return {topic: counts[topic] for topic in names & counts.keys()}
        time.sleep(0.02)


def statement(topic: str, how: MissingTopics) -> str:
    """Return the command of Kafka's own tool that creates a topic."""
    words = ["kafka-topics", "--create", "--topic", topic, "--partitions", str(how.partitions)]
    if how.replication > 0:
        words += ["--replication-factor", str(how.replication)]
    for name, value in sorted(how.config.items()):
        words += ["--config", f"{name}={value}"]
    return shlex.join(words)


def configs_of(place: Place, names: Sequence[str], *, brokers: bool = False) -> dict[str, dict[str, str]]:
    """Return the settings of topics, or of brokers by their ids; empty if the login may not read them."""
    from confluent_kafka.admin import ConfigResource

    if not names:
        return {}
    configs: dict[str, dict[str, str]] = {}
    kind = ConfigResource.Type.BROKER if brokers else ConfigResource.Type.TOPIC
    resources = [ConfigResource(kind, name) for name in names]
    admin = place.client("AdminClient")  # it lives until its answers are there
    answers: Mapping[Any, Any] = admin.describe_configs(resources, request_timeout=ADMIN_S)
    for resource, answer in answers.items():
        with errors(place.endpoint, f"reading the settings of {resource.name}"):
            try:
                configs[resource.name] = {name: str(entry.value) for name, entry in answer.result(ADMIN_S).items()}
            except library().KafkaException:
                continue
    return configs
