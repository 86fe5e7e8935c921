"""Debian packages unpacked into a folder of the project: no root, nothing installed, nothing of the machine changed.

The package lists, the cache and the (empty) status file are the project's own, so apt resolves every dependency down
to libc; the programs are then started through that libc's own loader. The package source is derived from the sources
that the machine itself uses, so a mirror or a proxy set up there is used here too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sluice.errors import ConfigError, RetryableError

_APT = Path("/etc/apt")
_READY = "ready.json"  # written last inside an unpacked tree
_PRUNED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/perl",
    "usr/share/perl5",
    "usr/share/lintian",
)

_NEEDLESS = re.compile(
    r"(lib)?perl.*|(lib)?python3.*|systemd|libsystemd-shared|locales|libc-l10n|passwd|adduser|debconf|openssl|procps|dpkg|tar"
)
"""Packages that others want when they are installed, and of which no server uses a file."""
_UPDATED = ".updated"


class FetchFailed(RetryableError):
    """Packages could not be fetched."""


@dataclass(frozen=True)
class Tree:
    """An unpacked set of packages. ``root`` is laid out like ``/``."""

    root: Path
    package: str
    version: str

    def command(self, program: str) -> list[str]:
        """Return the arguments that run ``program`` (a path below ``root``) with the tree's own loader and
        libraries.
        """
        loaders = sorted(self.root.glob("lib*/**/ld-linux*.so.*")) + sorted(
            self.root.glob("usr/lib*/**/ld-linux*.so.*")
        )
        if not loaders:
            return [str(self.root / program)]
        return [str(loaders[0]), "--library-path", ":".join(self._library_dirs()), str(self.root / program)]

    def _library_dirs(self) -> list[str]:
        triplets = [
            folder for pattern in ("lib/*-linux-gnu*", "usr/lib/*-linux-gnu*") for folder in self.root.glob(pattern)
        ]
        return [str(folder) for folder in (*triplets, self.root / "usr/lib") if folder.is_dir()]


@dataclass
class _SharedLists:
    """The folder of one process's package lists: each suite's are asked for once."""

    folder: Path
    locks: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))


_shared: _SharedLists | None = None


@contextlib.contextmanager
def shared_lists(folder: Path) -> Iterator[None]:
    """Let every :func:`fetch` of the block, in whatever thread, use the same package lists; they go with its end."""
    global _shared
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".lists-", dir=folder) as made:
        _shared = _SharedLists(Path(made))
        try:
            yield
        finally:
            _shared = None


def available() -> bool:
    """Return True if this machine has apt and dpkg."""
    return shutil.which("apt-get") is not None and shutil.which("dpkg") is not None


def installed_tree(folder: Path) -> Tree | None:
    """Return the newest tree that an earlier :func:`fetch` left in ``folder``."""
    trees = []
    for ready in folder.glob(f"*/{_READY}"):
        data = json.loads(ready.read_text(encoding="utf-8"))
        trees.append((ready.stat().st_mtime, Tree(ready.parent / "root", data["package"], data["version"])))
    return max(trees, key=lambda item: item[0])[1] if trees else None


def fetch(folder: Path, packages: Sequence[str], *, suite: str | None) -> Tree:
    """Download ``packages`` and all they need, unpack them to ``folder/<version>/root``; once, whoever asks at the same
    time.

    Args:
        folder: parent of the unpacked trees; created.
        packages: names; the first one gives the version.
        suite: a suite other than the machine's own (``unstable``); None: the machine's own suites.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / ".lock"):
        present = installed_tree(folder)
        if present is not None:
            return present
        if not available():
            raise ConfigError(
                f"cannot fetch {packages[0]}: this machine has no apt", hint=f"install {packages[0]} by hand"
            )
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            return _fetch(folder, Path(scratch), packages, suite)


def use_own_loader(tree: Tree, program: Path) -> None:
    """Make a script of the program that starts it with the tree's own loader.

    For programs that others start by their path, as initdb does postgres. The script names the real place of the tree:
    who comes by a symbolic link may be gone before it.
    """
    root = tree.root.resolve()
    program, tree = root / program.relative_to(tree.root), replace(tree, root=root)
    binary = program.with_name(f"{program.name}.bin")
    if not binary.exists():
        os.link(program, binary)
    loader, *rest = tree.command(str(binary.relative_to(tree.root)))
    words = " ".join(f"'{word}'" for word in (loader, *rest[:-1], "--argv0", str(program), rest[-1]))
    script = f'#!/bin/sh\nexec {words} "$@"\n'
    if program.read_bytes() != script.encode():
        made = program.with_name(f"{program.name}.new")
        made.write_text(script, encoding="utf-8")
        made.chmod(0o755)
        made.replace(program)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; the kernel releases it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(folder: Path, scratch: Path, packages: Sequence[str], suite: str | None) -> Tree:
    env = _package_lists(scratch, suite)
    _run_apt(["--download-only", "install", *packages], env)
    root = scratch / "unpacked" / "root"
    root.mkdir(parents=True)
    version = ""
    for archive in sorted((scratch / "cache" / "archives").glob("*.deb")):
        name, number = archive.name.split("_")[:2]
        if name == packages[0]:
            version = number.replace("%3a", ":").rpartition(":")[2]
        if not _NEEDLESS.fullmatch(name):
            _run(["dpkg", "-x", str(archive), str(root)], env)
    for pruned in _PRUNED:
        shutil.rmtree(root / pruned, ignore_errors=True)
    for perl in (*root.glob("usr/lib/*/perl*"), *root.glob("usr/lib/*/gconv")):
        shutil.rmtree(perl, ignore_errors=True)
    if not version:
        raise FetchFailed(f"apt downloaded no package {packages[0]}")
    (root.parent / _READY).write_text(json.dumps({"package": packages[0], "version": version}), encoding="utf-8")
    final = folder / version
    if final.exists():
        shutil.rmtree(final)  # without its ready file: a torn leftover
    root.parent.rename(final)
    return Tree(final / "root", packages[0], version)


def _package_lists(scratch: Path, suite: str | None) -> dict[str, str]:
    """Bring the package lists of a suite up to date; return the environment in which apt uses them."""
    if _shared is None:
        env = _configured(scratch, scratch, suite)
        _run_apt(["update"], env)
        return env
    lists = _shared.folder / (suite or "machine")
    with _shared.locks[lists.name]:
        if not (lists / _UPDATED).exists():
            _run_apt(["update"], _configured(lists, lists, suite))
            (lists / _UPDATED).touch()
    env = _configured(scratch, lists, suite)
    # what apt has read from the lists: with a copy the next program does not read them again
    for kept in lists.glob("*.bin"):
        shutil.copy2(kept, scratch)
    return env


def _configured(scratch: Path, lists: Path, suite: str | None) -> dict[str, str]:
    """Return the environment of an apt whose sources and package lists are in ``lists``, and all else in
    ``scratch``.
    """
    sources = lists / "sources.list.d"
    for sub in (sources, lists / "lists" / "partial", scratch / "cache" / "archives" / "partial", scratch / "etc"):
        sub.mkdir(parents=True, exist_ok=True)
    if not (lists / "status").exists():
        (lists / "status").touch()
        if suite is None:
            _copy_sources(sources)
        else:
            (sources / "derived.sources").write_text(derived_source(suite), encoding="utf-8")
    config = scratch / "apt.conf"
    config.write_text(
        "\n".join([
            'Dir::Etc::SourceList "/dev/null";',
            f'Dir::Etc::SourceParts "{sources}";',
            'Dir::Etc::Preferences "/dev/null";',
            f'Dir::Etc::PreferencesParts "{scratch / "etc"}";',
            f'Dir::State "{scratch}";',
            f'Dir::State::lists "{lists / "lists"}";',
            f'Dir::State::status "{lists / "status"}";',
            f'Dir::Cache "{scratch / "cache"}";',
            f'Dir::Log "{scratch}";',
            f'APT::Sandbox::User "{os.environ.get("USER", "root") if os.geteuid() else "root"}";',
            'Debug::NoLocking "true";',  # each fetch has its own folders, and the lists a lock of ours
            'APT::Install-Recommends "false";',
            'APT::Get::Assume-Yes "true";',
            'Acquire::Languages "none";',
            'Acquire::Retries "3";',
            'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";',
            "#clear APT::Update::Post-Invoke;",
            "#clear APT::Update::Post-Invoke-Success;",
            "#clear DPkg::Post-Invoke;",
        ])
        + "\n",
        encoding="utf-8",
    )
    return {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}


def _run_apt(words: Sequence[str], env: dict[str, str]) -> None:
    """Run apt-get. What images for containers have in ``apt.conf.d`` (no cache, compressed lists) wins over a
    configuration file, and only options win over that.
    """
    scratch = Path(env["APT_CONFIG"]).parent
    options = [f"Dir::Cache::{name}={scratch / name}.bin" for name in ("pkgcache", "srcpkgcache")]
    options.append("Acquire::GzipIndexes=false")
    _run(["apt-get", "-q", *words, *(word for option in options for word in ("-o", option))], env)


def _run(argv: Sequence[str], env: dict[str, str]) -> None:
    try:
        subprocess.run(argv, env=env, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=900)
    except subprocess.TimeoutExpired as error:
        raise FetchFailed(f"{' '.join(argv[:3])} did not finish in 15 minutes") from error
    except (OSError, subprocess.CalledProcessError) as error:
        output = (getattr(error, "stderr", "") or getattr(error, "stdout", "") or str(error)).strip()
        lines = "\n".join(f"    {line}" for line in output.splitlines()[-6:])
        raise FetchFailed(f"{' '.join(argv[:3])} failed:\n{lines}") from error


def _copy_sources(sources: Path) -> None:
    one_line = _APT / "sources.list"
    if one_line.is_file():
        shutil.copy(one_line, sources / "machine.list")
    for path in _APT.glob("sources.list.d/*"):
        if path.suffix in {".list", ".sources"}:
            shutil.copy(path, sources / path.name)


def derived_source(suite: str, apt: Path = _APT) -> str:
    """Return a deb822 source for ``suite`` on the server that the machine's own sources name.

    Raises ConfigError if none fits.
    """
    for path in sorted(apt.glob("sources.list.d/*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text(encoding="utf-8", errors="replace")):
            fields = _fields(stanza)
            suites = fields.get("suites", "").split()
            if fields.get("enabled", "yes").lower() == "no" or "deb" not in fields.get("types", "").split():
                continue
            if "main" in fields.get("components", "").split() and any(map(_is_base_suite, suites)):
                return _stanza(fields["uris"], suite, fields.get("signed-by", ""))
    for path in (apt / "sources.list", *sorted(apt.glob("sources.list.d/*.list"))):
        if not path.is_file():
            continue
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            match = re.match(r"^\s*deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+(.*)$", line)
            if match and _is_base_suite(match[3]) and "main" in match[4].split():
                signed = re.search(r"signed-by=(\S+)", match[1] or "")
                return _stanza(match[2], suite, signed[1] if signed else "")
    raise ConfigError(f"no package source of this machine has a main component to derive {suite} from", where=str(apt))


def _is_base_suite(suite: str) -> bool:
    return not re.search(r"[-/](updates|security|backports|proposed|debug)", suite) and not suite.endswith("/")


def _fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    key = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1] in {" ", "\t"} and key:
            fields[key] += f"\n{line}"
        elif ":" in line:
            key, _, value = line.partition(":")
            key = key.strip().lower()
            fields[key] = value.strip()
    return fields


def _stanza(uris: str, suite: str, signed_by: str) -> str:
    signed = f"Signed-By: {signed_by}\n" if signed_by else ""
    return f"Types: deb\nURIs: {uris}\nSuites: {suite}\nComponents: main\n{signed}"
