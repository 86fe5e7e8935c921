// Tables: a line for each captured table; one of them with its definition and the statements that changed it.

import { get, path, poll } from "./api.js";
import { actionButton } from "./dialog.js";
import { ago, copyable, count, el, empty, pill, plural, swap, table } from "./dom.js";

export function open(panel, status, again) {
  let pipeline = status, wanted = "", found = null, before = "";
  const list = el("div"), detail = el("div", { id: "table" });
  const search = el("input", { type: "search", id: "table-search", placeholder: "Search tables", autocomplete: "off", input: () => { wanted = search.value.toLowerCase(); render(); } });
  panel.replaceChildren(el("div", { class: "tools" }, el("label", { for: "table-search", class: "unseen" }, "Search tables"), search,
    actionButton(pipeline, "dump-start", { after: again }), actionButton(pipeline, "verify", { after: again })), list, detail);
  list.append(empty("Asking the segment store…"));

  async function ask() {
    try {
      found = await get(path("pipelines", pipeline.pipeline, "tables"));
      const now = JSON.stringify(found);
      if (now !== before) { before = now; render(); }
    } catch (error) { if (!found) swap(list, el("p", { class: "wrong", role: "alert" }, error.message)); }
  }
  function render() {
    if (!found) return;
    const rows = found.tables.filter((one) => one.table.toLowerCase().includes(wanted));
    swap(list, rows.length ? table(
      ["Table", "Rows at the source, about", `Changes in ${plural(found.batches, "stored batch", "stored batches")}`, "Last batch", "Columns", "Key", "Last copy", "Last verification", "Dead letters", ""],
      rows.map((one) => [
        el("button", { type: "button", class: "plain", click: () => showTable(one.table), "data-focus": `table ${one.table}` }, one.table),
        one.rows ? count(one.rows) : "—", count(one.changes), one.last_batch ? count(one.last_batch) : "—",
        one.unknown ? pill("bad", "not known") : count(one.columns), one.key.join(", ") || "none",
        one.dump ? `${one.dump.state}, ${ago(one.dump.at_ms)}` : "—",
        one.verified ? el("a", { href: "#verify", "data-focus": `v ${one.table}` }, `${one.verified.differing ? plural(one.verified.differing, "row differs", "rows differ") : "equal"}, ${ago(one.verified.at_ms)}`) : "—",
        one.dead_letters ? el("a", { href: "#letters", "data-focus": `l ${one.table}` }, count(one.dead_letters)) : "0",
        el("span", { class: "buttons" }, actionButton(pipeline, "dump-start", { text: "Copy", given: { tables: [one.table] }, after: again, kind: "small" }),
          actionButton(pipeline, "verify", { text: "Verify", given: { tables: [one.table] }, after: again, kind: "small" })),
      ]), { numeric: [1, 2, 3, 4, 8], label: "Captured tables", keys: rows.map((one) => one.table) }) : empty("No table matches."));
  }
  async function showTable(name) {
    swap(detail, empty("Asking…"));
    try {
      const one = await get(path("pipelines", pipeline.pipeline, "tables", name));
      const columns = one.definition?.columns || [];
      swap(detail, el("article", { "data-table": name },
        el("div", { class: "title" }, el("h2", { tabindex: "-1" }, name), one.position ? el("span", { class: "route" }, "as of ", copyable(one.position, "position")) : ""),
        one.unknown ? el("p", { class: "wrong" }, `Its definition is not known: ${one.unknown.reason || JSON.stringify(one.unknown)}`) : "",
        columns.length ? table(["Column", "Type", "Null", "Default", "Comment"], columns.map((c) => [el("b", {}, c.name), el("code", {}, c.type), c.nullable === false ? "no" : "yes", c.default ?? "—", c.comment || ""]), { label: `Columns of ${name}` }) : empty("No definition is stored yet."),
        el("h3", {}, "Statements that changed it"),
        one.statements.length
          ? table(["Batch", "At", "Position", "Statement"], one.statements.map((s) => [count(s.batch), s.commit_time_us ? new Date(s.commit_time_us / 1000).toISOString().slice(0, 19).replace("T", " ") : "—", copyable(`${s.file}:${s.offset}`, "position"), copyable(s.sql, "statement")]), { numeric: [0], label: "Statements" })
          : empty(`None in the newest ${plural(one.looked_at, "stored batch", "stored batches")}.`)));
      detail.querySelector("h2").focus();
    } catch (error) { swap(detail, el("p", { class: "wrong", role: "alert" }, error.message)); }
  }
  const asking = poll(ask, 10_000);
  return { stop: () => asking.stop(), update(now) { pipeline = now; } };
}
