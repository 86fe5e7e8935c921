// The Sluice page: which view is asked for, and light or dark.
//   (nothing)                all pipelines
//   ?pipeline=NAME#TAB       one pipeline; ?dag=ID: that of a DAG's tab
//   ?dag=ID&run=RUN          the batches of a run
//   ?groups                  pipelines that share a source or a target
//   ?new, ?edit=NAME         the editor of a pipeline's file
//   ?pipeline=NAME&verify=ID what a verification found

import { follow } from "./scheme.js";

const query = new URLSearchParams(location.search);
const pipeline = query.get("pipeline"), dag = query.get("dag"), result = query.get("verify");
const run = (query.get("run") || "").replaceAll(" ", "+"); // an id's + is a blank in a query

follow();
if (query.has("new") || query.has("edit")) (await import("./editor.js")).show(query.get("edit") || "");
else if (query.has("groups")) (await import("./groups.js")).show();
else if (result) (await import("./result.js")).show(pipeline || "", result);
else if (run) (await import("./run.js")).show(dag, run);
else if (pipeline || dag) (await import("./pipeline.js")).show(pipeline || dag, Boolean(dag));
else (await import("./overview.js")).show();
