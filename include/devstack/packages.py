"""The Debian packages of the servers; ``python -m devstack.packages`` fetches those that ``make test`` needs.

Only the standard library is needed here: they come while the environment of the tests is still being made.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from devstack import debian, paths
from devstack.progress import write
from sluice.errors import SluiceError


@dataclass(frozen=True)
class Packages:
    """Debian packages that one kind of server is unpacked from.

    Attributes:
        folder: below the project's folder of servers.
        names: the packages; the first one gives the version.
        suite: a suite other than the machine's own, or None.
        programs: patterns of programs of the machine itself, which make a fetch needless where they are new enough.
    """

    folder: str
    names: tuple[str, ...]
    suite: str | None = None
    programs: tuple[str, ...] = ()

    def tree(self) -> debian.Tree:
        """Return the packages as fetched earlier, else fetch them now. Raises ConfigError, FetchFailed."""
        folder = paths.home() / self.folder
        found = debian.installed_tree(folder)
        if found is None:
            sys.stderr.write(f"fetching {self.names[0]} into {folder}\n")
            found = debian.fetch(folder, self.names, suite=self.suite)
        return found

    def is_installed(self, root: Path = Path("/")) -> bool:
        """Return True if the machine has such a server, of whatever version."""
        return any(any(root.glob(pattern)) for pattern in self.programs)


def _suite_with_mysql(release: Path = Path("/etc/os-release")) -> str | None:
    text = release.read_text(encoding="utf-8") if release.exists() else ""
    return "unstable" if re.search(r'^ID="?debian"?$', text, re.MULTILINE) else None


MYSQL = Packages(
    "mysql",
    ("mysql-server-core", "mysql-client-core"),
    _suite_with_mysql(),
    ("usr/sbin/mysqld", "usr/bin/mysqld", "usr/local/mysql/bin/mysqld"),
)
MARIADB = Packages(
    "mariadb", ("mariadb-server-core", "mariadb-client-core"), None, ("usr/sbin/mariadbd", "usr/bin/mariadbd")
)
MARIADB_11_8 = Packages("mariadb-trixie", MARIADB.names, "trixie")
POSTGRESQL = Packages(
    "postgresql",
    ("postgresql-18",),
    "unstable",
    (
        "usr/lib/postgresql/1[89]/bin/postgres",
        "usr/lib/postgresql/[2-9]?/bin/postgres",
    ),
)
POSTGIS = Packages("postgis", ("postgresql-18", "postgresql-18-postgis-3"), "unstable")
RABBITMQ = Packages("rabbitmq", ("rabbitmq-server",), "trixie")
REDIS = Packages("redis", ("redis-server",), "unstable")
VALKEY = Packages("valkey", ("valkey-server",), "unstable")

OF_MAKE_TEST = (MYSQL, POSTGRESQL, MARIADB, RABBITMQ, REDIS)
"""Those that some test of ``make test`` starts, in the order in which they are needed."""


def fetch(wanted: Sequence[Packages] = OF_MAKE_TEST) -> None:
    """Fetch what neither the machine nor the project has, and print a line for each.

    Nothing fails here: what could not be had is asked for again by whoever needs it, and says why.
    """

    def one(packages: Packages) -> None:
        try:
            said = "the machine has its own" if packages.is_installed() else f"{packages.tree().version}"
        except SluiceError as error:
            said = f"cannot be had: {error}"
        write(f"{packages.names[0]}: {said}")

    with debian.shared_lists(paths.home()), ThreadPoolExecutor(len(wanted)) as pool:
        list(pool.map(one, wanted))


def _end(*_: object) -> None:
    """End apt and dpkg as well, so that each fetch removes what it has made so far."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, _end)
    fetch()
