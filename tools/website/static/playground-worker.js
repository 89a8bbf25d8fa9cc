// Runs seeds of the simulation, off the page's thread.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const TELL = `
import contextlib, io, json, sys
sys.path.insert(0, "/minibroker")
import logging
logging.disable(logging.CRITICAL)
from minibroker_lab.simulation.command import as_trace, tell
from minibroker_lab.simulation.run import simulate

def story(seed):
    said = io.StringIO()
    outcome = simulate(seed, telling=True, tracing=True)
    with contextlib.redirect_stdout(said):
        tell(outcome)
    return json.dumps({"story": said.getvalue(), **as_trace(outcome)._asdict()})

story
`;

async function ready() {
  const python = await loadPyodide({ indexURL: new URL("./pyodide/", import.meta.url).href });
  const sources = await fetch("minibroker.zip");
  python.unpackArchive(await sources.arrayBuffer(), "zip", { extractDir: "/minibroker" });
  return python.runPython(TELL);
}

let story = null;
self.addEventListener("message", async ({ data: { seed, number } }) => {
  if (story === null) self.postMessage({ number, state: "Loading Python …" });
  story ??= ready();
  try {
    self.postMessage({ number, ...JSON.parse((await story)(seed)) });
  } catch (error) {
    self.postMessage({ number, state: String(error) });
  }
});
