// Verify: the last results, the rows that differ, and their repair.

import { get, path, poll } from "./api.js";
import { actionButton } from "./dialog.js";
import { count, doer, el, empty, pill, swap, table, when } from "./dom.js";

export const OUTCOMES = { equal: "good", different: "bad", incomplete: "warn" };
const COUNTS = ["rows", "equal", "different", "missing", "extra", "undecided", "repaired"];

export function countsOf(tables) {
  return table(["Table", "Target", "By", "Rows", "Equal", "Different", "Missing", "Extra", "Undecided", "Repaired"],
    tables.map((t) => [el("b", {}, t.table), t.target, t.skipped ? "not compared" : t.way, ...COUNTS.map((name) => (t.skipped ? "" : count(t[name])))]),
    { numeric: [3, 4, 5, 6, 7, 8, 9], label: "What was compared" });
}
const KINDS = { missing: "missing at the target", extra: "only at the target", different: "different" };

export function differencesOf(one, repair = "") {
  const value = (text) => (text === null ? el("i", {}, "NULL") : el("code", {}, text));
  const rows = one.differences.flatMap((d) => {
    const head = [el("code", {}, `(${d.key.join(", ")})`), KINDS[d.kind] + (d.copies > 1 ? ` ×${d.copies}` : "")];
    if (!d.columns.length) return [[...head, "", "", ""]];
    return d.columns.map((name, i) => [...(i ? ["", ""] : head), name, d.values.length ? value(d.values[i][0]) : "", d.values.length ? value(d.values[i][1]) : ""]);
  });
  return el("article", { "data-table": one.table },
    el("div", { class: "title" }, el("h2", {}, `${one.table} at ${one.target}`), repair),
    one.skipped ? el("p", { class: "warned" }, `not compared: ${one.skipped}`) : "",
    one.note ? el("p", { class: "route" }, one.note) : "",
    one.repaired ? el("p", { class: "route" }, `${count(one.repaired)} of them are repaired`) : "",
    rows.length ? table(["Key", "Row", "Column", "As it should be", "At the target"], rows, { label: `Differences of ${one.table} at ${one.target}` }) : "");
}

export function resultOf(result, pipeline, after) {
  const odd = result.tables.filter((t) => t.skipped || t.differences.length || t.note);
  const wrong = (t) => t.different + t.missing + t.extra > 0;
  return [
    el("article", { "data-result": result.id },
      el("div", { class: "title" }, el("h2", { tabindex: "-1" }, `Verification of ${result.pipeline}`), pill(OUTCOMES[result.outcome] || "quiet", result.outcome)),
      el("p", { class: "route" }, `${when(result.began_ms)}, by `, doer(result.by, "verify", result.pipeline), `: ${result.line}`),
      result.where ? el("p", { class: "route" }, `only rows with ${result.where}`) : "",
      result.repair.length ? el("p", { class: "route" }, `repaired by dump ${result.repair.join(", ")}`) : "",
      countsOf(result.tables)),
    ...odd.map((one) => differencesOf(one, pipeline && wrong(one) ? actionButton(pipeline, "repair", { text: "Repair these", given: { tables: [one.table], targets: [one.target] }, after, kind: "primary" }) : "")),
  ];
}

export function open(panel, status, again) {
  let pipeline = status, before = "", chosen = false; // chosen: somebody looks at a certain result; else at the newest
  const tools = el("div", { class: "tools" }), list = el("div"), detail = el("div", { id: "result" });
  panel.replaceChildren(tools, list, detail);
  list.append(empty("Asking the segment store…"));
  const changed = () => { again(); asking.now(); };
  async function ask() {
    swap(tools, actionButton(pipeline, "verify", { after: changed, kind: "primary" }), actionButton(pipeline, "repair", { after: changed }));
    try {
      const { results } = await get(path("pipelines", pipeline.pipeline, "verifications"));
      const now = JSON.stringify(results);
      if (now === before) return;
      before = now;
      swap(list, results.length ? table(["When", "Outcome", "Result", "By", "Id"],
        results.map((one) => [when(one.began_ms), pill(OUTCOMES[one.outcome] || "quiet", one.outcome), one.line, doer(one.by, "verify", pipeline.pipeline),
          el("button", { type: "button", class: "plain", click: () => { chosen = true; showResult(one.id); }, "data-focus": one.id }, one.id)]), { label: "Verifications", keys: results.map((one) => one.id) })
        : empty("Nothing was compared yet."));
      if (!chosen && results.length) await showResult(results[0].id, false);
    } catch (error) { if (!before) swap(list, el("p", { class: "wrong", role: "alert" }, error.message)); }
  }
  async function showResult(id, moves = true) {
    try {
      swap(detail, ...resultOf(await get(path("pipelines", pipeline.pipeline, "verifications", id)), pipeline, changed));
      if (moves) detail.querySelector("h2").focus();
    } catch (error) { swap(detail, el("p", { class: "wrong", role: "alert" }, error.message)); }
  }
  const asking = poll(ask, 5000);
  return { stop: () => asking.stop(), update(now) { pipeline = now; } };
}
