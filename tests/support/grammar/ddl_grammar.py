"""Random data definition statements from the servers' grammar: every quoting style, comments between any two words,
charsets, sql_modes.

The generator follows what the server says of the tables that there are, so most of what it makes is accepted.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.model.definitions import ColumnDefinition, TableDefinition

_BARE = re.compile(r"[A-Za-z_\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*")
_COLUMN_NAMES = (
    "a", "b", "c", "d", "e", "n", "v", "w", "Mixed", "ünï", "k1", "k2", "col_a", "col_b", "$d", "x$y", "_u", "1x",
    "2e5x", "9", "a b", "x.y",
    "it's", 'dq"uote', "back`tick", "select", "key", "#hash", "-- dash", "/*c*/", "back\\slash", "comment", "date",
    "text", "enum", "status",
    "visible", "period", "vector", "value", "first", "after", "at", "begin", "end", "bit", "type", "action", "no",
    "names", "engine", "charset",
    "data", "hash", "json", "serial", "ascii", "unicode", "byte", "bool", "time", "timestamp", "year", "storage",
    "point", "view", "wait",
    "algorithm", "lock", "force", "partial", "national", "signed", "online", "_latin1", "_utf8mb4x", "X", "N", "x'",
    "without", "validation",
)  # fmt: skip
_TABLE_NAMES = (
    "t1", "t2", "Upper", "ünï", "1t", "20151214", "a b", "x.y", "back`tick", 'dq"uote', "order", "temporary", "replace",
    "ignore2", "status",
    "t-1", "t@x", "like", "comment", "$t", "it's",
)  # fmt: skip
_WORDS = (
    "a", "b", "ab", "A", "B", "zz", "", "x y", "q'q", 'd"d', "b\\c", "é", "ß", "ж", "鉄", "€", "a  ", "%_", "n\\n", "#",
    "-- ", "/*", "`",
)  # fmt: skip
_CHARSETS = (
    "utf8mb4", "utf8mb3", "latin1", "latin2", "cp1251", "ascii", "sjis", "gbk", "binary", "ucs2", "utf16", "koi8r",
    "big5", "utf32", "utf8",
)  # fmt: skip
_COLLATIONS = (
    "utf8mb4_bin", "utf8mb4_general_ci", "latin1_german1_ci", "latin1_bin", "utf8mb3_general_ci", "utf8_bin", "binary",
    "ucs2_bin", "sjis_bin",
    "gbk_chinese_ci", "ascii_bin", "cp1251_bin", "utf8mb4_unicode_ci",
)  # fmt: skip
_HEX_LABELS = {
    "sjis": ("0x9353", "0x9373", "x'61'"), "latin1": ("0xE9", "b'1000010'"),
    "utf8mb4": ("0xF09F9880", "0xC3A9", "X'6162'"),
    "cp1251": ("0xE6", "0x61"),
    "gbk": ("0xC4E3", "0x79"), "ucs2": ("0x0061", "0x6587"), "utf16": ("0x0062", "0xD83DDE00"),
    "utf8mb3": ("0xE4B8AD",), "koi8r": ("0xC1",),
    "latin2": ("0xE9", "0x41"), "big5": ("0xA440",), "ascii": ("0x41", "b'1100010'"),
    "utf32": ("0x00000063", "0x0001F600"),
}  # fmt: skip
_INTEGERS = (
    "TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "INT1", "INT2", "INT3", "INT4", "INT8",
    "MIDDLEINT", "BOOL", "BOOLEAN",
)  # fmt: skip
_TEXTS = ("TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT")
_BLOBS = ("TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")
MODES = (
    "ANSI_QUOTES",
    "NO_BACKSLASH_ESCAPES",
    "REAL_AS_FLOAT",
    "PIPES_AS_CONCAT",
    "NO_UNSIGNED_SUBTRACTION",
    "IGNORE_SPACE",
    "NO_ZERO_DATE",
)


@dataclass
class Session:
    """How the session that runs the statements reads them."""

    modes: tuple[str, ...] = ()
    charset: str = "utf8mb4"

    @property
    def ansi(self) -> bool:
        return "ANSI_QUOTES" in self.modes

    @property
    def escapes(self) -> bool:
        return "NO_BACKSLASH_ESCAPES" not in self.modes


@dataclass
class Grammar:
    """Statements over the tables of one schema. ``tables``: as the server said after the last statement."""

    choose: random.Random
    schema: str
    mariadb: bool
    tables: Mapping[str, TableDefinition] = field(default_factory=dict)
    session: Session = field(default_factory=Session)
    _reserved: set[str] = field(default_factory=set)

    def open_session(self, server: Any) -> Any:
        """Return a connection to ``server`` whose settings are drawn; the next statements are written for them."""
        modes = tuple(m for m in MODES if self.chance(0.2))
        strict = ("STRICT_ALL_TABLES",) if self.chance(0.4) else ()
        charset = self.one(["utf8mb4", "utf8mb4", "utf8mb4", "latin1", "sjis", "gbk"])
        self.session = Session(modes, charset)
        settings = {
            "sql_mode": f"'{','.join((*modes, *strict))}'",
            "foreign_key_checks": str(self.choose.randint(0, 1)),
            "explicit_defaults_for_timestamp": "ON" if self.chance(0.7) else "OFF",
        }
        if not self.mariadb:
            settings["sql_generate_invisible_primary_key"] = "ON" if self.chance(0.1) else "OFF"
            settings["default_collation_for_utf8mb4"] = self.one(["DEFAULT", "utf8mb4_general_ci"])
        connection = server.connect(self.schema, charset=charset)
        with connection.cursor() as cursor:
            for name, value in settings.items():
                cursor.execute(f"SET SESSION {name} = {value}")
        return connection

    # -- the pieces ----------------------------------------------------------------------------------------------------
    def chance(self, share: float) -> bool:
        return self.choose.random() < share

    def one(self, options: Sequence[str]) -> str:
        return self.choose.choice(list(options))

    def name(self, name: str) -> str:
        """An identifier, quoted in one of the ways there are."""
        bare = _BARE.fullmatch(name) and name.lower() not in _RESERVED
        if bare and self.chance(0.6):
            return name
        if self.session.ansi and self.chance(0.5):
            return '"' + name.replace('"', '""') + '"'
        return "`" + name.replace("`", "``") + "`"

    def string(self, text: str | None = None) -> str:
        """A literal."""
        text = self.word() if text is None else text
        quote = "'" if self.session.ansi or self.chance(0.7) else '"'
        if self.session.escapes:
            text = text.replace("\\", "\\\\")
            escaped = "\\" + quote if self.chance(0.4) else quote * 2
        else:
            escaped = quote * 2
        return quote + text.replace(quote, escaped) + quote

    def word(self) -> str:
        return self.one([w for w in _WORDS if _fits(w, self.session.charset)])

    def table(self, table: str) -> list[str]:
        """A table's name, with its schema or without."""
        how = self.choose.random()
        if how < 0.7:
            return [self.name(table)]
        digits = _DIGITS_FIRST.fullmatch(table) and self.chance(0.6)
        if digits:  # digits after the dot are a name, if the dot touches what stands before it
            return [f"{self.schema}.{table}"]
        return [f"{self.name(self.schema)}.{self.name(table)}"] if how < 0.99 else [f".{self.name(table)}"]

    def new_table(self) -> str:
        return self.one([n for n in _TABLE_NAMES if n not in self.tables] or [f"t{self.choose.randint(100, 999)}"])

    def a_table(self) -> TableDefinition:
        return self.tables[self.one(sorted(self.tables))]

    def charset(self) -> list[str]:
        words = self.one(["CHARACTER SET", "CHARSET", "CHAR SET"] if not self.mariadb else ["CHARACTER SET", "CHARSET"])
        name = self.one(_CHARSETS)
        return [
            *words.split(),
            self.name(name) if self.chance(0.1) else self.string(name) if self.chance(0.1) else name,
        ]

    # -- columns -------------------------------------------------------------------------------------------------------
    def type(self) -> tuple[list[str], str]:
        """A type, and what its values are: number, text, blob, time, label, none."""
        kind = self.choose.random()
        if kind < 0.2:
            words = [self.one(_INTEGERS)]
            if not words[0].startswith("BOOL"):
                words += ["(", str(self.choose.randint(1, 12)), ")"] if self.chance(0.3) else []
                words += [w for w in ("UNSIGNED", "ZEROFILL") if self.chance(0.2)]
                words += ["SIGNED"] if self.chance(0.05) and "UNSIGNED" not in words else []
            return words, "number"
        if kind < 0.32:
            word = self.one([
                "DECIMAL", "NUMERIC", "DEC", "FIXED", "FLOAT", "DOUBLE", "DOUBLE PRECISION", "REAL", "FLOAT4",
                "FLOAT8",
            ])  # fmt: skip
            exact = word in {"DECIMAL", "NUMERIC", "DEC", "FIXED"}
            words = word.split()
            how = self.choose.random()
            if how < 0.35:
                words += ["(", str(self.choose.randint(8, 20)), ",", str(self.choose.randint(0, 7)), ")"]
            elif how < 0.5 and (exact or word == "FLOAT"):
                words += ["(", str(self.choose.randint(1, 40)), ")"]
            elif how < 0.6 and (exact or word == "FLOAT"):
                words += ["(", self.one(["19.5", "7.4", "12.", "30.99"]), ")"]
            words += [w for w in ("UNSIGNED", "ZEROFILL") if self.chance(0.15)]
            return words, "number"
        if kind < 0.57:
            return self._text_type()
        if kind < 0.67:
            return self._labels()
        if kind < 0.8:
            word = self.one(["DATE", "TIME", "DATETIME", "TIMESTAMP", "YEAR"])
            digits = word in {"TIME", "DATETIME", "TIMESTAMP"} and self.chance(0.4)
            return [word, *(["(", str(self.choose.randint(0, 6)), ")"] if digits else [])], word.lower()
        if kind < 0.9:
            word = self.one(["BIT", "BINARY", "VARBINARY", *_BLOBS, "LONG VARBINARY", "CHAR BYTE"])
            words = word.split()
            if word in {"BIT", "BINARY", "VARBINARY"} and (self.chance(0.7) or word == "VARBINARY"):
                words += ["(", str(self.choose.randint(1, 60)), ")"]
            if word == "BLOB" and self.chance(0.3):
                words += ["(", self.one(["0", "10", "300", "70000"]), ")"]
            return words, "bit" if word == "BIT" else "bytes" if word.endswith((
                "BINARY",
                "BYTE",
            )) and "LONG" not in word else "blob"
        if kind < 0.94:
            return ["JSON"], "json"
        if kind < 0.97 or not self.mariadb:
            shape = self.one(["GEOMETRY", "POINT", "LINESTRING", "POLYGON", "GEOMETRYCOLLECTION", "MULTIPOINT"])
            return ([shape], "shape") if self.mariadb or self.chance(0.6) else (["VECTOR", "(", "3", ")"], "none")
        return [self.one(["UUID", "INET4", "INET6"])], "none"

    def _text_type(self) -> tuple[list[str], str]:
        how = self.choose.random()
        if how < 0.1:
            word = self.one([
                "NCHAR",
                "NVARCHAR",
                "NATIONAL CHAR",
                "NATIONAL VARCHAR",
                "NCHAR VARCHAR",
                "LONG",
                "LONG VARCHAR",
            ])
            short = "LONG" not in word
            return [
                *word.split(),
                *(["(", str(self.choose.randint(1, 9)), ")"] if short else []),
            ], "text" if short else "blob"
        if how < 0.65:
            word = self.one([
                "VARCHAR",
                "CHAR",
                "CHARACTER",
                "CHARACTER VARYING",
                "CHAR VARYING",
                "VARCHARACTER",
                "VARCHAR",
            ])
            length = self.one(["1", "5", "10", "20", "63", "64", "255"])
            if self.chance(0.05) and "VAR" in word:
                length = self.one(["16383", "20000", "30000", "70000"])
            bare = word in {"CHAR", "CHARACTER"} and self.chance(0.2)
            words, value = [*word.split(), *([] if bare else ["(", length, ")"])], "text"
        else:
            word, value = self.one(_TEXTS), "blob"
            words = [word]
            if word == "TEXT" and self.chance(0.3):
                words += ["(", self.one(["10", "100", "300", "20000", "70000"]), ")"]
        return words + self._text_attributes(), value

    def _text_attributes(self) -> list[str]:
        how = self.choose.random()
        if how < 0.15:
            return self.charset()
        if how < 0.2:
            return [*self.charset(), "BINARY"] if self.chance(0.5) else ["BINARY", *self.charset()]
        if how < 0.25:
            return ["COLLATE", self.one(_COLLATIONS)]
        if how < 0.28:
            return [self.one(["ASCII", "UNICODE", "BINARY", "BYTE"])]
        if how < 0.3:
            return [self.one(["ASCII BINARY", "BINARY ASCII", "UNICODE BINARY"])]
        return []

    def _labels(self) -> tuple[list[str], str]:
        labels: list[str] = []
        attributes: list[str] = []
        if self.chance(0.3):
            charset = self.one(sorted(_HEX_LABELS))
            attributes = ["CHARACTER", "SET", charset]
            labels += list(_HEX_LABELS[charset][: self.choose.randint(0, 2)])
        elif self.chance(0.4):
            attributes = self._text_attributes()
        every = (*_WORDS, "😀", "😁", "?", "a?")
        words = list(dict.fromkeys(w.rstrip(" ") for w in every if _fits(w, self.session.charset) and "," not in w))
        self.choose.shuffle(words)
        labels += [self.string(word) for word in words[: self.choose.randint(1, 4)]]
        if self.chance(0.1):
            labels.append(
                self.one([
                    "_latin1'zzz'",
                    "_utf8mb4'yyy'",
                    "N'nnn'",
                    "n'mmm'",
                    "_latin1 0x7A7A",
                    "_ucs2 0x00780078",
                    "_ascii'  t '",
                ])
            )
        parts = [part for label in labels for part in (",", label)][1:]
        return [self.one(["ENUM", "SET"]), "(", *parts, ")", *attributes], "label"

    def default(self, value: str) -> str | None:
        """A literal that a column of this kind takes."""
        now = ["CURRENT_TIMESTAMP", "NOW()", "CURRENT_TIMESTAMP()", "LOCALTIME"]
        options = {
            "number": ["0", "1", "-5", "+ 7", "'3'", "1.5", "1e1", "0x05", "b'11'", "TRUE", ".5", "2."],
            "text": ["'a'", "''", "_utf8mb4'x'", "'a' 'b'", "0x61", "N'n'", "5", "_latin1'l'", "'a''b'"],
            "label": [],
            "date": ["'2020-01-01'", "DATE'2020-02-02'", "20200101"],
            "time": ["'10:11:12'", "TIME '01:02:03'"],
            "datetime": ["'2020-01-01 00:00:00'", "TIMESTAMP'2020-01-01 00:00:00'", *now],
            "timestamp": ["'2020-01-01 00:00:00'", *now],
            "year": ["2020", "'1999'"],
            "bit": ["b'1'", "1", "0x1", "B'0'"],
            "bytes": ["'a'", "x'61'", "''"],
            "blob": ["''", "('x')"] if not self.mariadb else ["''", "'x'", "('x')"],
            "json": [],
        }.get(value, [])
        return self.one(options) if options else None

    def column(self, name: str) -> list[str]:
        """A column as CREATE and ALTER write it."""
        if self.chance(0.02):
            return [self.name(name), "SERIAL", *(["PRIMARY", "KEY"] if self.chance(0.3) else [])]
        if self.chance(0.06):
            always = ["GENERATED", "ALWAYS"] if self.chance(0.5) else []
            kept = (
                [self.one(["VIRTUAL", "STORED", *(["PERSISTENT"] if self.mariadb else [])])] if self.chance(0.7) else []
            )
            return [self.name(name), self.one(["INT", "BIGINT", "VARCHAR(20)"]), *always, "AS", "(", "1", "+", "2", ")",
                *kept,
                    *(["UNIQUE"] if self.chance(0.1) else []), *self._comment(0.2)]  # fmt: skip
        words, value = self.type()
        attributes: list[list[str]] = []
        if self.chance(0.3):
            attributes.append(["NOT", "NULL"])
        elif self.chance(0.25):
            attributes.append(["NULL"])
        default = self.default(value)
        if default is not None and self.chance(0.3):
            attributes.append(["DEFAULT", default])
        elif self.chance(0.05) and ["NOT", "NULL"] not in attributes:
            attributes.append(["DEFAULT", "NULL"])
        if value in {"datetime", "timestamp"} and len(words) == 1 and self.chance(0.2):
            attributes.append(["ON", "UPDATE", self.one(["CURRENT_TIMESTAMP", "NOW()", "LOCALTIMESTAMP"])])
        if value == "number" and self.chance(0.05):
            attributes.append(["AUTO_INCREMENT"])
            attributes.append(self.one(["PRIMARY KEY", "UNIQUE", "KEY", "UNIQUE KEY", "PRIMARY"]).split())
        elif value in {"number", "text", "label", "date", "bytes"} and self.chance(0.06):
            attributes.append(self.one(["UNIQUE", "UNIQUE KEY", "PRIMARY KEY", "KEY", "PRIMARY"]).split())
        if value in {"text", "blob", "label"} and "CHARACTER" not in words and self.chance(0.08):
            attributes.append(["COLLATE", self.one(_COLLATIONS)])
        if self.chance(0.04):
            attributes.append(["INVISIBLE"])
        if self.chance(0.04) and value == "number":
            attributes.append(["CHECK", "(", self.name(name), ">", "-", "10", ")"])
        if self.chance(0.05) and value == "number" and self.tables:
            parent = self.a_table()
            attributes.append(["REFERENCES", *self.table(parent.table.table), "(",
                self.name(self.one([c.name for c in parent.columns])), ")",
                               *(["ON", "DELETE", "SET", "NULL"] if self.chance(0.3) else [])])  # fmt: skip
        if self.chance(0.03):
            attributes.append(
                self.one(
                    ["COLUMN_FORMAT DYNAMIC", "STORAGE DISK"] if not self.mariadb else ["COLUMN_FORMAT FIXED"]
                ).split()
            )
        attributes.append(self._comment(0.08))
        self.choose.shuffle(attributes)
        return [self.name(name), *words, *(w for a in attributes for w in a)]

    def _comment(self, share: float) -> list[str]:
        return ["COMMENT", self.string()] if self.chance(share) else []

    # -- keys ----------------------------------------------------------------------------------------------------------
    def key(self, columns: Sequence[ColumnDefinition] | Sequence[str], taken: Sequence[str] = ()) -> list[str]:
        """A key or constraint over columns that are there (definitions), or are about to be (names)."""
        known = {c.name: c for c in columns if isinstance(c, ColumnDefinition)}
        names = list(known) or [str(c) for c in columns]
        kind = self.choose.random()
        symbol = (
            ["CONSTRAINT", *([self.name(self._key_name())] if self.chance(0.6) else [])] if self.chance(0.2) else []
        )
        if kind < 0.06:
            return [
                *symbol,
                "CHECK",
                "(",
                "1",
                "<",
                "2",
                ")",
                *(["NOT", "ENFORCED"] if not self.mariadb and self.chance(0.3) else []),
            ]
        if kind < 0.16 and self.tables:
            parent = self.a_table()
            name = [self.name(self._key_name())] if self.chance(0.4) else []
            targets = [c.name for c in parent.columns if parent.row_key and c.name in parent.row_key] or [
                parent.columns[0].name
            ]
            return [*symbol, "FOREIGN", "KEY", *name, "(", self.name(self.one(names)), ")", "REFERENCES",
                *self.table(parent.table.table), "(",
                    self.name(targets[0]), ")", *(["ON", "DELETE", "CASCADE"] if self.chance(0.3) else [])]  # fmt: skip
        parts: list[str] = []
        for name in self.choose.sample(names, min(len(names), self.choose.choice([1, 1, 1, 2, 3]))):
            parts += [",", *self._part(name, known.get(name))]
        name = [self.name(self._key_name())] if self.chance(0.6) else []
        using = ["USING", "BTREE"] if self.chance(0.1) else []
        options = self._comment(0.1) if not using else []
        if kind < 0.3:
            return [*symbol, "PRIMARY", "KEY", *using, "(", *parts[1:], ")", *options]
        if kind < 0.36 and not self.mariadb:
            word = self.one(["UNIQUE", "INDEX"])
            return [word, *name, "(", "(", self.name(self.one(names)), "IS", "NULL", ")", *parts, ")"]
        if kind < 0.65:
            return [
                *symbol,
                "UNIQUE",
                *([self.one(["KEY", "INDEX"])] if self.chance(0.5) else []),
                *name,
                *using,
                "(",
                *parts[1:],
                ")",
                *options,
            ]
        if kind < 0.7:
            return [
                "FULLTEXT",
                *([self.one(["KEY", "INDEX"])] if self.chance(0.5) else []),
                *name,
                "(",
                self.name(self.one(names)),
                ")",
            ]
        return [self.one(["KEY", "INDEX"]), *name, *using, "(", *parts[1:], ")", *options]

    def _part(self, name: str, column: ColumnDefinition | None) -> list[str]:
        family = column.family if column else ""
        needs = family.endswith(("text", "blob")) or family in {"json", "geometry"}
        may = needs or family in {"char", "varchar", "binary", "varbinary"}
        prefix = (
            ["(", self.one(["1", "3", "5", "20", "63", "100", "255"]), ")"]
            if needs or (may and self.chance(0.3))
            else []
        )
        return [self.name(name), *prefix, *([self.one(["ASC", "DESC"])] if self.chance(0.2) else [])]

    def _key_name(self) -> str:
        return self.one(["k", "k2", "K3", "ünï", "idx", "1k", "a b", "key", "b", "a", "c_2", "comment"])

    # -- statements ----------------------------------------------------------------------------------------------------
    def statement(self) -> str:
        """The next one."""
        what = self.choose.random()
        if len(self.tables) < 2 or what < 0.14:
            words = self._create()
        elif what < 0.19 or len(self.tables) > 6:
            words = self._drop()
        elif what < 0.25:
            words = self._rename()
        elif what < 0.29:
            words = ["CREATE", "TABLE", *self._if_not_exists(), *self.table(self.new_table()), *self._like()]
        elif what < 0.31:
            words = ["TRUNCATE", *(["TABLE"] if self.chance(0.5) else []), *self.table(self.a_table().table.table)]
        elif what < 0.38:
            words = self._index()
        elif what < 0.43:
            words = self._others()
        else:
            words = self._alter()
        return self.written(words)

    def written(self, words: Sequence[str]) -> str:
        """The words with space and comments between them."""
        text, plain = "", self.chance(0.5)
        for word in words:
            text += word + (" " if plain or self.chance(0.85) else self.one(_SPACES))
        if self.chance(0.05):
            text = f"/*!50003 {text}*/"
        return text.strip() if plain else text

    def _if_not_exists(self) -> list[str]:
        return ["IF", "NOT", "EXISTS"] if self.chance(0.15) else []

    def _like(self) -> list[str]:
        model = self.table(self.a_table().table.table)
        return ["LIKE", *model] if self.chance(0.6) else ["(", "LIKE", *model, ")"]

    def _create(self) -> list[str]:
        name = self.new_table()
        names = self.choose.sample(_COLUMN_NAMES, self.choose.randint(1, 6))
        items = [self.column(n) for n in names]
        for _ in range(self.choose.choice([0, 0, 1, 2])):
            items.append(self.key(names))
        if self.chance(0.6):
            items.insert(
                0,
                [
                    self.name("id"),
                    self.one(["INT", "BIGINT UNSIGNED", "VARCHAR(40)"]),
                    *self.one(["PRIMARY KEY", "NOT NULL UNIQUE"]).split(),
                ],
            )
        words = ["CREATE"]
        if self.mariadb and self.chance(0.05) and self.tables:
            words += ["OR", "REPLACE"]
            name = self.a_table().table.table
        words += ["TABLE", *self._if_not_exists(), *self.table(name), "("]
        for item in items:
            words += [*item, ","]
        words[-1] = ")"
        words += self._options()
        if self.chance(0.06):
            key = self.name(names[0])
            words += ["PARTITION", "BY", "KEY", "(", key, ")", "PARTITIONS", "2"]
        elif self.chance(0.06):
            words += [*(["AS"] if self.chance(0.5) else []), "SELECT", "1", "AS", "one", ",", "'x'", "AS", "two"]
        return words

    def _options(self) -> list[str]:
        found: list[list[str]] = []
        if self.chance(0.3):
            found.append([
                *(["DEFAULT"] if self.chance(0.5) else []),
                "CHARACTER",
                "SET",
                *self._equals(),
                self.one(_CHARSETS),
            ])
        elif self.chance(0.15):
            found.append([
                *(["DEFAULT"] if self.chance(0.5) else []),
                "COLLATE",
                *self._equals(),
                self.one(_COLLATIONS),
            ])
        elif self.mariadb and self.chance(0.1):
            found.append(
                self.one(["CHARACTER SET = DEFAULT", "CHARSET DEFAULT", "COLLATE = DEFAULT", "COLLATE DEFAULT"]).split()
            )
        if self.chance(0.15):
            found.append(["COMMENT", *self._equals(), self.string()])
        if self.chance(0.15):
            found.append(["ENGINE", *self._equals(), self.one(["InnoDB", "innodb", "'InnoDB'", "MyISAM"])])
        if self.chance(0.1):
            found.append(
                self.one([
                    "ROW_FORMAT=DYNAMIC",
                    "AUTO_INCREMENT = 5",
                    "STATS_PERSISTENT=DEFAULT",
                    "MAX_ROWS 1000",
                    "PACK_KEYS=1",
                ]).split()
            )
        self.choose.shuffle(found)
        words: list[str] = []
        for option in found:
            words += [*([","] if words and self.chance(0.4) else []), *option]
        return words

    def _equals(self) -> list[str]:
        return ["="] if self.chance(0.5) else []

    def _drop(self) -> list[str]:
        tables = self.choose.sample(sorted(self.tables), 2 if self.chance(0.2) else 1)
        words = ["DROP", self.one(["TABLE", "TABLE", "TABLES"]), *(["IF", "EXISTS"] if self.chance(0.3) else [])]
        for table in tables:
            words += [*self.table(table), ","]
        return [*words[:-1], *([self.one(["RESTRICT", "CASCADE"])] if self.chance(0.1) else [])]

    def _rename(self) -> list[str]:
        table, new = self.a_table().table.table, self.new_table()
        if self.chance(0.3):
            return [
                "ALTER",
                "TABLE",
                *self.table(table),
                "RENAME",
                *([self.one(["TO", "AS", "="])] if self.chance(0.7) else []),
                *self.table(new),
            ]
        words = ["RENAME", self.one(["TABLE", "TABLES"]), *self.table(table), "TO", *self.table(new)]
        if self.chance(0.3):
            other = self.a_table().table.table
            words += [",", *self.table(other), "TO", *self.table(table)] if other != table else []
        return words

    def _index(self) -> list[str]:
        table = self.a_table()
        if self.chance(0.3) and table.indexes:
            index = self.choose.choice(table.indexes).name
            return ["DROP", "INDEX", self.name(index), "ON", *self.table(table.table.table)]
        replace = ["OR", "REPLACE"] if self.mariadb and self.chance(0.3) else []
        column = self.choose.choice(table.columns)
        name = self.choose.choice(table.indexes).name if replace and table.indexes else self._key_name()
        return ["CREATE", *replace, *([self.one(["UNIQUE", "UNIQUE", "FULLTEXT"])] if self.chance(0.4) else []),
            "INDEX", self.name(name),
                *(["USING", "BTREE"] if self.chance(0.1) else []), "ON", *self.table(table.table.table),
                "(", *self._part(column.name, column), ")"]  # fmt: skip

    def _others(self) -> list[str]:
        """Statements that change no table."""
        table = self.table(self.a_table().table.table)
        account = self.one([
            "`root`@`localhost`",
            "'root'@'localhost'",
            "CURRENT_USER",
            "CURRENT_USER()",
            "root@localhost",
            "`app`@`%`",
            "'a'@'my-host'",
        ])
        definer = ["DEFINER", "=", account] if self.chance(0.7) else []
        number = str(self.choose.randint(1, 10**9))
        replace = ["OR", "REPLACE"] if self.mariadb or self.chance(0.0) else []
        kind = self.choose.random()
        if kind < 0.35:
            return ["CREATE", "OR", "REPLACE", *(["ALGORITHM", "=", "MERGE"] if self.chance(0.2) else []), *definer,
                    *(["SQL", "SECURITY", "INVOKER"] if self.chance(0.3) else []), "VIEW", self.name("a_view"), "AS",
                    "SELECT", "*",
                    "FROM", *table]  # fmt: skip
        if kind < 0.55:
            return [
                "CREATE",
                *replace,
                *definer,
                "TRIGGER",
                f"tr{number}",
                "BEFORE",
                "INSERT",
                "ON",
                *table,
                "FOR",
                "EACH",
                "ROW",
                "SET",
                "@`x y`",
                "=",
                "1",
            ]
        if kind < 0.75:
            return ["CREATE", *replace, *definer, self.one(["PROCEDURE", "PROCEDURE IF NOT EXISTS"]), f"pr{number}",
                "(", ")",
                    "BEGIN", "DROP", "TABLE", *table, ";", "SELECT", "'it''s'", ";", "END"]  # fmt: skip
        if kind < 0.85:
            return [
                "CREATE",
                *replace,
                *definer,
                "EVENT",
                f"ev{number}",
                "ON",
                "SCHEDULE",
                "EVERY",
                "1",
                "YEAR",
                "DO",
                "DELETE",
                "FROM",
                *table,
            ]
        if kind < 0.93:
            return ["CREATE", "USER", "IF", "NOT", "EXISTS", f"`u{number}`@`my-host`"]
        return ["ANALYZE", "TABLE", *table]

    # -- ALTER TABLE ---------------------------------------------------------------------------------------------------
    def _alter(self) -> list[str]:
        table = self.a_table()
        clauses: list[list[str]] = []
        used: set[str] = set()
        for _ in range(self.choose.choice([1, 1, 1, 2, 2, 3, 4])):
            clauses.append(self._clause(table, used))
        words = [
            "ALTER",
            "TABLE",
            *(["IF", "EXISTS"] if self.mariadb and self.chance(0.1) else []),
            *self.table(table.table.table),
        ]
        for clause in clauses:
            words += [*clause, ","]
        return words[:-1]

    def _clause(self, table: TableDefinition, used: set[str]) -> list[str]:
        free = [c for c in table.columns if c.name not in used] or list(table.columns)
        column = self.choose.choice(free)
        word = ["COLUMN"] if self.chance(0.4) else []
        what = self.choose.random()
        new = self.one([n for n in _COLUMN_NAMES if n.lower() not in {c.name.lower() for c in table.columns}])
        others = [c.name for c in table.columns if c.name not in used]
        place = (
            ["FIRST"]
            if self.chance(0.1)
            else ["AFTER", self.name(self.one(others))]
            if others and self.chance(0.15)
            else []
        )
        exists = ["IF", "EXISTS"] if self.mariadb and self.chance(0.2) else []
        if what < 0.24:
            used.add(new)
            if self.chance(0.15):
                return [
                    "ADD",
                    *word,
                    "(",
                    *self.column(new),
                    *([",", *self.key([*table.columns])] if self.chance(0.3) and not self.mariadb else []),
                    ")",
                ]
            missing = ["IF", "NOT", "EXISTS"] if self.mariadb and self.chance(0.2) else []
            return ["ADD", *word, *missing, *self.column(new), *place]
        if what < 0.32:
            used.add(column.name)
            return ["DROP", *word, *exists, self.name(column.name)]
        if what < 0.44:
            used.add(column.name)
            return [
                "MODIFY",
                *word,
                *exists,
                *self.column(column.name),
                *([] if place[1:] == [self.name(column.name)] else place),
            ]
        if what < 0.54:
            used.add(column.name)
            return [
                "CHANGE",
                *word,
                *exists,
                self.name(column.name),
                *self.column(new if self.chance(0.6) else column.name),
            ]
        if what < 0.59:
            used.add(column.name)
            return ["RENAME", "COLUMN", self.name(column.name), "TO", self.name(new)]
        if what < 0.64:
            what_ = self.one([
                "SET DEFAULT 1",
                "SET DEFAULT 'a'",
                "DROP DEFAULT",
                "SET DEFAULT NULL",
                "SET DEFAULT (1 + 2)",
            ])
            return ["ALTER", *word, self.name(column.name), *what_.split(" ", 2)]
        if what < 0.78:
            return ["ADD", *self.key([c for c in table.columns if c.name not in used] or table.columns)]
        if what < 0.84 and table.indexes:
            index = self.choose.choice(table.indexes)
            if index.primary:
                return ["DROP", "PRIMARY", "KEY"]
            how = self.one(["INDEX", "KEY", "KEY", "CONSTRAINT"])
            return ["DROP", how, *(exists if how != "CONSTRAINT" else []), self.name(index.name)]
        if what < 0.87 and table.indexes:
            index = self.choose.choice(table.indexes)
            return ["RENAME", self.one(["INDEX", "KEY"]), self.name(index.name), "TO", self.name(self._key_name())]
        if what < 0.91:
            charset = self.one(_CHARSETS)
            collation = {"utf8mb4": "utf8mb4_bin", "latin1": "latin1_german1_ci"}.get(charset)
            return [
                "CONVERT",
                "TO",
                "CHARACTER",
                "SET",
                charset,
                *(["COLLATE", collation] if collation and self.chance(0.4) else []),
            ]
        if what < 0.95:
            return self._options() or ["FORCE"]
        return self.one([
            "FORCE", "ENGINE=InnoDB", "ALGORITHM=COPY", "LOCK=SHARED", "DISABLE KEYS", "ENABLE KEYS",
            "AUTO_INCREMENT=7", "ORDER BY 1",
            "ROW_FORMAT=COMPACT", "REMOVE PARTITIONING", "DROP FOREIGN KEY fk",
            "DROP CHECK c" if not self.mariadb else "FORCE",
        ]).split()  # fmt: skip


_DIGITS_FIRST = re.compile(r"[0-9][0-9A-Za-z_]*")
_SPACES = (
    "\n", "\t", "  ", " /* c, ' */ ", "\n-- it's\n", " # `x\n", " /*!*/ ", "/**/ ", " /*!99999 , never ( */ ", "\r\n",
    " --\t'\n",
)  # fmt: skip
_RESERVED = {"select", "key", "order", "like", "replace", "temporary2", "ignore", "period2"}


def _fits(text: str, charset: str) -> bool:
    codec = {"utf8mb4": "utf-8", "latin1": "cp1252", "sjis": "shift_jis", "gbk": "gbk"}[charset]
    try:
        text.encode(codec)
    except UnicodeEncodeError:
        return False
    return True
