// What one verification found, with the rows that differ.

import { get, path } from "./api.js";
import { el } from "./dom.js";
import { resultOf } from "./tab-verify.js";

export async function show(pipeline, id) {
  const main = document.getElementById("main"), summary = document.getElementById("summary");
  const back = el("a", { href: `?pipeline=${encodeURIComponent(pipeline)}#verify` }, `All of ${pipeline}`);
  try {
    const [result, status] = await Promise.all([get(path("pipelines", pipeline, "verifications", id)), get(path("pipelines", pipeline)).catch(() => null)]);
    summary.replaceChildren(`Verification ${result.id} of ${result.pipeline} · `, back, " · ", el("a", { href: "./" }, "All pipelines"));
    main.replaceChildren(...resultOf(result, status, () => {}));
  } catch (error) {
    summary.replaceChildren(`This result cannot be shown: ${error.message} · `, back);
  }
}
