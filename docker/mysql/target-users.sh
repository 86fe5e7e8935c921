# Run once by the MySQL image: the user that writes the reporting schema.
docker_process_sql <<SQL
CREATE USER 'sluice_load'@'%' IDENTIFIED BY '${SLUICE_PASSWORD}';
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES, TRIGGER, CREATE TEMPORARY TABLES ON reporting.* TO 'sluice_load'@'%';
SQL
