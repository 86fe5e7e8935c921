// Groups: pipelines that share a source or a target, the server that each uses now, and the button that moves them all.

import { get, poll } from "./api.js";
import { actionButton } from "./dialog.js";
import { el, empty, pill, plural, swap, table } from "./dom.js";

const KINDS = {
  source: ["Source group", "read", "source-group"],
  target: ["Target group", "write", "target-group"],
};

export function show() {
  const main = document.getElementById("main"), summary = document.getElementById("summary");
  document.querySelector("header").prepend(el("nav", {}, el("a", { href: "./" }, "All pipelines")));
  let before = "";
  const polling = poll(async () => {
    try {
      const { groups } = await get("groups");
      summary.textContent = `${plural(groups.length, "group")}: one order moves all pipelines of a group to another server`;
      const now = JSON.stringify(groups);
      if (now === before) return;
      before = now;
      swap(main, ...(groups.length ? groups.map((one) => groupOf(one, () => polling.now()))
        : [empty("No pipeline has a group. A pipeline file names it beside the connections of its source or of a target: group: NAME.")]));
    } catch (error) {
      summary.textContent = `No answer: ${error.message}. Trying again.`;
    }
  }, 2000);
}

function groupOf(group, after) {
  const [title, verb, action] = KINDS[group.kind];
  const on = new Map();
  for (const one of group.pipelines) on.set(one.server, (on.get(one.server) || 0) + 1);
  const where = [...on].map(([server, many]) => `${plural(many, "pipeline")} ${verb}${many === 1 ? "s" : ""} ${server || "a server that is not known yet"}`);
  return el("article", { "data-group": group.name, class: "group" },
    el("div", { class: "tools" }, el("h2", {}, `${title} ${group.name}`), actionButton(group, action, { after, kind: "primary" })),
    el("p", { class: "route" }, where.join(", ") + (group.hidden ? `; ${plural(group.hidden, "pipeline")} that you may not see` : "")),
    table(["Pipeline", ...(group.kind === "target" ? ["Target"] : []), verb === "read" ? "Reads" : "Writes", "Other servers", "State"],
      group.pipelines.map((one) => [
        el("a", { href: `?pipeline=${encodeURIComponent(one.pipeline)}`, "data-focus": `open ${one.pipeline}` }, one.pipeline),
        ...(group.kind === "target" ? [one.target] : []),
        one.server ? el("b", {}, one.server) : "—",
        one.servers.filter((server) => server !== one.server).join(", "),
        pill(one.tone, one.text || "asked"),
      ]), { label: `${title} ${group.name}`, keys: group.pipelines.map((one) => `${one.pipeline} ${one.target}`) }));
}
