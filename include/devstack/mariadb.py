"""A real MariaDB server, the same way: an installed one, else that of the machine's own suite, unpacked."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from devstack import packages
from devstack.mysql import Distribution, MySQLServer, run_as, run_setup

_BOOTSTRAP = (
    "{0}_system_tables.sql",
    "{0}_performance_tables.sql",
    "{0}_system_tables_data.sql",
    "fill_help_tables.sql",
    "maria_add_gis_sp_bootstrap.sql",
)
_NAMES = ("mariadb", "mysql")
"""What the scripts are named after, from 11 on and before."""


def find_mariadb() -> Distribution:
    """Return an installed mariadbd, else the one fetched earlier, else fetch it now (about 17 MB).

    Where ``SLUICE_MARIADB`` names a Debian suite, that suite's.
    """
    if suite := os.environ.get("SLUICE_MARIADB", ""):
        return fetched_mariadb(replace(packages.MARIADB, folder=f"mariadb-{suite}", suite=suite))
    for candidate in (shutil.which("mariadbd"), "/usr/sbin/mariadbd"):
        if candidate is None or not Path(candidate).exists():
            continue
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            banner = subprocess.run(
                [candidate, "--version"], capture_output=True, text=True, timeout=30, check=True
            ).stdout
            match = re.search(r"(\d+\.\d+\.\d+)-MariaDB", banner)
            for share in (Path("/usr/share/mariadb"), Path("/usr/share/mysql")):
                if match and bootstrap_scripts(share):
                    return Distribution("MariaDB", match[1], (candidate, "--no-defaults"), (), candidate, share)
    return fetched_mariadb(packages.MARIADB)


def fetched_mariadb(wanted: packages.Packages) -> Distribution:
    """Return the one that was fetched earlier, else fetch it now."""
    tree = wanted.tree()
    share = next(
        path for path in (tree.root / "usr/share/mariadb", tree.root / "usr/share/mysql") if bootstrap_scripts(path)
    )
    plugins = next(
        (path for path in tree.root.glob("usr/lib/m*/plugin") if path.is_dir()), tree.root / "usr/lib/mysql/plugin"
    )
    options = (
        f"--basedir={tree.root / 'usr'}",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share / 'charsets'}",
        f"--plugin-dir={plugins}",
    )
    command = (*tree.command("usr/sbin/mariadbd"), "--no-defaults")
    return Distribution("MariaDB", tree.version, command, options, str(tree.root), share)


def bootstrap_scripts(share: Path) -> list[Path]:
    """Return the scripts that create an empty data directory, in order; none if they are not there."""
    for name in _NAMES:
        scripts = [share / script.format(name) for script in _BOOTSTRAP]
        if all(script.exists() for script in scripts):
            return scripts
    return []


@dataclass
class MariaDBServer(MySQLServer):
    """A MariaDB server, used like :class:`MySQLServer`; row log with full metadata, its own GTIDs (always on)."""

    name: str = "mariadb"

    def _distribution(self) -> Distribution:
        if self.distribution is None:
            self.distribution = find_mariadb()
        return self.distribution

    def _own_defaults(self, distribution: Distribution) -> dict[str, Any]:
        # at its start a server removes the temporary tables that it finds, another server's too
        temporary = self.folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        return {"gtid_strict_mode": "ON", "log_warnings": 1, "tmpdir": temporary}

    def _initialise(self, distribution: Distribution, data: Path) -> None:
        assert distribution.share is not None
        (data / "mysql").mkdir(parents=True)
        script = ["SET @auth_root_socket = NULL;", "SET @skip_auth_anonymous = 1;", "USE mysql;"]
        script += [path.read_text(encoding="utf-8") for path in bootstrap_scripts(distribution.share)]
        script += [
            "FLUSH PRIVILEGES;",
            "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1' IDENTIFIED BY '';",
            "GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;",
        ]
        argv = [*distribution.command, *distribution.options, "--bootstrap", f"--datadir={data}", "--log-warnings=0"]
        argv += [*run_as(), "--enforce-storage-engine=", "--max-allowed-packet=64M", "--loose-innodb-log-file-size=48M"]
        run_setup(argv, f"initialising MariaDB {distribution.version}", stdin="\n".join(script))
