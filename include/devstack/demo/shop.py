"""The sample shop: customers, products, orders, order lines; between them the column types that OLTP schemas use."""

# ruff: noqa: S608  (random choices and fixed table names; nothing here guards anything)
from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

TABLES = ("customers", "products", "orders", "order_lines")
"""Parents before children: the order to create and to fill in; reversed, the order to drop and to empty in."""

DDL: Mapping[str, str] = {
    "customers": """\
CREATE TABLE {schema}.customers (
  id            INT UNSIGNED NOT NULL AUTO_INCREMENT,
  email         VARCHAR(120) NOT NULL,
  name          VARCHAR(80) CHARACTER SET utf8mb4 NOT NULL,
  greeting      TEXT CHARACTER SET utf8mb4,
  birth_date    DATE,
  level         ENUM('new', 'regular', 'gold') NOT NULL DEFAULT 'new',
  interests     SET('books', 'music', 'garden', 'tools') NOT NULL DEFAULT '',
  flags         BIT(12) NOT NULL DEFAULT b'0',
  loyalty       BIGINT UNSIGNED NOT NULL DEFAULT 0,
  balance       DECIMAL(12,2) NOT NULL DEFAULT 0,
  avatar        BLOB,
  token         BINARY(16),
  since         YEAR NOT NULL,
  created_at    TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  updated_at    DATETIME(6) NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY email (email)
) ENGINE=InnoDB AUTO_INCREMENT=1000000 DEFAULT CHARSET=utf8mb4""",
    "products": """\
CREATE TABLE {schema}.products (
  id            BIGINT UNSIGNED NOT NULL,
  sku           CHAR(10) CHARACTER SET ascii NOT NULL,
  title         VARCHAR(200) NOT NULL,
  description   MEDIUMTEXT,
  price         DECIMAL(14,4) NOT NULL,
  weight_g      MEDIUMINT UNSIGNED NOT NULL,
  stock         SMALLINT NOT NULL,
  rating        FLOAT,
  margin        DOUBLE,
  attributes    JSON,
  picture       MEDIUMBLOB,
  opens_at      TIME(3),
  active        TINYINT(1) NOT NULL DEFAULT 1,
  PRIMARY KEY (id),
  UNIQUE KEY sku (sku)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4""",
    "orders": """\
CREATE TABLE {schema}.orders (
  id            BIGINT NOT NULL AUTO_INCREMENT,
  customer_id   INT UNSIGNED NOT NULL,
  reference     VARBINARY(24) NOT NULL,
  state         ENUM('open', 'paid', 'sent', 'returned') NOT NULL,
  placed_at     DATETIME(6) NOT NULL,
  paid_at       TIMESTAMP NULL,
  total         DECIMAL(20,4) NOT NULL,
  note          VARCHAR(500),
  address       JSON,
  PRIMARY KEY (id),
  UNIQUE KEY reference (reference),
  KEY customer (customer_id),
  CONSTRAINT orders_customer FOREIGN KEY (customer_id) REFERENCES customers (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4""",
    "order_lines": """\
CREATE TABLE {schema}.order_lines (
  order_id      BIGINT NOT NULL,
  line          SMALLINT UNSIGNED NOT NULL,
  product_id    BIGINT UNSIGNED NOT NULL,
  quantity      INT NOT NULL,
  unit_price    DECIMAL(14,4) NOT NULL,
  discount      DECIMAL(5,4) NOT NULL DEFAULT 0,
  gift_text     TINYTEXT,
  PRIMARY KEY (order_id, line),
  KEY product (product_id),
  CONSTRAINT lines_order FOREIGN KEY (order_id) REFERENCES orders (id),
  CONSTRAINT lines_product FOREIGN KEY (product_id) REFERENCES products (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4""",
}

_NAMES = ("Ada", "Björk", "Chloé", "Dũng", "Émile", "Fatima", "Grzegorz", "Hana", "Ítalo", "淑芬", "Юлия", "محمد")
_WORDS = ("kettle", "lamp", "chair", "notebook", "trowel", "guitar", "mug", "rope", "globe", "clock", "brush", "scale")
_EMOJI = ("🐟", "🌊", "🚰", "👩‍🔧", "🇳🇴", "🎁", "✨", "🍀")


class Executes(Protocol):
    """A server that runs statements (``MySQLServer.execute``)."""

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run the statements in order and return the rows of the last one."""


def create_tables(server: Executes, schema: str) -> None:
    """Make the schema and its empty tables; those that exist stay as they are."""
    statements = [DDL[table].format(schema=f"`{schema}`") for table in TABLES]
    statements = [text.replace("CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ", 1) for text in statements]
    server.execute(f"CREATE DATABASE IF NOT EXISTS `{schema}` CHARACTER SET utf8mb4", *statements)


def checksums(server: Executes, schema: str) -> dict[str, int | None]:
    """Return the ``CHECKSUM TABLE`` of each table of the shop."""
    rows = server.execute("CHECKSUM TABLE " + ", ".join(f"`{schema}`.`{table}`" for table in TABLES))
    return {name.partition(".")[2]: value for name, value in rows}


def counts(server: Executes, schema: str) -> dict[str, int]:
    """Return the number of rows of each table of the shop."""
    return {table: int(server.execute(f"SELECT COUNT(*) FROM `{schema}`.`{table}`")[0][0]) for table in TABLES}


@dataclass
class Shop:
    """Random rows of the shop; the same seed gives the same rows. Each table's row as column -> value."""

    chance: random.Random

    def customer(self, unique: str) -> dict[str, Any]:
        """Return a customer whose e-mail address begins with ``unique``. The server numbers it."""
        chance = self.chance
        return {
            "email": f"{unique}@example.com",
            "name": f"{chance.choice(_NAMES)} {chance.choice(_WORDS).title()}",
            "greeting": None if chance.random() < 0.2 else f"{chance.choice(_EMOJI)} {self._text(12)}",
            "birth_date": None if chance.random() < 0.1 else f"{chance.randint(1920, 2010)}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}",  # noqa: E501
            "level": chance.choice(("new", "regular", "gold")),
            "interests": ",".join(w for w in ("books", "music", "garden", "tools") if chance.random() < 0.4),
            "flags": chance.getrandbits(12),
            "loyalty": chance.choice((0, chance.getrandbits(20), 2**63 + chance.getrandbits(62), 2**64 - 1)),
            "balance": self._decimal(10, 2),
            "avatar": None if chance.random() < 0.5 else chance.randbytes(chance.randint(0, 300)),
            "token": chance.randbytes(chance.choice((8, 15, 16))) if chance.random() < 0.8 else None,
            "since": chance.randint(1990, 2026),
            "updated_at": self._moment(),
        }  # fmt: skip

    def product(self, number: int, unique: str) -> dict[str, Any]:
        """Return a product of this number, whose SKU is the first ten characters of ``unique``."""
        chance = self.chance
        attributes = {
            "colour": chance.choice(("red", "blue", "grün", None)),
            "sizes": [chance.randint(1, 60) for _ in range(chance.randint(0, 4))],
            "weight": chance.choice((1, 2.5, -0.125, 10**18, True)),
            "label": chance.choice(_EMOJI),
            "nested": {"a": [1, {"b": None}], "": "empty key"},
        }
        return {
            "id": number,
            "sku": unique[:10],
            "title": f"{chance.choice(_WORDS)} {chance.choice(_EMOJI)} {self._text(5)}",
            "description": None if chance.random() < 0.1 else self._text(chance.randint(0, 60)),
            "price": self._decimal(9, 4),
            "weight_g": chance.randint(0, 2**24 - 1),
            "stock": chance.randint(-(2**15), 2**15 - 1),
            "rating": None if chance.random() < 0.1 else round(chance.uniform(0, 5), 3),
            "margin": chance.choice((0.1, -1e300, 3.141592653589793, chance.uniform(-1, 1))),
            "attributes": None if chance.random() < 0.1 else json.dumps(attributes, ensure_ascii=False),
            "picture": None if chance.random() < 0.7 else chance.randbytes(chance.randint(0, 2000)),
            "opens_at": None if chance.random() < 0.2 else self._time(),
            "active": chance.choice((0, 1, 1, 2, -1)),
        }  # fmt: skip

    def order(self, customer: int, unique: bytes) -> dict[str, Any]:
        """Return an order of a customer; its reference is ``unique``, at most 24 bytes. The server numbers it."""
        chance = self.chance
        address = {"street": self._text(3), "no": chance.randint(1, 300), "geo": [chance.uniform(-90, 90), 10.5]}
        return {
            "customer_id": customer,
            "reference": unique,
            "state": chance.choice(("open", "paid", "sent", "returned")),
            "placed_at": self._moment(),
            "paid_at": None if chance.random() < 0.4 else self._moment()[:19],
            "total": self._decimal(14, 4),
            "note": None if chance.random() < 0.5 else f"{self._text(8)} {chance.choice(_EMOJI)}",
            "address": None if chance.random() < 0.3 else json.dumps(address, ensure_ascii=False),
        }

    def line(self, order: int, number: int, product: int) -> dict[str, Any]:
        """Return line ``number`` of an order, for this product."""
        chance = self.chance
        return {
            "order_id": order,
            "line": number,
            "product_id": product,
            "quantity": chance.randint(1, 20),
            "unit_price": self._decimal(9, 4),
            "discount": Decimal(chance.randint(0, 9999)).scaleb(-4),
            "gift_text": None if chance.random() < 0.7 else f"{chance.choice(_EMOJI)} {self._text(4)}",
        }

    def _text(self, words: int) -> str:
        return " ".join(self.chance.choice(_WORDS) for _ in range(words))

    def _decimal(self, digits: int, scale: int) -> Decimal:
        return Decimal(self.chance.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(-scale)

    def _time(self) -> str:
        chance = self.chance
        sign = chance.choice(("", "-"))
        return f"{sign}{chance.randint(0, 800)}:{chance.randint(0, 59):02}:{chance.randint(0, 59):02}.{chance.randint(0, 999):03}"  # noqa: E501

    def _moment(self) -> str:
        chance = self.chance
        return (
            f"{chance.randint(1990, 2030)}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02} "
            f"{chance.randint(0, 23):02}:{chance.randint(0, 59):02}:{chance.randint(0, 59):02}.{chance.randint(0, 999_999):06}"  # noqa: E501
        )


def sql() -> str:
    """Return the statements that create the shop's tables in the current schema: docker/mysql/shop.sql."""
    statements = [DDL[table].format(schema="x").replace("x.", "", 1) for table in TABLES]
    return "-- The sample shop; written by `python -m devstack.demo.shop`.\n" + "".join(f"{s};\n" for s in statements)


if __name__ == "__main__":
    sys.stdout.write(sql())
