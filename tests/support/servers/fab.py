"""An API server of Airflow with the FAB auth manager: its packages in a folder of their own, its users in its database.

They are not in the environment of the tests, because Flask-AppBuilder wants an older python-dateutil than the lock has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from devstack import paths, ports
from devstack.airflow import AirflowComponent, environment, new_secrets, prepare_home

_LOCK = Path(__file__).resolve().parents[1] / "fab" / "requirements.txt"
_MANAGER = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
PASSWORD = "of-a-test-only"

_USERS = """
import json, sys
from airflow.providers.fab.auth_manager.cli_commands.utils import get_application_builder

users, roles, password = json.loads(sys.argv[1])
with get_application_builder() as builder:
    manager = builder.sm
    for role, granted in roles.items():
        made = manager.add_role(role)
        for action, resource in granted:
            manager.add_permission_to_role(made, manager.create_permission(action, resource))
    for user, names in users.items():
        found = [manager.find_role(name) for name in names]
        assert all(found), names
        assert manager.add_user(user, user, "Test", user + "@example.invalid", found, password), user
"""


def packages() -> Path:
    """The folder of the FAB provider and what it needs; installed from the package index at the first call."""
    folder = paths.home() / "fab" / hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:12]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            target = Path(made) / "packages"
            uv = Path(sys.executable).with_name("uv")
            command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(target)]
            subprocess.run([*command, "--no-deps", "--require-hashes", "-r", str(_LOCK)], check=True, timeout=600)
            with contextlib.suppress(OSError):  # another process was faster
                target.rename(folder)
    return folder


@contextlib.contextmanager
def fab_airflow(
    folder: Path,
    pipelines: Path,
    users: Mapping[str, list[str]],
    roles: Mapping[str, list[tuple[str, str]]],
) -> Iterator[str]:
    """The URL of an API server; ``users``: name -> roles, ``roles``: more roles -> what they are granted."""
    home = folder / "home"
    home.mkdir(parents=True)
    port, keys = ports.free_port(), new_secrets()
    extra = {"SLUICE_PIPELINES": str(pipelines), "AIRFLOW__CORE__AUTH_MANAGER": _MANAGER}
    env = environment(home, port=port, keys=keys, connections={}, extra=extra)
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], str(packages())])
    prepare_home(home, keys, env)
    for arguments in (
        ["-m", "airflow", "fab-db", "migrate"],
        ["-c", _USERS, json.dumps([dict(users), dict(roles), PASSWORD])],
    ):
        done = subprocess.run(
            [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    server = AirflowComponent(folder, kind="api-server", port=port, env=env)
    try:
        server.start(300.0)
        yield f"http://{ports.LOOPBACK}:{port}"
    finally:
        server.stop()
