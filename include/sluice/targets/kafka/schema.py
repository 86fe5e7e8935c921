"""Check whether each planned table has its topic, and whether the topic takes what a load would send."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sluice.errors import ConfigError, LoadError, SluiceError
from sluice.model.planned import PlannedTable
from sluice.targets.feature_check import without_key
from sluice.targets.kafka.ack_topic import AckTopic
from sluice.targets.kafka.checkpoint import KafkaCheckpoints
from sluice.targets.kafka.options import MissingTopics
from sluice.targets.kafka.place import Place
from sluice.targets.kafka.registry import Registry
from sluice.targets.kafka.topics import KnownTopics, Topics, configs_of, create, statement, wait_for
from sluice.targets.port import Input, TableFinding

TRANSACTION_MAX = "transaction.max.timeout.ms"


@dataclass(frozen=True)
class KafkaSchema:
    """See :class:`sluice.targets.port.TargetSchema`: the topics of planned tables."""

    place: Place
    input: Input

    def compare(self, tables: Sequence[PlannedTable]) -> Sequence[TableFinding]:
        """Return findings on what is missing, what cannot be loaded, and where each table goes."""
        topics = Topics.look(self.place)
        topics.identify({topics.topic_of(plan.target) for plan in tables} | set(topics.side.values()))
        record = AckTopic(self.place).read()
        known_topics = record.topics if record is not None else KnownTopics()
        configs = configs_of(self.place, [t for t in {topics.topic_of(p.target) for p in tables} if t in topics.counts])
        findings: list[TableFinding] = []
        for plan in tables:
            changed = topics.changed(topics.topic_of(plan.target), plan.target, known_topics)
            findings += self._about(plan, topics, configs, changed)
        for option, topic in topics.side.items() if tables else ():
            changed = topics.changed(topic, f"options.{option}", known_topics, ordered=False)
            if topic in topics.counts and changed is None:
                continue
            how = self.place.options.create_topics.model_copy(update={"partitions": 1})
            why = changed.message if changed is not None else f"the topic {topic} of options.{option} is not there"
            missing = statement(topic, how) if topic not in topics.counts else ""
            findings.append(
                TableFinding("error", tables[0].target, "", why, missing, changed.hint or "" if changed else "")
            )
        checks: list[Callable[[], object]] = [
            lambda: self.place.producer(lambda *_: None),  # it refuses settings that do not exist
            lambda: self._require_time(topics),
        ]
        if self.place.options.form.registered:
            checks.append(Registry(self.place).check)
        if self.input is Input.MERGED and self.place.options.form.keys_are_alike:
            checks.append(lambda: topics.require_own([plan.target for plan in tables]))
        for check in checks:
            try:
                check()
            except SluiceError as error:
                findings += [
                    TableFinding("error", p.target, "", error.message, hint=error.hint or "") for p in tables[:1]
                ]
        return findings

    def _require_time(self, topics: Topics) -> None:
        """Raise ConfigError if the brokers do not allow transactions as long as the options do."""
        most = configs_of(self.place, [topics.broker], brokers=True).get(topics.broker, {}).get(TRANSACTION_MAX, "")
        if most.isdigit() and self.place.timeout_s * 1000 > int(most):
            raise ConfigError(
                f"options.transaction_timeout is {self.place.timeout_s:,.0f} s, and the brokers allow "
                f"{int(most) / 1000:,.0f} s ({TRANSACTION_MAX})",
                hint=f"lower options.transaction_timeout, or raise {TRANSACTION_MAX} of the brokers",
            )

    def _about(
        self,
        plan: PlannedTable,
        topics: Topics,
        configs: Mapping[str, Mapping[str, str]],
        changed: LoadError | None,
    ) -> list[TableFinding]:
        options, topic, merged = self.place.options, topics.topic_of(plan.target), self.input is Input.MERGED
        key = () if options.form.arrow else options.key_columns.get(str(plan.target), plan.key)
        names = {column.name for column in plan.columns}
        findings = []
        for option, columns in (("key_columns", options.key_columns), ("partition_columns", options.partition_columns)):
            findings += [
                TableFinding("error", plan.target, name, f"options.{option} names a column that is not sent")
                for name in columns.get(str(plan.target), ())
                if name not in names
            ]
        if merged and not plan.key:
            findings.append(without_key(plan))
        if topic not in topics.counts:
            create_topics = options.create_topics
            wanted_config = (
                {"cleanup.policy": "compact", **create_topics.config} if merged and key else create_topics.config
            )
            missing = create_topics.model_copy(update={"config": wanted_config})
            return [
                *findings,
                TableFinding(
                    "error",
                    plan.target,
                    "",
                    changed.message if changed is not None else f"the topic {topic} is not there",
                    statement(topic, missing),
                    hint=changed.hint or "" if changed else "",
                    absent=changed is not None,
                ),
            ]
        if changed is not None:
            findings.append(TableFinding("error", plan.target, "", changed.message, hint=changed.hint or ""))
        config = configs.get(topic, {})
        largest = int(config.get("max.message.bytes", "0") or 0)
        if 0 < largest < options.max_message_bytes:
            findings.append(TableFinding(
                "warning", plan.target, "", f"topic {topic} takes messages of {largest:,} bytes (compressed), and "
                f"options.max_message_bytes is {options.max_message_bytes:,}: a message between the two stops the "
                "batch",
                hint="make the two equal",
            ))  # fmt: skip
        if "compact" in config.get("cleanup.policy", "") and not key:
            findings.append(TableFinding(
                "error", plan.target, "", f"topic {topic} is compacted, and rows without a key have messages without "
                "one, which it refuses",
                hint=f"kafka-configs --alter --topic {topic} --add-config cleanup.policy=delete",
            ))  # fmt: skip
        keyed = f"key ({', '.join(key)})" if key else "no key"
        words = f"topic {topic}, {topics.counts[topic]} partitions by {options.partitioning}, {keyed}, {options.format}"
        return findings or [TableFinding("ok", plan.target, "", words)]

    def apply(self, statement: str) -> None:
        """Make a topic, in place of one that the target wrote to. Raises LoadError."""
        words = shlex.split(statement)
        try:
            assert words[:2] == ["kafka-topics", "--create"]
            pairs = list(zip(words[2::2], words[3::2], strict=True))
            plain = {name: value for name, value in pairs if name != "--config"}
            config = dict(value.split("=", 1) for name, value in pairs if name == "--config")
            how = MissingTopics(
                partitions=int(plain["--partitions"]),
                replication=int(plain.get("--replication-factor", "-1")),
                config=config,
            )
        except (AssertionError, KeyError, ValueError) as error:
            raise LoadError(f"this is no statement of a Kafka target: {statement[:300]}") from error
        create(self.place, plain["--topic"], how)
        wait_for(self.place, [plain["--topic"]])
        KafkaCheckpoints(self.place).forget_topic(plain["--topic"])
