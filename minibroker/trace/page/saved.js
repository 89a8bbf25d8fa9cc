import { byId, draw, say, take } from "./draw.js";

const { said, exchanges } = JSON.parse(byId("trace").textContent);
say(said);
take(exchanges, Infinity);
draw();
