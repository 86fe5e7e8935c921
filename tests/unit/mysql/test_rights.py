"""The rights of a login: what SHOW GRANTS means, and the GRANT for what a server denied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.model.dialects import MARIADB, MYSQL
from sluice.model.rights import Scope
from sluice.mysql.rights import SOURCE, TARGET, GrantedRights, account, grant, grant_for, grants
from tests.support.documents import rights_tables

DOCKER = Path(__file__).parents[3] / "docker" / "mysql"
ME = account("u", "%")


@pytest.mark.parametrize(
    ("line", "place", "has"),
    [
        ("GRANT SELECT, INSERT ON *.* TO `u`@`%`", ("shop", "orders"), True),
        ("GRANT ALL PRIVILEGES ON *.* TO `u`@`%` WITH GRANT OPTION", ("*", "*"), True),
        ("GRANT ALL PRIVILEGES ON `shop`.* TO `u`@`%`", ("shop", "*"), True),
        ("GRANT SELECT ON `shop`.* TO 'u'@'%'", ("shops", "*"), False),
        ("GRANT SELECT ON `shop`.* TO `u`@`%`", ("*", "*"), False),
        (r"GRANT SELECT ON `a\_b`.* TO `u`@`%`", ("a_b", "t"), True),
        (r"GRANT SELECT ON `a\_b`.* TO `u`@`%`", ("axb", "t"), False),
        ("GRANT SELECT ON `a_b%`.* TO `u`@`%`", ("axbcd", "t"), True),
        ("GRANT SELECT ON `a``.b`.`t` TO `u`@`%`", ("a`.b", "t"), True),
        ('GRANT SELECT ON "shop".* TO "u"@"%"', ("shop", "t"), True),
        ("GRANT SELECT ON `shop`.`orders` TO `u`@`%`", ("shop", "orders"), True),
        ("GRANT SELECT ON `shop`.`orders` TO `u`@`%`", ("shop", "*"), False),
        ("GRANT SELECT (`id`, `name`), INSERT ON `shop`.`orders` TO `u`@`%`", ("shop", "orders"), False),
        ("GRANT EXECUTE ON FUNCTION `shop`.`orders` TO `u`@`%`", ("shop", "orders"), False),
        ("GRANT SHOW VIEW ON `shop`.* TO `u`@`%`", ("shop", "*"), False),
        ("GRANT `r`@`%` TO `u`@`%`", ("shop", "*"), False),
        ("GRANT USAGE ON *.* TO `u`@`%` IDENTIFIED BY PASSWORD '*E6C'", ("shop", "*"), False),
    ],
)
def test_show_grants(line: str, place: tuple[str, str], has: bool) -> None:
    assert GrantedRights.parse("u", "%", [line]).has("SELECT", *place) is has


def test_a_partial_revoke_and_names_of_mariadb_and_super() -> None:
    granted = GrantedRights.parse(
        "u", "%", ["GRANT SELECT ON *.* TO `u`@`%`", "REVOKE SELECT ON `mysql`.* FROM `u`@`%`"]
    )
    assert (granted.has("SELECT", "shop", "t"), granted.has("SELECT", "mysql", "user")) == (True, False)
    granted = GrantedRights.parse("u", "%", ["GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `u`@`%`"])
    assert granted.missing(SOURCE[:1]) == []
    assert GrantedRights.parse("u", "%", ["GRANT SUPER ON *.* TO `u`@`%`"]).missing(SOURCE[:1]) == []


def test_a_finding_has_one_statement_for_all_that_is_required() -> None:
    granted = GrantedRights.parse("o'x", "%", ["GRANT SELECT ON `a_b`.* TO `o'x`@`%`"])
    [rows] = granted.missing(TARGET[:1], "a_b", ["t"])
    assert (rows.severity, rows.fix) == ("error", r"GRANT INSERT, UPDATE, DELETE ON `a\_b`.* TO 'o''x'@'%'")
    [ddl] = granted.missing(TARGET[1:2], "a_b", ["t"])
    assert ddl.severity == "warning"


@pytest.mark.parametrize(
    ("code", "text", "statement", "wanted"),
    [
        (
            1142,
            "SELECT command denied to user 'u'@'h' for table '_sluice_ack'",
            "SELECT a FROM `acks`.`_sluice_ack` WHERE 1",
            grant(["SELECT"], ME, "acks"),
        ),
        (1142, "INSERT command denied to user 'u'@'h' for table `s`.`t`", "INSERT `s`.`t`", grant(["INSERT"], ME, "s")),
        (1142, "DROP command denied to user 'u'@'h' for table 't'", "DROP TABLE t", grant(["DROP"], ME, "now")),
        (
            1143,
            "SELECT command denied to user 'u'@'h' for column 'mark' in table 'm'",
            "INSERT INTO `w`.`m` VALUES (1)",
            grant(["SELECT"], ME, "w"),
        ),
        (
            1044,
            "Access denied for user 'u'@'%' to database 'd_e'",
            "CREATE TEMPORARY TABLE `d_e`.`t` (a INT)",
            grant(["CREATE TEMPORARY TABLES"], ME, "d_e"),
        ),
        (1044, "Access denied for user 'u'@'%' to database 'd'", "CREATE DATABASE `d`", grant(["CREATE"], ME, "d")),
        (
            1227,
            "Access denied; you need (at least one of) the SUPER, REPLICATION CLIENT privilege(s) for this operation",
            "SHOW BINARY LOGS",
            grant(["REPLICATION CLIENT"], ME),
        ),
        (
            1227,
            "Access denied; you need (at least one of) the BINLOG MONITOR privilege(s) for this operation",
            "SHOW BINLOG STATUS",
            grant(["REPLICATION CLIENT"], ME),
        ),
        (1227, "Access denied; you need (at least one of) the SUPER privilege(s) for this operation", "KILL 1", ""),
    ],
)
def test_the_grant_for_what_was_denied(code: int, text: str, statement: str, wanted: str) -> None:
    assert grant_for(code, text, statement, ME, "now") == wanted


def test_no_right_is_wider_than_a_schema_where_that_is_possible() -> None:
    """The only rights on the whole server are those that a server has for nothing smaller."""
    everywhere = {name for right in (*SOURCE, *TARGET) if right.scope is Scope.SERVER for name in right.privileges}
    assert everywhere == {"REPLICATION SLAVE", "REPLICATION CLIENT", "PROCESS"}
    assert not {"ALL PRIVILEGES", "SUPER"} & {name for right in (*SOURCE, *TARGET) for name in right.privileges}
    [references] = [right for right in TARGET if right.privileges == ("REFERENCES",)]
    assert references.only == MYSQL
    assert MARIADB not in {right.only for right in TARGET}


@pytest.mark.parametrize("page", list(rights_tables.BLOCKS))
def test_the_pages_have_the_lists(page: str) -> None:
    text = rights_tables.DOCS.joinpath(page).read_text(encoding="utf-8")
    assert rights_tables.renewed(page, text) == text, f"run `{rights_tables.COMMAND}`"


@pytest.mark.parametrize(
    ("side", "user", "schema"), [("source", "sluice", "shop"), ("target", "sluice_load", "reporting")]
)
def test_the_servers_of_compose_have_the_lists(side: str, user: str, schema: str) -> None:
    script = DOCKER.joinpath(f"{side}-users.sh").read_text(encoding="utf-8")
    listed = SOURCE if side == "source" else TARGET
    schemas = dict.fromkeys((Scope.CAPTURED, Scope.TABLES, Scope.CHECKPOINTS), schema)
    wanted = [one.replace("`", "") for one in grants(listed, account(user, "%"), schemas)]
    assert re.findall(r"^(GRANT .*);$", script, re.MULTILINE) == wanted
