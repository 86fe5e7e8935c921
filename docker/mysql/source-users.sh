# Run once by the MySQL image: the user that reads the log and the shop.
docker_process_sql <<SQL
CREATE USER 'sluice'@'%' IDENTIFIED BY '${SLUICE_PASSWORD}';
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'sluice'@'%';
GRANT SELECT ON shop.* TO 'sluice'@'%';
SQL
