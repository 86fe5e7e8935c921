// The Sluice page: asks api/status every second, keeps ten minutes of lag in this tab, draws. No libraries.
// Text from the server only ever becomes text nodes, never markup.

const KEEP_MS = 10 * 60 * 1000;
const STATES = {
  idle: ["good", "● in step"],
  running: ["busy", "▶ delivering"],
  behind: ["busy", "▶ changes waiting"],
  paused: ["warn", "‖ paused"],
  new: ["warn", "○ not started"],
  failing: ["bad", "▲ stands still"],
  not_configured: ["bad", "▲ not configured"],
  unreachable: ["bad", "▲ unreachable"],
  no_answer: ["bad", "▲ no answer"],
  asked: ["quiet", "… being asked"],
  stopped: ["bad", "▲ stopped"],
  invalid: ["bad", "▲ invalid file"],
};
const onlyDag = new URLSearchParams(location.search).get("dag");
const onlyRun = (new URLSearchParams(location.search).get("run") || "").replaceAll(" ", "+");  // an id's + is a blank in a query
const onlyResult = new URLSearchParams(location.search).get("verify");
const resultOf = new URLSearchParams(location.search).get("pipeline");
const cards = new Map();
const holds = new Map();

function el(tag, attributes = {}, ...children) {
  const node = tag === "svg" || el.svg.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== undefined) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}
el.svg = new Set(["line", "path", "text", "circle", "g", "rect"]);

const number = new Intl.NumberFormat("en");
const seconds = (ms) => (ms === null || ms === undefined ? "—" : ms < 10_000 ? `${(ms / 1000).toFixed(1)} s` : ms < 120_000 ? `${Math.round(ms / 1000)} s` : ms < 7_200_000 ? `${(ms / 60_000).toFixed(1)} min` : `${(ms / 3_600_000).toFixed(1)} h`);
const brief = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : seconds(ms));
const bytes = (n) => {
  if (n === null || n === undefined) return "—";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i += 1; }
  return `${i && n < 10 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
};
const place = (p) => (p ? `${p.file}:${p.offset}` : "—");
const clock = (us) => (us ? new Date(us / 1000).toLocaleTimeString([], { hour12: false }) : "—");
const minute = (iso) => new Date(iso).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
const owner = (claim) => (claim ? claim.split(":")[0] === "airflow" ? "a run of this DAG" : claim : "nobody");

// ---- lag samples, one list a pipeline, kept over reloads of this tab
function samples(name) {
  try { return JSON.parse(sessionStorage.getItem(`sluice.lag.${name}`) || "[]"); } catch { return []; }
}
function keep(card, atMs, lagMs) {
  card.lag.push([atMs, lagMs]);
  while (card.lag.length && card.lag[0][0] < atMs - KEEP_MS) card.lag.shift();
  if (atMs - card.stored > 5000) {
    card.stored = atMs;
    try { sessionStorage.setItem(`sluice.lag.${card.name}`, JSON.stringify(card.lag)); } catch { /* a full store only loses history */ }
  }
}
function percentile(values, p) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(p * sorted.length))] : null;
}

// ---- drawing
function scaleMax(ms) {
  const steps = [2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400, 604800];
  return 1000 * (steps.find((s) => s * 1000 >= ms) || Math.ceil(ms / 1000));
}

function draw(card) {
  const width = Math.max(card.figure.clientWidth, 200), height = 132, left = 46, right = 8, top = 8, bottom = 20;
  const now = Date.now();
  const first = card.lag.length ? card.lag[0][0] : now;
  const span = Math.min(KEEP_MS, Math.max(60_000, now - first));
  const known = card.lag.filter(([, lag]) => lag !== null);
  const max = scaleMax(Math.max(0, ...known.map(([, lag]) => lag)));
  const x = (at) => left + (1 - (now - at) / span) * (width - left - right);
  const y = (lag) => top + (1 - lag / max) * (height - top - bottom);
  const parts = [];
  for (const part of [0, 0.5, 1]) {
    parts.push(el("line", { class: part ? "grid" : "base", x1: left, x2: width - right, y1: y(max * part), y2: y(max * part) }));
    parts.push(el("text", { x: left - 8, y: y(max * part) + 4, "text-anchor": "end" }, part ? seconds(max * part).replace(".0", "") : "0"));
  }
  for (const [part, anchor] of [[1, "start"], [0.5, "middle"], [0, "end"]]) {
    parts.push(el("text", { x: x(now - span * part), y: height - 5, "text-anchor": anchor }, part ? `${seconds(span * part).replace(".0", "")} ago` : "now"));
  }
  let line = "", area = "", run = [];
  const flush = () => {
    if (run.length) {
      const points = run.map(([at, lag]) => `${x(at).toFixed(1)},${y(lag).toFixed(1)}`).join("L");
      line += `M${points}`;
      area += `M${x(run[0][0]).toFixed(1)},${y(0)}L${points}L${x(run.at(-1)[0]).toFixed(1)},${y(0)}Z`;
    }
    run = [];
  };
  card.lag.forEach((sample, i) => {
    if (sample[1] === null || (i && sample[0] - card.lag[i - 1][0] > 15_000)) flush();
    if (sample[1] !== null) run.push(sample);
  });
  flush();
  parts.push(el("path", { class: "area", d: area }), el("path", { class: "lagline", d: line }));
  if (card.pointer !== null && known.length) {
    const wanted = now - (1 - (card.pointer - left) / (width - left - right)) * span;
    const [at, lag] = known.reduce((a, b) => (Math.abs(b[0] - wanted) < Math.abs(a[0] - wanted) ? b : a));
    parts.push(el("line", { class: "cross", x1: x(at), x2: x(at), y1: top, y2: height - bottom }));
    parts.push(el("circle", { class: "dot", cx: x(at), cy: y(lag), r: 4.5 }));
    card.tip.hidden = false;
    card.tip.textContent = `${clock(at * 1000)}  lag ${seconds(lag)}`;
    card.tip.style.left = `${Math.min(Math.max(x(at), 70), width - 70)}px`;
  } else card.tip.hidden = true;
  card.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  card.svg.replaceChildren(...parts);
  const p50 = percentile(known.map(([, lag]) => lag), 0.5), p95 = percentile(known.map(([, lag]) => lag), 0.95);
  card.svg.setAttribute("aria-label", `Lag over the last ${seconds(span)}: median ${seconds(p50)}, 95th percentile ${seconds(p95)}`);
  card.percentiles.textContent = known.length ? `p50 ${seconds(p50)} · p95 ${seconds(p95)}` : "";
}

function table(heads, rows, numeric = []) {
  const cells = (tag, row) => row.map((cell, i) => el(tag, { class: numeric.includes(i) ? "n" : null, scope: tag === "th" ? "col" : null }, cell));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...cells("th", heads))), el("tbody", {}, ...rows.map((row) => el("tr", {}, ...cells("td", row))))));
}

// Dumps that run, are paused or ended lately: a line a table, those that are not done first.
const MOST_TABLES = 20;
const DUMPS = { "no reader": "bad", running: "busy", reading: "busy", paused: "warn", waiting: "quiet", done: "good", cancelled: "quiet" };
function dumpsOf(status) {
  return (status.dumps || []).slice().reverse().map((dump) => {
    const order = { "no reader": 0, reading: 0, paused: 0, waiting: 1 };
    const unread = dump.no_reader_since_ms > 0;
    const word = unread && dump.state === "running" ? "no reader" : dump.state;
    const tables = [...dump.tables].sort((a, b) => (order[a.state] ?? 2) - (order[b.state] ?? 2));
    const bar = (share) => {
      const box = el("progress", { max: 1, value: share, "aria-label": "share of the rows" });
      return el("span", { class: "share" }, box, ` ${Math.floor(share * 100)} %`);
    };
    const left = (t) => (t.state === "reading" ? (t.remaining_s === null ? "?" : seconds(t.remaining_s * 1000)) : "");
    const what = [dump.reason, dump.by ? `by ${dump.by}` : "", dump.targets.length ? `for ${dump.targets.join(", ")}` : ""].filter(Boolean).join(" ");
    const pace = word === "running" ? ` · ${dump.workers} of ${dump.tuning.parallelism} readers at work` : "";
    return el("section", { class: "dump", "data-dump": word },
      el("h3", {}, `Dump ${dump.id} `, el("span", { class: `pill ${DUMPS[word] || "quiet"}` }, word)),
      el("p", { class: "route" }, `${what}${pace}`),
      unread ? el("p", { class: "route warned" }, `no reader since ${clock(dump.no_reader_since_ms * 1000)}${dump.no_reader_why ? ` (${dump.no_reader_why})` : ""}: Clear on its run, or sluice dump work ${status.pipeline} ${dump.id}, goes on with it`) : "",
      dump.waiting_for ? el("p", { class: "route warned" }, `waits: ${dump.waiting_for}`) : "",
      dump.note ? el("p", { class: "route warned" }, dump.note) : "",
      table(
        ["Table", "State", "Placed", "Rows", "Of about", "Overtaken", "Rows/s", "Left"],
        tables.slice(0, MOST_TABLES).map((t) => [el("b", {}, t.table), t.state, bar(t.share), number.format(t.rows), number.format(t.estimate), number.format(t.overtaken), t.state === "no reader" ? "" : number.format(Math.round(t.rate)), left(t)]),
        [3, 4, 5, 6, 7],
      ),
      tables.length > MOST_TABLES ? el("p", { class: "route" }, `and ${tables.length - MOST_TABLES} more tables: sluice dump show ${status.pipeline} ${dump.id}`) : "",
    );
  });
}

// The last verification: a line a table; and a page of its own with the rows that differ.
const OUTCOMES = { equal: "good", different: "bad", incomplete: "warn" };
const COUNTS = ["rows", "equal", "different", "missing", "extra", "undecided", "repaired"];
const HEADS = ["Table", "Target", "By", "Rows", "Equal", "Different", "Missing", "Extra", "Undecided", "Repaired"];
const when = (ms) => (ms ? `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC` : "—");
const resultPage = (pipeline, id) => `?${new URLSearchParams({ pipeline, verify: id, ...(onlyDag ? { dag: onlyDag } : {}) })}`;
function countsOf(tables) {
  return table(HEADS, tables.map((t) => [el("b", {}, t.table), t.target, t.skipped ? "not compared" : t.way, ...COUNTS.map((name) => (t.skipped ? "" : number.format(t[name])))]), [3, 4, 5, 6, 7, 8, 9]);
}
function verifiedOf(status) {
  const result = status.verification;
  if (!result) return [];
  return [el("section", { "data-verified": result.outcome },
    el("h3", {}, "Verified ", el("span", { class: `pill ${OUTCOMES[result.outcome] || "quiet"}` }, result.outcome)),
    el("p", { class: "route" }, `${when(result.began_ms)}: ${result.line} `, el("a", { href: resultPage(status.pipeline, result.id) }, "Rows that differ")),
    countsOf(result.tables),
    result.count > result.tables.length ? el("p", { class: "route" }, `and ${result.count - result.tables.length} more tables: sluice verify show ${status.pipeline} ${result.id}`) : "",
  )];
}
function differencesOf(one) {
  const value = (text) => (text === null ? el("i", {}, "NULL") : el("code", {}, text));
  const kinds = { missing: "missing at the target", extra: "only at the target", different: "different" };
  const rows = one.differences.flatMap((d) => {
    const head = [el("code", {}, `(${d.key.join(", ")})`), kinds[d.kind] + (d.copies > 1 ? ` ×${d.copies}` : "")];
    if (!d.columns.length) return [[...head, "", "", ""]];
    return d.columns.map((name, i) => [...(i ? ["", ""] : head), name, d.values.length ? value(d.values[i][0]) : "", d.values.length ? value(d.values[i][1]) : ""]);
  });
  return el("article", { "data-table": one.table },
    el("div", { class: "title" }, el("h2", {}, `${one.table} at ${one.target}`)),
    one.skipped ? el("p", { class: "route warned" }, `not compared: ${one.skipped}`) : "",
    one.note ? el("p", { class: "route" }, one.note) : "",
    one.repaired ? el("p", { class: "route" }, `${number.format(one.repaired)} of them are repaired`) : "",
    rows.length ? table(["Key", "Row", "Column", "As it should be", "At the target"], rows) : "",
  );
}
async function showResult() {
  const main = document.getElementById("pipelines"), summary = document.getElementById("summary");
  const back = el("a", { href: onlyDag ? `?dag=${encodeURIComponent(onlyDag)}` : "?" }, "All pipelines");
  try {
    const result = await json(`api/verify/${encodeURIComponent(resultOf || "")}/${encodeURIComponent(onlyResult)}`);
    summary.replaceChildren(`Verification ${result.id} of ${result.pipeline} · `, back);
    const top = el("article", { "data-result": result.id },
      el("div", { class: "title" }, el("h2", {}, `Verification of ${result.pipeline}`), el("span", { class: `pill ${OUTCOMES[result.outcome] || "quiet"}` }, result.outcome)),
      el("p", { class: "route" }, `${when(result.began_ms)}, by ${result.by}: ${result.line}`),
      result.where ? el("p", { class: "route" }, `only rows with ${result.where}`) : "",
      result.repair.length ? el("p", { class: "route" }, `repaired by dump ${result.repair.join(", ")}`) : "",
      countsOf(result.tables));
    const odd = result.tables.filter((t) => t.skipped || t.differences.length || t.note);
    main.replaceChildren(top, ...odd.map(differencesOf));
  } catch (error) {
    summary.replaceChildren(`This result cannot be shown: ${error.message} · `, back);
  }
}

function newCard(name) {
  const card = { name, lag: samples(name), stored: 0, pointer: null };
  card.top = el("div");
  card.svg = el("svg", { role: "img" });
  card.tip = el("div", { class: "tip", hidden: "" });
  card.percentiles = el("span");
  card.figure = el("figure", {}, el("figcaption", {}, el("span", {}, "Lag: age of the oldest change that a target lacks"), card.percentiles), card.svg, card.tip);
  card.bottom = el("div");
  card.article = el("article", { "data-pipeline": name }, card.top, card.figure, card.bottom);
  card.svg.addEventListener("pointermove", (event) => { card.pointer = event.clientX - card.svg.getBoundingClientRect().left; draw(card); });
  card.svg.addEventListener("pointerleave", () => { card.pointer = null; draw(card); });
  return card;
}

function subscriptionsOf(status) {
  const found = status.subscriptions || [];
  return found.length ? [el("h3", {}, "Subscriptions"), table(
    ["Subscription", "Reader", "Acknowledged batch", "Batches behind", "Lag", "Acknowledged last", "State"],
    found.map((s) => [el("b", { "data-subscription": s.name }, s.name), s.reader, number.format(s.batch), number.format(s.lag_batches), seconds(s.lag_ms), s.acknowledged_at || "—",
      s.expired_at ? `expired ${s.expired_at}` : s.expires_at ? `expires ${s.expires_at}` : s.lag_batches ? "behind" : "has everything"]),
    [2, 3, 4],
  )] : [];
}

function filesOf(files) {
  const rows = [
    ...(files.batch ? [[`Batch ${number.format(files.batch)}`, number.format(files.copied), bytes(files.bytes), number.format(files.unchanged), number.format(files.missing)]] : []),
    ...(files.of ? [[`Under way, of ${number.format(files.of)}`, number.format(files.in_progress), `${bytes(files.bytes_per_s)}/s`, "—", "—"]] : []),
  ];
  return rows.length ? [el("h3", {}, "Files that rows name"), table(["", "Copied", "Size", "As they were", "Missing"], rows, [1, 2, 3, 4])] : [];
}

function render(card, status) {
  const silent = status.no_answer || [];
  const lacks = status.incomplete || [];
  const [tone, plain] = status.state === "idle" && lacks.length ? ["warn", "● rows may lack values"] : STATES[status.state] || ["warn", status.state];
  const word = silent.length && ["no_answer", "unreachable"].includes(status.state) ? `▲ no answer since ${minute(silent[0].since)}` : plain;
  const held = status.state === "invalid" ? [] : holds.get(status.dag_id) || [];
  const stuck = held.some((hold) => hold.state === "failed");
  const targets = status.targets || [], flying = status.in_flight || [], recent = status.recent || [];
  const figure = (label, value, small, kind) => el("div", { class: kind || null }, el("dt", {}, label), el("dd", {}, value, small ? el("small", {}, small) : ""));
  const notes = [
    ...silent.map((one) => el("li", { "data-silent": one.part }, el("b", {}, `The ${one.part.replace("zookeeper", "ZooKeeper").replace("store", "segment store")} has not answered since ${minute(one.since)}`), one.text)),
    ...(status.errors || []).filter((text) => !silent.some((one) => one.text === text)).map((text) => el("li", {}, el("b", {}, status.state === "invalid" ? "The pipeline file is not valid" : status.state === "not_configured" ? "Not configured" : status.state === "stopped" ? "Stopped" : "Cannot read the state"), text)),
    ...(status.failures || []).map((f) => el("li", {}, el("b", {}, `${f.part} failed ${f.attempts === 1 ? "once" : `${f.attempts} times`} since ${f.since}, and has not gone on${{passing: " (it may pass by itself)", yours: " (a person has to fix the cause)", bug: " (this looks like a bug of Sluice: please report it)"}[f.fault] || ""}`), f.error)),
    ...lacks.map((text) => el("li", { class: "warn" }, el("b", {}, "Rows may lack values"), text)),
    ...(status.paused ? [el("li", { class: "warn" }, el("b", {}, "Paused"), `${status.paused}. The DAG sluice_control resumes it`)] : []),
    ...targets.filter((t) => t.alert_since).map((t) => el("li", {}, el("b", {}, `${t.name} lags too far behind`), `since ${t.alert_since}`)),
    ...(status.dead_letters ? [el("li", { class: "warn" }, el("b", {}, `${number.format(status.dead_letters)} dead letter${status.dead_letters > 1 ? "s wait" : " waits"}`), `sluice dead-letters list ${status.pipeline}`)] : []),
    ...(status.conflicts ? [el("li", { class: "warn", "data-conflicts": status.conflicts }, el("b", {}, `${number.format(status.conflicts)} conflict${status.conflicts > 1 ? "s" : ""} between the sites, repaired`), `sluice channel conflicts ${status.channel}`)] : []),
    ...targets.filter((t) => t.quarantined).map((t) => el("li", {}, el("b", {}, `${t.name} is quarantined, and the others go on without it`), t.quarantined)),
    ...targets.filter((t) => t.waits).map((t) => el("li", { class: "warn" }, el("b", {}, `${t.name} gets batches together`), t.waits)),
    ...(status.warnings || []).filter((text) => !targets.some((t) => t.quarantined && text.startsWith(`target ${t.name} is quarantined`))).map((text) => el("li", { class: "warn" }, el("b", {}, "Soon a trouble"), text)),
    ...held.map((hold) => el("li", { class: hold.state === "failed" ? null : "warn" },
      el("b", {}, hold.state === "failed" ? `Stopped at ${hold.task}: the attempts are used up. Fix the cause, then press Clear on it` : `${hold.task}: attempt ${hold.tries} failed; ${hold.next ? `the next one starts at ${new Date(hold.next).toLocaleTimeString([], { hour12: false })}` : "it tries again by itself"}`),
      hold.message || "")),
  ];
  card.top.replaceChildren(
    el("div", { class: "title" }, el("h2", {}, status.pipeline), el("span", { class: `pill ${stuck ? "bad" : tone}`, "data-state": stuck ? "holds" : status.state }, stuck ? "▲ holds" : word)),
    el("p", { class: "route" }, status.source ? `${status.source}${status.server ? ` (reads ${status.server})` : ""} → ${targets.map((t) => t.name).join(", ") || "…"}${status.description ? ` · ${status.description}` : ""}` : status.file),
    ...(status.state === "invalid" ? [] : [el("dl", { class: "figures" },
      figure("Lag", seconds(status.lag_ms), status.lag_ms === 0 && !lacks.length ? "nothing is missing" : "", "lag"),
      figure("Log still to deliver", bytes(status.lag_bytes)),
      figure("Captured up to", place(status.captured), status.head ? `the source is at ${place(status.head)}` : "the source does not answer"),
      figure("Batches in flight", `${flying.length} of ${status.window ?? "—"}`, status.draining_by ? `captured by ${owner(status.draining_by)}` : status.installation ? `${status.installation} works on it` : "nothing is being captured"),
    )]),
    notes.length ? el("ul", { class: "notes" }, ...notes) : "",
  );
  card.figure.hidden = status.state === "invalid" || !card.lag.some(([, lag]) => lag !== null);
  const delivered = Math.min(...targets.map((t) => t.batch ?? 0), Infinity);
  const rows = [...recent].sort((a, b) => b.number - a.number);
  const flyingNumbers = new Set(flying.map((b) => b.number));
  card.bottom.replaceChildren(
    ...(status.state === "new" ? [el("p", { class: "empty" }, "Nothing is captured yet: the first run of the DAG begins.")] : []),
    ...(targets.length ? [el("h3", {}, "Targets"), table(
      ["Target", "Kind", "Acknowledged batch", "Acknowledged position", "Lag", "Log behind", "Loading now"],
      targets.map((t) => [el("b", {}, t.name), t.type, t.batch === null ? "—" : number.format(t.batch), el("code", {}, place(t.position)), seconds(t.lag_ms), bytes(t.lag_bytes), owner(t.loading_by)]),
      [2, 4, 5],
    )] : []),
    ...subscriptionsOf(status),
    ...dumpsOf(status),
    ...verifiedOf(status),
    ...((status.rules || []).length ? [el("h3", {}, `Rules in batch ${number.format(status.rules_batch)}`), table(
      ["Rule", "Rows in", "Rows out", "Changed", "Time", "Errors", "Dead letters"],
      status.rules.map((r) => [el("b", {}, r.name), number.format(r.rows_in), number.format(r.rows_out), r.changed === null ? "—" : number.format(r.changed), brief(r.seconds * 1000), number.format(r.errors), number.format(r.dead_letters)]),
      [1, 2, 3, 4, 5, 6],
    )] : []),
    ...(rows.length ? [el("h3", {}, "Last batches"), table(
      ["Batch", "State", "Changes", "Size", "First commit", "Up to position"],
      rows.map((b) => [
        number.format(b.number),
        flyingNumbers.has(b.number) || b.number > delivered ? { drained: "captured, to merge", merged: "merged, to load" }[b.state] || b.state : "delivered",
        number.format(b.changes), bytes(b.size_bytes), clock(b.first_commit_time_us), el("code", {}, place(b.last)),
      ]),
      [2, 3],
    )] : []),
  );
}

// ---- asking
async function json(url) {
  const answer = await fetch(url, { signal: AbortSignal.timeout(20_000), headers: { Accept: "application/json" } });
  if (answer.status === 401) throw new Error("you are logged out; reload the page");
  if (!answer.ok) throw new Error(`the Airflow API server answered ${answer.status}`);
  return answer.json();
}

function serviceOf(service) {
  if (!service || onlyDag) return [];
  if (service.error) return [el("b", {}, "The subscription service does not run"), ` ${service.error}`];
  return [service.addresses ? `Subscriptions: ${service.addresses.join(" and ")}` : "The subscription service is starting."];
}

async function ask() {
  const summary = document.getElementById("summary");
  try {
    const answer = await json("api/status");
    const found = answer.pipelines.filter((p) => !onlyDag || p.dag_id === onlyDag);
    document.getElementById("service").replaceChildren(...serviceOf(answer.service));
    const now = Date.now();
    for (const status of found) {
      if (!cards.has(status.pipeline)) cards.set(status.pipeline, newCard(status.pipeline));
      const card = cards.get(status.pipeline);
      card.dag = status.dag_id;
      card.window = status.window || 1;
      keep(card, now, status.lag_ms ?? null);
      render(card, status);
    }
    for (const name of [...cards.keys()]) if (!found.some((p) => p.pipeline === name)) cards.delete(name);
    const main = document.getElementById("pipelines");
    const wanted = [...cards.values()].map((card) => card.article);
    if (wanted.length !== main.children.length || wanted.some((node, i) => main.children[i] !== node)) main.replaceChildren(...wanted);
    cards.forEach(draw);
    if (!found.length) main.replaceChildren(el("p", { class: "empty" }, onlyDag ? "This DAG is not a Sluice pipeline." : "There are no pipelines yet. Put a YAML file into include/pipelines."));
    const lags = found.map((p) => p.lag_ms).filter((lag) => lag !== null && lag !== undefined);
    summary.textContent = found.length ? `${found.length} pipeline${found.length > 1 ? "s" : ""}${lags.length ? ` · largest lag ${seconds(Math.max(...lags))}` : ""}` : "";
  } catch (error) {
    summary.textContent = `No answer: ${error.message}. Trying again.`;
    cards.forEach((card) => { keep(card, Date.now(), null); draw(card); });
  }
  setTimeout(ask, document.hidden ? 5000 : 1000);
}

// The batches of one run, as long as they are known.
async function askRun() {
  const summary = document.getElementById("summary"), main = document.getElementById("pipelines");
  try {
    const status = (await json("api/status")).pipelines.find((p) => p.dag_id === onlyDag);
    if (!status) {
      summary.textContent = "";
      main.replaceChildren(el("p", { class: "empty" }, "This DAG is not a Sluice pipeline."));
      return;
    }
    const { batches, stages } = await json(`api/runs/${encodeURIComponent(status.pipeline)}?run=${encodeURIComponent(onlyRun)}`);
    const targets = (status.targets || []).map((t) => t.name);
    const done = batches.filter((b) => targets.every((name) => b.acknowledged_by.includes(name))).length;
    summary.textContent = `${status.pipeline} · ${batches.length} batch${batches.length === 1 ? "" : "es"} of this run, ${done} delivered`;
    main.replaceChildren(el("article", { "data-run": onlyRun },
      el("h2", {}, "Batches of this run"),
      batches.length ? table(
        ["Batch", "State", "Changes", "Size", "First commit", "Up to position", "Acknowledged by"],
        [...batches].reverse().map((b) => [
          number.format(b.number), b.acknowledged_by.length === targets.length ? "delivered" : b.changeset ? "merged, to load" : "captured, to merge",
          number.format(b.changes), bytes(b.size_bytes), clock(b.first_commit_time_us), el("code", {}, place(b.last)), b.acknowledged_by.join(", ") || "—",
        ]),
        [2, 3],
      ) : el("p", { class: "empty" }, "This run has no batch, or its batches were delivered too long ago to be known."),
      ...(stages.length ? [el("h3", {}, "Stages"), table(
        ["Stage", "Batches", "Rows", "Errors", "Time"],
        stages.map((s) => [el("b", {}, s.stage), number.format(s.batches), number.format(s.rows), number.format(s.errors), brief(s.seconds * 1000)]),
        [1, 2, 3, 4],
      )] : []),
      ...(stages.some((s) => s.rules.length) ? [el("h3", {}, "Rules"), table(
        ["Rule", "Runs in", "Rows in", "Rows out", "Changed", "Time", "Errors", "Dead letters"],
        stages.flatMap((s) => s.rules.map((r) => [el("b", {}, r.name), s.stage, number.format(r.rows_in), number.format(r.rows_out), r.changed === null ? "—" : number.format(r.changed), brief(r.seconds * 1000), number.format(r.errors), number.format(r.dead_letters)])),
        [2, 3, 4, 5, 6, 7],
      )] : []),
      el("p", { class: "route" }, "The log of each task has its batches, with their seconds."),
    ));
  } catch (error) {
    summary.textContent = `No answer: ${error.message}. Trying again.`;
  }
  setTimeout(askRun, document.hidden ? 5000 : 1000);
}

// Tasks that failed and hold the pipeline, with the one message of their log. From Airflow's own API.
const messages = new Map();
async function message(dag, task) {
  const tries = task.state === "up_for_retry" ? Math.max(task.try_number - 1, 1) : task.try_number;
  const key = `${dag}/${task.dag_run_id}/${task.task_id}/${tries}`;
  if (!messages.has(key)) {
    let text = "", next = null;
    try {
      const log = await json(`../api/v2/dags/${encodeURIComponent(dag)}/dagRuns/${encodeURIComponent(task.dag_run_id)}/taskInstances/${encodeURIComponent(task.task_id)}/logs/${tries}?full_content=true`);
      const lines = [...log.content].reverse();
      const failed = lines.find((line) => line.error_detail?.length);
      const decided = lines.find((line) => /starts by itself in/.test(line.reason || ""));
      text = failed ? failed.error_detail[0].exc_value : "";
      next = decided ? Date.parse(decided.timestamp) + Number(/starts by itself in ([\d.]+) s/.exec(decided.reason)[1]) * 1000 : null;
    } catch { text = ""; }
    if (messages.size > 200) messages.clear();
    messages.set(key, { text, next });
  }
  const { text, next } = messages.get(key);
  return { task: task.task_id, state: task.state, tries, message: text, next };
}

async function askHolds() {
  for (const card of cards.values()) {
    try {
      const dag = encodeURIComponent(card.dag);
      const runs = (await json(`../api/v2/dags/${dag}/dagRuns?order_by=-logical_date&limit=${card.window + 5}`)).dag_runs;
      const done = runs.findIndex((run) => run.state === "success");
      const open = new Set((done < 0 ? runs : runs.slice(0, done)).map((run) => run.dag_run_id));
      const tasks = open.size ? (await json(`../api/v2/dags/${dag}/dagRuns/~/taskInstances?state=failed&state=up_for_retry&limit=50`)).task_instances : [];
      holds.set(card.dag, await Promise.all(tasks.filter((task) => open.has(task.dag_run_id)).slice(0, 5).map((task) => message(card.dag, task))));
    } catch { holds.delete(card.dag); }
  }
  setTimeout(askHolds, document.hidden ? 15_000 : 3000);
}

// ---- light and dark: as Airflow around this frame, else as the system
function follow() {
  let outer = null;
  try { outer = window.parent !== window ? window.parent.document.documentElement : null; } catch { outer = null; }
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const set = () => {
    const classes = outer?.classList;
    const dark = classes?.contains("dark") || (classes?.contains("light") ? false : outer?.dataset.theme ? outer.dataset.theme === "dark" : system.matches);
    document.documentElement.dataset.mode = dark ? "dark" : "light";
  };
  if (outer) new MutationObserver(set).observe(outer, { attributes: true, attributeFilter: ["class", "data-theme", "style"] });
  system.addEventListener("change", set);
  set();
}

follow();
if (onlyResult) showResult();
else if (onlyRun) askRun();
else {
  window.addEventListener("resize", () => cards.forEach(draw));
  ask();
  setTimeout(askHolds, 500);
}
