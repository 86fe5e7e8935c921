"""Tables that refer to each other in every way, and random changes of them."""

from __future__ import annotations

import random
from typing import Any

FAMILY = (
    "CREATE TABLE parents (id INT PRIMARY KEY, name VARCHAR(20) UNIQUE)",
    "CREATE TABLE children (id INT PRIMARY KEY, parent INT, n INT, "
    "CONSTRAINT c_p FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE grandchildren (id INT PRIMARY KEY, child INT, "
    "CONSTRAINT g_c FOREIGN KEY (child) REFERENCES children (id) ON DELETE SET NULL ON UPDATE CASCADE)",
    "CREATE TABLE staff (id INT PRIMARY KEY, boss INT, CONSTRAINT s_s FOREIGN KEY (boss) REFERENCES staff (id) ON "
    "DELETE CASCADE)",
    "CREATE TABLE pets (id INT PRIMARY KEY, owner VARCHAR(20), "
    "CONSTRAINT p_n FOREIGN KEY (owner) REFERENCES parents (name) ON DELETE SET NULL ON UPDATE CASCADE)",
    "CREATE TABLE teams (id INT PRIMARY KEY, captain INT)",
    "CREATE TABLE players (id INT PRIMARY KEY, team INT, CONSTRAINT p_t FOREIGN KEY (team) REFERENCES teams (id))",
    "ALTER TABLE teams ADD CONSTRAINT t_p FOREIGN KEY (captain) REFERENCES players (id) ON DELETE SET NULL",
)
NAMES = ("parents", "children", "grandchildren", "staff", "pets", "teams", "players")


def write(source: Any, schema: str, choose: random.Random, statements: int) -> None:
    """Rows come, move and go, and with them the rows below."""
    with source.connect(schema) as connection, connection.cursor() as cursor:
        for _ in range(statements):
            a, b = choose.randint(1, 30), choose.randint(1, 30)
            cursor.execute(
                choose.choice([
                    f"INSERT IGNORE INTO parents VALUES ({a}, 'p{b}')",
                    f"INSERT IGNORE INTO children SELECT {a}, id, {b} FROM parents ORDER BY RAND() LIMIT 1",
                    f"INSERT IGNORE INTO grandchildren SELECT {a}, id FROM children ORDER BY RAND() LIMIT 1",
                    f"INSERT IGNORE INTO staff SELECT {a}, MIN(id) FROM staff WHERE id < {b}",
                    f"INSERT IGNORE INTO pets SELECT {a}, name FROM parents ORDER BY RAND() LIMIT 1",
                    f"INSERT IGNORE INTO teams VALUES ({a}, NULL)",
                    f"INSERT IGNORE INTO players SELECT {a}, id FROM teams ORDER BY RAND() LIMIT 1",
                    f"UPDATE teams SET captain = (SELECT MIN(id) FROM players WHERE team = {a}) WHERE id = {a}",
                    f"UPDATE IGNORE parents SET id = {b} WHERE id = {a}",
                    f"UPDATE IGNORE parents SET name = 'p{b}' WHERE id = {a}",
                    f"UPDATE IGNORE children SET id = {b} WHERE id = {a}",
                    f"UPDATE IGNORE children SET parent = (SELECT MAX(id) FROM parents WHERE id <= {b}) WHERE id = {a}",
                    f"UPDATE children SET n = n + 1 WHERE id = {a}",
                    f"DELETE FROM parents WHERE id = {a}",
                    f"DELETE FROM children WHERE id = {a}",
                    f"DELETE FROM staff WHERE id = {a}",
                    f"DELETE FROM players WHERE id = {a}",
                    f"DELETE IGNORE FROM teams WHERE id = {a}",
                ])
            )
