// Dumps: progress by table, and what may be done with each.

import { get, path, poll } from "./api.js";
import { actionButton } from "./dialog.js";
import { clock, count, doer, el, empty, pill, plural, seconds, swap, table, when } from "./dom.js";

const WORDS = { "no reader": "bad", running: "busy", delivering: "busy", reading: "busy", paused: "warn", waiting: "quiet", done: "good", cancelled: "quiet" };
const ORDER = { "no reader": 0, reading: 0, paused: 0, waiting: 1 };
const MOST = 50;

export function open(panel, status, again) {
  let pipeline = status, before = "";
  const tools = el("div", { class: "tools" }), list = el("div");
  panel.replaceChildren(tools, list);
  list.append(empty("Asking ZooKeeper…"));
  async function ask() {
    swap(tools, actionButton(pipeline, "dump-start", { after: changed, kind: "primary" }));
    try {
      const { dumps } = await get(path("pipelines", pipeline.pipeline, "dumps"));
      const now = JSON.stringify(dumps);
      if (now === before) return;
      before = now;
      swap(list, ...(dumps.length ? dumps.map(one) : [empty("No table was copied yet.")]));
    } catch (error) { if (!before) swap(list, el("p", { class: "wrong", role: "alert" }, error.message)); }
  }
  const changed = () => { again(); asking.now(); };
  function one(dump) {
    const unread = dump.no_reader_since_ms > 0, word = unread && dump.state === "running" ? "no reader" : dump.state;
    const tables = [...dump.tables].sort((a, b) => (ORDER[a.state] ?? 2) - (ORDER[b.state] ?? 2));
    const going = ["running", "paused"].includes(dump.state), given = { dump: dump.id };
    const tuning = Object.fromEntries(["chunk_rows", "parallelism", "delay_ms", "max_rows_per_second"].map((name) => [name, dump.tuning[name]]));
    const what = [dump.targets.length ? `for ${dump.targets.join(", ")}` : "", when(dump.created_ms), word === "running" ? `${dump.workers} of ${dump.tuning.parallelism} readers at work` : ""].filter(Boolean).join(" · ");
    return el("article", { class: "dump", "data-dump": word, "data-id": dump.id },
      el("div", { class: "title" }, el("h2", {}, `Dump ${dump.id}`), pill(WORDS[word] || "quiet", word)),
      el("p", { class: "route" }, dump.reason ? `${dump.reason} · ` : "", ...(dump.by ? ["by ", doer(dump.by, "backfill", pipeline.pipeline), " · "] : []), what),
      unread ? el("p", { class: "warned" }, `No reader since ${clock(dump.no_reader_since_ms * 1000)}${dump.no_reader_why ? ` (${dump.no_reader_why})` : ""}: ${dump.take_up}`) : "",
      dump.waiting_for ? el("p", { class: "warned" }, `Waits: ${dump.waiting_for}`) : "",
      dump.note ? el("p", { class: "warned" }, dump.note) : "",
      going ? el("div", { class: "buttons" },
        dump.state === "paused" ? actionButton(pipeline, "dump-resume", { given, after: changed, kind: "primary" }) : actionButton(pipeline, "dump-pause", { given, after: changed }),
        actionButton(pipeline, "dump-tune", { given: { ...given, ...tuning }, after: changed }),
        actionButton(pipeline, "dump-cancel", { given, after: changed })) : "",
      table(["Table", "State", "Placed", "Rows", "Of about", "Overtaken", "Rows/s", "Left"],
        tables.slice(0, MOST).map((t) => [el("b", {}, t.table), t.state, bar(t), count(t.rows), count(t.estimate), count(t.overtaken),
          t.state === "reading" ? count(Math.round(t.rate)) : "", t.state === "reading" ? (t.remaining_s === null ? "?" : seconds(t.remaining_s * 1000)) : ""]),
        { numeric: [3, 4, 5, 6, 7], label: `Tables of dump ${dump.id}` }),
      tables.length > MOST ? el("p", { class: "route" }, `and ${plural(tables.length - MOST, "more table")}`) : "");
  }
  const asking = poll(ask, 2000);
  return { stop: () => asking.stop(), update(now) { pipeline = now; } };
}

const bar = (t) => el("span", { class: "share" }, el("progress", { max: 1, value: t.share, "aria-label": `Share of ${t.table}` }), ` ${Math.floor(t.share * 100)} %`);
