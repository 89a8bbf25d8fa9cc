// The page of a trace inside another page of the site, which tells it what to show.

import { draw, forget, say, take } from "./draw.js";

window.addEventListener("message", ({ data: { said, exchanges }, origin }) => {
  if (origin !== location.origin) return;
  forget();
  say(said);
  take(exchanges, Infinity);
  draw();
});
parent.postMessage("ready", location.origin);
