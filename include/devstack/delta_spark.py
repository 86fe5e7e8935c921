"""Delta for Spark: the jars that a Spark server needs to write Delta tables itself, and its settings."""

from __future__ import annotations

from pathlib import Path

from devstack import maven, paths

VERSION = "4.4.0"
_LIST = Path(__file__).with_name("jars") / "delta_spark.lock"


def find_delta() -> list[Path]:
    """Return the jars, fetched at first use (13 MB). Raises FetchFailed."""
    jars = maven.read_list(_LIST)
    folder = maven.fetch(_folder(), jars, what=f"Delta {VERSION} for Spark")
    return [folder / jar.name for jar in jars]


def fetched() -> bool:
    """Return True if the jars are here."""
    return maven.is_fetched(_folder(), maven.read_list(_LIST))


def spark_settings() -> dict[str, str]:
    """Return the settings of a Spark server that docs/delta-target.md describes. Raises FetchFailed.

    There ``spark.jars.packages`` names what is fetched here. Delta reads the log of a table in 50 tasks, however small
    it is: here they are two.
    """
    return {
        "spark.jars": ",".join(map(str, find_delta())),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }


def _folder() -> Path:
    return paths.home() / "delta-spark"
