"""Which indexes of a MySQL table are left out while it is filled."""

from __future__ import annotations

import pytest

from sluice.targets.mysql.late_indexes import droppable

HEAD = "CREATE TABLE `t` (\n  `id` int NOT NULL,\n  `v` int DEFAULT NULL,\n"
PRIMARY = "  PRIMARY KEY (`id`)"
KEY = "  KEY `v` (`v`)"
END = "\n) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"


def shown(*lines: str, end: str = END) -> str:
    return HEAD + ",\n".join([PRIMARY, *lines]) + end


def test_plain_indexes_are_left_out_as_the_server_writes_them_and_unique_ones_stay() -> None:
    long = "  KEY `b``ack` (`v` DESC,`id`) USING BTREE COMMENT 'a, b' /*!80000 INVISIBLE */"
    assert droppable(shown("  UNIQUE KEY `u` (`v`)", KEY, long)) == {"v": KEY.strip(), "b`ack": long.strip()}


@pytest.mark.parametrize(
    "definition",
    [
        shown(),
        shown("  UNIQUE KEY `u` (`v`)"),
        shown(KEY, "  FULLTEXT KEY `f` (`v`)"),
        shown(KEY, "  KEY `e` ((`v` + 1))"),
        shown(KEY, "  CONSTRAINT `c` FOREIGN KEY (`v`) REFERENCES `p` (`id`)"),
        shown(KEY, end=END.replace("InnoDB", "MyISAM")),
        shown(KEY).replace("`v` int DEFAULT NULL", "`v` int NOT NULL AUTO_INCREMENT"),
    ],
    ids=["none", "unique", "fulltext", "expression", "foreign_key", "engine", "counter"],
)
def test_a_table_whose_indexes_have_to_stay_keeps_all_of_them(definition: str) -> None:
    assert droppable(definition) == {}
