// Actions: what each does, and who did what.

import { get, path, poll } from "./api.js";
import { checkOf, lastCheck } from "./check.js";
import { actionButton, mayDo } from "./dialog.js";
import { doer, el, empty, pill, swap, table } from "./dom.js";

const WHAT = {
  pause: "Stop all work within seconds. Nothing is lost.",
  resume: "Let a paused pipeline go on.",
  restart: "Begin all work under way again from the same batches.",
  rollback: "Make the undelivered batches anew, with the rules as they are now.",
  "retry-now": "Begin failed tasks again at once.",
  check: "Look at the saved file, its source and its targets: what would go wrong.",
  "make-missing": "Make tables, columns and the like that the source or a target lacks. Removes nothing.",
  redeliver: "Load acknowledged batches again, after a target was restored or replaced.",
  skip: "Let a target do without its next batch. Its changes become a dead letter.",
  seek: "Move the captured position: backward reads again, forward leaves out.",
  failover: "Read another server of the source group, at the same place.",
  "switch-target": "Write a target at another server of its group.",
  adopt: "Say which side counts where a target and ZooKeeper disagree.",
};

const DAGS = { dump: "backfill", repair: "verify" }; // whose runs do it; "sync" for the rest

function toldOf(found) {
  if (!found.watches) return "The pipeline file sets neither alert_lag nor alert_connection nor alert_notifiers: only subscriptions are watched.";
  const limit = found.limit_s === null ? "alert_lag is not set" : `alert_lag is ${found.limit_s} s`;
  const told = found.tells ? [`the webhook of connection ${found.tells}`] : [];
  told.push(...(found.notifiers || []));
  return told.length ? `Told: ${told.join(", ")}, and the log; ${limit}.` : `The log is told (alert_raised), and nobody else: the pipeline file has no alert_connection and no alert_notifiers; ${limit}.`;
}

export function open(panel, status, again) {
  let pipeline = status, before = "";
  let alerted = "", checked = "";
  const list = el("div", { class: "deeds" }), alerts = el("div", { id: "alerts" }), audit = el("div"), check = el("div", { id: "last-check" });
  panel.replaceChildren(list, el("h3", {}, "Last check"), check, el("h3", {}, "Alerts"), alerts, el("h3", {}, "Audit"), audit);
  const changed = () => { before = alerted = checked = ""; again(); asking.now(); };
  function render() {
    const next = Object.fromEntries((pipeline.targets || []).map((t) => [t.name, (t.batch ?? 0) + 1]));
    const first = (pipeline.targets || [])[0]?.name;
    const given = { skip: { target: first, batch: next[first] }, redeliver: { target: first }, "switch-target": { target: first } };
    const may = Object.keys(WHAT).filter((one) => mayDo(pipeline.may, one));
    swap(list, ...(may.length ? may.map((one) => el("div", { class: "deed" },
      actionButton(pipeline, one, { given: given[one] || {}, after: changed }), el("p", {}, WHAT[one])))
      : [empty("You may look at this pipeline, but not change it.")]));
  }
  async function askAlerts() {
    try {
      const found = await get(path("pipelines", pipeline.pipeline, "alerts"));
      const now = JSON.stringify([found, pipeline.may]);
      if (now === alerted) return;
      alerted = now;
      swap(alerts, el("p", { class: "route" }, toldOf(found)), table(["Alert when", "State", "Holds", ""], found.rules.map((one) => [
        one.what, one.on ? pill("good", "on", { "data-rule": one.rule }) : pill("quiet", "off", { "data-rule": one.rule }),
        one.since ? pill("bad", `since ${one.since}${one.names.length ? `: ${one.names.join(", ")}` : ""}`) : "no",
        actionButton(pipeline, one.on ? "alert-off" : "alert-on", { text: one.on ? "Switch off" : "Switch on", given: { rule: one.rule }, after: changed, kind: "small" }),
      ]), { label: "Alerts", keys: found.rules.map((one) => one.rule) }));
    } catch (error) { if (!alerted) swap(alerts, el("p", { class: "wrong", role: "alert" }, error.message)); }
  }
  async function askCheck() {
    if (!mayDo(pipeline.may, "check")) { swap(check, empty("You may not check this pipeline.")); return; }
    try {
      const found = await lastCheck(pipeline.pipeline), now = JSON.stringify(found);
      if (now !== checked) swap(check, ...checkOf(found));
      checked = now;
    } catch (error) { if (!checked) swap(check, el("p", { class: "wrong", role: "alert" }, error.message)); }
  }
  async function ask() {
    await Promise.all([askAlerts(), askCheck()]);
    try {
      const { entries } = await get(path("pipelines", pipeline.pipeline, "audit"));
      const now = JSON.stringify(entries);
      if (now === before) return;
      before = now;
      swap(audit, entries.length ? table(["When", "Who", "What", "Details"], entries.map((one) => {
        const { at, by, what, ...rest } = one;
        return [at, doer(by, DAGS[what] || "sync", pipeline.pipeline), String(what), el("span", { class: "reason" }, Object.entries(rest).filter(([, value]) => value !== "" && value !== null).map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", "))];
      }), { label: "Audit" }) : empty("Nobody did anything to this pipeline yet."));
    } catch (error) { if (!before) swap(audit, el("p", { class: "wrong", role: "alert" }, error.message)); }
  }
  render();
  let shown = JSON.stringify([pipeline.may, pipeline.targets?.map((t) => t.batch)]);
  const asking = poll(ask, 5000);
  return {
    stop: () => asking.stop(),
    update(now) {
      pipeline = now;
      const text = JSON.stringify([now.may, now.targets?.map((t) => t.batch)]);
      if (text !== shown) { shown = text; render(); }
    },
  };
}
