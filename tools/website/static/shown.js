// The page of a trace inside another page of the site, which tells it what to show.

import { forget, say, soon, take } from "./draw.js";

window.addEventListener("message", ({ data: { said, exchanges }, origin }) => {
  if (origin !== location.origin) return;
  forget();
  say(said);
  take(exchanges, Infinity);
  soon();
});
parent.postMessage("ready", location.origin);
