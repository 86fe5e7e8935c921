// The editor of a pipeline's file: choices at the left, the YAML that grows from them at the right, what is wrong with
// it, and before it is saved the difference and what it does.

import { get, path, post } from "./api.js";
import { checkOf, findingsOf, isUnderWay, lastCheck } from "./check.js";
import { ago, button, count, el, empty, hinted, pill, plural, runLink, say, swap, table } from "./dom.js";

const main = document.getElementById("main"), summary = document.getElementById("summary");
let may = {}, name = "", opened = { text: "", version: "", file: "" };
let choices = null, formed = false, connections = [], listed = [], byHand = false, turn = 0, timer = null;
const parts = {};

export async function show(pipeline) {
  name = pipeline;
  document.querySelector("header").prepend(el("nav", {}, el("a", { href: "./" }, "All pipelines")));
  try {
    may = await get("editor");
    if (pipeline) opened = await get(path("pipelines", pipeline, "file"));
  } catch (error) {
    summary.textContent = "";
    main.replaceChildren(el("p", { class: "wrong", role: "alert" }, error.message));
    return;
  }
  summary.textContent = "";
  if (!pipeline && !may.create) {
    main.replaceChildren(empty("You may look at pipelines, but not make one: that needs the right to edit DAGs."));
    return;
  }
  choices = { pipeline: "", description: "", source_type: "", connection: "", start: "dump", rules: "", tables: [], targets: [] };
  formed = !pipeline || Boolean(opened.choices);
  if (pipeline && formed) choices = opened.choices;
  build();
  if (!pipeline) { await askConnections(); await write(); return; }
  parts.text.value = opened.text;
  askAround();
  if (formed) { await askConnections(); askTables(); }
  await examine();
}

function build() {
  parts.text = el("textarea", {
    id: "yaml", rows: 26, spellcheck: "false", autocomplete: "off", wrap: "off", "aria-describedby": "problems",
    input: () => { byHand = true; later(examine); },
  });
  parts.problems = el("div", { id: "problems", role: "status", "aria-live": "polite" });
  parts.findings = el("div", { id: "findings", role: "status", "aria-live": "polite" });
  parts.change = el("div", { id: "change" });
  parts.around = el("div", { id: "around" });
  parts.said = el("div", { id: "saved", role: "status", "aria-live": "polite" });
  parts.form = el("section", { id: "choices", "aria-label": "Choices" });
  parts.save = button("Save", save, { class: "primary", id: "save", disabled: true });
  parts.check = button("Check", check, { id: "check", disabled: true });
  const yaml = el("section", { "aria-label": "YAML" },
    el("article", {}, el("h2", {}, name ? `Edit ${name}` : "New pipeline"),
      el("div", { class: "field" }, el("label", { for: "yaml" }, opened.file ? `File ${opened.file}` : "The pipeline's file (YAML)"), parts.text),
      parts.problems,
      el("div", { class: "buttons" }, parts.check, may.save ? parts.save : "", button("Download", download),
        formed ? button("Write it again from the choices", () => { byHand = false; write(); }, { id: "again" }) : ""),
      may.save ? "" : el("p", { class: "route" }, "This deployment does not let the page write pipeline files: download the file and put it into the folder of the pipelines."),
      parts.said, parts.findings, parts.change));
  parts.other = name ? el("article", { id: "kept" }, el("h2", {}, formed ? "Not in the form" : "Opened as text"), formed
    ? el("p", {}, opened.kept.length ? "Stays as it is in the YAML: " : "The form shows every key of the file. ", ...opened.kept.flatMap((one, i) => [i ? ", " : "", el("code", {}, one)]), " Comments stay, too.")
    : el("div", {}, el("p", {}, "The form cannot show this file without a loss:"), el("ul", {}, ...opened.lost.map((one) => el("li", {}, one))))) : "";
  main.replaceChildren(el("div", { class: "editor" }, el("div", {}, formed ? parts.form : "", parts.other, name ? parts.around : ""), yaml));
}

const later = (call) => { turn += 1; clearTimeout(timer); parts.save.disabled = parts.check.disabled = true; timer = setTimeout(call, 350); };

// ---- the choices of a new pipeline
async function askConnections() {
  try { connections = (await get("connections")).connections; form(); } catch (error) {
    connections = [];
    form();
    parts.form.prepend(el("p", { class: "wrong", role: "alert" }, `The connections cannot be listed: ${error.message}`));
  }
}

function field(id, label, input) {
  input.id = id;
  return el("div", { class: "field" }, el("label", { for: id }, label), input);
}
function text(id, label, get_, set, more = {}) {
  const input = el("input", { type: "text", autocomplete: "off", spellcheck: "false", ...more, input: () => { set(input.value.trim()); write(); } });
  input.value = get_;
  return field(id, label, input);
}
function choice(id, label, options, chosen, set) {
  const input = el("select", { change: () => set(input.value) },
    ...options.map(([value, shown]) => el("option", { value, selected: value === chosen }, shown)));
  return field(id, label, input);
}
const ids = (kind, now) => {
  const fitting = connections.filter((one) => one[kind] || one.type === "generic" || !one.type);
  const mine = !now || fitting.some((one) => one.id === now) ? [] : [[now, now]]; // the file names it, and it may not be listed
  return [["", "Choose…"], ...mine, ...fitting.map((one) => [one.id, `${one.id} (${one.type || "no type"})`])];
};
const among = (options, now) => (options.some(([value]) => value === now) ? options : [[now, now || "not set: the default"], ...options]);

function form() {
  parts.tables = el("div", { id: "tables" });
  parts.targets = el("div", { id: "targets" });
  const kinds = el("div");
  const kind = () => swap(kinds, choice("source-type", "Kind of source", among(may.sources.map((one) => [one, one]), choices.source_type), choices.source_type, (value) => { choices.source_type = value; askTables(); write(); }));
  swap(parts.form,
    el("article", {}, el("h2", {}, name ? "Pipeline" : "Name"),
      name ? "" : text("name", "Name (letters, digits, _)", choices.pipeline, (value) => { choices.pipeline = value; }),
      text("description", "Description", choices.description, (value) => { choices.description = value; }), beside("name"), beside("description")),
    el("article", {}, el("h2", {}, "Source"),
      choice("source", "Connection", ids("source", choices.connection), choices.connection, (value) => {
        choices.connection = value;
        choices.source_type = connections.find((one) => one.id === value)?.source || choices.source_type || "mysql";
        if (!name) choices.tables = [];
        kind();
        askTables();
        write();
      }), kinds,
      choice("start", "Where it begins", among([["dump", "copy the rows that are there, then follow the log"], ["latest", "only changes from now on"], ["earliest", "the oldest log that is kept"]], choices.start),
        choices.start, (value) => { choices.start = value; write(); }), beside("source"), beside("start"), parts.tables, beside("tables")),
    el("article", {}, el("h2", {}, "Targets"), beside("targets"), parts.targets),
    el("article", {}, el("h2", {}, "Rules"), text("rules", "File of rules in the rules folder, such as engine.yaml (empty: none)", choices.rules, (value) => { choices.rules = value; }), beside("rules")));
  kind();
  drawTargets();
}

async function askTables() {
  const mine = choices.connection;
  if (!mine) { swap(parts.tables); return; }
  swap(parts.tables, empty("Asking the source for its tables…"));
  try {
    const found = (await get(path("connections", mine, "tables"), { type: choices.source_type || "mysql" })).tables;
    if (mine !== choices.connection) return;
    const unknown = choices.tables.filter((t) => !found.some((one) => one.schema === t.schema && one.table === t.table));
    listed = [...unknown.map((t) => ({ schema: t.schema, table: t.table, key: [], rows: null, columns: [], absent: true })), ...found];
    drawTables();
  } catch (error) {
    if (mine === choices.connection) swap(parts.tables, el("p", { class: "wrong", role: "alert" }, ...hinted(error.message)), button("Ask again", askTables, { class: "small" }));
  }
}

const chosen = (one) => choices.tables.find((t) => t.schema === one.schema && t.table === one.table);

function drawTables() {
  const search = el("input", { type: "search", id: "table-search", placeholder: "Search tables", autocomplete: "off", input: () => rows() });
  const list = el("div", { class: "picks" });
  const rows = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = listed.filter((one) => `${one.schema}.${one.table}`.toLowerCase().includes(wanted)).slice(0, 200);
    swap(list, ...found.map((one) => tableOf(one, listed.indexOf(one), rows)), found.length ? "" : empty("No table matches."));
  };
  swap(parts.tables, el("h3", {}, "Tables"), el("div", { class: "field" }, el("label", { for: "table-search", class: "unseen" }, "Search tables"), search), list);
  rows();
}

function tableOf(one, i, again) {
  const full = `${one.schema}.${one.table || "*"}`, pick = chosen(one);
  const box = el("input", {
    type: "checkbox", id: `table-${i}`, checked: Boolean(pick), "data-focus": `table-${i}`,
    change: () => {
      if (box.checked) choices.tables.push({ schema: one.schema, table: one.table, to: "", exclude: [], rename: {} });
      else choices.tables = choices.tables.filter((t) => t !== chosen(one));
      again();
      write();
    },
  });
  const facts = one.absent ? (one.table ? "the source does not list it" : "all tables of the schema") : `${one.key.length ? `key ${one.key.join(", ")}` : "no key"} · about ${plural(one.rows, "row")} · ${plural(one.columns.length, "column")}`;
  return el("div", { class: "pick", "data-table": full },
    el("div", { class: "field check" }, box, el("label", { for: `table-${i}` }, full), el("small", { class: "quiet" }, facts)),
    pick ? el("div", { class: "folded" }, beside(`table:${full}`),
      text(`to-${i}`, `Name of ${full} at the targets`, pick.to, (value) => { pick.to = value; }, { placeholder: full, "data-focus": `to-${i}` }),
      el("details", { "data-focus": `columns-${i}` }, el("summary", {}, "Columns left out"),
        el("fieldset", { class: "field" }, el("legend", {}, `Columns of ${full} that are left out`), ...one.columns.map((c, j) => el("label", {},
          el("input", {
            type: "checkbox", checked: pick.exclude.includes(c.name), disabled: one.key.includes(c.name), id: `column-${i}-${j}`,
            change: (event) => { pick.exclude = event.target.checked ? [...pick.exclude, c.name] : pick.exclude.filter((n) => n !== c.name); write(); },
          }), `${c.name} (${c.type})`))))) : "");
}

function drawTargets() {
  swap(parts.targets, ...choices.targets.map((one, i) => el("fieldset", { class: "target" }, el("legend", {}, `Target ${i + 1}`), beside(`target:${i}`),
    text(`target-name-${i}`, "Name", one.name, (value) => { one.name = value; }),
    choice(`target-connection-${i}`, "Connection", ids("target", one.connection), one.connection, (value) => {
      one.connection = value;
      one.type = connections.find((c) => c.id === value)?.target || one.type || "mysql";
      drawTargets();
      write();
    }),
    choice(`target-type-${i}`, "Kind", among(may.targets.map((k) => [k, k]), one.type), one.type, (value) => { one.type = value; write(); }),
    button("Remove", () => { choices.targets.splice(i, 1); drawTargets(); write(); }, { class: "small", "aria-label": `Remove target ${i + 1}` }))),
  button("Add a target", () => { choices.targets.push({ name: `target_${choices.targets.length + 1}`, type: "mysql", connection: "", was: "" }); drawTargets(); write(); }, { id: "add-target" }));
}

// ---- the text
async function write() {
  if (byHand) { swap(parts.said, el("p", { class: "warned" }, "You edited the YAML by hand, so the choices do not change it any more. “Write it again from the choices” replaces your edits.")); return; }
  swap(parts.said);
  later(async () => {
    const mine = turn;
    try {
      const made = await post("drafts/text", name ? { ...choices, base: opened.text } : choices);
      if (mine !== turn || byHand) return;
      parts.text.value = made.text;
      await examine();
    } catch (error) { swap(parts.problems, el("p", { class: "wrong", role: "alert" }, error.message)); }
  });
}

function toLine(line) {
  const all = parts.text.value.split("\n"), from = all.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  parts.text.focus();
  parts.text.setSelectionRange(from, from + (all[line - 1] || "").length);
}
const lineButton = (line) => button(`Line ${line}`, () => toLine(line), { class: "small" });

// What is wrong, beside the field of the form that it belongs to.
const beside = (of) => el("div", { class: "beside", "data-beside": of, role: "status" });
function drawBeside(found) {
  if (!formed) return;
  const slots = new Map([...parts.form.querySelectorAll("[data-beside]")].map((one) => [one.dataset.beside, one]));
  for (const one of slots.values()) one.replaceChildren();
  for (const one of found) {
    const group = one.field?.startsWith("table:") ? "tables" : one.field?.startsWith("target:") ? "targets" : "";
    (slots.get(one.field) || slots.get(group))?.append(el("p", { class: one.severity === "error" ? "wrong" : "warned" }, ...hinted(one.why), one.fix ? " " : "", ...hinted(one.fix || "")));
  }
}

async function examine() {
  const mine = ++turn;
  swap(parts.findings);
  try {
    const found = await post("drafts/problems", { text: parts.text.value, pipeline: name });
    if (mine !== turn) return;
    const wrong = found.problems.length > 0;
    parts.text.setAttribute("aria-invalid", String(wrong));
    drawBeside(found.problems.map((one) => ({ ...one, severity: "error" })));
    swap(parts.problems, wrong
      ? el("ul", { class: "notes" }, ...found.problems.map((one) => el("li", { class: "warn" }, lineButton(one.line), " ", ...hinted(one.why))))
      : el("p", {}, pill("good", "The file is valid")));
    parts.check.disabled = wrong;
    parts.save.disabled = wrong || (Boolean(name) && !found.diff);
    if (name) drawChange(found);
  } catch (error) {
    if (mine === turn) swap(parts.problems, el("p", { class: "wrong", role: "alert" }, error.message));
  }
}

function drawChange(found) {
  const moved = found.version !== opened.version;
  swap(parts.change, moved ? el("p", { class: "wrong", role: "alert" }, "Somebody else changed this file after you opened it. It cannot be saved over that: reload the page.") : "",
    ...(found.diff ? [
      el("h3", {}, "What this change does"),
      el("ul", { id: "effects" }, ...found.effects.map((one) => el("li", {}, ...hinted(one))), found.effects.length ? "" : el("li", {}, "Only comments or the order of keys change.")),
      el("h3", {}, "Difference"),
      el("pre", { id: "diff", tabindex: "0", role: "region", "aria-label": "Difference" }, ...found.diff.split("\n").map((line) => el("span", {
        class: line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : null,
      }, `${line}\n`))),
    ] : [el("p", { class: "empty" }, "Nothing is changed yet.")]));
}

// The saved file is checked by a worker, whose findings come later; of any other text it is said what can be said of it alone.
async function check() {
  parts.check.disabled = true;
  const mine = turn, draw = (findings, ...shown) => {
    drawBeside(findings.filter((one) => one.severity === "warning" || one.severity === "error"));
    swap(parts.findings, el("h3", {}, "Findings"), ...shown);
  };
  try {
    if (name && parts.text.value === opened.text) {
      swap(parts.findings, empty("A worker is asked to check the saved file…"));
      const { run } = await post(path("pipelines", name, "actions", "check"), {});
      for (let found = { run: { ...run, state: "queued" }, last: null }; mine === turn; found = await lastCheck(name)) {
        draw(found.last?.report.findings || [], ...checkOf(found, lineButton));
        if (!isUnderWay(found)) break;
        await new Promise((done) => { setTimeout(done, 2000); });
      }
    } else {
      const { findings } = await post("drafts/check", { text: parts.text.value, pipeline: name });
      if (mine === turn) draw(findings, findingsOf(findings, lineButton));
    }
  } catch (error) {
    if (mine === turn) swap(parts.findings, el("p", { class: "wrong", role: "alert" }, ...hinted(error.message)));
  } finally { if (mine === turn) parts.check.disabled = false; }
}

async function save() {
  parts.save.disabled = true;
  clearTimeout(timer);
  const sent = parts.text.value;
  try {
    const done = await post("drafts/save", { text: sent, pipeline: name, version: opened.version });
    say("Saved");
    swap(parts.said, el("p", {}, pill("good", `Saved as ${done.file}`), " ", el("a", { href: `?pipeline=${encodeURIComponent(done.pipeline)}` }, `Open ${done.pipeline}`),
      " · the DAG is there after Airflow's next look at its files."));
    if (name) {
      opened = { ...opened, ...await get(path("pipelines", name, "file")) };
      formed = Boolean(opened.choices);
      if (formed) { choices = opened.choices; byHand = false; form(); askTables(); }
      await examine();
      askAround();
    }
  } catch (error) {
    swap(parts.said, el("pre", { class: "wrong", role: "alert" }, error.message));
    parts.save.disabled = false;
  }
}

function download() {
  const blob = URL.createObjectURL(new Blob([parts.text.value], { type: "application/yaml" }));
  const link = el("a", { href: blob, download: opened.file || `${choices.pipeline || "pipeline"}.yaml` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(blob), 10_000);
}

// ---- what an existing pipeline does now, and who changed its file before
async function askAround() {
  const [status, audit] = await Promise.allSettled([get(path("pipelines", name)), get(path("pipelines", name, "audit"))]);
  const batches = status.value?.in_flight || [];
  const edits = (audit.value?.entries || []).filter((one) => /^(edit|create)( failed)?$/.test(one.what));
  const runs = new Map(batches.filter((b) => b.run).map((b) => [`${b.run.dag_id} ${b.run.run_id}`, b.run]));
  swap(parts.around,
    el("article", {}, el("h2", {}, "Under way"),
      el("p", {}, status.value ? pill(status.value.tone, status.value.text) : `The state cannot be read: ${status.reason?.message}`),
      el("p", {}, batches.length ? `${plural(batches.length, "batch is", "batches are")} in flight: ${batches.map((b) => count(b.number)).join(", ")}.` : "No batch is in flight."),
      runs.size ? el("p", { id: "runs" }, runs.size > 1 ? "Their runs: " : "Its run: ", ...[...runs.values()].flatMap((run, i) => [i ? ", " : "", runLink(run, run.run_id)])) : "",
      el("p", { class: "route" }, "A run under way makes no further batch once it sees the new file; the next run goes by it.")),
    el("article", {}, el("h2", {}, "Who changed it"),
      audit.status === "rejected" ? el("p", { class: "wrong" }, audit.reason.message)
        : edits.length ? table(["When", "Who", "What it did"], edits.map((one) => [
          el("span", { title: one.at }, ago(Date.parse(one.at))), String(one.by),
          el("span", { class: "reason" }, one.error ? `was not saved: ${one.error}` : one.what === "create" ? "made the file" : (one.changes || []).join(" ") || "comments"),
        ]), { label: "Who changed it" }) : empty("Nobody changed the file by this page.")));
}
