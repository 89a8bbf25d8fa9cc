import { byId, say, soon, take } from "./draw.js";

const trace = JSON.parse(byId("trace").textContent);
say(trace.said);
take(trace.exchanges, Infinity);
soon();
