-- The sample shop; written by `python -m devstack.demo.shop`.
CREATE TABLE customers (
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
) ENGINE=InnoDB AUTO_INCREMENT=1000000 DEFAULT CHARSET=utf8mb4;
CREATE TABLE products (
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
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
CREATE TABLE orders (
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
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
CREATE TABLE order_lines (
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
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
