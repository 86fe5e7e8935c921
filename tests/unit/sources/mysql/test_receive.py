"""Reading the dump's connection: every byte once and in order, whatever the pace; the last bytes come although few are
there.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time

import numpy as np
import pytest

from sluice.errors import SourceUnavailable
from sluice.sources.mysql.protocol.socket_reader import SocketReader


@pytest.fixture
def joined():
    """(stream, the server's end of its connection)."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        mine = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    stream = SocketReader(mine, what="connection c", silence_s=20.0)
    yield stream, theirs
    mine.close()
    theirs.close()


def received(stream: SocketReader, size: int, timeout_s: float = 10.0) -> bytes:
    buffer = np.zeros(1 << 22, np.uint8)
    found = b""
    while len(found) < size:
        count = stream.receive(buffer, 0, timeout_s, 1 << 19)
        assert count, "nothing came"
        found += buffer[:count].tobytes()
    return found


@pytest.mark.promise("A3")
@pytest.mark.parametrize("pause_s", [0.0, 0.001])
def test_every_byte_comes_once_and_the_last_ones_without_more_behind_them(joined, pause_s):
    stream, theirs = joined
    data = np.random.default_rng(3).integers(0, 256, 6_000_001, dtype=np.uint8).tobytes()

    def send() -> None:
        for at in range(0, len(data), 100_000):
            theirs.sendall(data[at : at + 100_000])
            time.sleep(pause_s)

    sender = threading.Thread(target=send)
    sender.start()
    assert received(stream, len(data)) == data
    sender.join()
    for number in range(3):  # what trickles in behind a stream comes at once, too
        theirs.sendall(b"tail%d" % number)
        assert received(stream, 5) == b"tail%d" % number


def test_silence_and_a_hang_up(joined):
    stream, theirs = joined
    buffer = np.zeros(1 << 20, np.uint8)
    assert stream.receive(buffer, 0, 0.01) == 0
    theirs.sendall(bytes(200_000))
    assert received(stream, 200_000) == bytes(200_000)
    assert stream.receive(buffer, 0, 0.01) == 0
    theirs.sendall(b"why")
    theirs.close()
    assert received(stream, 3) == b"why"
    with pytest.raises(SourceUnavailable, match="closed the connection"):
        stream.receive(buffer, 0, 5.0)


def test_a_process_may_have_many_files_open():
    """select() refuses those from 1,024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)  # this process may have opened hundreds before
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    with contextlib.ExitStack() as opened:
        for _ in range(1100):
            opened.enter_context(open(os.devnull, "rb"))
        mine, theirs = (opened.enter_context(one) for one in socket.socketpair())
        assert mine.fileno() > 1024
        stream = SocketReader(mine, what="connection c", silence_s=20.0)
        theirs.sendall(b"there")
        assert received(stream, 5) == b"there"
        assert stream.receive(np.zeros(8, np.uint8), 0, 0.01) == 0
