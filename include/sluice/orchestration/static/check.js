// The last check of a saved pipeline, which a worker makes: its state, when it was, and what it found.

import { get, path } from "./api.js";
import { ago, el, empty, hinted, pill, runLink, table } from "./dom.js";

const TONES = { ok: "good", warning: "warn", error: "bad" };
const UNDER_WAY = new Set(["queued", "running"]);

export const lastCheck = (pipeline) => get(path("pipelines", pipeline, "check"));
export const isUnderWay = (found) => Boolean(found.run) && UNDER_WAY.has(found.run.state) && found.last?.run !== found.run.run_id;

// `line`: number of a line -> what stands for it.
export function findingsOf(findings, line = (number) => String(number)) {
  return table(["", "Line", "Part", "What", "Value", "Why, and what to do"], findings.map((one) => [
    pill(TONES[one.severity] || "quiet", one.severity), line(one.line), one.part, one.setting, one.value,
    el("span", { class: "reason" }, ...hinted(one.why), one.fix ? el("div", {}, ...hinted(one.fix)) : ""),
  ]), { label: "Findings" });
}

export function checkOf(found, line) {
  const { last, run } = found, state = run && last?.run !== run.run_id ? run.state : "";
  return [
    state ? el("p", {}, pill(state === "failed" ? "bad" : "quiet", state), " ", runLink(run, `the check ${run.run_id}`), state === "failed" ? ": its log says why" : "") : "",
    last ? el("p", { class: "route" }, "Checked ", el("span", { title: new Date(last.ended_ms).toISOString() }, ago(last.ended_ms)), ` by ${last.by}`,
      last.applied.length ? ` after ${last.applied.length} statements were run` : "") : "",
    last ? findingsOf(last.report.findings, line) : state ? "" : empty("Nobody checked the saved file yet."),
  ];
}
