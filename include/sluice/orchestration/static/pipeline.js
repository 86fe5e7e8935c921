// One pipeline: its head, and a tab for each matter.

import { get, path, poll } from "./api.js";
import { actionButton, helped } from "./dialog.js";
import { airflow, bytes, copyable, dagLink, el, empty, figure, minute, note, pill, plural, position, seconds, swap, taskLink, taskOf } from "./dom.js";

const TABS = {
  now: ["Now", () => import("./tab-now.js")],
  history: ["History", () => import("./tab-history.js")],
  tables: ["Tables", () => import("./tab-tables.js")],
  dumps: ["Dumps", () => import("./tab-dumps.js")],
  letters: ["Dead letters", () => import("./tab-letters.js")],
  verify: ["Verify", () => import("./tab-verify.js")],
  actions: ["Actions", () => import("./tab-actions.js")],
};
const main = document.getElementById("main"), summary = document.getElementById("summary");
let name = "", status = null, tasks = [], shown = null, polling = null, before = "";

export function show(wanted, inDag) {
  name = wanted;
  const head = el("section", { id: "head" });
  const bar = el("div", { role: "tablist", "aria-label": "Parts of the pipeline", class: "tabs" });
  const panel = el("section", { id: "panel", role: "tabpanel", tabindex: "-1" });
  for (const [key, [label]] of Object.entries(TABS)) {
    bar.append(el("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": "panel", click: () => { location.hash = key; } }, label));
  }
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = [...bar.children], next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    next.focus();
    next.click();
  });
  if (!inDag) document.querySelector("header").prepend(el("nav", {}, el("a", { href: "./" }, "All pipelines")));
  main.replaceChildren(head, bar, panel);
  window.addEventListener("hashchange", choose);
  polling = poll(ask, 2000);
}

const chosen = () => (TABS[location.hash.slice(1)] ? location.hash.slice(1) : "now");

async function choose() {
  if (!status) return;
  const key = chosen(), panel = document.getElementById("panel");
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const on = tab.id === `tab-${key}`;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
  }
  panel.setAttribute("aria-labelledby", `tab-${key}`);
  if (shown?.key === key) return;
  shown?.stop?.();
  panel.replaceChildren(empty("Asking…"));
  panel.dataset.tab = key;
  shown = { key };
  const module = await TABS[key][1]();
  if (shown.key !== key) return;
  shown = { key, ...module.open(panel, status, again) };
  shown.update?.({ ...status, tasks });
}

const again = () => polling.now();

async function ask() {
  try {
    const found = await get(path("pipelines", name));
    const first = status === null;
    status = found;
    name = found.pipeline;
    summary.textContent = "";
    if (found.state === "invalid") { document.querySelector(".tabs").hidden = true; document.getElementById("panel").hidden = true; }
    if (["failing", "running", "behind", "stopped"].includes(found.state) || tasks.length) await askTasks();
    head();
    if (found.state === "invalid") return;
    if (first) await choose(); else shown?.update?.({ ...status, tasks });
  } catch (error) {
    summary.textContent = error.status === 404 ? error.message : `No answer: ${error.message}. Trying again.`;
    if (error.status === 404) swap(document.getElementById("head"), empty("This DAG is not a Sluice pipeline, or you may not see it."));
  }
}

async function askTasks() {
  try { tasks = (await get(path("pipelines", name, "failed-tasks"))).tasks; } catch { tasks = []; }
}

function head() {
  const now = JSON.stringify([{ ...status, asked_ms: 0 }, tasks]);
  if (now === before) return;
  before = now;
  const stuck = tasks.some((task) => task.state === "failed");
  const targets = status.targets || [];
  swap(document.getElementById("head"), el("article", { "data-pipeline": status.pipeline, "data-tone": stuck ? "bad" : status.tone },
    el("div", { class: "title" },
      el("h2", {}, status.pipeline),
      pill(stuck ? "bad" : status.tone, stuck ? "stands still" : status.text, { "data-state": stuck ? "holds" : status.state }),
      el("span", { class: "links" }, dagLink(status.dag_id, "DAG"))),
    el("p", { class: "route" }, status.source
      ? `${status.source}${status.server ? ` (reads ${status.server})` : ""} → ${(status.target_names || []).join(", ")}${status.description ? ` · ${status.description}` : ""}`
      : status.file),
    ...(status.state === "invalid" ? [] : [el("dl", { class: "figures" },
      figure("Lag", seconds(status.lag_ms), status.lag_ms === 0 && !(status.incomplete || []).length ? "nothing is missing" : "", "lag"),
      figure("Log still to deliver", bytes(status.lag_bytes)),
      figure("Captured up to", position(status.captured), status.head ? `the source is at ${position(status.head)}` : "the source does not answer"),
      figure("Batches in flight", `${(status.in_flight || []).length} of ${status.window ?? "—"}`),
    )]),
    el("ul", { class: "notes" }, ...notes()),
    el("div", { class: "buttons" },
      status.state === "paused" ? actionButton(status, "resume", { after: again, kind: "primary" }) : status.state === "invalid" ? "" : actionButton(status, "pause", { after: again }),
      status.may?.act ? el("a", { href: `?edit=${encodeURIComponent(status.pipeline)}`, class: "button", "data-focus": "edit" }, "Edit") : "")));
}

const FAULTS = { passing: " (it may pass by itself)", yours: " (a person has to fix the cause)", bug: " (this looks like a bug of Sluice: please report it)" };
const HEADS = { invalid: "The pipeline file is not valid", not_configured: "Not configured", stopped: "Stopped" };

function notes() {
  const silent = status.no_answer || [], targets = status.targets || [];
  const said = (text) => helped(text, status, again);
  const failures = tasks.length ? [] : status.failures || [];
  const retry = () => (status.may_retry ? actionButton(status, "retry-now", { after: again, kind: "primary" })
    : el("span", {}, "Another attempt fails in the same way until the command above was run."));
  return [
    ...silent.map((one) => note("bad", `The ${one.part.replace("zookeeper", "ZooKeeper").replace("store", "segment store")} has not answered since ${minute(one.since)}`, ...said(one.text))),
    ...(status.errors || []).filter((text) => !silent.some((one) => one.text === text)).map((text) => note("bad", HEADS[status.state] || "Cannot read the state", ...said(text))),
    ...tasks.map((task) => el("li", { class: task.state === "failed" ? "bad" : "warn", "data-task": task.task_id },
      el("b", {}, task.state === "failed" ? `Stopped at ${task.task_id}: the attempts are used up` : `${task.task_id}: attempt ${task.attempt} failed; ${new Date(task.next_at) > new Date() ? `the next one starts at ${new Date(task.next_at).toLocaleTimeString([], { hour12: false })}` : "it tries again by itself"}`),
      ...said(task.message || "Its log has no message."),
      el("div", { class: "buttons" },
        airflow(`/dags/${encodeURIComponent(task.dag_id)}/runs/${encodeURIComponent(task.run_id)}`, "The run"), taskLink(task, task.host ? `Log of the failed task (on ${task.host})` : "Log of the failed task"),
        retry()))),
    ...failures.map((one) => el("li", { class: "bad" },
      el("b", {}, `${taskOf(one.part)} failed ${one.attempts === 1 ? "once" : `${one.attempts} times`} since ${one.since}, and has not gone on${FAULTS[one.fault] || ""}`), ...said(one.error),
      el("div", { class: "buttons" }, dagLink(status.dag_id, "Its runs"), retry()))),
    ...(status.incomplete || []).map((text) => note("warn", "Rows may lack values", ...said(text))),
    ...(status.paused ? [note("warn", "Paused", status.paused)] : []),
    ...targets.filter((t) => t.alert_since).map((t) => note("bad", `${t.name} lags too far behind`, `since ${t.alert_since}`)),
    ...(status.dead_letters ? [el("li", { class: "warn" }, el("b", {}, plural(status.dead_letters, "dead letter waits", "dead letters wait")), el("a", { href: "#letters" }, "Show"))] : []),
    ...(status.conflicts ? [note("warn", `${plural(status.conflicts, "conflict")} between the sites, repaired`, copyable(`sluice channel conflicts ${status.channel}`, "command"))] : []),
    ...targets.filter((t) => t.quarantined).map((t) => note("bad", `${t.name} is quarantined, and the others go on without it`, ...said(t.quarantined))),
    ...targets.filter((t) => t.waits).map((t) => note("warn", `${t.name} gets batches together`, t.waits)),
    ...(status.warnings || []).filter((text) => !targets.some((t) => t.quarantined && text.startsWith(`target ${t.name} is quarantined`))).map((text) => note("warn", "Soon a trouble", ...said(text))),
  ];
}
