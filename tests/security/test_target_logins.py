"""Logins at targets other than SQL databases: the rights of the lists are enough for the contract suite, and each of
them is needed.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import pytest

from devstack.processes import ServerFailed
from sluice.config.connections import parse_connection
from sluice.errors import LoadError, SluiceError
from sluice.model.rights import Right, Scope
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import TableId, TableSchema
from sluice.targets import rights
from sluice.targets.port import comparer_of, other_writers
from sluice.targets.rabbitmq import rights as rabbitmq
from sluice.targets.redis import rights as redis
from sluice.targets.redis.client import _pools as redis_pools
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import (
    CHECKS,
    CONVERSIONS,
    Bench,
    Pipe,
    _definition,
    _schema_change,
    changed,
    gone,
    new,
    people,
)
from tests.support.servers.fixtures import or_skip


def failures(made: Callable[[], Any], *, most: int = 100) -> list[str]:
    """Run the contract suite on benches; return what fails, ``most`` of it."""
    failed: list[str] = []
    for check in CHECKS:
        bench = made()
        if len(failed) >= most or not check.applies(bench):
            continue
        try:
            check.run(bench)
        except (AssertionError, SluiceError) as error:
            failed.append(f"{check}: {error} {getattr(error, 'hint', '')}")
    return failed


# -- Redis -------------------------------------------------------------------------------------------------------------
class Logins:
    """Benches at the Redis of the suite, whose login has exactly the rights of the list, in one of its databases."""

    def __init__(self, server: Any) -> None:
        from tests.support.benches.redis_bench import RedisBench

        self.server = server

        class InDatabase(RedisBench):
            database = 0

            @property
            def client(self) -> Any:
                client = self.server.client()
                client.execute_command("SELECT", self.database)
                return client

        self.bench = InDatabase

    def made(self, changes: str, options: Mapping[str, Any], database: int = 0, without: str = "") -> Any:
        options = {**options}
        bench = self.bench(self.server, changes, options)
        bench.database = database
        if "indexes" in options:
            bench.options["indexes"] = [
                {"table": f"{bench.schema}.people", "key": f"{bench.schema}:email:{{email}}"},
                {"table": f"{bench.schema}.people", "key": f"{bench.schema}:points", "score": "points"},
            ]
        patterns = [f"{bench.schema}:*", f"{bench.schema}.*"]  # the bench's prefix is its schema, too
        statement = redis.set_user("least", redis.TARGET, patterns)
        with self.server.client() as client:
            client.execute_command("ACL", "DELUSER", "least")
            client.execute_command(*statement.split(), "resetchannels", "on", ">least-secret")
            if without:
                client.execute_command("ACL", "SETUSER", "least", f"-{without[1:]}")
            client.script_flush()
        redis_pools.clear()  # new sessions, which send the scripts again
        extra = {**bench.connection.extra, "db": database}
        bench.connection = replace(bench.connection, user="least", password="least-secret", extra=extra)
        bench.secret = "least-secret"
        return bench


@pytest.fixture
def logins(redis_server: Any) -> Iterator[Logins]:
    yield Logins(redis_server)
    with redis_server.client() as client:
        client.execute_command("ACL", "DELUSER", "least")


SUITES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "latest": ("latest", {}),
    "json": ("latest", {"form": "json"}),
    "all": ("all", {}),
    "one stream": ("all", {"stream": "all"}),
}


@pytest.mark.parametrize("kind", SUITES)
def test_the_listed_rights_are_enough_at_redis(logins: Logins, kind: str) -> None:
    assert failures(lambda: logins.made(*SUITES[kind])) == []


def test_a_login_at_redis_may_nothing_else(redis_server: Any, logins: Logins) -> None:
    logins.made("latest", {})
    with redis_server.client() as client:
        for refused in ("FLUSHALL", "KEYS *", "CONFIG SET save x", "GET other", "ACL LIST", "SHUTDOWN", "EVAL x 0"):
            answer = client.execute_command("ACL", "DRYRUN", "least", *refused.split())
            assert b"no permissions" in answer or b"has no permissions" in answer, (refused, answer)


LATER = 2_000_000_000
"""A time in seconds, in 2033."""


def flow(bench: Bench) -> None:
    """Make a table, deliver rows, give it another name, and compare the rows."""
    table = replace(people("s"), table=TableId(bench.schema, "people"))
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", LATER), new(2, "b", LATER)]))
    pipe.deliver((table, [changed((1, "a", LATER), (1, "c", LATER + 1)), gone(2, "b", LATER)]))
    if bench.appends:
        return
    moved = replace(table, table=TableId(bench.schema, "moved"))
    sql = f"RENAME TABLE `{bench.schema}`.`people` TO `{bench.schema}`.`moved`"
    definitions = _definition(bench.schema, "people"), _definition(bench.schema, "moved")
    change = _schema_change(pipe, 0, sql, (ChangeKind.RENAME_TABLE,), *definitions, moved.table)
    pipe.write(pipe.given([], schema_changes=(change,)))
    assert pipe.state(moved) == {(1, "c", LATER + 1): 1}
    comparer = comparer_of(pipe.target)
    if comparer is not None:
        rows: Any = pipe.given([(moved, [new(1, "c", LATER + 1)])]).tables[0].files[0]
        found = comparer.compare(planned_table(moved), rows.data, None)
        assert (found.missing, found.different) == ((), ())


FLOWS: Mapping[str, tuple[str, Mapping[str, Any], int]] = {
    "plain": ("latest", {}, 0),
    "another database than 0": ("latest", {}, 1),
    "`options.indexes`": ("latest", {"indexes": ()}, 0),
    "`options.expire`, after": ("latest", {"expire": {"after": "1h"}}, 0),
    "`options.expire`, column": ("latest", {"expire": {"column": "points"}}, 0),
    "`changes: all`": ("all", {}, 0),
    "`options.fsync`": ("latest", {"fsync": True}, 0),
    "`sluice check`": ("latest", {}, 0),
}


def told(bench: Any) -> list[str]:
    schema = bench.target().schema()
    return [finding.why for finding in schema.compare([planned_table(people(bench.schema))])]


@pytest.mark.parametrize("name", FLOWS)
def test_each_option_of_redis_runs_with_the_listed_rights(logins: Logins, name: str) -> None:
    bench = logins.made(*FLOWS[name])
    flow(bench)
    assert other_writers(bench.target()) == ()
    assert not [why for why in told(bench) if "is not told" in why]


COMMANDS = [(name, right) for right in redis.TARGET for name in right.privileges if name != redis.PATTERN]


@pytest.mark.parametrize(("name", "right"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_each_command_of_the_list_is_needed_at_redis(logins: Logins, name: str, right: Right) -> None:
    """Without it a flow stops, and the error has the statement that gives it back."""
    if name == "+time":
        with pytest.raises(SluiceError) as caught:
            other_writers(logins.made("latest", {}, 0, name).target())
        assert f"ACL SETUSER least {name}" in (caught.value.hint or "")
        return
    if name == "+config|get":
        assert [why for why in told(logins.made("latest", {}, 0, name)) if "is not told" in why]
        return
    failed = []
    for option, given in FLOWS.items():
        if right.required or option.startswith(right.why):
            try:
                flow(logins.made(*given, name))
            except SluiceError as error:
                failed.append(error.hint or str(error))
    for kind in SUITES if not failed else ():
        failed += failures(lambda kind=kind: logins.made(*SUITES[kind], 0, name), most=1)  # type: ignore[misc]
        if failed:
            break
    assert failed, f"{name} is not needed"
    assert f"ACL SETUSER least {name}" in failed[0]


# -- RabbitMQ ----------------------------------------------------------------------------------------------------------
RABBITMQ = {
    "queues": ("all", {"exchange": "changes"}, rabbitmq.TARGET),
    "streams": ("all", {"send_to": "streams"}, rabbitmq.STREAMS),
}


@pytest.mark.parametrize("kind", RABBITMQ)
def test_the_listed_permissions_are_enough_at_rabbitmq(request: pytest.FixtureRequest, kind: str) -> None:
    """The expressions name all schemas of the suite, its exchanges and its checkpoints, and nothing else."""
    from tests.support.benches.rabbitmq_bench import RabbitMQBench

    server: Any = request.getfixturevalue("rabbitmq")
    changes, options, listed = RABBITMQ[kind]
    names = rf"s{os.getpid()}x[0-9]+\..*"
    acks = r"_ack\..*"
    patterns = {Scope.EXCHANGE: names, Scope.STREAMS: names, Scope.ACK_STREAM: acks, Scope.MADE: names}
    with suppress(ServerFailed):
        server.control("add_user", "least", "least-secret")
    server.control(*rabbitmq.set_permissions("least", listed, patterns))

    def made() -> Any:
        bench = RabbitMQBench(server, changes, dict(options))
        bench.connection = replace(bench.connection, user="least", password="least-secret")
        bench.secret = "least-secret"
        return bench

    assert failures(made) == []
    server.control("set_permissions", "-p", "/", "least", "^$", "^$", "^$")
    with pytest.raises(SluiceError, match=r"docs/rabbitmq-target\.md lists the permissions"):
        CHECKS[1].run(made())


# -- ClickHouse --------------------------------------------------------------------------------------------------------
def at_clickhouse(server: Any, changes: str, view: str = "{table}_now") -> Any:
    from tests.support.benches.clickhouse_bench import ClickHouseBench

    class WithOwnDatabase(ClickHouseBench):
        def create_table(self, table: TableSchema) -> None:
            with suppress(OSError):  # the constraint that the suite wants
                super().create_table(table)

    bench = WithOwnDatabase(server, changes, {"view": view})
    bench.options["checkpoint_database"] = f"own{bench.schema}"
    return bench


@contextmanager
def clickhouse_with(folder: Path, *, without: tuple[Scope, str] | None = None) -> Iterator[Any]:
    """An engine whose login has the rights of the list, but for one."""
    from devstack import clickhouse

    or_skip("ClickHouse", clickhouse.find_clickhouse)
    listed = [
        replace(right, privileges=tuple(name for name in right.privileges if (right.scope, name) != without))
        for right in rights.CLICKHOUSE
    ]
    schemas = f"s{os.getpid()}x*"
    given = [right for right in listed if right.privileges]
    grants = rights.clickhouse_grants(given, {Scope.DATABASES: schemas, Scope.OWN_DATABASE: f"own{schemas}"})
    server = clickhouse.ClickHouseServer(folder / "clickhouse", grants=grants).start()
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.timeout(1200)
def test_the_listed_rights_are_enough_at_clickhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One conversion of each step is tried: others send the same statements, with other types."""
    steps = {(one.step and one.step.kind, bool(one.unknown)): one for one in CONVERSIONS}
    monkeypatch.setattr("sluice.testing.targets.CONVERSIONS", tuple(steps.values()))
    with clickhouse_with(tmp_path) as server:
        for changes in ("latest", "all"):
            assert failures(lambda changes=changes: at_clickhouse(server, changes)) == []  # type: ignore[misc]
        for refused in ("CREATE DATABASE other", "SELECT * FROM system.users", "CREATE USER x IDENTIFIED BY 'x'"):
            with pytest.raises(OSError, match="Not enough privileges"):
                server.query(refused)


CLICKHOUSE = [(right.scope, name) for right in rights.CLICKHOUSE for name in right.privileges]


@pytest.mark.parametrize(("scope", "name"), CLICKHOUSE, ids=[f"{name} {scope.name}" for scope, name in CLICKHOUSE])
def test_each_right_of_the_list_is_needed_at_clickhouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: Scope, name: str
) -> None:
    """Without it a flow stops, and the error has the GRANT for it."""
    monkeypatch.setattr("sluice.targets.clickhouse.checkpoint._CLEANED_EVERY", 2)
    [changes_of_definitions] = [check for check in CHECKS if check.number == 16]
    with clickhouse_with(tmp_path, without=(scope, name)) as server:
        failed = []
        for changes, run in (("latest", flow), ("all", flow), ("latest", changes_of_definitions.run)):
            try:
                run(at_clickhouse(server, changes, view=""))
            except SluiceError as error:
                failed.append(error.hint or str(error))
            except OSError:  # the check's own look at the rows
                assert name == "SELECT"
    assert failed, f"{name} is not needed"
    first, _, more = name.partition(" ")
    database = rf"{'own' if scope is Scope.OWN_DATABASE else ''}s\d+x\d+"
    wanted = rf"GRANT {first}( \w+)* ?{more} ON {database}\..+ TO default; docs/"
    assert re.match(wanted, failed[0]), failed[0]


# -- Kafka -------------------------------------------------------------------------------------------------------------
@dataclass
class Acls:
    """A broker that lets a login do what its ACLs allow."""

    server: Any
    schemas: str
    """The beginning of the names of the suite's schemas."""

    def of(self, right: Right, operation: str) -> tuple[Any, ...]:
        from confluent_kafka import admin

        kinds, prefixed = admin.ResourceType, admin.ResourcePatternType.PREFIXED
        kind, name, pattern = {
            Scope.TOPICS: (kinds.TOPIC, self.schemas, prefixed),
            Scope.ACK_TOPIC: (kinds.TOPIC, f"_sluice_ack.{self.schemas}", prefixed),
            Scope.TRANSACTIONAL_ID: (kinds.TRANSACTIONAL_ID, f"sluice/{self.schemas}", prefixed),
            Scope.GROUPS: (kinds.GROUP, "sluice-", prefixed),
            Scope.CLUSTER: (kinds.BROKER, "kafka-cluster", admin.ResourcePatternType.LITERAL),
        }[right.scope]
        allowed = getattr(admin.AclOperation, re.sub(r"(?<=.)(?=[A-Z])", "_", operation).upper())
        return kind, name, pattern, "User:least", "*", allowed, admin.AclPermissionType.ALLOW

    def change(self, right: Right, operation: str, *, remove: bool) -> None:
        from confluent_kafka import admin

        from sluice.targets.kafka.transactions import end_all

        end_all()
        client = admin.AdminClient({"bootstrap.servers": self.server.bootstrap})
        words = self.of(right, operation)
        done = (
            client.delete_acls([admin.AclBindingFilter(*words)])
            if remove
            else client.create_acls([admin.AclBinding(*words)])
        )
        for answer in done.values():
            answer.result(60)

    def bench(self, changes: str = "latest", **options: Any) -> Any:
        from tests.support.benches.kafka_bench import KafkaBench

        bench = KafkaBench(self.server, changes, options)
        given = self.server.connection_json(user="least", password="least-secret")
        bench.connection, bench.secret = parse_connection("target", given), "least-secret"
        return bench


OPERATIONS = [(right, name) for right in rights.KAFKA for name in right.privileges]


@pytest.fixture(scope="module")
def acls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Acls]:
    pytest.importorskip("confluent_kafka")
    from devstack import kafka

    or_skip("Kafka broker", kafka.find_kafka)
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    settings = {"authorizer.class.name": authorizer, "super.users": "User:ANONYMOUS"}
    folder = tmp_path_factory.mktemp("kafka")
    server = kafka.KafkaServer(folder, users={"least": "least-secret"}, settings=settings).start()
    made = Acls(server, f"s{os.getpid()}x")
    for right, name in OPERATIONS:
        made.change(right, name, remove=False)
    yield made
    server.kill()


@pytest.mark.parametrize("changes", ["latest", "all"])
def test_the_listed_acls_are_enough_at_kafka(acls: Acls, changes: str) -> None:
    assert failures(lambda: acls.bench(changes)) == []


def settings_seen(acls: Acls) -> tuple[bool, bool]:
    """Whether the login sees the settings of its topic, and of the broker."""
    from sluice.targets.kafka.topics import Topics, configs_of

    bench = acls.bench()
    table = replace(people("s"), table=TableId(bench.schema, "people"))
    bench.create_table(table)
    Pipe(bench).deliver((table, [new(1, "a", 1)]))
    place: Any = bench.target()
    place = place.place
    broker = Topics.look(place).broker
    return bool(configs_of(place, [str(table.table)])), bool(configs_of(place, [broker], brokers=True))


@pytest.mark.parametrize(
    ("right", "name"), OPERATIONS, ids=[f"{name} {right.scope.name}" for right, name in OPERATIONS]
)
def test_each_operation_of_the_list_is_needed_at_kafka(acls: Acls, right: Right, name: str) -> None:
    """Without it a flow stops, and the error says where the ACLs are listed."""
    [compared] = [check for check in CHECKS if check.number == 23]
    acls.change(right, name, remove=True)
    try:
        if name == "DescribeConfigs":
            assert settings_seen(acls) == (right.scope is not Scope.TOPICS, right.scope is not Scope.CLUSTER)
            return
        with pytest.raises(LoadError, match=r"(?i)authorization failed") as caught:
            compared.run(acls.bench())
        assert "docs/kafka-target.md lists the ACLs" in (caught.value.hint or "")
    finally:
        acls.change(right, name, remove=False)


# -- Elasticsearch: neither test server has users, so the privileges of the requests are those of its documentation ----
REQUESTS: Mapping[str, str] = {
    r"(POST|GET) /INDEX/_(search|mget|doc)\b|(POST|DELETE) /_search/scroll": "read",
    r"(POST|PUT|DELETE) /INDEX/_(bulk|doc|create)\b": "write",
    r"PUT /OWN": "create_index",
    r"POST /OWN/_refresh": "maintenance",
    r"(PUT|DELETE) /INDEX|POST /_aliases|GET /_alias/\S+": "manage",
    r"(GET|PUT|POST) /INDEX/_(mapping|mappings|settings|refresh|alias)\b": "manage",
    r"GET /_cluster/health": "monitor",
}
"""Method and path of requests, and the privilege that allows them."""


def test_the_requests_to_elasticsearch_need_the_listed_privileges(
    elasticsearch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.targets.elasticsearch.client import probe
    from sluice.targets.web.client import WebClient
    from tests.support.benches.elasticsearch_bench import ElasticsearchBench

    sent: set[str] = set()
    exchange = WebClient.exchange

    def recorded(client: Any, request: Any, *arguments: Any) -> Any:
        parts = urlsplit(request.url)
        sent.add(f"{request.method} {unquote(parts.path)}")
        return exchange(client, request, *arguments)

    monkeypatch.setattr(WebClient, "exchange", recorded)
    needed: set[tuple[Scope, str]] = set()
    for changes in ("latest", "all"):
        for check in (check for check in CHECKS if check.number in {2, 5, 7, 16, 17, 23}):
            sent.clear()
            bench = ElasticsearchBench(elasticsearch, changes=changes)
            if not check.applies(bench):
                continue
            check.run(bench)
            told(bench)
            other_writers(bench.target())
            probe(bench.connection)
            for request in sent:
                own = f"{bench.schema}-checkpoints" in request
                path = re.sub(rf"/{bench.schema}[-.][^/]*", "/OWN" if own else "/INDEX", request)
                [privilege] = [
                    name
                    for pattern, name in REQUESTS.items()
                    if re.fullmatch(rf"({pattern.replace('INDEX', '(?:INDEX|OWN)' if own else 'INDEX')})(/.*)?", path)
                ][:1] or [f"of {path}"]
                scope = Scope.OWN_INDEX if own else Scope.CLUSTER if privilege == "monitor" else Scope.INDEXES
                needed.add((scope, privilege))
    assert needed == {(right.scope, name) for right in rights.ELASTICSEARCH for name in right.privileges}


# -- MongoDB: the test server knows no roles, so those of the commands are MongoDB's documentation's -------------------
READ_WRITE = frozenset({
    "createIndexes", "delete", "drop", "find", "getMore", "insert", "killCursors", "listCollections",
    "renameCollection", "update",
})  # fmt: skip
"""Commands that the role readWrite allows; into another database, renameCollection needs it there, too."""
OF_ALL = frozenset({"buildInfo", "endSessions", "hello", "ismaster", "isMaster", "ping"})


def test_the_commands_to_mongodb_need_the_listed_roles(ferretdb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import pymongo.monitoring

    from sluice.targets.mongodb import client
    from tests.support.benches.mongodb_bench import MongoBench

    sent: set[tuple[str, str]] = set()

    class Recorder(pymongo.monitoring.CommandListener):
        def started(self, event: Any) -> None:
            to = event.command.get("to")
            places = [event.command["renameCollection"], to] if to else [event.database_name]
            sent.update((event.command_name, place.partition(".")[0]) for place in places)

        def succeeded(self, event: Any) -> None: ...
        def failed(self, event: Any) -> None: ...

    recording = functools.partial(pymongo.MongoClient, event_listeners=[Recorder()])
    monkeypatch.setattr(client, "pymongo", SimpleNamespace(MongoClient=recording))
    used: set[Scope] = set()
    for changes in ("latest", "all"):
        sent.clear()
        options = {"bulk_rows": 20, "types": {"decimal": "text", "bigint unsigned": "text"}}
        bench = MongoBench(ferretdb.host, ferretdb.port, options, changes)
        flow(bench)
        told(bench)
        other_writers(bench.target())
        client.probe(bench.connection)
        for name, database in sent:
            if name not in OF_ALL:
                assert name in READ_WRITE
                used.add({bench.schema: Scope.DATABASES, f"{bench.schema}_sluice": Scope.OWN_DATABASE}[database])
    assert used == {right.scope for right in rights.MONGODB}
    assert {right.privileges for right in rights.MONGODB} == {("readWrite",)}


# -- S3 ----------------------------------------------------------------------------------------------------------------
_NEW_LOGIN = """
import json, sys, boto3
url, user, policy = sys.argv[1:]
iam = boto3.client("iam", endpoint_url=url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
iam.create_user(UserName=user)
iam.put_user_policy(UserName=user, PolicyName="least", PolicyDocument=policy)
key = iam.create_access_key(UserName=user)["AccessKey"]
print(key["AccessKeyId"], key["SecretAccessKey"])
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("deltalake")
    from tests.support.servers.s3.lake import s3_lake

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INITIAL_NO_AUTH_ACTION_COUNT", "1000000")
        with s3_lake(tmp_path_factory.mktemp("s3")) as server:
            yield server


def at_s3(s3: Any, patch: pytest.MonkeyPatch, number: int, without: str = "") -> None:
    """Run a check of the suite on Delta tables, by a new login that has the actions of the list, but for one."""
    from tests.support.servers.s3 import lake
    from tests.support.servers.s3.server import moto_server

    url, user = f"http://{s3.host}:{s3.port}", f"login{number}{without.rpartition(':')[2]}"
    resources = {Scope.LOCATION: f"arn:aws:s3:::lake/{user}/*", Scope.BUCKET: "arn:aws:s3:::lake"}
    statements = [
        {"Effect": "Allow", "Action": name, "Resource": resources[right.scope]}
        for right in rights.S3
        for name in right.privileges
        if name != without
    ]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    httpx.post(f"{url}/moto-api/reset-auth", content="1000000")
    argv = [moto_server().with_name("python"), "-c", _NEW_LOGIN, url, user, policy]
    key, secret = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120).stdout.split()
    httpx.post(f"{url}/moto-api/reset-auth", content="0")
    environment = {**lake.aws_environment(s3), "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
    for name, value in environment.items():  # for the bench, which reads the tables
        patch.setenv(name, value)
    bench = lake.delta_on(s3, user)
    bench.connection, bench.secret = replace(bench.connection, user=key, password=secret), secret
    [check] = [check for check in CHECKS if check.number == number]
    check.run(bench)


@pytest.mark.parametrize("number", [2, 16, 23])
def test_the_listed_actions_are_enough_at_s3(s3: Any, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    at_s3(s3, monkeypatch, number)


ACTIONS = [name for right in rights.S3 if right.required for name in right.privileges]


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_of_the_list_is_needed_at_s3(s3: Any, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    with pytest.raises(SluiceError, match=r"necessary privileges|403|Forbidden"):
        at_s3(s3, monkeypatch, 2, action)
