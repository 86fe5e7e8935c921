"""Free TCP ports on the loopback address."""

from __future__ import annotations

import random
import socket
import urllib.request

from sluice.errors import ConfigError

LOOPBACK = "127.0.0.1"
# Below Linux's range for outgoing connections (32768 and up): a client cannot take the port between choice and use.
_FIRST, _LAST = 20000, 32000
_taken: set[int] = set()
_random = random.SystemRandom()


def is_free(port: int) -> bool:
    """Return True if a server could listen on 127.0.0.1:port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port(wanted: int | None = None) -> int:
    """Return a free port, never the same one twice in one process. ``wanted``: that port or a ConfigError."""
    if wanted is not None:
        if not is_free(wanted):
            raise ConfigError(
                f"port {wanted} is already taken on {LOOPBACK}",
                hint=f"stop what listens there (ss -ltnp 'sport = :{wanted}') or choose another port",
            )
        return wanted
    for _ in range(1000):
        port = _random.randint(_FIRST, _LAST)
        if port not in _taken and is_free(port):
            _taken.add(port)
            return port
    raise ConfigError(f"there is no free port between {_FIRST} and {_LAST}")


def accepts(port: int, host: str = LOOPBACK, timeout_s: float = 1.0) -> bool:
    """Return True if something accepts TCP connections there."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def answers_http(url: str, timeout_s: float = 5.0) -> bool:
    """Return True if a server answers 200 to a GET."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - loopback
            return bool(answer.status == 200)
    except OSError:
        return False
