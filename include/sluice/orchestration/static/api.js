// Questions to /sluice/api/v1, of which the page knows nothing that a program would not.

const ROOT = "api/v1";
export const path = (...parts) => parts.map((part) => encodeURIComponent(part)).join("/");

export async function get(where, query = {}) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== null));
  return answered(await fetch(`${ROOT}/${where}${asked.size ? `?${asked}` : ""}`, {
    signal: AbortSignal.timeout(25_000), headers: { Accept: "application/json" },
  }));
}

export async function post(where, body) {
  return answered(await fetch(`${ROOT}/${where}`, {
    method: "POST", signal: AbortSignal.timeout(70_000), body: JSON.stringify(body),
    headers: { Accept: "application/json", "Content-Type": "application/json" },
  }));
}

async function answered(answer) {
  if (answer.ok) return answer.json();
  if (answer.status === 401) throw new Error("you are logged out; reload the page");
  let detail = `the Airflow API server answered ${answer.status}`;
  try {
    const said = (await answer.json()).detail;
    if (typeof said === "string") detail = said;
    else if (Array.isArray(said)) detail = said.map((one) => `${(one.loc || []).slice(1).join(".")}: ${one.msg}`).join("; ");
  } catch { /* no JSON */ }
  const error = new Error(detail);
  error.status = answer.status;
  throw error;
}

// Calls `ask` again and again: every `everyMs` (a number, or a function that gives it), slower in a hidden tab, not while
// an answer is awaited.
export function poll(ask, everyMs) {
  let timer = null, over = false;
  const pause = typeof everyMs === "function" ? everyMs : () => everyMs;
  const turn = async () => {
    clearTimeout(timer);
    await ask();
    if (!over) timer = setTimeout(turn, document.hidden ? Math.max(pause() * 5, 10_000) : pause());
  };
  turn();
  return { stop() { over = true; clearTimeout(timer); }, now: turn };
}
