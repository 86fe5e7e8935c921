// Dead letters: browse, filter, look at a row, replay, discard.

import { get, path, poll } from "./api.js";
import { actionButton } from "./dialog.js";
import { copyable, count, el, empty, pill, plural, swap, table } from "./dom.js";

export function open(panel, status, again) {
  let pipeline = status, before = "", chosen = new Set(), shown = [];
  const filters = { by: "", target: "", table: "", reason: "", every: "" };
  const tools = el("div", { class: "tools" }), list = el("div"), detail = el("div", { id: "letter" });
  const selects = Object.fromEntries([["by", "Rule or target"], ["target", "Lacked by"], ["table", "Table"]].map(([name, label]) => [name, [el("select", { id: `by-${name}`, change: (event) => { filters[name] = event.target.value; ask(); } }), label]]));
  const reason = el("input", { id: "by-reason", type: "search", placeholder: "Reason", autocomplete: "off", input: () => { filters.reason = reason.value; ask(); } });
  const every = el("input", { id: "by-every", type: "checkbox", change: () => { filters.every = every.checked ? "true" : ""; ask(); } });
  const deeds = el("span", { class: "buttons" });
  tools.append(...Object.entries(selects).map(([name, [select, label]]) => el("div", { class: "field" }, el("label", { for: `by-${name}` }, label), select)),
    el("div", { class: "field" }, el("label", { for: "by-reason" }, "Reason has"), reason),
    el("div", { class: "field check" }, every, el("label", { for: "by-every" }, "Also settled ones")), deeds);
  panel.replaceChildren(tools, list, detail);
  list.append(empty("Asking the segment store…"));

  const changed = () => { chosen = new Set(); before = ""; again(); asking.now(); };
  function buttons() {
    const ids = [...chosen];
    swap(deeds, actionButton(pipeline, "letters-replay", { text: ids.length ? `Replay ${ids.length}` : "Replay all that wait", given: { ids }, after: changed, kind: "primary" }),
      ids.length ? actionButton(pipeline, "letters-discard", { text: `Discard ${ids.length}`, given: { ids }, after: changed }) : "");
  }
  async function ask() {
    try {
      const found = await get(path("pipelines", pipeline.pipeline, "dead-letters"), { ...filters, most: 200 });
      const now = JSON.stringify(found);
      if (now === before) return;
      before = now;
      shown = found.letters;
      for (const [name, [select]] of Object.entries(selects)) {
        select.replaceChildren(el("option", { value: "" }, "all"), ...found.choices[name].map((one) => el("option", { value: one, selected: one === filters[name] }, one)));
      }
      render(found.count);
    } catch (error) { if (!before) swap(list, el("p", { class: "wrong", role: "alert" }, error.message)); }
  }
  function render(total) {
    buttons();
    swap(list, shown.length ? table(["Choose", "Id", "State", "From", "Row", "Key", "Reason", "Lacked by"],
      shown.map((one) => [
        one.state === "waiting" ? el("input", { type: "checkbox", checked: chosen.has(one.id), "aria-label": `Choose ${one.id}`, "data-focus": `choose ${one.id}`,
          change: (event) => { if (event.target.checked) chosen.add(one.id); else chosen.delete(one.id); buttons(); } }) : "",
        el("button", { type: "button", class: "plain", click: () => showLetter(one.id), "data-focus": `letter ${one.id}` }, one.id),
        pill(one.state === "waiting" ? "warn" : "quiet", one.state), `${one.stage === "rule" ? "rule" : one.stage === "skip" ? "skipped by" : "target"} ${one.by}`,
        one.stage === "skip" ? `batch ${count(one.batch)}: ${one.table}` : `${one.op} ${one.table}`,
        Object.entries(one.key).map(([name, value]) => `${name}=${value}`).join(", ") || "—", el("span", { class: "reason" }, one.reason), one.targets.filter((name) => !(name in one.settled)).join(", ") || "—",
      ]), { label: "Dead letters", keys: shown.map((one) => one.id) }) : empty("No dead letter matches."),
    total > shown.length ? el("p", { class: "route" }, `and ${plural(total - shown.length, "more", "more")}: choose a rule, target or table`) : "");
  }
  async function showLetter(id) {
    swap(detail, empty("Asking…"));
    try {
      const one = await get(path("pipelines", pipeline.pipeline, "dead-letters", id));
      const names = [...new Set([...Object.keys(one.row || {}), ...Object.keys(one.before || {})])];
      const value = (row, name) => (!row || !(name in row) ? "" : row[name] === null ? el("i", {}, "NULL") : el("code", {}, row[name]));
      swap(detail, el("article", { "data-letter": one.id },
        el("div", { class: "title" }, el("h2", { tabindex: "-1" }, `Dead letter ${one.id}`), pill(one.state === "waiting" ? "warn" : "quiet", one.state)),
        el("p", {}, one.reason), el("p", { class: "route" }, `${one.where} · batch ${count(one.batch)} · committed ${one.commit_time || "—"}`),
        one.position.file ? el("p", { class: "route" }, "at ", copyable(`${one.position.file}:${one.position.offset}`, "position"), one.position.gtid ? [" GTID ", copyable(one.position.gtid, "GTID")] : "") : "",
        names.length ? table(["Column", "Row", ...(one.before ? ["Before"] : [])], names.map((name) => [el("b", {}, name), value(one.row, name), ...(one.before ? [value(one.before, name)] : [])]), { label: "The row" }) : empty("A whole batch: its changes are in the dead-letter store."),
        one.state === "waiting" ? el("div", { class: "buttons" }, actionButton(pipeline, "letters-replay", { text: "Replay this one", given: { ids: [one.id] }, after: changed, kind: "primary" }),
          actionButton(pipeline, "letters-discard", { text: "Discard this one", given: { ids: [one.id] }, after: changed })) : ""));
      detail.querySelector("h2").focus();
    } catch (error) { swap(detail, el("p", { class: "wrong", role: "alert" }, error.message)); }
  }
  const asking = poll(ask, 5000);
  return { stop: () => asking.stop(), update(now) { pipeline = now; } };
}
