"""The ``sluice_control`` DAG: pause, resume, restart, roll back and check a pipeline from Airflow's Trigger form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator, Param

from sluice.config.loading import load_pipeline, yaml_files
from sluice.errors import ConfigError, SluiceError
from sluice.model.nearest import meant
from sluice.operations.plan import ActionPlan
from sluice.operations.verbs.table import VERBS
from sluice.operations.verbs.table import act as do
from sluice.operations.verbs.verb import Verb
from sluice.orchestration.dag_runs import CONTROL_ID
from sluice.orchestration.dags.common import OWNER, START, shares
from sluice.orchestration.dags.forms import order_fields, require_known
from sluice.orchestration.retry import boundary

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime

_DOC = """Press **Trigger**, choose a pipeline and what to do. It acts on all runs in flight within five seconds, and nothing is lost:

{verbs}

The same from a shell: `sluice pause PIPELINE`. From a program: `POST /api/v2/dags/sluice_control/dagRuns` with this form's fields as
`conf`, or `POST /sluice/api/pipelines/PIPELINE/ACTION`, which answers when it is done. Who did what: `sluice audit PIPELINE`."""  # noqa: E501


def form_verbs() -> list[Verb]:
    """Return the verbs that the form offers: those that the page may do itself, then those that only a worker does."""
    return sorted((verb for verb in VERBS.values() if verb.in_form), key=lambda verb: verb.do is None)


def form_actions() -> list[str]:
    """Return the names of the verbs that need no worker."""
    return [verb.name for verb in form_verbs() if verb.do is not None]


def form_checks() -> list[str]:
    """Return the names of the verbs that open what a pipeline file names, so that a worker alone does them."""
    return [verb.name for verb in form_verbs() if verb.do is None]


def act(runtime: Runtime, action: str, *, by: str, dry_run: bool = False, **order: Any) -> ActionPlan:
    """Carry out the action that a person chose. Raises ConfigError for an action that does not exist."""

    if action not in form_actions():
        raise ConfigError(f"{action!r} is not an action", hint=f"choose one of {', '.join(form_actions())}")
    if dry_run and VERBS[action].plan is not None:
        return ActionPlan(action, (f"{runtime.name}: {action}; nothing was done",))
    return do(runtime, action, order, by=by, dry_run=dry_run)


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
            fields = order_fields(form_verbs())
            require_known(context["dag_run"], ("pipeline", "action", *fields, "dry_run"))
            path = self.files.get(params["pipeline"])
            if path is None:
                name = str(params["pipeline"])
                raise ConfigError(
                    f"there is no pipeline {name!r}{meant(name, self.files)}", hint=f"there are {sorted(self.files)}"
                )
            by = f"{user}@airflow"
            if params["action"] in form_checks():
                return self._check(path, context, by=by, reason=params["reason"] or "")
            order = {name: params[name] for name in fields if params[name] is not None}
            plan = act(open_to_act(path), params["action"], by=by, dry_run=params["dry_run"], **order)
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
        doc_md=_DOC.format(verbs="\n".join(f"- **{verb.name}**: {verb.what}" for verb in form_verbs())),
        tags={"sluice", "control"},
        default_args={"owner": OWNER, "retries": 2, **shares("default_pool", 1000)},
        params={
            "pipeline": Param(
                None if len(files) != 1 else next(iter(files)),
                enum=sorted(files) or [""],
                type="string",
                title="Pipeline",
            ),
            "action": Param("pause", enum=[verb.name for verb in form_verbs()], type="string", title="What to do"),
            **order_fields(form_verbs()),
            "dry_run": Param(False, type="boolean", title="Only say what would be done"),
        },
    ) as dag:
        ControlOperator(task_id="act", files=files)
    return dag
