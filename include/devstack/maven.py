"""Jars of a Maven repository, fetched into a folder of the project: those of a committed list, each checked by its
SHA-256.

The client is the Apache Ivy in the PySpark wheel, which is what Spark's own ``--packages`` uses: Java is enough. It
asks Maven Central, or the mirror of it that the machine's Maven settings name, through the proxy that the environment
names. Nothing is resolved: a list names every jar.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from devstack import paths
from devstack.debian import FetchFailed, lock

_READY = "ready.json"  # written last into the folder
_SETTINGS = (Path("~/.m2/settings.xml"), Path("/etc/maven/settings.xml"), Path("/usr/share/maven/conf/settings.xml"))


@dataclass(frozen=True)
class Jar:
    """One line of a list."""

    group: str
    artifact: str
    version: str
    sha256: str
    ending: str = "jar"
    classifier: str = ""

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.artifact}-{self.version}{f'-{self.classifier}' if self.classifier else ''}.{self.ending}"


def read_list(path: Path) -> list[Jar]:
    """Read a list: ``group:artifact:version sha256`` or ``group:artifact:version:ending:classifier sha256`` per line.

    A # begins a comment.
    """
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    found = []
    for words in filter(None, lines):
        group, artifact, version, *more = words[0].split(":")
        found.append(Jar(group, artifact, version, words[1], *more))
    return found


def fetch(folder: Path, jars: Sequence[Jar], *, what: str) -> Path:
    """Return a folder below ``folder`` that has exactly ``jars``; fetched once, whoever asks at the same time.

    Raises:
        FetchFailed: the repository does not have one, or does not answer; or a jar is not the one of the list.
    """
    final = _place(folder, jars)
    with lock(folder / ".lock"):
        if (final / _READY).is_file():
            return final
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            made = Path(scratch) / "jars"
            made.mkdir()
            _retrieve(Path(scratch), made, jars, what)
            for jar in jars:
                _require(made / jar.name, jar)
            (made / _READY).write_text(json.dumps({"jars": len(jars), "what": what}), encoding="utf-8")
            if final.exists():
                shutil.rmtree(final)  # without its ready file: a torn leftover
            made.rename(final)
    return final


def is_fetched(folder: Path, jars: Sequence[Jar]) -> bool:
    """Return True if :func:`fetch` has nothing to do."""
    return (_place(folder, jars) / _READY).is_file()


def _place(folder: Path, jars: Sequence[Jar]) -> Path:
    digest = hashlib.sha256("".join(sorted(jar.sha256 for jar in jars)).encode()).hexdigest()
    return folder / digest[:12]


def _require(path: Path, jar: Jar) -> None:
    place = f"{jar.group}:{jar.artifact}:{jar.version}"
    if not path.is_file():
        raise FetchFailed(f"the Maven repository has no {place}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != jar.sha256:
        raise FetchFailed(f"{place} is not the jar of the list: its SHA-256 is {found}, and {jar.sha256} is wanted")


def _retrieve(scratch: Path, into: Path, jars: Sequence[Jar], what: str) -> None:
    """Retrieve all jars by one Ivy: four side by side take twice the processor's time, mostly for their start."""
    root = mirror()
    settings, module = scratch / "settings.xml", scratch / "module.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="central"/><resolvers><ibiblio name="central" m2compatible="true" usepoms="false"'  # noqa: E501
        f"{f' root={quoteattr(root)}' if root else ''}/></resolvers></ivysettings>",
        encoding="utf-8",
    )
    modules: dict[tuple[str, str, str], list[Jar]] = {}
    for jar in jars:  # of two entries of a module Ivy takes one, so a jar and that of its tests are one entry
        modules.setdefault((jar.group, jar.artifact, jar.version), []).append(jar)
    wanted = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)} "
        f'transitive="false" conf="default->default">{"".join(map(_artifact, some))}</dependency>'
        for (group, artifact, version), some in modules.items()
    )
    module.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="sluice" module="jars"/><configurations><conf name="default"/></configurations>'
        f"<dependencies>{wanted}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    [ivy] = sorted((paths.pyspark_home() / "jars").glob("ivy-*.jar"))[-1:]
    argv = [
        *paths.small_java(256), *proxy(os.environ), "-jar", str(ivy),
        "-settings", str(settings), "-cache", str(scratch / "cache"), "-ivy", str(module), "-confs", "default",
        "-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=900)
    except subprocess.TimeoutExpired as error:
        raise FetchFailed(f"fetching the jars of {what} did not finish in 15 minutes") from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "not found" in line or "ERROR" in line]
        raise FetchFailed(f"fetching the jars of {what} failed:\n" + "\n".join(f"    {line}" for line in lines[-6:]))


def _artifact(jar: Jar) -> str:
    ending = quoteattr(jar.ending)
    classifier = f" m:classifier={quoteattr(jar.classifier)}" if jar.classifier else ""
    return f"<artifact name={quoteattr(jar.artifact)} type={ending} ext={ending}{classifier}/>"


def mirror(settings: Sequence[Path] = _SETTINGS) -> str:
    """Return the address that the machine's Maven settings have instead of Maven Central's; "" for none."""
    for path in settings:
        place = path.expanduser()
        if not place.is_file():
            continue
        try:
            tree = ET.parse(place)  # noqa: S314 - the machine's own settings
        except ET.ParseError:
            continue
        for entry in tree.iter():
            if entry.tag.rpartition("}")[2] != "mirror":
                continue
            fields = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in entry}
            of = {word.strip() for word in fields.get("mirrorOf", "").split(",")}
            if of & {"*", "central", "external:*"} and "!central" not in of and fields.get("url"):
                return fields["url"]
    return ""


def proxy(environment: Mapping[str, str]) -> list[str]:
    """Return Java's options for the proxy that the environment names."""
    given = environment.get("https_proxy") or environment.get("HTTPS_PROXY")
    if not given:
        return []
    parts = urllib.parse.urlsplit(given if "//" in given else f"//{given}")
    found = [f"-Dhttps.proxyHost={parts.hostname}", f"-Dhttps.proxyPort={parts.port or 3128}"]
    hosts = (environment.get("no_proxy") or environment.get("NO_PROXY") or "").split(",")
    return [*found, "-Dhttp.nonProxyHosts=" + "|".join(filter(None, map(str.strip, hosts)))] if any(hosts) else found
