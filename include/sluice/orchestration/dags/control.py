"""The ``sluice_control`` DAG: pause, resume, restart, roll back and check a pipeline from Airflow's Trigger form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator, Param

from sluice.config.loading import load_pipeline, yaml_files
from sluice.config.pipeline import MAX_GRACE
from sluice.errors import ConfigError, SluiceError
from sluice.model.nearest import meant
from sluice.orchestration.dag_runs import CONTROL_ID
from sluice.orchestration.dags.common import OWNER, START, shares
from sluice.orchestration.dags.forms import require_known
from sluice.orchestration.retry import boundary

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime
    from sluice.operations.control import ActionPlan

ACTIONS = ("pause", "resume", "restart", "rollback")
CHECKS = ("check", "make-missing")
"""Actions that open what a pipeline file names, so that a worker alone does them."""

_DOC = """Press **Trigger**, choose a pipeline and what to do. It acts on all runs in flight within five seconds, and nothing is lost:

- **pause**: tasks under way stop at their next safe point and wait, without a worker and without using up an attempt.
- **resume**: they go on, each with the batch it had.
- **restart**: everything under way begins again from the same batches; for the grace, no other installation takes over.
- **rollback**: what was made of the undelivered batches is forgotten and made anew, with the rules as they are now.
- **check**: what `sluice check PIPELINE` says; the page shows it. **make-missing**: what `sluice check PIPELINE --apply` runs.

The same from a shell: `sluice pause PIPELINE`. From a program: `POST /api/v2/dags/sluice_control/dagRuns` with this form's fields as
`conf`, or `POST /sluice/api/pipelines/PIPELINE/ACTION`, which answers when it is done. Who did what: `sluice audit PIPELINE`."""  # noqa: E501


def act(
    runtime: Runtime, action: str, *, by: str, reason: str = "", grace_s: float | None = None, dry_run: bool = False
) -> ActionPlan:
    """Carry out the action that a person chose. Raises ConfigError for an action that does not exist."""
    from sluice.operations import actions
    from sluice.operations.control import ActionPlan

    if action not in ACTIONS:
        raise ConfigError(f"{action!r} is not an action", hint=f"choose one of {', '.join(ACTIONS)}")
    if dry_run and action != "rollback":
        return ActionPlan(action, (f"{runtime.name}: {action}; nothing was done",))
    return actions.act(runtime, action, {"reason": reason, "grace_s": grace_s}, by=by, dry_run=dry_run)


def open_to_act(path: str) -> Runtime:
    """Open the pipeline's runtime for somebody who controls the pipeline and does not work on it."""
    from sluice.orchestration.runtime import open_runtime

    runtime = open_runtime(path)
    runtime.owner = None
    return runtime


class ControlOperator(BaseOperator):  # type: ignore[misc]
    """Carries out the action in the run's parameters; returns the plan's sentences."""

    ui_color = "#fcf3cf"

    def __init__(self, *, files: dict[str, str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.files = files

    def execute(self, context: Any) -> dict[str, Any]:
        """Do the action that the run's parameters name."""
        params = context["params"]
        user = getattr(context["dag_run"], "triggering_user_name", None) or "airflow"
        with boundary():
            require_known(context["dag_run"], ("pipeline", "action", "reason", "grace_s", "dry_run"))
            path = self.files.get(params["pipeline"])
            if path is None:
                name = str(params["pipeline"])
                raise ConfigError(
                    f"there is no pipeline {name!r}{meant(name, self.files)}", hint=f"there are {sorted(self.files)}"
                )
            by, reason = f"{user}@airflow", params["reason"] or ""
            if params["action"] in CHECKS:
                return self._check(path, context, by=by, reason=reason)
            plan = act(
                open_to_act(path),
                params["action"],
                by=by,
                reason=reason,
                grace_s=params["grace_s"],
                dry_run=params["dry_run"],
            )
        for step in plan.steps:
            self.log.info("%s: %s", plan.what, step)
        answer: dict[str, Any] = plan.to_json()
        return answer

    def _check(self, path: str, context: Any, *, by: str, reason: str) -> dict[str, Any]:
        """Check the pipeline, store the result, and return how many findings of each severity there are."""
        from sluice.operations.last_check import check_and_keep

        params, run = context["params"], context["dag_run"].run_id
        apply = params["action"] == "make-missing" and not params["dry_run"]
        last = check_and_keep(open_to_act(path), apply=apply, by=by, run=run, reason=reason)
        for step in last.applied:
            self.log.info("%s: %s", params["action"], step)
        severities = [finding["severity"] for finding in last.report["findings"]]
        return {"what": params["action"], "applied": len(last.applied)} | {
            severity: severities.count(severity) for severity in ("error", "warning", "ok")
        }


def build_control_dag(folder: Path) -> DAG:
    """Build one DAG for all pipelines in ``folder``; its form is made from the run's parameters."""
    files: dict[str, str] = {}
    for path in yaml_files(folder):
        try:
            files.setdefault(load_pipeline(path).pipeline, str(path.resolve()))
        except SluiceError:  # its own DAG shows the error
            continue
    with DAG(
        dag_id=CONTROL_ID,
        description="Pause, resume, restart, roll back or check a pipeline",
        schedule=None,
        start_date=START,
        catchup=False,
        doc_md=_DOC,
        tags={"sluice", "control"},
        default_args={"owner": OWNER, "retries": 2, **shares("default_pool", 1000)},
        params={
            "pipeline": Param(
                None if len(files) != 1 else next(iter(files)),
                enum=sorted(files) or [""],
                type="string",
                title="Pipeline",
            ),
            "action": Param("pause", enum=[*ACTIONS, *CHECKS], type="string", title="What to do"),
            "reason": Param(None, type=["null", "string"], title="Why", description="Goes into the audit."),
            "grace_s": Param(
                None,
                type=["null", "number"],
                minimum=0,
                maximum=MAX_GRACE.total_seconds(),
                title="Grace in seconds",
                description="For restart: so long no other installation takes over. Empty: as the pipeline says (90 "
                "s).",
            ),
            "dry_run": Param(False, type="boolean", title="Only say what would be done"),
        },
    ) as dag:
        ControlOperator(task_id="act", files=files)
    return dag
