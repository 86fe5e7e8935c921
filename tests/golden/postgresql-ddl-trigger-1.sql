CREATE OR REPLACE FUNCTION sluice_ddl.note() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET datestyle = ISO, YMD
SET intervalstyle = 'postgres'
SET timezone = 'UTC'
SET bytea_output = 'hex'
SET extra_float_digits = '1'
SET lc_monetary = 'C'
SET xmloption = 'content'
SET quote_all_identifiers = 'off'
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = 'on'
SET lock_timeout = '2s'
AS $sluice$
#variable_conflict use_column
DECLARE
  touched oid[];
  gone json;
  unindexed json;
  filled json[] := '{}';
  own bigint;
  made json;
  number bigint;
  fresh record;
  chosen boolean;
BEGIN
  IF TG_EVENT = 'sql_drop' THEN
    SELECT json_agg(json_build_array(o.objid::bigint, o.schema_name, o.object_name)) INTO gone
    FROM pg_event_trigger_dropped_objects() o WHERE o.object_type = 'table' AND NOT o.is_temporary;
    SELECT json_agg(json_build_array(o.schema_name, o.object_name)) INTO unindexed
    FROM pg_event_trigger_dropped_objects() o
    WHERE o.object_type = 'index' AND TG_TAG = 'DROP INDEX' AND NOT o.is_temporary;
    SELECT array_agg(DISTINCT o.objid) INTO touched FROM pg_event_trigger_dropped_objects() o
    WHERE o.object_type = 'table column' AND NOT o.is_temporary AND TG_TAG <> 'ALTER TABLE';
  ELSE
    SELECT array_agg(DISTINCT r.id) INTO touched FROM pg_event_trigger_ddl_commands() o CROSS JOIN LATERAL (
      SELECT o.objid WHERE o.object_type IN ('table', 'table column')
      UNION ALL SELECT i.indrelid FROM pg_index i WHERE o.object_type = 'index' AND i.indexrelid = o.objid
      UNION ALL SELECT a.attrelid FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE o.object_type = 'type' AND o.command_tag = 'ALTER TYPE' AND o.objid IN (t.oid, t.typbasetype)
      UNION ALL SELECT k.oid FROM pg_class k
        WHERE o.object_type = 'schema' AND o.command_tag = 'ALTER SCHEMA' AND k.relnamespace = o.objid
    ) r(id);
  END IF;
  IF touched IS NOT NULL THEN
    WITH RECURSIVE heirs(id) AS (
      SELECT unnest(touched) UNION SELECT i.inhrelid FROM pg_inherits i JOIN heirs h ON i.inhparent = h.id
    ) SELECT array_agg(id) INTO touched FROM heirs;
    IF TG_TAG IN ('CREATE TABLE', 'ALTER TABLE') THEN
      FOR fresh IN
        SELECT w.proname AS publication, n.nspname AS schema, c.relname AS name
        FROM pg_proc w JOIN pg_namespace s ON s.oid = w.pronamespace AND s.nspname = 'sluice_ddl'
        JOIN pg_publication p ON p.pubname = w.proname AND NOT p.puballtables
        CROSS JOIN pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE w.pronargs = 1 AND w.proowner = (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user)
          AND c.oid = ANY(touched) AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
          AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)' AND c.relname !~ '^(_sluice_|_.*_(gho|ghc|del|old|new)$|~)'
          AND (c.relreplident IN ('f', 'i') OR c.relreplident = 'd' AND EXISTS (
            SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary))
          AND NOT EXISTS (SELECT FROM pg_publication_rel m WHERE m.prpubid = p.oid AND m.prrelid = c.oid)
          AND (TG_TAG = 'CREATE TABLE' OR current_setting('transaction_isolation') = 'read committed' AND EXISTS (
            SELECT FROM pg_locks l WHERE l.relation = c.oid AND l.pid = pg_backend_pid()
              AND l.mode = 'AccessExclusiveLock' AND l.granted))
      LOOP
        BEGIN
          EXECUTE format('SELECT sluice_ddl.%I($1) AND NOT EXISTS (SELECT FROM %I.%I) AND NOT EXISTS (
            SELECT FROM pg_publication_tables WHERE pubname = $2 AND schemaname = $3 AND tablename = $4)',
            fresh.publication, fresh.schema, fresh.name) INTO chosen
            USING fresh.schema || '.' || fresh.name, fresh.publication, fresh.schema, fresh.name;
          IF chosen THEN
            EXECUTE format('ALTER PUBLICATION %I ADD TABLE %I.%I', fresh.publication, fresh.schema, fresh.name);
          END IF;
        EXCEPTION WHEN OTHERS THEN
          RAISE WARNING 'Sluice did not add %.% to publication % (%)', fresh.schema, fresh.name, fresh.publication,
            SQLERRM;
        END;
      END LOOP;
    END IF;
    IF TG_TAG = 'ALTER TABLE' THEN
      own := pg_current_xact_id()::text::bigint;
      FOR fresh IN
        SELECT n.nspname AS schema, c.relname AS name, rn.nspname AS root_schema, rc.relname AS root_name
        FROM pg_event_trigger_ddl_commands() o JOIN pg_inherits h ON h.inhparent = o.objid
        JOIN pg_class k ON k.oid = h.inhparent AND k.relkind = 'p'
        JOIN pg_class c ON c.oid = h.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_class rc ON rc.oid = pg_partition_root(h.inhparent) JOIN pg_namespace rn ON rn.oid = rc.relnamespace
        CROSS JOIN LATERAL (SELECT own + 1048576 - ((own + 1048576 - h.xmin::text::bigint) & 4294967295)) m(id)
        WHERE o.object_type = 'table' AND CASE WHEN m.id < own THEN false
          ELSE pg_xact_status(m.id::text::xid8) = 'in progress' END
      LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %I.%I)', fresh.schema, fresh.name) INTO chosen;
        IF chosen THEN
          filled := filled || json_build_array(fresh.root_schema, fresh.root_name);
        END IF;
      END LOOP;
    END IF;
    made := (SELECT json_agg(json_build_object(
  'numbers', c.relnatts,
  'table', json_build_array(c.oid::bigint, n.nspname::text, c.relname::text, c.relkind::text, c.relispartition,
  c.relreplident::text, c.relpersistence::text, greatest(c.reltuples, 0)::bigint, c.relpages::bigint * 8192,
  coalesce(obj_description(c.oid, 'pg_class'), ''), c.relrowsecurity),
  'columns', (SELECT coalesce(json_agg(json_build_array(a.attnum::int, a.attname::text, a.atttypid::bigint, a.atttypmod, a.attnotnull, a.attgenerated::text,
  a.attidentity::text, pg_get_expr(d.adbin, d.adrelid), coalesce(col_description(a.attrelid, a.attnum), ''),
  format_type(b.type, b.mod), l.labels) ORDER BY a.attnum), '[]'::json)
    FROM pg_attribute a
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
CROSS JOIN LATERAL (
  WITH RECURSIVE base(type, mod, step) AS (
    SELECT a.atttypid, a.atttypmod, 0
    UNION ALL
    SELECT t.typbasetype, t.typtypmod, base.step + 1 FROM base JOIN pg_type t ON t.oid = base.type WHERE t.typtype = 'd'
  ) SELECT type, mod FROM base ORDER BY step DESC LIMIT 1
) b
LEFT JOIN LATERAL (
  SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) AS labels FROM pg_enum e WHERE e.enumtypid = b.type
) l ON true
WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attrelid = c.oid),
  'indexes', (SELECT coalesce(json_agg(json_build_array(x.relname::text, i.indisprimary, i.indisreplident, i.indisunique, i.indimmediate,
  i.indpred IS NOT NULL, m.amname::text, i.indnkeyatts::int,
  (SELECT array_agg(coalesce(a.attname::text, '') ORDER BY k.place) FROM unnest(i.indkey) WITH ORDINALITY
     AS k(number, place) LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number),
  i.indoption::text) ORDER BY NOT i.indisprimary, x.relname), '[]'::json)
    FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam
WHERE i.indisvalid AND i.indislive AND i.indrelid = c.oid)) ORDER BY c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
      AND c.relpersistence = 'p' AND NOT c.relispartition AND c.oid = ANY(touched));
  END IF;
  IF gone IS NULL AND made IS NULL AND unindexed IS NULL AND cardinality(filled) = 0 THEN
    RETURN;
  END IF;
  INSERT INTO sluice_ddl._sluice_ddl (said) VALUES (json_build_object(
    'version', 1, 'tag', TG_TAG, 'tables', coalesce(made, '[]'), 'dropped', coalesce(gone, '[]'),
    'indexes', coalesce(unindexed, '[]'), 'filled', array_to_json(filled))::text)
    RETURNING id INTO number;
  DELETE FROM sluice_ddl._sluice_ddl WHERE id = number;
EXCEPTION WHEN OTHERS THEN
  RAISE WARNING 'Sluice did not note % (%). It finds the new definition with the next row', TG_TAG, SQLERRM;
  BEGIN
    INSERT INTO sluice_ddl._sluice_ddl (said)
    VALUES (json_build_object('version', 1, 'tag', TG_TAG, 'failed', SQLERRM)::text) RETURNING id INTO number;
    DELETE FROM sluice_ddl._sluice_ddl WHERE id = number;
  EXCEPTION WHEN OTHERS THEN
    NULL;
  END;
END
$sluice$
