// All pipelines: trouble on top, a line each.

import { get, poll } from "./api.js";
import { actionButton } from "./dialog.js";
import { ago, bytes, count, el, empty, pill, plural, seconds, swap } from "./dom.js";
import { spark } from "./curves.js";

const main = document.getElementById("main"), summary = document.getElementById("summary");
const MANY = 40;
let lines = [], folder = "", curves = {}, wanted = "", polling = null;
const drawn = new Map();

export function show() {
  const search = el("input", {
    type: "search", id: "search", autocomplete: "off", placeholder: "Search pipelines, sources, targets, states",
    input: () => { wanted = search.value.trim().toLowerCase(); render(); },
  });
  const list = el("div", { id: "list" });
  main.replaceChildren(el("div", { class: "tools" }, el("label", { for: "search", class: "unseen" }, "Search"), search, el("span", { id: "groups" }), el("span", { id: "make" })), list);
  offer();
  polling = poll(ask, () => (lines.some((one) => one.state === "asked") ? 300 : 2000));
  poll(askCurves, 30_000);
}

async function ask() {
  try {
    const answer = await get("pipelines");
    lines = answer.pipelines;
    folder = answer.folder;
    document.getElementById("service").replaceChildren(...serviceOf(answer.service));
    const bad = lines.filter((one) => one.tone === "bad").length;
    const lags = lines.map((one) => one.lag_ms).filter((lag) => lag !== null && lag !== undefined);
    summary.textContent = lines.length
      ? `${plural(lines.length, "pipeline")}${bad ? ` · ${bad} in trouble` : ""}${lags.length ? ` · largest lag ${seconds(Math.max(...lags))}` : ""}`
      : "";
    render();
  } catch (error) {
    summary.textContent = `No answer: ${error.message}. Trying again.`;
  }
}

// The ways to the groups, where there are any, and to a new pipeline, for those who may make one.
async function offer() {
  get("groups").then(({ groups }) => {
    if (groups.length) document.getElementById("groups").replaceChildren(el("a", { href: "?groups", class: "button" }, plural(groups.length, "group")));
  }).catch(() => { /* the list is there without it */ });
  try {
    if ((await get("editor")).create) document.getElementById("make").replaceChildren(el("a", { href: "?new", class: "button" }, "New pipeline"));
  } catch { /* the list is there without it */ }
}

async function askCurves() {
  try { curves = (await get("lag")).pipelines; render(); } catch { /* the figures are there without curves */ }
}

function serviceOf(service) {
  if (!service) return [];
  if (service.error) return [el("b", {}, "The subscription service does not run"), ` ${service.error}`];
  return [service.addresses ? `Subscriptions: ${service.addresses.join(" and ")}` : "The subscription service is starting."];
}

const text = (one) => [one.pipeline, one.channel, one.description, one.source, one.text, ...one.targets.map((t) => `${t.name} ${t.type}`)]
  .join(" ").toLowerCase();

function render() {
  const list = document.getElementById("list");
  const found = lines.filter((one) => !wanted || wanted.split(/\s+/).every((word) => text(one).includes(word)));
  if (!found.length) {
    swap(list, empty(lines.length ? "No pipeline matches." : `There are no pipelines yet. Put a YAML file into ${folder}.`));
    drawn.clear();
    return;
  }
  const nodes = found.map((one) => {
    const known = drawn.get(one.pipeline), curve = curves[one.pipeline];
    const now = JSON.stringify([{ ...one, asked_ms: null }, curve, ageOf(one)]);
    if (known?.now === now) return known.node;
    const node = known?.node || el("article", { "data-pipeline": one.pipeline });
    node.dataset.tone = one.tone;
    swap(node, ...lineOf(one, curve, found.length > MANY));
    drawn.set(one.pipeline, { now, node });
    return node;
  });
  if (nodes.length !== list.children.length || nodes.some((node, i) => list.children[i] !== node)) list.replaceChildren(...nodes);
  for (const name of drawn.keys()) if (!found.some((one) => one.pipeline === name)) drawn.delete(name);
}

// Answers that are older than a minute say so: what they tell may be over.
const ageOf = (one) => (one.asked_ms && Date.now() - one.asked_ms > 60_000 ? `as of ${ago(one.asked_ms)}` : "");

const OUTCOMES = { equal: "good", different: "bad", incomplete: "warn" };

function lineOf(one, curve) {
  const again = () => polling.now();
  const link = `?pipeline=${encodeURIComponent(one.pipeline)}`;
  const valid = one.state !== "invalid";
  return [
    el("div", { class: "name" },
      el("h2", {}, el("a", { href: link, "data-focus": "open" }, one.pipeline)),
      el("p", { class: "route" }, one.source ? `${one.source} → ${one.target_names.join(", ")}` : ""),
      el("p", { class: "words" }, pill(one.tone, one.text, { "data-state": one.state }), ageOf(one) ? el("small", { class: "age" }, ` ${ageOf(one)}`) : "")),
    el("div", { class: "lag" }, el("span", { class: "label" }, "Lag"), el("b", {}, seconds(one.lag_ms)), el("small", {}, one.lag_bytes ? bytes(one.lag_bytes) : "")),
    el("div", { class: "curve" }, curve ? spark(curve.lag_ms, `Lag of ${one.pipeline} over the last hour`) : "",
      el("small", {}, curve && curve.changes_per_s !== null ? `${count(Math.round(curve.changes_per_s))} changes/s` : "")),
    el("div", { class: "facts" },
      one.dead_letters ? el("a", { href: `${link}#letters`, "data-focus": "letters" }, plural(one.dead_letters, "dead letter")) : "",
      one.dump ? el("a", { href: `${link}#dumps`, "data-focus": "dumps" }, `copy ${one.dump.state}, ${Math.floor(one.dump.share * 100)} %`) : "",
      one.verified ? el("a", { href: `${link}#verify`, class: OUTCOMES[one.verified.outcome], "data-focus": "verify" }, `verified ${one.verified.outcome}, ${ago(one.verified.at_ms)}`) : ""),
    el("div", { class: "buttons" }, ...(valid ? [
      one.state === "paused" ? actionButton(one, "resume", { after: again, kind: "primary" }) : actionButton(one, "pause", { after: again }),
      one.state === "failing" && one.may_retry ? actionButton(one, "retry-now", { after: again, kind: "primary" }) : "",
      actionButton(one, "verify", { after: again }),
    ] : [])),
  ];
}
