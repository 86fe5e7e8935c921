"""Imports point one way (pyproject.toml, [tool.importlinter])."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sluice import sources
from sluice.targets import registry as targets

REPOSITORY = Path(__file__).parents[2]


def test_rooms_import_one_way() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    result = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


CONTRACTS = {
    one["name"]: one
    for one in tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
}


@pytest.mark.parametrize(
    ("contract", "allowed"),
    [
        ("only spark imports pyspark", {"spark"}),
        ("only orchestration imports airflow", {"orchestration"}),
        ("the package does not need the development stack", {"cli"}),
    ],
)
def test_a_contract_of_all_rooms_but_one_names_them(contract: str, allowed: set[str]) -> None:
    package = REPOSITORY / "include" / "sluice"
    rooms = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    named = {name.removeprefix("sluice.") for name in CONTRACTS[contract]["source_modules"]} - {"devstack"}
    assert named == rooms - {"__init__"} - allowed


PLACES = {
    "sluice.targets": [kind.place for kind in targets.KINDS.values()],
    "sluice.sources": [kind.place for kind in sources.KINDS.values()],
}
KINDS_BY_ROOM = {
    room: {place.partition(":")[0].rpartition(".")[0] for place in places} for room, places in PLACES.items()
}
"""The packages of the registered kinds."""
LEFT_OUT = {
    "targets of other kinds than MySQL know nothing of MySQL": {"sluice.targets.mysql"},
    "testing knows no dialect, and no kind but the memory target": {"sluice.targets.memory"},
}
"""Kinds that a contract leaves out on purpose."""
FIELDS = ("modules", "source_modules", "forbidden_modules")


def unnamed(contracts: dict[str, dict[str, Any]], kinds: dict[str, set[str]]) -> list[str]:
    """Return what to add to pyproject.toml, so that each contract that names a kind of a room names all of its
    kinds.
    """
    found = []
    for name, contract in contracts.items():
        fields = {field: set(contract.get(field, ())) for field in FIELDS}
        named = set().union(*fields.values())
        for packages in kinds.values():
            if not packages & named:
                continue
            field = max(FIELDS, key=lambda field: len(packages & fields[field]))
            found += [
                f"add {package!r} to {field} of the contract {name!r} in pyproject.toml, where the other kinds are"
                for package in sorted(packages - named - LEFT_OUT.get(name, set()))
            ]
    return found


def test_contracts_about_kinds_name_every_registered_kind() -> None:
    missing = unnamed(CONTRACTS, KINDS_BY_ROOM)
    assert not missing, "\n".join(missing)
    assert LEFT_OUT.keys() <= CONTRACTS.keys()
    about = {name for name in CONTRACTS if re.search(r"\bkinds?\b", name)}
    kinds = set().union(*KINDS_BY_ROOM.values())
    blind = {name for name in about if not _names(CONTRACTS[name], kinds)}
    assert not blind, f"contracts about kinds that name none: {blind}"


def test_a_new_kind_is_told_where_it_has_to_be_named() -> None:
    more = {
        "sluice.targets": KINDS_BY_ROOM["sluice.targets"] | {"sluice.targets.db2"},
        "sluice.sources": KINDS_BY_ROOM["sluice.sources"] | {"sluice.sources.db2"},
    }
    told = unnamed(CONTRACTS, more)
    assert (
        "add 'sluice.targets.db2' to source_modules of the contract 'targets of other kinds than MySQL know "
        "nothing of MySQL' in pyproject.toml, where the other kinds are"
    ) in told
    of_target = [line for line in told if "sluice.targets.db2" in line]
    of_source = [line for line in told if "sluice.sources.db2" in line]
    assert len(of_target) == len([one for one in CONTRACTS.values() if _names(one, KINDS_BY_ROOM["sluice.targets"])])
    assert len(of_source) == len([one for one in CONTRACTS.values() if _names(one, KINDS_BY_ROOM["sluice.sources"])])
    assert len(of_target) + len(of_source) == len(told)
    every = set().union(*more.values())
    everywhere = {name: {**one, "modules": [*one.get("modules", ()), *every]} for name, one in CONTRACTS.items()}
    assert unnamed(everywhere, more) == []


def _names(contract: dict[str, Any], packages: set[str]) -> bool:
    return any(packages & set(contract.get(field, ())) for field in FIELDS)


def test_parsing_a_dag_stays_light() -> None:
    """What the DAG files import of ours must not pull in Arrow, Spark, ZooKeeper or Numba."""
    code = (
        "import sys; import sluice.config.loading, sluice.config.connections, sluice.config.engine, "
        "sluice.config.folders, sluice.errors\nheavy = {'pyarrow', 'pyspark', 'kazoo', 'numba', 'pymysql', 'pandas'} "
        "& set(sys.modules)\nsys.exit(f'imports {heavy}' if heavy else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(REPOSITORY / "include"), "PATH": "/usr/bin:/bin"},
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_flows_load_without_pandas() -> None:
    """A command or a task that only imports them does not pay for it."""
    code = (
        "import sys, sluice.flows.transform.merge, sluice.flows.load.load, sluice.flows.transform.stages; "
        "sys.exit('pandas' in sys.modules)"
    )
    environment = {"PYTHONPATH": str(REPOSITORY / "include"), "PATH": "/usr/bin:/bin"}
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False, env=environment).returncode == 0


def test_no_test_module_imports_another() -> None:
    """Builders stand in tests/support, so that a test can be read, moved and deleted alone."""
    tests = REPOSITORY / "tests"
    importing = re.compile(r"^\s*(?:from|import) (tests\.\S*\.test_\w+|test_\w+)", re.MULTILINE)
    found = {str(p.relative_to(tests)): importing.findall(p.read_text(encoding="utf-8")) for p in tests.rglob("*.py")}
    assert {name: modules for name, modules in found.items() if modules} == {}


def test_no_two_test_files_share_a_name() -> None:
    """pytest imports them by their names alone: the second one ends the collection of all."""
    names = Counter(path.name for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []


def test_no_test_lies_outside_of_a_room() -> None:
    tests = REPOSITORY / "tests"
    flat = [*(tests / "integration").glob("*.py"), *(tests / "support").glob("*.py")]
    assert [str(path.relative_to(tests)) for path in flat] == []


_INSIDE_AN_OFFSET = {"server_uuid", "gtid_set", "prepared", "last_event"}
_OFFSETS = {
    "position", "first", "last", "captured", "delivered", "began", "begin", "ends", "head", "at", "start", "stop",
    "upto", "stop_at",
}  # fmt: skip
"""What offsets are called where they are used."""


def test_an_offset_is_opaque_outside_of_sources() -> None:
    """Flows, coordination, orchestration and the command line keep offsets, compare them and print them, and never look
    into one.
    """
    package = REPOSITORY / "include" / "sluice"
    found = []
    for room in ("flows", "operations", "coordination", "orchestration", "cli"):
        for path in (package / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Attribute):
                    continue
                owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
                if node.attr in _INSIDE_AN_OFFSET or (node.attr in {"file", "offset"} and owner in _OFFSETS):
                    found.append(f"{path.relative_to(package)}:{node.lineno} {ast.unparse(node)}")
    assert found == []


_TAKE_THE_RUNTIME = """
flows/capture/ahead flows/capture/drain flows/capture/failover flows/capture/lost_tables flows/capture/schema_history
flows/board flows/capture/watch flows/checkpoints flows/dump/automatic flows/dump/background flows/dump/planner
flows/dump/progress flows/dump/reconcile flows/dump/start flows/dump/worker flows/incomplete_tables
flows/load/ack flows/load/batch_changes flows/load/copies flows/load/isolation flows/load/load
flows/job flows/load/redelivery flows/log_digests flows/mapped_names flows/run flows/runtime flows/snapshot/lost_batches
flows/snapshot/rows flows/stage_work flows/standby flows/submit flows/transform/merge
flows/transform/read_back flows/transform/stages operations/adopt operations/alerts operations/channel
operations/check operations/compaction operations/completeness operations/conflicts operations/control operations/copy_plan
operations/deadletters/replay operations/deadletters/staleness operations/deadletters/store operations/groups operations/last_check
operations/lineage operations/maintenance operations/migrate/handover operations/migrate/plan operations/migrate/sites
operations/recover/copies operations/recover/lost_source operations/recover/lost_state
operations/recover/lost_target operations/recover/recapture operations/recover/recover
operations/recover/segments operations/retention operations/ruledev/tryout operations/schema operations/snapshot
operations/status operations/stored operations/subscriptions operations/target_switch
operations/verify/expected_rows
operations/verify/digests operations/verify/log_window operations/verify/units operations/verify/verify operations/verbs/table operations/verbs/verb
"""
"""Modules of flows and operations in which a function is given the whole ``Runtime``."""


def test_only_these_modules_of_the_job_take_all_surroundings_at_once() -> None:
    """A function below an entry takes the parts that it uses, so that its signature says what it may touch.

    The list grows only by a module that calls such an entry for several pipelines or several times.
    """
    package = REPOSITORY / "include" / "sluice"
    found = set()
    for room in ("flows", "operations"):
        for path in (package / room).rglob("*.py"):
            names = {
                node.id
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Name) and node.id == "Runtime"
            }
            if names:
                found.add(path.relative_to(package).with_suffix("").as_posix())
    assert found == set(_TAKE_THE_RUNTIME.split())
