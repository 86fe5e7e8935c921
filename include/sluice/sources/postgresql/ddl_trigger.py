"""The event triggers that write the definition after each statement into a table of the publication.

Anybody may write logical messages, so that a message is no proof of a statement. A row of this table is one: only the
function of the triggers can insert it, which runs as its owner, and row security keeps everybody else out.

The function also adds new tables to publications, within the statement's own transaction, so that their first row is in
the log. Which tables a publication takes is said by a function of its name, one for each pipeline.

The function reads catalogs and the sizes of files, and never plans a query on a table of a user: the planner evaluates
predicates and expressions of indexes, which are functions of the table's owner, with the rights of whoever plans.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.config.pipeline import CaptureConfig
from sluice.model.tables import TableId
from sluice.postgresql.connection import Connection
from sluice.postgresql.names import quoted, quoted_table
from sluice.sources.postgresql.catalog.table import DEFINITIONS_AS_JSON, KEPT
from sluice.sources.postgresql.server.connection import SESSION, rows_of

SCHEMA = "sluice_ddl"
TABLE = TableId(SCHEMA, "_sluice_ddl")
CONTENT = "said"
"""The column with the JSON; the other one numbers the rows."""
FUNCTION = "note"
TRIGGERS = {"sluice_ddl_end": "ddl_command_end", "sluice_ddl_drop": "sql_drop"}
_TAGS = ("CREATE TABLE", "CREATE TABLE AS", "SELECT INTO", "CREATE SCHEMA", "CREATE EXTENSION", "ALTER TABLE",
         "CREATE INDEX", "ALTER INDEX", "ALTER TYPE", "ALTER SCHEMA", "ALTER EXTENSION")  # fmt: skip
"""The statements after which the first trigger looks; none of them makes temporary work for each query."""
_ADMINISTRATORS = ("rds_superuser", "cloudsqlsuperuser", "alloydbsuperuser", "azure_pg_admin", "neon_superuser")
"""Roles of managed services whose members may make event triggers."""
_ONLY_PYTHON = re.compile(r"\(\?(?![:=!])|\\(?![wdsWDS]|[^\w\s])|\[\[|\[:|[*+?}]\+")
"""What regular expressions of PostgreSQL lack or read otherwise."""
_NOT_ADDED = "^(_sluice_|_.*_(gho|ghc|del|old|new)$|~)"
"""Names of tables that a person adds if they are wanted: Sluice's own, and those on the way to another definition."""
_PATIENCE = "2s"
"""How long a statement may wait for another transaction that made a table: it holds the publication until it ends."""

_SETTINGS = {
    **{name: value for name, value in SESSION.items() if name != "row_security"},
    "search_path": "pg_catalog, pg_temp",
    "lock_timeout": _PATIENCE,
}
"""The function's parameters, whatever the session has that runs the statement."""
_EMPTY = """(
          WITH RECURSIVE heirs(id) AS (
            SELECT fresh.id UNION SELECT i.inhrelid FROM pg_inherits i JOIN heirs h ON i.inhparent = h.id
          ) SELECT bool_and(
            (k.relkind = 'p' OR k.relkind = 'r' AND k.relam = 2
              AND pg_relation_size(k.oid, 'main') IS NOT DISTINCT FROM 0)
            AND (TG_TAG = 'CREATE TABLE' OR EXISTS (
              SELECT FROM pg_locks l WHERE l.relation = k.oid AND l.pid = pg_backend_pid()
                AND l.mode = 'AccessExclusiveLock' AND l.granted)))
          FROM heirs JOIN pg_class k ON k.oid = heirs.id)"""
"""True if a table, with its partitions and heirs, has no rows, and nobody else can add one: the files of its heap are
empty. False also for rows that were deleted and not vacuumed yet, foreign tables and other access methods."""
_PUBLISH = f"""
      FOR fresh IN
        SELECT w.proname AS publication, c.oid AS id, n.nspname AS schema, c.relname AS name
        FROM pg_proc w JOIN pg_namespace s ON s.oid = w.pronamespace AND s.nspname = '{SCHEMA}'
        JOIN pg_publication p ON p.pubname = w.proname AND NOT p.puballtables
        CROSS JOIN pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE w.pronargs = 1 AND w.proowner = (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user)
          AND c.oid = ANY(touched) AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
          AND {KEPT} AND c.relname !~ '{_NOT_ADDED}'
          AND (c.relreplident IN ('f', 'i') OR c.relreplident = 'd' AND EXISTS (
            SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary))
          AND NOT EXISTS (SELECT FROM pg_publication_rel m WHERE m.prpubid = p.oid AND m.prrelid = c.oid)
      LOOP
        BEGIN
          EXECUTE format('SELECT {SCHEMA}.%I($1) AND NOT EXISTS (
            SELECT FROM pg_publication_tables WHERE pubname = $2 AND schemaname = $3 AND tablename = $4)',
            fresh.publication) INTO chosen
            USING fresh.schema || '.' || fresh.name, fresh.publication, fresh.schema, fresh.name;
          IF chosen AND {_EMPTY} THEN
            EXECUTE format('ALTER PUBLICATION %I ADD TABLE %I.%I', fresh.publication, fresh.schema, fresh.name);
          END IF;
        EXCEPTION WHEN OTHERS THEN
          RAISE WARNING 'Sluice did not add %.% to publication % (%)', fresh.schema, fresh.name, fresh.publication,
            SQLERRM;
        END;
      END LOOP;"""  # noqa: S608 - fixed names
_ATTACHED = f"""
      own := pg_current_xact_id()::text::bigint;
      FOR fresh IN
        SELECT c.oid AS id, rn.nspname AS root_schema, rc.relname AS root_name
        FROM pg_event_trigger_ddl_commands() o JOIN pg_inherits h ON h.inhparent = o.objid
        JOIN pg_class k ON k.oid = h.inhparent AND k.relkind = 'p'
        JOIN pg_class c ON c.oid = h.inhrelid
        JOIN pg_class rc ON rc.oid = pg_partition_root(h.inhparent) JOIN pg_namespace rn ON rn.oid = rc.relnamespace
        CROSS JOIN LATERAL (SELECT own + 1048576 - ((own + 1048576 - h.xmin::text::bigint) & 4294967295)) m(id)
        WHERE o.object_type = 'table' AND CASE WHEN m.id < own THEN false
          ELSE pg_xact_status(m.id::text::xid8) = 'in progress' END
      LOOP
        IF NOT {_EMPTY} THEN
          filled := filled || json_build_array(fresh.root_schema, fresh.root_name);
        END IF;
      END LOOP;"""  # noqa: S608 - fixed names
"""Rows that come with a partition: its row of pg_inherits is of this transaction, or of a part of it, whose numbers are
not below that of the transaction."""
_BODY = f"""
#variable_conflict use_column
DECLARE
  touched oid[];
  gone json;
  unindexed json;
  filled json[] := '{{}}';
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
    IF TG_TAG IN ('CREATE TABLE', 'ALTER TABLE') THEN{_PUBLISH}
    END IF;
    IF TG_TAG = 'ALTER TABLE' THEN{_ATTACHED}
    END IF;
    made := ({DEFINITIONS_AS_JSON}
      AND c.relpersistence = 'p' AND NOT c.relispartition AND c.oid = ANY(touched));
  END IF;
  IF gone IS NULL AND made IS NULL AND unindexed IS NULL AND cardinality(filled) = 0 THEN
    RETURN;
  END IF;
  INSERT INTO {SCHEMA}.{TABLE.table} ({CONTENT}) VALUES (json_build_object(
    'version', 1, 'tag', TG_TAG, 'tables', coalesce(made, '[]'), 'dropped', coalesce(gone, '[]'),
    'indexes', coalesce(unindexed, '[]'), 'filled', array_to_json(filled))::text)
    RETURNING id INTO number;
  DELETE FROM {SCHEMA}.{TABLE.table} WHERE id = number;
EXCEPTION WHEN OTHERS THEN
  RAISE WARNING 'Sluice did not note % (%). It finds the new definition with the next row', TG_TAG, SQLERRM;
  BEGIN
    INSERT INTO {SCHEMA}.{TABLE.table} ({CONTENT})
    VALUES (json_build_object('version', 1, 'tag', TG_TAG, 'failed', SQLERRM)::text) RETURNING id INTO number;
    DELETE FROM {SCHEMA}.{TABLE.table} WHERE id = number;
  EXCEPTION WHEN OTHERS THEN
    NULL;
  END;
END
"""  # noqa: S608 - fixed names

CREATE_SCHEMA = f"CREATE SCHEMA {SCHEMA}"
CREATE_TABLE = (
    f"CREATE TABLE {SCHEMA}.{TABLE.table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {CONTENT} text NOT NULL)"
)
SECURE_TABLE = f"ALTER TABLE {SCHEMA}.{TABLE.table} ENABLE ROW LEVEL SECURITY"
CREATE_FUNCTION = (
    f"CREATE OR REPLACE FUNCTION {SCHEMA}.{FUNCTION}() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER\n"
    + "".join(f"SET {name} = {value if ', ' in value else repr(value)}\n" for name, value in _SETTINGS.items())
    + f"AS $sluice${_BODY}$sluice$"
)
REVOKE_FUNCTION = f"REVOKE ALL ON FUNCTION {SCHEMA}.{FUNCTION}() FROM PUBLIC"
REMOVAL = f"DROP SCHEMA {SCHEMA} CASCADE"
"""The statement that removes all of it, the event triggers among them."""

_STATE = """
SELECT n.oid IS NOT NULL, pg_get_userbyid(n.nspowner)::text,
  coalesce(t.oid, 0)::bigint, pg_get_userbyid(t.relowner)::text, t.relrowsecurity AND t.relkind = 'r',
  f.oid IS NOT NULL, pg_get_userbyid(f.proowner)::text, f.prosrc, f.prosecdef,
  (SELECT rolsuper FROM pg_roles WHERE oid = coalesce(f.proowner, t.relowner, n.nspowner)),
  current_user::text,
  (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
    OR EXISTS (SELECT FROM pg_roles WHERE rolname = ANY(%s) AND pg_has_role(oid, 'MEMBER')),
  EXISTS (SELECT FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s),
  EXISTS (SELECT FROM pg_publication WHERE pubname = %s AND puballtables), pg_get_userbyid(w.proowner)::text, w.prosrc,
  f.proconfig, ARRAY(
    SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
    FROM aclexplode(t.relacl) a WHERE a.grantee <> t.relowner AND a.privilege_type <> 'SELECT' ORDER BY 1),
  (SELECT array_agg(pubname::text ORDER BY pubname) FROM pg_publication WHERE puballtables AND pubname <> %s)
FROM (SELECT 1) AS one
LEFT JOIN pg_namespace n ON n.nspname = %s
LEFT JOIN pg_class t ON t.relnamespace = n.oid AND t.relname = %s
LEFT JOIN pg_proc f ON f.pronamespace = n.oid AND f.proname = %s AND f.pronargs = 0
LEFT JOIN pg_proc w ON w.pronamespace = n.oid AND w.proname = %s AND w.pronargs = 1"""
_TRIGGERS_NOW = """
SELECT e.evtname::text, e.evtenabled::text, pg_get_userbyid(e.evtowner)::text
FROM pg_event_trigger e JOIN pg_proc f ON f.oid = e.evtfoid JOIN pg_namespace n ON n.oid = f.pronamespace
WHERE n.nspname = %s AND f.proname = %s"""


@dataclass(frozen=True, slots=True)
class NotedDdl:
    """The noted statements that a capture may believe.

    Attributes:
        table_oid: of the table, 0 if its rows prove nothing.
        complete: no statement passes without a row, as far as the server tells now.
    """

    table_oid: int = 0
    complete: bool = False


@dataclass(frozen=True, slots=True)
class DdlTrigger:
    """The parts of the triggers that a server has.

    Attributes:
        missing: the statements that make what it lacks, in order, without the publication.
        stranger: who owns a part of it and may not be trusted, "" if nobody.
        outdated: the function is not that of this version. unsafe: those of ``missing`` without which other roles may
            run code with the rights of the owner: an older function plans queries on their tables, and a role that was
            granted more on the table than to read it may put a trigger on it.
        disabled: names of triggers that do not fire.
        published: the table is in the publication.
        adds_tables: new tables are added to the publication, or need not be.
        installs: the login may make event triggers.
        others: other publications that send every table.
        noted: what a capture may believe.
    """

    missing: tuple[str, ...]
    stranger: str
    outdated: bool
    unsafe: tuple[str, ...]
    disabled: tuple[str, ...]
    published: bool
    adds_tables: bool
    installs: bool
    others: tuple[str, ...]
    noted: NotedDdl


def read_ddl_trigger(connection: Connection, publication: str, capture: CaptureConfig) -> DdlTrigger:
    """Ask the server what it has. ``capture``: the tables that the publication shall have."""
    [row] = rows_of(
        connection,
        _STATE,
        (
            list(_ADMINISTRATORS), publication, TABLE.schema, TABLE.table, publication, publication, SCHEMA,
            TABLE.table, FUNCTION, publication,
        ),
    )  # fmt: skip
    has_schema, schema_owner, table_oid, table_owner, secured, has_function, function_owner, body, definer = row[:9]
    superuser, login, installs, published, everything, chooser_owner, chooser, settings, writers, others = row[9:]
    triggers = {name: (state, owner) for name, state, owner in rows_of(connection, _TRIGGERS_NOW, (SCHEMA, FUNCTION))}
    owners = {owner for owner in (schema_owner, table_owner, function_owner, chooser_owner) if owner is not None}
    proven = len(owners) == 1 and (superuser or owners == {owner for _, owner in triggers.values()})
    owned = owners == {login} and installs
    stranger = "" if not owners or proven or owned else ", ".join(sorted(owners))
    pinned = {
        name.lower(): value for name, _, value in (setting.partition("=") for setting in settings or ())
    } == _SETTINGS
    revoked = [f"REVOKE ALL ON TABLE {SCHEMA}.{TABLE.table} FROM {role}" for role in writers]
    outdated = has_function and not (body == _BODY and definer and pinned)
    choice = _choice(capture)
    adds_tables = everything or choice is None or chooser == choice
    presence = {
        CREATE_SCHEMA: has_schema,
        CREATE_TABLE: bool(table_oid),
        SECURE_TABLE: bool(secured),
        CREATE_FUNCTION: has_function and not outdated,
        REVOKE_FUNCTION: has_function,
        **dict.fromkeys(revoked, False),
        **{_create(name): name in triggers for name in TRIGGERS},
        **{_enable(name): triggers.get(name, ("", ""))[0] == "A" for name in TRIGGERS},
        **({choosing(publication, choice): False} if choice is not None and not adds_tables else {}),
    }
    believed = bool(proven and table_oid and secured and has_function)
    disabled = tuple(name for name, (state, _) in triggers.items() if name in TRIGGERS and state not in {"O", "A"})
    fires = set(TRIGGERS) <= triggers.keys() and not disabled and not outdated
    return DdlTrigger(
        missing=tuple(statement for statement, is_present in presence.items() if not is_present),
        stranger=stranger,
        outdated=outdated,
        unsafe=(*([CREATE_FUNCTION] if outdated else []), *revoked),
        disabled=disabled,
        published=published,
        adds_tables=adds_tables,
        installs=installs,
        others=tuple(others or ()),
        noted=NotedDdl(table_oid if believed else 0, believed and fires and published),
    )


def _create(trigger: str) -> str:
    tags = f" WHEN TAG IN ({', '.join(map(repr, _TAGS))})" if TRIGGERS[trigger] == "ddl_command_end" else ""
    return f"CREATE EVENT TRIGGER {quoted(trigger)} ON {TRIGGERS[trigger]}{tags} EXECUTE FUNCTION {SCHEMA}.{FUNCTION}()"


def _enable(trigger: str) -> str:
    """Return the statement after which it fires for sessions that restore or replicate, too."""
    return f"ALTER EVENT TRIGGER {quoted(trigger)} ENABLE ALWAYS"


def _choice(capture: CaptureConfig) -> str | None:
    """Return the body of the function that says whether a table is captured; None if the server reads the patterns
    otherwise than Python does, so that a person has to add tables.
    """
    if any(_ONLY_PYTHON.search(pattern) for pattern in (*capture.include, *capture.exclude)):
        return None
    included, excluded = _matches(capture.include), _matches(capture.exclude)
    return f"SELECT ({included})" + (f" AND NOT ({excluded})" if excluded else "")


def _matches(patterns: Sequence[str]) -> str:
    quotes = [pattern.replace("'", "''") for pattern in patterns]
    return " OR ".join(f"$1 ~ '^(?:{pattern})$'" for pattern in quotes)


def choosing(publication: str, choice: str) -> str:
    """Return the statement that makes the function by which new tables are added to a publication."""
    body = choice.replace("'", "''")
    return (
        f"CREATE OR REPLACE FUNCTION {SCHEMA}.{quoted(publication)}(text) RETURNS boolean LANGUAGE sql IMMUTABLE "
        f"SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS '{body}'"
    )


def publish(publication: str) -> str:
    """Return the statement that adds the table to a publication."""
    return f"ALTER PUBLICATION {quoted(publication)} ADD TABLE {quoted_table(TABLE)}"


__all__ = [
    "CONTENT", "FUNCTION", "REMOVAL", "SCHEMA", "TABLE", "TRIGGERS", "DdlTrigger", "NotedDdl", "publish",
    "read_ddl_trigger",
]  # fmt: skip
