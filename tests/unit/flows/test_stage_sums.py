"""Sums of what a stage did in a run, as its task shows them."""

from __future__ import annotations

from sluice.flows.stage_sums import KEPT, Done, StageSums
from sluice.segments.changeset import RuleTotal


def batch(number: int, rows: int = 3) -> Done:
    tidy = RuleTotal(name="tidy", rows_in=10, rows_out=8, seconds=0.5, errors=1, dead_letters=1, changed=4)
    late = RuleTotal(name="late", rows_in=8, rows_out=8, seconds=0.25)
    return Done(number, 0.25, rows, 1, rules=(tidy, late) if number % 2 else (tidy,))


def test_the_sums_are_those_of_all_batches_and_the_newest_are_shown() -> None:
    made = StageSums()
    for number in range(7, 107):
        made.add(batch(number), KEPT)
    told = made.result()
    rules = {rule["name"]: rule for rule in told.pop("rules")}
    assert told == {"batches": 100, "rows": 300, "errors": 100, "seconds": 25.0, "first": 7, "last": 106}
    assert (rules["tidy"]["rows_in"], rules["tidy"]["changed"], rules["tidy"]["seconds"]) == (1000, 400, 50.0)
    assert (rules["tidy"]["dead_letters"], rules["late"]["rows_in"]) == (100, 400)
    lines = made.table().splitlines()
    assert [line.split()[0] for line in lines[1 : KEPT + 1]] == [str(number) for number in range(87, 107)]
    assert lines[KEPT + 1] == "and 80 before them: the log of drain has them"
    assert [line.split()[0] for line in lines[KEPT + 2 :]] == ["rule", "tidy", "late"]


def test_another_process_reads_the_same() -> None:
    made = StageSums.of([batch(4), Done(5, 0.5, later="quarantined")])
    read = StageSums.from_json(made.to_json())
    assert (read.result(), read.table()) == (made.result(), made.table())
    assert StageSums().result() == {"batches": 0, "rows": 0, "errors": 0, "seconds": 0}
    assert StageSums.from_json(StageSums().to_json()).table() == StageSums().table()


def test_what_two_processes_did_adds_up() -> None:
    both = StageSums.of([batch(4), batch(5)]) + StageSums.of([batch(6)])
    assert both.result() == StageSums.of([batch(4), batch(5), batch(6)]).result()
    assert (StageSums() + both).first == 4
    assert (both + StageSums()).result() == both.result()
