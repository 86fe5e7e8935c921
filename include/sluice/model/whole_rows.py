"""The setting of a source with which its log has whole rows, as errors name it that need them."""

from __future__ import annotations

LOG_WHOLE_ROWS = (
    "let the log have whole rows: SET GLOBAL binlog_row_image = 'FULL' at a MySQL or MariaDB, and reconnect its "
    "applications; ALTER TABLE SCHEMA.TABLE REPLICA IDENTITY FULL at a PostgreSQL"
)
"""The begin of a hint. A log of PostgreSQL lacks what an update left unchanged and is stored out of line (TOAST)."""
