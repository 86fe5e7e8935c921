// The batches of one run, as long as they are known.

import { get, path, poll } from "./api.js";
import { brief, bytes, clock, count, el, empty, plural, position, swap, table } from "./dom.js";
import { rulesTable } from "./tab-now.js";

export function show(dag, run) {
  const summary = document.getElementById("summary"), main = document.getElementById("main");
  let before = "";
  poll(async () => {
    try {
      const status = await get(path("pipelines", dag || ""));
      const { batches, stages } = await get(path("pipelines", status.pipeline, "batches"), { run });
      const targets = (status.targets || []).map((t) => t.name);
      const done = batches.filter((b) => targets.every((name) => b.acknowledged_by.includes(name))).length;
      summary.textContent = `${status.pipeline} · ${plural(batches.length, "batch", "batches")} of this run, ${done} delivered`;
      const now = JSON.stringify([batches, stages, targets]);
      if (now === before) return;
      before = now;
      const rules = stages.flatMap((s) => s.rules);
      swap(main, el("article", { "data-run": run },
        el("h2", {}, "Batches of this run"),
        batches.length ? table(["Batch", "State", "Changes", "Size", "First commit", "Up to position", "Acknowledged by"],
          [...batches].reverse().map((b) => [
            count(b.number), b.acknowledged_by.length === targets.length ? "delivered" : b.changeset ? "merged, to load" : "captured, to merge",
            count(b.changes), bytes(b.size_bytes), clock(b.first_commit_time_us), el("code", {}, position(b.last)), b.acknowledged_by.join(", ") || "—",
          ]), { numeric: [2, 3], label: "Batches" }) : empty("This run has no batch, or its batches were delivered too long ago to be known."),
        ...(stages.length ? [el("h3", {}, "Stages"), table(["Stage", "Batches", "Rows", "Errors", "Time"],
          stages.map((s) => [el("b", {}, s.stage), count(s.batches), count(s.rows), count(s.errors), brief(s.seconds * 1000)]), { numeric: [1, 2, 3, 4], label: "Stages" })] : []),
        ...(rules.length ? [el("h3", {}, "Rules"), rulesTable(rules, "Rules")] : []),
        el("p", { class: "route" }, "The log of each task has its batches, with their seconds.")));
    } catch (error) {
      summary.textContent = error.status === 404 ? "" : `No answer: ${error.message}. Trying again.`;
      if (error.status === 404) swap(main, empty("This DAG is not a Sluice pipeline."));
    }
  }, 2000);
}
