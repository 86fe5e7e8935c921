"""Topics: which exist, how many partitions they have, and how missing ones are created."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.errors import LoadError, MappingError
from sluice.model.tables import TableId
from sluice.targets.kafka.client import ADMIN_S, ANSWER_S, KicksOut, errors, kafka_error, library
from sluice.targets.kafka.options import MissingTopics, Partitioning
from sluice.targets.kafka.place import Place

_NOT_ORDERED = "messages of one row may then be in two partitions, so that their order is not kept"


@dataclass
class Topics:
    """The topics of a cluster, as of one look."""

    place: Place
    counts: dict[str, int]

    @classmethod
    def look(cls, place: Place, client: Any = None) -> Topics:
        """Ask the brokers for all topics, by ``client`` if given.

        That creates none, even if brokers create topics that are asked for by name.
        """
        asked = client or place.client("AdminClient")
        with errors(place.endpoint, "reading the list of topics", asked=asked):
            found = asked.list_topics(timeout=ANSWER_S).topics
        return cls(place, {name: len(one.partitions) for name, one in found.items() if one.error is None})

    def topic_of(self, table: TableId) -> str:
        """Return the topic of a table of the target."""
        return self.place.options.topic_of(table, self.place.pipeline, self.place.target)

    @property
    def side(self) -> dict[str, str]:
        """Option -> name of each topic for what is no row."""
        return self.place.options.side_topics_of(self.place.pipeline, self.place.target)

    def require(self, tables: Iterable[TableId]) -> None:
        """Require that each table and side topic has its topic; missing ones are created if the options say so.

        Raises MappingError.
        """
        wanted: dict[str, TableId | str] = {self.topic_of(table): table for table in tables}
        for option, topic in self.side.items():
            if topic in wanted or topic == self.place.ack_topic:
                raise MappingError(
                    f"options.{option} names {topic}, which has other messages already",
                    where=self.place.owner,
                    hint="give it a topic of its own",
                )
            wanted[topic] = f"options.{option}"
        missing = {topic: table for topic, table in wanted.items() if topic not in self.counts}
        if not missing:
            return
        made = self.place.options.create_topics
        if made.when == "needed":
            for topic in missing:
                create(self.place, topic, made)
            self.counts.update(wait_for(self.place, missing))
            missing = {topic: table for topic, table in missing.items() if topic not in self.counts}
        for topic, table in missing.items():
            raise MappingError(
                f"the topic {topic} for {table} is not there",
                where=str(table),
                hint=f"`sluice check {self.place.pipeline} --apply` makes it; options.create_topics.when: needed lets "
                "a load make it",
            )

    def require_same(self, known: Mapping[str, int], tables: Iterable[TableId]) -> dict[str, int]:
        """Return the number of partitions of each table's topic. Raises LoadError if it changed."""
        options, found = self.place.options, dict(known)
        for table in tables:
            topic = self.topic_of(table)
            now, before = self.counts[topic], known.get(topic)
            if (
                before not in {None, now}
                and options.partitions_changed == "stop"
                and options.partitioning is not Partitioning.GLOBAL
            ):
                raise LoadError(
                    f"topic {topic} has {now} partitions, and had {before} when {table} was last written: keys would "
                    "go to other partitions",
                    where=str(table),
                    hint=f"{_NOT_ORDERED}, and a compacted topic keeps old rows. Either make the topic anew and copy "
                    "the table again "
                    f"(`sluice dump start {self.place.pipeline} --table {table}`), or set options.partitions_changed: "
                    "accept",
                )
            found[topic] = now
        return found

    def require_own(self, tables: Iterable[TableId]) -> None:
        """Raise MappingError if two tables share keys in one topic of merged rows."""
        taken: dict[str, TableId] = {}
        for table in sorted(set(tables)):
            other = taken.setdefault(self.topic_of(table), table)
            if other != table:
                raise MappingError(
                    f"{other} and {table} both go to topic {self.topic_of(table)}: with changes: latest their keys "
                    "would replace each other",
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
            made = NewTopic(topic, how.partitions, how.replication, config=dict(how.config))
            try:
                admin.create_topics([made])[topic].result(ADMIN_S)
            except library().KafkaException as error:
                if kafka_error(error).name() != "TOPIC_ALREADY_EXISTS":
                    raise
    except KicksOut as error:
        raise LoadError(f"{doing}: {error}") from None


def wait_for(place: Place, topics: Iterable[str]) -> dict[str, int]:
    """Wait until all brokers know the new topics; they learn of them one after the other."""
    wanted, end = set(topics), time.monotonic() + ANSWER_S
    while True:
        found = Topics.look(place).counts
        if wanted <= found.keys() or time.monotonic() > end:
            return {topic: found[topic] for topic in wanted & found.keys()}
        time.sleep(0.02)


def statement(topic: str, how: MissingTopics) -> str:
    """Return the command of Kafka's own tool that creates a topic."""
    words = ["kafka-topics", "--create", "--topic", topic, "--partitions", str(how.partitions)]
    if how.replication > 0:
        words += ["--replication-factor", str(how.replication)]
    for name, value in sorted(how.config.items()):
        words += ["--config", f"{name}={value}"]
    return shlex.join(words)


def configs_of(place: Place, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics; empty if the login may not read them."""
    from confluent_kafka.admin import ConfigResource

    if not topics:
        return {}
    found: dict[str, dict[str, str]] = {}
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    answers: Mapping[Any, Any] = place.client("AdminClient").describe_configs(resources, request_timeout=ADMIN_S)
    for resource, answer in answers.items():
        with errors(place.endpoint, f"reading the settings of the topic {resource.name}"):
            try:
                found[resource.name] = {name: str(entry.value) for name, entry in answer.result(ADMIN_S).items()}
            except library().KafkaException:
                continue
    return found
