"""A real RabbitMQ broker, the same way: Debian's packages with their Erlang, unpacked into a project folder."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika

from devstack import debian, packages, paths, ports, processes
from devstack.processes import Handle, ServerFailed
from devstack.server import Server

_EXTENSIONS = ("rabbitmq_stream",)
_USER = "sluice"
_QUIET_S, _LONGEST_S = 1.0, 60.0
_END = "devstack-end-"
_ELF = b"\x7fELF"


def find_rabbitmq() -> debian.Tree:
    """Return the broker as fetched earlier, else fetch it now (about 58 MB). Raises ConfigError, FetchFailed."""
    tree = packages.RABBITMQ.tree()
    with debian.lock(paths.home() / packages.RABBITMQ.folder / ".programs.lock"):
        _adapt(tree)
    return tree


def _adapt(tree: debian.Tree) -> None:
    """Make the tree work where it is: Erlang's programs start each other by path, so each becomes a script that names
    the tree's own loader.
    """
    erlang = tree.root / "usr/lib/erlang"
    for program in _programs(erlang):
        debian.use_own_loader(tree, program)
    starter = erlang / "bin/erl"
    text = starter.read_text(encoding="utf-8")
    adapted = text.replace("ROOTDIR=/usr/lib/erlang\n", f"ROOTDIR={erlang}\n")
    if adapted != text:
        starter.write_text(adapted, encoding="utf-8")


def _programs(erlang: Path) -> Iterator[Path]:
    for pattern in ("erts-*/bin/*", "bin/*", "lib/*/priv/bin/*"):
        for path in sorted(erlang.glob(pattern)):
            if path.suffix == ".bin" or not path.is_file() or path.is_symlink():
                continue
            with path.open("rb") as file:
                is_program = file.read(4) == _ELF
            if is_program or path.with_name(f"{path.name}.bin").exists():
                yield path


@dataclass(frozen=True, slots=True)
class Received:
    """A message as a reader by AMQP 0.9.1 has it."""

    id: str
    headers: dict[str, Any]
    body: bytes
    content_type: str


@dataclass
class RabbitMQServer(Server):
    """One broker with queues and streams. ``start`` on the same folder goes on with its data, also after a crash.

    Args:
        program: what to run; None: :func:`find_rabbitmq`.
        port, stream_port: of AMQP 0.9.1 and of the stream protocol; 0: free ones, kept over restarts.
        password: of its user, ``sluice``.
        settings: lines of its configuration on top of its own, such as ``{"max_message_size": 2000}``.
    """

    name: str = "rabbitmq"
    program: debian.Tree | None = None
    port: int = 0
    stream_port: int = 0
    password: str = field(default="sluice", repr=False)
    settings: dict[str, object] = field(default_factory=dict)
    _others: dict[str, int] = field(default_factory=dict)
    _mapper: Handle | None = None

    def start(self, timeout_s: float = 300.0) -> RabbitMQServer:
        """Start the broker, and the port mapper that it needs, and wait until both ports answer.

        Raises ServerFailed with the end of its log.
        """
        if self.running:
            return self
        self.program = self.program or find_rabbitmq()
        self.port = self.port or ports.free_port()
        self.stream_port = self.stream_port or ports.free_port()
        for name in ("mapper", "distribution"):
            self._others.setdefault(name, ports.free_port())
        self.folder.mkdir(parents=True, exist_ok=True)
        self._configure()
        erlang = self.program.root / "usr/lib/erlang"
        env = self._environment(erlang)
        if self._mapper is None or not self._mapper.alive:  # in the foreground, so that it ends with the broker
            mapper = [str(erlang / "bin/epmd"), "-port", str(self._others["mapper"]), "-address", self.host]
            log = self.folder / "epmd.log"
            self._mapper = processes.spawn(f"{self.name}-epmd", mapper, log=log, env=env, cwd=self.folder)
        script = next(self.program.root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"))
        self._spawn(["/bin/sh", script], env)
        self._wait_ready(lambda: all(map(ports.accepts, (self.port, self.stream_port))), timeout_s)
        return self

    def connection_json(self) -> str:
        """Return the value for ``AIRFLOW_CONN_<ID>``."""
        return json.dumps({
            "conn_type": "rabbitmq", "host": self.host, "port": self.port, "login": _USER, "password": self.password,
            "schema": "/",
            "extra": {"stream_port": self.stream_port},
        })  # fmt: skip

    def control(self, *words: str) -> None:
        """Run ``rabbitmqctl``. Raises ServerFailed with what it said."""
        assert self.program is not None, "it runs"
        tool = next(self.program.root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmqctl"))
        env = self._environment(self.program.root / "usr/lib/erlang")
        del env["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]  # of the broker
        done = subprocess.run(
            ["/bin/sh", tool, *words],
            env=env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise ServerFailed(f"rabbitmqctl {words[0]}: {done.stderr[-500:]}")

    def client(self) -> Any:
        """Open a connection as the broker's user."""
        login = pika.PlainCredentials(_USER, self.password)
        return pika.BlockingConnection(
            pika.ConnectionParameters(self.host, self.port, credentials=login, socket_timeout=30.0)
        )

    def messages(self, name: str, *, stream: bool = False, whole: bool = False) -> list[Received]:
        """Return what a queue holds, and take it out of it, or all of a stream, which stays; nothing if it is not
        there.

        ``whole``: it ends at a message that is published for it, else when nothing came for a moment.
        """
        connection = self.client()
        try:
            channel = connection.channel()
            try:
                channel.queue_declare(name, passive=True)
            except pika.exceptions.ChannelClosedByBroker:
                return []
            end = f"{_END}{secrets.token_hex(8)}" if whole else ""
            if whole:
                channel.confirm_delivery()
                channel.basic_publish("", name, b"", pika.BasicProperties(message_id=end, delivery_mode=2))
            return list(self._consumed(channel, name, {"x-stream-offset": "first"} if stream else None, end))
        finally:
            connection.close()

    def _consumed(self, channel: Any, name: str, arguments: Any, end: str) -> Iterator[Received]:
        channel.basic_qos(prefetch_count=2_000)
        patience_s = _LONGEST_S if end else _QUIET_S
        for method, properties, body in channel.consume(name, arguments=arguments, inactivity_timeout=patience_s):
            if method is None and end:
                raise ServerFailed(f"the end of {name} was not delivered within {patience_s:g} s", where=str(self.log))
            if method is None:
                return
            channel.basic_ack(method.delivery_tag)
            name_of_it = str(properties.message_id)
            if name_of_it == end:
                return
            if not name_of_it.startswith(_END):
                headers = dict(properties.headers or {})
                yield Received(name_of_it, headers, body, str(properties.content_type))

    def _stopped(self) -> None:
        if self._mapper is not None:
            processes.stop([self._mapper], grace_s=2.0)
            self._mapper = None

    def _configure(self) -> None:
        """Write the configuration. The first start makes the user."""
        given: dict[str, object] = {
            "listeners.tcp.1": f"{self.host}:{self.port}",
            "stream.listeners.tcp.1": f"{self.host}:{self.stream_port}",
            "stream.advertised_host": self.host,
            "stream.advertised_port": self.stream_port,
            "default_user": _USER,
            "default_pass": self.password,
            "log.console": "true",
            "log.console.level": "warning",
            "log.file": "false",
            "vm_memory_high_watermark.absolute": "512MB",
            "disk_free_limit.absolute": "50MB",
            **self.settings,
        }
        configuration = self.folder / "rabbitmq.conf"
        configuration.touch(mode=0o600)
        configuration.write_text("".join(f"{name} = {value}\n" for name, value in given.items()), encoding="utf-8")
        (self.folder / "enabled_plugins").write_text(f"[{','.join(_EXTENSIONS)}].\n", encoding="utf-8")
        (self.folder / "env.conf").touch()

    def _environment(self, erlang: Path) -> dict[str, str]:
        """Return what the broker is told. It runs on one core, and does not wait busily."""
        folder = self.folder
        return {
            "HOME": str(folder),
            "PATH": f"{erlang / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._others["mapper"]),
            "ERL_EPMD_ADDRESS": self.host,
            "RABBITMQ_NODENAME": f"sluice{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._others["distribution"]),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"),
            "RABBITMQ_ALLOW_INPUT": "1",  # the process stays the broker
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none "
            "-kernel inet_dist_use_interface {127,0,0,1}",
        }
