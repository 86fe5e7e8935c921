// Now: the window as a picture, the positions, the targets, the last batches.

import { brief, bytes, clock, copyable, count, el, empty, owner, position, runLink, seconds, swap, table, taskLink, taskOf } from "./dom.js";

export function open(panel, status) {
  let before = "";
  return {
    update(now) {
      const text = JSON.stringify({ ...now, asked_ms: 0, lag_ms: 0 });
      if (text === before) return;
      before = text;
      swap(panel, ...parts(now));
    },
  };
}

function parts(status) {
  const targets = status.targets || [];
  return [
    status.state === "new" ? empty("Nothing is captured yet: the first run of the DAG begins.") : "",
    ...windowOf(status),
    el("h3", {}, "Positions"),
    table(["Where", "Position", "GTID", "Committed"], [
      ["Source head", ...place(status.head)],
      ["Captured", ...place(status.captured)],
      ...targets.map((t) => [el("b", {}, `Delivered to ${t.name}`), ...place(t.position)]),
      ...(status.reread_from ? [["Read again from here if the store is lost", ...place(status.reread_from)]] : []),
    ], { label: "Positions" }),
    ...(targets.length ? [el("h3", {}, "Targets"), table(
      ["Target", "Kind", "Acknowledged batch", "Lag", "Log behind", "Loading now"],
      targets.map((t) => [el("b", {}, t.name), t.type, t.batch === null ? "—" : count(t.batch), seconds(t.lag_ms), bytes(t.lag_bytes), loader(t, status.in_flight || [])]),
      { numeric: [2, 3, 4], label: "Targets" })] : []),
    ...subscriptionsOf(status), ...rulesOf(status), ...filesOf(status.files || {}), ...recentOf(status),
  ];
}

// Who loads now, as a link to the log of the task that does.
function loader(target, flying) {
  const batch = flying.find((one) => one.number === (target.batch ?? 0) + 1), who = owner(target.loading_by);
  return target.loading_by && batch?.run ? taskLink({ ...batch.run, task_id: `load.${target.name}` }, who) : who;
}

function place(p) {
  if (!p) return ["—", "—", "—"];
  const committed = p.commit_time_us ? new Date(p.commit_time_us / 1000).toISOString() : "";
  const gtid = p.gtid_set || p.gtid || "";
  return [copyable(position(p), "position"), gtid ? el("span", { class: "gtid" }, copyable(gtid, "GTID")) : "—", committed ? copyable(committed, "commit time") : "—"];
}

// Each batch a row, each stage a cell: done, at work, waiting (and for what).
function windowOf(status) {
  const stages = status.stages || [], flying = status.in_flight || [];
  if (!stages.length) return [];
  const failed = new Map((status.failures || []).map((one) => [taskOf(one.part), one.error]));
  const failedIn = new Map((status.tasks || []).map((one) => [`${one.run_id} ${one.task_id}`, one.message]));
  const cell = (batch, stage) => {
    const done = (name) => { const found = stages.find((one) => one.name === name); return name === "drain" || (found && found.batch !== null && found.batch >= batch.number); };
    if (done(stage.name)) return el("span", { class: "step done", title: "done" }, "done");
    const missing = stage.needs.filter((name) => !done(name));
    if (missing.length) return el("span", { class: "step", title: `waits for ${missing.join(", ")}` }, "waits");
    const next = Math.min(...flying.map((one) => one.number).filter((number) => number > (stage.batch ?? 0)));
    if (batch.number > next) return el("span", { class: "step", title: `waits for batch ${next}` }, `after ${count(next)}`);
    const error = failed.get(stage.name) ?? failedIn.get(`${batch.run?.run_id} ${stage.name}`);
    if (error !== undefined) return el("span", { class: "step failed", title: error }, "failed");
    return el("span", { class: "step busy", title: "at work" }, "at work");
  };
  const rows = [...flying].sort((a, b) => a.number - b.number).map((batch) => [
    runLink(batch.run, count(batch.number)), `${count(batch.changes)} changes`, ...stages.map((stage) => cell(batch, stage)),
  ]);
  return [
    el("h3", {}, "The window"),
    rows.length
      ? el("div", { class: "window" }, table(["Batch", "Size", ...stages.map((stage) => stage.name)], rows, { label: "The window" }))
      : empty(status.state === "idle" ? "No batch is in flight: every target has everything." : "No batch is in flight."),
  ];
}

function subscriptionsOf(status) {
  const found = status.subscriptions || [];
  return found.length ? [el("h3", {}, "Subscriptions"), table(
    ["Subscription", "Reader", "Acknowledged batch", "Batches behind", "Lag", "Acknowledged last", "State"],
    found.map((s) => [el("b", { "data-subscription": s.name }, s.name), s.reader, count(s.batch), count(s.lag_batches), seconds(s.lag_ms), s.acknowledged_at || "—",
      s.expired_at ? `expired ${s.expired_at}` : s.expires_at ? `expires ${s.expires_at}` : s.lag_batches ? "behind" : "has everything"]),
    { numeric: [2, 3, 4], label: "Subscriptions" })] : [];
}

export const rulesTable = (rules, label) => table(
  ["Rule", "Rows in", "Rows out", "Changed", "Time", "Errors", "Dead letters"],
  rules.map((r) => [el("b", {}, r.name), count(r.rows_in), count(r.rows_out), count(r.changed), brief(r.seconds * 1000), count(r.errors), count(r.dead_letters)]),
  { numeric: [1, 2, 3, 4, 5, 6], label });

function rulesOf(status) {
  return (status.rules || []).length ? [el("h3", {}, `Rules in batch ${count(status.rules_batch)}`), rulesTable(status.rules, "Rules")] : [];
}

function filesOf(files) {
  const rows = [
    ...(files.batch ? [[`Batch ${count(files.batch)}`, count(files.copied), bytes(files.bytes), count(files.unchanged), count(files.missing)]] : []),
    ...(files.of ? [[`Under way, of ${count(files.of)}`, count(files.in_progress), `${bytes(files.bytes_per_s)}/s`, "—", "—"]] : []),
  ];
  return rows.length ? [el("h3", {}, "Files that rows name"), table(["Which", "Copied", "Size", "As they were", "Missing"], rows, { numeric: [1, 2, 3, 4] })] : [];
}

function recentOf(status) {
  const rows = [...(status.recent || [])].sort((a, b) => b.number - a.number), targets = status.targets || [];
  const delivered = Math.min(...targets.map((t) => t.batch ?? 0), Infinity);
  const flying = new Set((status.in_flight || []).map((b) => b.number));
  return rows.length ? [el("h3", {}, "Last batches"), table(
    ["Batch", "State", "Changes", "Size", "First commit", "Up to position", "Run"],
    rows.map((b) => [
      count(b.number),
      flying.has(b.number) || b.number > delivered ? { drained: "captured, to merge", merged: "merged, to load" }[b.state] || b.state : "delivered",
      count(b.changes), bytes(b.size_bytes), clock(b.first_commit_time_us), el("code", {}, position(b.last)), b.run ? runLink(b.run, "Run") : "—",
    ]),
    { numeric: [2, 3], label: "Last batches" })] : [];
}
