import { byId, late, paced, say, soon, take } from "./draw.js";

/** Lines of JSON: what is said of the trace, if there is something, and its exchanges. */
function* read() {
  let exchanges = [];
  for (const line of byId("trace").textContent.trim().split("\n").filter(Boolean)) {
    const told = JSON.parse(line);
    if (told.said) say(told.said); else exchanges.push(told);
    if (!late()) continue;
    take(exchanges, Infinity);
    exchanges = [];
    yield;
  }
  take(exchanges, Infinity);
}
paced(read()).then(soon);
