import { byId, draw, say, take } from "./draw.js";

const trace = JSON.parse(byId("trace").textContent);
say(trace.said);
take(trace.exchanges, Infinity);
draw();
