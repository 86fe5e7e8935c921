#!/bin/sh
# Writes to the shop once a second, so that one sees rows move. docker compose stop workload: it stops.
set -u
export MYSQL_PWD="$MYSQL_ROOT_PASSWORD"
n=0
while true; do
  n=$((n + 1))
  mysql --host=mysql-source --user=root shop --execute="
    INSERT INTO customers (email, name, since, updated_at)
      VALUES (CONCAT(UUID(), '@example.com'), CONCAT('customer ', $n), 2024, NOW(6));
    SET @customer = LAST_INSERT_ID();
    INSERT INTO orders (customer_id, reference, state, placed_at, total)
      VALUES (@customer, LEFT(REPLACE(UUID(), '-', ''), 24), 'open', NOW(6), RAND() * 100);
    UPDATE orders SET state = 'paid', paid_at = NOW() WHERE state = 'open' AND id < LAST_INSERT_ID() ORDER BY id LIMIT 5;
    UPDATE customers SET loyalty = loyalty + 1, updated_at = NOW(6) WHERE id = @customer - FLOOR(RAND() * 50);
    DELETE FROM orders WHERE state = 'paid' AND placed_at < NOW() - INTERVAL 1 HOUR LIMIT 5;"
  sleep 1
done
