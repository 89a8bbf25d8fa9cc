// The page of the playground: asks the worker for the story of a seed, and shows it.

const byId = (id) => document.getElementById(id);
const worker = new Worker("playground-worker.js", { type: "module" });
let told = "", asked = 0, began = 0;
const shown = new Promise((ready) => {
  window.addEventListener("message", ({ data, origin }) => { if (origin === location.origin && data === "ready") ready(); });
});

function show() {
  const wanted = byId("about").value;
  byId("story").textContent = wanted ? told.split("\n").filter((line) => line.includes(wanted)).join("\n") : told;
}

function run() {
  const seed = Number(new URLSearchParams(location.hash.slice(1)).get("seed") ?? byId("seed").value);
  if (!Number.isSafeInteger(seed) || seed < 0) {
    byId("state").textContent = "A seed is a whole number from 0 on.";
    return;
  }
  byId("seed").value = seed;
  byId("state").textContent = `Seed ${seed} …`;
  began = performance.now();
  asked += 1;
  worker.postMessage({ seed, number: asked });
}

worker.addEventListener("message", ({ data }) => {
  if (data.number !== asked) return; // of a seed that was asked for before
  if (data.state) { byId("state").textContent = data.state; return; }
  told = data.story;
  shown.then(() => byId("page").contentWindow.postMessage(data, location.origin));
  byId("state").textContent = `${told.trimEnd().split("\n").length} lines in ${((performance.now() - began) / 1000).toFixed(1)} s`;
  show();
});
worker.addEventListener("error", (event) => { byId("state").textContent = `This browser cannot run it: ${event.message ?? "no module workers"}`; });

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const hash = `#seed=${byId("seed").value}`;
  if (location.hash === hash) run(); else location.hash = hash; // a link to the story
});
byId("another").addEventListener("click", () => { location.hash = `#seed=${Math.floor(Math.random() * 100_000)}`; });
byId("about").addEventListener("input", show);
window.addEventListener("hashchange", run);
if (location.hash) run();
