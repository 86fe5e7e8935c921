// Nodes and texts. Text from the server only ever becomes text nodes or attribute values, never markup.

const SVG = new Set(["svg", "line", "path", "text", "circle", "g", "rect", "polyline"]);

export function el(tag, attributes = {}, ...children) {
  const node = SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

// ---- values in words
const whole = new Intl.NumberFormat("en");
export const count = (n) => (n === null || n === undefined ? "—" : whole.format(n));
export const plural = (n, word, many = `${word}s`) => `${count(n)} ${n === 1 ? word : many}`;
export function seconds(ms) {
  if (ms === null || ms === undefined) return "—";
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 120_000) return `${Math.round(ms / 1000)} s`;
  if (ms < 7_200_000) return `${(ms / 60_000).toFixed(1)} min`;
  return ms < 172_800_000 ? `${(ms / 3_600_000).toFixed(1)} h` : `${(ms / 86_400_000).toFixed(1)} days`;
}
export const brief = (ms) => (ms !== null && ms !== undefined && ms < 1000 ? `${Math.round(ms)} ms` : seconds(ms));
export function bytes(n) {
  if (n === null || n === undefined) return "—";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i += 1; }
  return `${i && n < 10 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}
export const position = (p) => (p ? `${p.file}:${p.offset}` : "—");
export const clock = (us) => (us ? new Date(us / 1000).toLocaleTimeString([], { hour12: false }) : "—");
export const minute = (iso) =>
  new Date(iso).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
export const when = (ms) => (ms ? `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC` : "—");
export const ago = (ms) => (ms ? `${seconds(Math.max(Date.now() - ms, 0))} ago` : "—");
export const owner = (claim) =>
  claim ? (claim.split(":")[0] === "airflow" ? "a run of this DAG" : claim) : "nobody";

// ---- parts of pages
export function table(heads, rows, { numeric = [], label = "", keys = [] } = {}) {
  const cell = (row, tag) => row.map((content, i) => el(
    tag,
    { class: numeric.includes(i) ? "n" : null, scope: tag === "th" ? "col" : null },
    content,
  ));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label || heads.filter(Boolean).join(", ") },
    el("table", {},
      el("thead", {}, el("tr", {}, ...cell(heads.map((head) => head || el("span", { class: "unseen" }, "Actions")), "th"))),
      el("tbody", {}, ...rows.map((row, i) => el("tr", { "data-row": keys[i] ?? null }, ...cell(row, "td"))))));
}
export const pill = (tone, text, more = {}) => el("span", { class: `pill ${tone}`, ...more }, text);
export const note = (tone, head, ...text) => el("li", { class: tone }, el("b", {}, head), ...text);
export const figure = (label, value, small = "", kind = null) =>
  el("div", { class: kind }, el("dt", {}, label), el("dd", {}, value, small ? el("small", {}, small) : ""));
export const empty = (text) => el("p", { class: "empty" }, text);

export function button(text, press, more = {}) {
  return el("button", { type: "button", click: press, "data-focus": more["data-focus"] || text, ...more }, text);
}

// A value with a button that copies it.
export function copyable(text, what = "") {
  if (!text || text === "—") return "—";
  return el("span", { class: "copyable" }, el("code", {}, text), button("Copy", () => copy(text), {
    class: "small", "aria-label": `Copy ${what || text}`, "data-focus": `copy ${what}${text}`,
  }));
}
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no permission in this frame: the old way
    const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("Copied");
}

// A message with each statement between backticks as something that can be copied; `more`: what stands beside it. A name
// that a statement quotes keeps its backticks.
const STATEMENT = /^(sluice|[A-Z]{2,}) /;
export function hinted(text, more = () => "") {
  return String(text).split("`").flatMap((part, i, all) => {
    if (!(i % 2)) return linked(part);
    if (STATEMENT.test(part)) return [copyable(part, "statement"), more(part)];
    return [i < all.length - 1 ? `\`${part}\`` : `\`${part}`];
  });
}

// A text in which pages of the documentation are links, if the server knows where they are (SLUICE_DOCS).
function linked(text) {
  const site = document.documentElement.dataset.docs;
  if (!site) return [text];
  return text.split(/(docs\/[a-z-]+\.md(?:#[\w-]+)?)/).map((part, i) => !(i % 2) ? part : el("a", {
    href: `${site}/${part.slice(5).replace(".md", ".html")}`, target: "_blank", rel: "noopener",
  }, part));
}

// One short sentence to everybody, those who do not see the page among them.
let sayings = 0;
export function say(text) {
  const place = document.getElementById("said");
  place.textContent = text;
  place.classList.add("on");
  const mine = ++sayings;
  setTimeout(() => { if (mine === sayings) place.classList.remove("on"); }, 4000);
}

// A link to a page of Airflow's. This page stands in a frame that may not navigate its parent by itself, so the parent
// follows a link of its own.
export function airflow(path, text, more = {}) {
  const href = new URL(`..${path}`, document.baseURI).href;
  return el("a", {
    href,
    click: (event) => {
      let outer = null;
      try { outer = window.parent !== window ? window.parent.document : null; } catch { outer = null; }
      if (!outer) return;
      event.preventDefault();
      const link = outer.createElement("a");
      link.href = href;
      if (event.ctrlKey || event.metaKey) link.target = "_blank";
      outer.body.append(link);
      link.click();
      link.remove();
    },
    "data-focus": `link ${path}`,
    ...more,
  }, text);
}
const part = encodeURIComponent;
export const runLink = (run, text) => (run ? airflow(`/dags/${part(run.dag_id)}/runs/${part(run.run_id)}`, text) : text);
// The task of a part of a pipeline that failed.
export const taskOf = (part) => part.replace(/^load-/, "load.");
export const taskLink = (task, text) =>
  airflow(`/dags/${part(task.dag_id)}/runs/${part(task.run_id)}/tasks/${part(task.task_id)}`, text);
// Who did something: a run of a DAG of the pipeline (`kind`: sync, backfill, verify) as a link to it.
export function doer(by, kind, pipeline) {
  const run = /^airflow:(.+)$/.exec(by)?.[1];
  return run ? runLink({ dag_id: `${kind}__${pipeline}`, run_id: run }, `run ${run}`) : String(by);
}
export const dagLink = (dag, text) => airflow(`/dags/${part(dag)}`, text);

// Puts nodes in the place of others, and the focus back to where it was: people who use the keyboard are in there.
export function swap(container, ...nodes) {
  const active = container.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  const open = new Set([...container.querySelectorAll("details[open]")].map((one) => one.dataset.focus));
  const scrolled = new Map([...container.querySelectorAll(".scroll")].map((one) => [one.getAttribute("aria-label"), one.scrollLeft]));
  container.replaceChildren(...nodes.flat().filter(Boolean));
  for (const one of container.querySelectorAll("details")) if (open.has(one.dataset.focus)) one.open = true;
  for (const one of container.querySelectorAll(".scroll")) one.scrollLeft = scrolled.get(one.getAttribute("aria-label")) || 0;
  if (active) [...container.querySelectorAll("[data-focus]")].find((one) => one.dataset.focus === active)?.focus();
}
