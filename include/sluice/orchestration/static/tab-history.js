// History: lag, changes, batch sizes and stage times from what the pipeline stored, whoever looked meanwhile.

import { get, path, poll } from "./api.js";
import { plot } from "./curves.js";
import { airflow, bytes, count, el, empty, plural, runLink, seconds, swap, when } from "./dom.js";

const SPANS = [["1h", "1 hour"], ["24h", "24 hours"], ["7d", "7 days"]];

export function open(panel, status) {
  const name = status.pipeline;
  let span = "1h", found = null, plots = null, turn = 0;
  const tools = el("div", { class: "tools", role: "group", "aria-label": "Span" }), about = el("p", { class: "route" }), figures = el("div", { class: "plots" }), chosen = el("div", { class: "chosen", role: "status" });
  panel.replaceChildren(tools, about, chosen, figures);
  for (const [key, label] of SPANS) {
    tools.append(el("button", { type: "button", "data-span": key, "aria-pressed": String(key === span), click: () => {
      span = key;
      plots = null;
      for (const one of tools.children) one.setAttribute("aria-pressed", String(one.dataset.span === span));
      ask();
    } }, label));
  }
  async function ask() {
    const mine = ++turn;
    try {
      const answer = await get(path("pipelines", name, "history"), { span });
      if (mine !== turn) return;
      found = answer;
      const known = found.at_s.length && found.changes.some((value) => value);
      about.textContent = `${plural(found.batches, "batch", "batches")} in ${SPANS.find(([key]) => key === span)[1]}, from the notes that the stages left in the segment store.${found.complete ? "" : " Older notes are still being read."}`;
      if (!known) { plots = null; swap(figures, empty("No batch was delivered in this span.")); return; }
      await render(mine);
    } catch (error) { if (!found) swap(figures, el("p", { class: "wrong", role: "alert" }, error.message)); }
  }
  const press = (i) => {
    const batch = found.last_batch[i], run = found.run[i];
    swap(chosen, el("p", {}, `${when(found.at_s[i] * 1000)}: `, batch ? `up to batch ${count(batch)} ` : "no batch ", run ? runLink(run, "Open its run") : "",
      run ? "" : airflow(`/dags/${encodeURIComponent(status.dag_id)}/runs`, "Runs of the DAG")));
  };
  async function render(mine) {
    const x = found.at_s, lines = (values, format) => Object.entries(values).map(([label, list]) => ({ label, format, list }));
    const wanted = [
      ["lag", "Lag at delivery", lines(found.lag_ms, seconds), seconds],
      ["rate", "Changes per second", [{ label: "changes/s", list: found.changes_per_s }], (v) => (v >= 10 ? count(Math.round(v)) : v.toFixed(v >= 1 ? 1 : 2))],
      ["size", "Batch size, mean", [{ label: "changes a batch", list: found.batch_changes }], (v) => count(Math.round(v))],
      ["bytes", "Bytes stored per second", [{ label: "bytes/s", list: found.bytes_per_s }], (v) => bytes(v)],
      ["stages", "Time of each stage, mean of a batch", lines(found.stage_ms, seconds), seconds],
    ];
    if (plots) { for (const [key, , series] of wanted) plots[key]?.([x, ...series.map((one) => one.list)]); return; }
    const made = {}, nodes = wanted.map(([key, title]) => el("figure", { "data-plot": key }, el("figcaption", {}, title), el("div", { class: "plot" })));
    swap(figures, ...nodes);
    for (const [i, [key, title, series, format]] of wanted.entries()) {
      if (!series.length) { nodes[i].hidden = true; continue; }
      made[key] = await plot(nodes[i].querySelector(".plot"), { data: [x, ...series.map((one) => one.list)], series, format, label: `${title} of ${name}`, press });
      if (mine !== turn) return;
    }
    plots = made;
  }
  const asking = poll(ask, 15_000);
  return { stop: () => asking.stop() };
}
