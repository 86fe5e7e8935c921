"""A real TCP proxy for tests: it cuts, stalls, refuses, delays and throttles what goes through it."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

_PIECE = 1 << 16
_HELD = 256
"""Pieces on their way in one direction; a delayed link holds as much as its window, then the sender waits."""


class TcpProxy:
    """Listens on a free loopback port and passes everything on to ``host:port``.

    Attributes:
        delay_s: every byte arrives so much later, in each direction; order and bandwidth stay.
        bytes_per_s: no faster than this in each direction; None: as fast as it goes.
        refusing: new connections are reset at once.
        round_trips: how often the near side has spoken after the far side had, over all connections.
        before: called with each piece of the near side before it is passed on.
    """

    def __init__(self, host: str, port: int, *, delay_s: float = 0.0) -> None:
        self._upstream = (host, port)
        self.delay_s = delay_s
        self.bytes_per_s: float | None = None
        self.refusing = False
        self.round_trips = 0
        self.before: Callable[[bytes], None] | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.host, self.port = self._listener.getsockname()
        threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True).start()

    @property
    def connections(self) -> int:
        """Connections that are open through it, counted once."""
        with self._lock:
            return len(self._open) // 2

    def cut(self) -> int:
        """Reset every open connection, as a firewall or a pulled cable would in the end; returns how many."""
        with self._lock:
            gone, self._open = self._open, set()
        for one in gone:
            _reset(one)
        return len(gone) // 2

    def stall(self) -> None:
        """From now on nothing arrives, and nobody is told: a half-dead link. New connections hang too."""
        self._flowing.clear()

    def flow(self) -> None:
        """The opposite of :meth:`stall`; what was held arrives."""
        self._flowing.set()

    def heal(self) -> None:
        """As new."""
        self.delay_s, self.bytes_per_s, self.refusing = 0.0, None, False
        self.flow()

    def close(self) -> None:
        self._closed = True
        self.heal()
        with contextlib.suppress(OSError):
            self._listener.close()
        self.cut()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------------
    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        self._flowing.wait()
        if self.refusing or self._closed:
            return _reset(near)
        try:
            far = socket.create_connection(self._upstream, timeout=10)
        except OSError:
            return _reset(near)
        far.settimeout(None)
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {near, far}
        pair = _Pair()
        self._pass_on(near, far, pair, speaks=True)
        self._pass_on(far, near, pair, speaks=False)
        return None

    def _pass_on(self, source: socket.socket, sink: socket.socket, pair: _Pair, *, speaks: bool) -> None:
        """One direction; ``speaks``: of the near side."""
        pieces: queue.Queue[tuple[float, bytes]] = queue.Queue(_HELD)

        def read() -> None:
            piece = b"?"
            while piece:
                try:
                    piece = source.recv(_PIECE)
                except OSError:
                    piece = b""
                if speaks and piece and pair.answered:
                    with self._lock:
                        self.round_trips += 1
                pair.answered = not speaks
                pieces.put((time.monotonic() + self.delay_s, piece))

        def write() -> None:
            piece = b"?"
            try:
                while True:
                    due, piece = pieces.get()
                    wait_s = due - time.monotonic()
                    if wait_s > 0:
                        time.sleep(wait_s)
                    self._flowing.wait()
                    if not piece:
                        sink.shutdown(socket.SHUT_WR)
                        if not pair.one_left.acquire(blocking=False):
                            self._forget(source, sink)
                        return
                    if speaks and self.before is not None:
                        self.before(piece)
                    sink.sendall(piece)
                    if self.bytes_per_s:
                        time.sleep(len(piece) / self.bytes_per_s)
            except OSError:
                self._forget(source, sink)
                while piece:  # so that the reader is not held up for ever
                    piece = pieces.get()[1]

        threading.Thread(target=read, daemon=True).start()
        threading.Thread(target=write, daemon=True).start()

    def _forget(self, *gone: socket.socket) -> None:
        with self._lock:
            self._open -= set(gone)
        for one in gone:
            _reset(one)


class _Pair:
    """What the two directions of a connection share: the one that ends second closes both sockets; who spoke last."""

    def __init__(self) -> None:
        self.one_left = threading.Semaphore(1)
        self.answered = False


def _reset(one: socket.socket) -> None:
    """Close with RST rather than FIN."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        one.close()


def _main(host: str, port: str) -> None:
    """``python -m tests.support.servers.proxy HOST PORT``: prints its own port; each line of its input is a delay in
    seconds from then on.
    """
    with TcpProxy(host, int(port)) as proxy:
        print(proxy.port, flush=True)
        for line in sys.stdin:
            proxy.delay_s = float(line)
            print("ok", flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:3])
