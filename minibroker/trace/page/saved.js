import { byId, draw, take } from "./draw.js";

take(JSON.parse(byId("exchanges").textContent));
draw();
