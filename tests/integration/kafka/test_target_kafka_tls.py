"""The Kafka target over TLS, with certificates of both sides: batches arrive; a broker that is not trusted, and a
client that is not, are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import ports
from devstack.kafka import KafkaServer
from sluice.config.connections import Endpoint
from sluice.errors import SluiceError
from sluice.testing.targets import Pipe, changed, new, people

pytest.importorskip("confluent_kafka")

from sluice.targets.kafka import ack_topic
from tests.support.benches.kafka_bench import KafkaBench
from tests.support.readers import kafka_reading
from tests.support.servers.certificates import self_signed


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``broker.pem`` and ``other.pem``, each its own authority; ``*.key``; ``*.both`` has key and certificate."""
    folder = self_signed(tmp_path_factory.mktemp("certificates"), "broker", "other")
    for name in ("broker", "other"):
        (folder / f"{name}.both").write_text(
            (folder / f"{name}.key").read_text() + (folder / f"{name}.pem").read_text()
        )
    return folder


@pytest.fixture(scope="module")
def broker(kafka: Any, certificates: Path, server_folder: Path) -> Iterator[KafkaServer]:
    """Its listener at ``login_port`` speaks TLS and wants a certificate. ``kafka``: skipped where there is none."""
    port, controller, tls = (ports.free_port() for _ in range(3))
    plain = f"PLAINTEXT://127.0.0.1:{port},TLS://127.0.0.1:{tls}"
    settings = {
        "listeners": f"{plain},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": plain,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates / "broker.both",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates / "broker.pem",
        "ssl.client.auth": "required",
    }
    made = KafkaServer(
        server_folder / "kafka-tls", port=port, controller_port=controller, login_port=tls, settings=settings
    )
    yield made.start()
    made.kill()


def over_tls(broker: KafkaServer, certificates: Path, trusted: str, client: str) -> KafkaBench:
    bench = KafkaBench(broker)
    extra = {
        "bootstrap.servers": f"127.0.0.1:{broker.login_port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates / f"{trusted}.pem"),
        **(
            {
                "ssl.certificate.location": str(certificates / f"{client}.pem"),
                "ssl.key.location": str(certificates / f"{client}.key"),
            }
            if client
            else {}
        ),
    }
    bench.connection = Endpoint("target", "kafka", "", extra=extra)
    return bench


def test_batches_arrive_over_tls(broker: KafkaServer, certificates: Path) -> None:
    bench = over_tls(broker, certificates, "broker", "broker")
    table = people(bench.schema)
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    pipe.deliver((table, [changed((1, "a", 1), (1, "c", 3))]))
    assert pipe.held == 2
    assert len(kafka_reading.read(broker, f"{bench.schema}.people")) == 3


@pytest.mark.parametrize(
    ("trusted", "client", "said"),
    [
        ("other", "broker", "127.0.0.1.*certificate verify failed"),
        ("broker", "other", "127.0.0.1.*(SSL|alert|certificate)"),
        ("broker", "", "127.0.0.1.*(SSL|alert|certificate)"),
    ],
)
def test_a_side_that_is_not_trusted_is_told(
    broker: KafkaServer, certificates: Path, monkeypatch: pytest.MonkeyPatch, trusted: str, client: str, said: str
) -> None:
    """The error has the reason, which the client tells in its log alone."""
    monkeypatch.setattr("sluice.targets.kafka.client.ANSWER_S", 2.0)
    monkeypatch.setattr(ack_topic, "ANSWER_S", 2.0)
    target: Any = over_tls(broker, certificates, trusted, client).target()
    with pytest.raises(SluiceError, match=said):
        target.checkpoints.read()
