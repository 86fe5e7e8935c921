"""What the library derives from the schemas of manifests is derived once for each, and never mixed up."""

from __future__ import annotations

import gc
from typing import Any

from pyiceberg.avro import file
from pyiceberg.manifest import ManifestWriterV2
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from sluice.targets.iceberg.avro_forms import OncePer, use_kept_avro_forms


class Given:
    """An argument that is told apart by identity."""


def test_a_result_is_made_once_and_its_arguments_stay_as_long_as_it() -> None:
    """Else another object could get the identity of one that is gone, and its result."""
    calls: list[Any] = []

    def work(one: Any) -> str:
        calls.append(id(one))
        return f"result {len(calls)}"

    once, first = OncePer(work, id, most=2), Given()
    assert once(first) == once(first) == "result 1"
    for _ in range(50):
        once(Given())
        gc.collect()
    assert len(calls) == 51
    assert once(first) == "result 52", "no more than `most` are kept"


def test_tables_share_the_form_of_their_manifests_unless_they_have_partitions() -> None:
    use_kept_avro_forms()
    use_kept_avro_forms()
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "land", StringType()))
    same = Schema(NestedField(1, "other", StringType()))
    by_land, by_id = (
        PartitionSpec(PartitionField(number, 1000, IdentityTransform(), name))
        for number, name in ((2, "land"), (1, "id"))
    )

    def form(spec: PartitionSpec, of: Schema) -> Any:
        return ManifestWriterV2(spec, of, None, 1, "gzip")._with_partition(2)  # type: ignore[arg-type]

    assert form(PartitionSpec(), schema) is form(PartitionSpec(), same)
    forms = [form(PartitionSpec(), schema), form(by_land, schema), form(by_id, schema)]
    partitions = [str(one.find_field("data_file.partition").field_type) for one in forms]
    assert [("land" in one, "id" in one) for one in partitions] == [(False, False), (True, False), (False, True)]
    writers = [file.resolve_writer(record_schema=one, file_schema=one) for one in forms]
    assert writers[0] is file.resolve_writer(record_schema=forms[0], file_schema=forms[0])
    assert len(set(map(id, writers))) == 3
