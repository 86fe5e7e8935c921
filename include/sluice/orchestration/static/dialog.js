// The dialog of an action: its fields, its plan, and where data is at stake the pipeline's name.

import { path, post } from "./api.js";
import { button, copyable, el, hinted, say, runLink } from "./dom.js";

// Fields of each action's form: name, label, kind, and more attributes of the input.
const REASON = ["reason", "Why (goes into the audit)", "text"];
const RULE = ["rule", "Rule", "choice", { options: ["stopped", "lag", "dead_letters", "differences", "at_risk", "subscription"] }];
const DUMP_ID = ["dump", "Dump (empty: the newest that has not ended)", "text"];
const TABLES = ["tables", "Tables, one in a line (none: all captured)", "lines"];
const TARGETS = ["targets", "Targets (none: all)", "targets"];
const PACE = [
  ["chunk_rows", "Rows a chunk", "number", { min: 1 }], ["parallelism", "Chunks at the same time", "number", { min: 1, max: 64 }],
  ["delay_ms", "Pause between chunks (ms)", "number", { min: 0 }], ["max_rows_per_second", "Rows a second, at most (0: no limit)", "number", { min: 0 }],
];
const MORE = null; // the fields after it are folded up
const FIELDS = {
  pause: [REASON],
  resume: [],
  restart: [["grace_s", "Grace in seconds (empty: as the pipeline says)", "number", { min: 0 }], REASON],
  rollback: [],
  skip: [["target", "Target", "target"], ["batch", "Its next batch", "number", { min: 1, required: true }],
    ["lost", "Its files are damaged or gone: keep nothing", "check"], REASON],
  seek: [["to", "Position: latest, earliest, file:offset, a GTID set or a time", "text"],
    ["drop", "Do without the undelivered batches", "check"]],
  redeliver: [["target", "Target", "target"], ["from_batch", "From batch (empty: after what it holds)", "number", { min: 1 }]],
  failover: [["to", "Connection (empty: the first that has all)", "text"], REASON],
  "switch-target": [["target", "Target", "target"], ["to", "Connection (empty: the first that has all)", "text"],
    ["rewind", "Deliver again what that server lacks", "check"], REASON],
  "source-group": [["to", "Connection (empty: the first that has all)", "text"], REASON],
  "target-group": [["to", "Connection (empty: the first that has all)", "text"],
    ["rewind", "Deliver again what that server lacks", "check"], REASON],
  adopt: [["target", "Target", "target"], ["side", "The side that is right", "choice", { options: ["target", "zookeeper"] }], REASON],
  "retry-now": [],
  check: [], "make-missing": [REASON], "alert-on": [RULE, REASON], "alert-off": [RULE, REASON],
  "dump-start": [TABLES, TARGETS, ["replace", "Replace: also remove rows that the source does not have", "check"],
    MORE, ["where", "Condition (SQL, of one table)", "text"], ["first_key", "First key", "text"], ["last_key", "Last key", "text"],
    ["keys", "Keys, one in a line", "area"], ["since", "Touched since (ISO 8601)", "text"], ["until", "Touched until", "text"], ...PACE],
  "dump-pause": [DUMP_ID], "dump-resume": [DUMP_ID], "dump-cancel": [DUMP_ID], "dump-tune": [DUMP_ID, ...PACE],
  "letters-replay": [["ids", "Ids, one in a line (none: all that wait)", "lines"], ["target", "Only to this target", "text"]],
  "letters-discard": [["ids", "Ids, one in a line", "lines", { required: true }], REASON],
  verify: [TABLES, TARGETS, ["method", "Method", "choice", { options: ["", "compare", "sweep"], none: "as the pipeline file says" }],
    ["where", "Condition (of one table)", "text"],
    ["sample", "Sample (%)", "number", { min: 0, max: 100, step: "any" }], ["values", "Keep the values that differ", "check"]],
  repair: [TABLES, TARGETS, ["where", "Condition (of one table)", "text"]],
};
export const TITLES = {
  pause: "Pause", resume: "Resume", restart: "Restart", rollback: "Roll back", skip: "Skip a batch", seek: "Seek",
  redeliver: "Redeliver", failover: "Fail over", "switch-target": "Switch a target",
  "source-group": "Fail over the group", "target-group": "Switch the group", adopt: "Adopt", "retry-now": "Retry now",
  check: "Check", "make-missing": "Make what is missing", "alert-on": "Switch the alert on", "alert-off": "Switch the alert off", "dump-start": "Copy tables",
  "dump-pause": "Pause the copy", "dump-resume": "Resume the copy", "dump-cancel": "Cancel the copy",
  "dump-tune": "Change the pace", "letters-replay": "Replay", "letters-discard": "Discard", verify: "Verify", repair: "Repair",
};
export const NEEDS = {
  "dump-start": "dump", "dump-pause": "dump", "dump-resume": "dump", "dump-cancel": "dump", "dump-tune": "dump",
  verify: "verify", repair: "verify", check: "check", "make-missing": "check",
};
export const mayDo = (may, action) => Boolean(may?.[NEEDS[action] || "act"]);

// A button that opens the dialog; nothing for a user who may not.
export function actionButton(pipeline, action, { text = TITLES[action], given = {}, after = () => {}, kind = "" } = {}) {
  if (!mayDo(pipeline.may, action)) return "";
  return button(text, () => openAction(pipeline, action, given, after), {
    class: kind, "data-action": action, "data-focus": `${action} ${JSON.stringify(given)}`,
    "aria-label": text === TITLES[action] ? null : `${TITLES[action]}: ${text}`,
  });
}

// A message with each statement between backticks as something that can be copied. The one command whose every statement
// only makes what is missing can be applied, too: its plan lists the statements.
const APPLIES = /^sluice check( \S+)? --apply$/;
export const helped = (text, pipeline, after) => hinted(text, (part) => (APPLIES.test(part)
  ? actionButton(pipeline, "make-missing", { text: "Apply", after, kind: "small" }) : ""));

function field([name, label, kind, more = {}], value, pipeline) {
  const id = `field-${name}`, common = { id, name, "data-kind": kind };
  const targets = pipeline.target_names || [];
  let input;
  if (kind === "check") {
    input = el("input", { ...common, type: "checkbox", checked: Boolean(value) });
    return el("div", { class: "field check" }, input, el("label", { for: id }, label));
  }
  if (kind === "lines" || kind === "area") {
    const { required } = more;
    input = el("textarea", { ...common, rows: 3, required: Boolean(required) });
    input.value = Array.isArray(value) ? value.join("\n") : value || "";
  } else if (kind === "target" || kind === "choice") {
    input = el("select", common, ...(more.options || targets).map((one) => el("option", { value: one, selected: one === value }, one || more.none)));
  } else if (kind === "targets") {
    const chosen = new Set(value || []);
    return el("fieldset", { class: "field", "data-kind": "targets", name }, el("legend", {}, label), ...targets.map((one, i) => el(
      "label", {}, el("input", { type: "checkbox", value: one, id: `${id}-${i}`, checked: chosen.has(one) }), one,
    )));
  } else {
    input = el("input", { ...common, type: kind, autocomplete: "off", ...more });
    input.value = value ?? "";
  }
  return el("div", { class: "field" }, el("label", { for: id }, label), input);
}

function read(form) {
  const body = {};
  for (const node of form.querySelectorAll("[data-kind]")) {
    const name = node.getAttribute("name"), kind = node.dataset.kind;
    if (kind === "check") body[name] = node.checked;
    else if (kind === "lines") body[name] = node.value.split("\n").map((one) => one.trim()).filter(Boolean);
    else if (kind === "targets") body[name] = [...node.querySelectorAll("input:checked")].map((one) => one.value);
    else if (kind === "number") { if (node.value !== "") body[name] = Number(node.value); }
    else if (kind === "choice") { if (node.value !== "") body[name] = node.value; }
    else body[name] = node.value;
  }
  return body;
}

// Shows the form with its plan below; the plan follows the fields, and the deed needs a plan. `pipeline` may be a group of
// pipelines: it has a kind, and the name of the group.
export function openAction(pipeline, action, given = {}, after = () => {}) {
  const dialog = document.getElementById("dialog");
  const name = pipeline.kind ? pipeline.name : pipeline.pipeline;
  const where = pipeline.kind ? path("groups", pipeline.kind, name, "move") : path("pipelines", name, "actions", action);
  const split = FIELDS[action].indexOf(MORE), made = FIELDS[action].map((one) => (one === MORE ? MORE : field(one, given[one[0]], pipeline)));
  const fields = split < 0 ? made : [...made.slice(0, split), el("details", { "data-focus": "more" }, el("summary", {}, "Which rows, how fast"), el("div", { class: "folded" }, ...made.slice(split + 1)))];
  const plan = el("div", { class: "plan", role: "status", "aria-live": "polite" });
  const confirm = el("div", { class: "field", hidden: true },
    el("label", { for: "field-confirm" }, `Data is at stake. Type the ${pipeline.kind ? "group" : "pipeline"}'s name, ${name}:`),
    el("input", { id: "field-confirm", type: "text", autocomplete: "off", spellcheck: "false" }));
  const typed = confirm.querySelector("input");
  const go = el("button", { type: "submit", class: "primary", disabled: true, "data-deed": action }, TITLES[action]);
  let current = null, turn = 0;

  const ready = () => { go.disabled = !current || (current.confirm && typed.value !== name); };
  const ask = async () => {
    const mine = ++turn;
    current = null;
    ready();
    if (!form.checkValidity()) { plan.replaceChildren(el("p", { class: "quiet" }, "Fill in the fields to see the plan.")); return; }
    plan.replaceChildren(el("p", { class: "quiet" }, "Making the plan…"));
    try {
      const found = await post(`${where}/plan`, read(form));
      if (mine !== turn) return;
      current = found;
      plan.replaceChildren(
        el("h3", {}, "This will happen"), el("ul", {}, ...found.steps.map((step) => el("li", {}, ...hinted(step)))),
        el("dl", { class: "stakes" }, el("dt", {}, "Sent again"), el("dd", {}, found.sent_again),
          el("dt", {}, "Lost"), el("dd", { class: found.lost === "nothing" ? "" : "lost" }, found.lost)),
        found.command ? el("p", { class: "route" }, "The same on the command line: ", copyable(found.command, "command")) : "");
      confirm.hidden = !found.confirm;
    } catch (error) {
      if (mine !== turn) return;
      plan.replaceChildren(el("p", { class: "wrong", role: "alert" }, ...hinted(error.message)));
    }
    ready();
  };
  // A plan is that of the fields as they are: once one is changed, or the deed is under way, an older one is no more.
  const outdated = () => {
    clearTimeout(form.timer);
    turn += 1;
    current = null;
    ready();
    plan.replaceChildren(el("p", { class: "quiet" }, "Making the plan…"));
  };
  const form = el("form", {
    method: "dialog",
    input: (event) => { if (event.target === typed) ready(); else { outdated(); form.timer = setTimeout(ask, 400); } },
    submit: async (event) => {
      event.preventDefault();
      if (go.disabled) return;
      go.disabled = true;
      for (const one of fields) if (one) one.inert = true;
      try {
        const done = await post(where, { ...read(form), ...(current.confirm ? { confirm: typed.value } : {}) });
        plan.replaceChildren(el("h3", { class: "done" }, "Done"), el("ul", {}, ...done.steps.map((step) => el("li", {}, ...hinted(step)))),
          done.run ? el("p", {}, runLink(done.run, "Open the run")) : "");
        for (const one of fields) one.hidden = true;
        confirm.hidden = true;
        go.hidden = true;
        cancel.textContent = "Close";
        cancel.focus();
        say(`${TITLES[action]}: done`);
        after(done);
      } catch (error) {
        plan.append(el("p", { class: "wrong", role: "alert" }, ...hinted(error.message)));
        for (const one of fields) if (one) one.inert = false;
        ready();
      }
    },
  });
  const cancel = button("Cancel", () => dialog.close());
  form.append(...fields, plan, confirm, el("div", { class: "buttons" }, cancel, go));
  dialog.replaceChildren(el("h2", { id: "dialog-title" }, `${TITLES[action]}: ${name}`), form);
  dialog.dataset.action = action;
  if (!dialog.open) dialog.showModal();
  (form.querySelector("input, textarea, select") || cancel).focus();
  ask();
}
