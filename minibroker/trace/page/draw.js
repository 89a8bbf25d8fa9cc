import { endOf, inOrderOfAnswers, story } from "./story.js";

const SHOWN = 100; // lanes and strips at once; the filter finds the others
const WIDTH = 1000;
const SVG = "http://www.w3.org/2000/svg";
const KEPT = 5000; // exchanges; a live page forgets the older ones
let exchanges = [], ends = [], first = 0, last = 1;
let chosen = null; // number of the exchange that is shown
export let pressed = false; // what is being clicked must not be drawn anew before it is let go

/** Have these as well, to be drawn; a slider at its end stays there. */
export function take(more) {
  const slider = byId("time"), following = slider.value === slider.max;
  exchanges = inOrderOfAnswers([...exchanges, ...more]).slice(-KEPT);
  ends = exchanges.map(endOf);
  first = exchanges.length ? exchanges[0].time_ms : 0;
  last = exchanges.length ? ends.at(-1) : 1;
  slider.max = exchanges.length;
  if (following) slider.value = exchanges.length;
}

export function forget() {
  exchanges = [];
  take([]);
}

/** How many exchanges had ended before. */
function before(at) {
  let low = 0, high = ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] < at) low = middle + 1; else high = middle;
  }
  return low;
}

/** Where a moment lies: every exchange has the same room, or every millisecond. */
function x(at) {
  const share = byId("scale").checked ? (at - first) / Math.max(last - first, 1) : before(at) / Math.max(ends.length - 1, 1);
  return share * WIDTH;
}
const seconds = (at) => `${((at - first) / 1000).toFixed(3)} s`;
export const byId = (id) => document.getElementById(id);

export function make(name, attributes = {}, ...inside) {
  const made = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside); // text stays text, whatever it says
  return made;
}

/** Something that shows an exchange when it is chosen by a click or by Enter. */
function chooses(made, exchange, label) {
  made.setAttribute("tabindex", "0");
  made.setAttribute("role", "button");
  made.setAttribute("aria-label", label);
  if (made.namespaceURI === SVG) made.append(make("svg:title", {}, label)); // shown under the pointer
  made.addEventListener("click", () => show(exchange));
  made.addEventListener("keydown", (event) => { if (event.key === "Enter") show(exchange); });
  return made;
}

export function show(exchange) {
  chosen = exchange.number;
  const { request, response, ...rest } = exchange;
  const about = make("dl");
  const said = { Answer: exchange.errors?.join(", ") || exchange.outcome, Reason: exchange.reasons?.join("\n"), Client: `${exchange.client_id} ${exchange.client}`, Broker: exchange.broker, Time: `${seconds(rest.time_ms)}, ${rest.took_ms} ms` };
  for (const [name, text] of Object.entries(said)) if (text) about.append(make("dt", {}, name), make("dd", {}, String(text)));
  const bodies = make("pre", {}, JSON.stringify({ request, response }, null, 1));
  byId("detail").replaceChildren(make("h2", {}, `${exchange.api} v${exchange.version}, number ${exchange.number}`), about, bodies);
  mark();
}

function mark() {
  for (const row of document.querySelectorAll("#requests tr")) row.classList.toggle("chosen", row.dataset.number === String(chosen));
}

function lane(found, until) {
  const drawn = make("svg:svg", { viewBox: `0 0 ${WIDTH} 26`, preserveAspectRatio: "none", class: "lane" });
  for (const part of found.segments) {
    const from = x(part.from), to = x(part.to ?? until);
    const label = `${found.id}: ${part.state}, producer id ${part.producerId} epoch ${part.epoch}, from ${seconds(part.from)}`;
    drawn.append(chooses(make("svg:rect", { x: from, y: 4, width: Math.max(to - from, 1.5), height: 18, class: `state ${part.state}` }), part.exchange, label));
  }
  for (const mark of found.marks)
    drawn.append(chooses(make("svg:rect", { x: x(mark.at) - 2, y: 0, width: 4, height: 26, class: `mark ${mark.kind}` }), mark.exchange, `${found.id}: ${mark.kind}, ${mark.text}, ${seconds(mark.at)}`));
  return make("div", { class: "row" }, make("b", {}, found.id), drawn, make("span", {}, `${found.state} · ${found.producerId}/${found.epoch}`));
}

function strip(found) {
  const drawn = make("svg:svg", { viewBox: `0 0 ${WIDTH} 26`, preserveAspectRatio: "none", class: "lane" });
  const scale = (offset) => (offset / Math.max(found.end, 1)) * WIDTH;
  for (const batch of found.batches) {
    const label = `${found.name}: offsets ${batch.from}–${batch.to - 1}, ${batch.outcome}, producer id ${batch.producerId} epoch ${batch.epoch} sequence ${batch.sequence}`;
    drawn.append(chooses(make("svg:rect", { x: scale(batch.from), y: 4, width: Math.max(scale(batch.to) - scale(batch.from) - 0.5, 1), height: 18, class: `batch ${batch.outcome}` }), batch.exchange, label));
  }
  const open = found.batches.filter((batch) => batch.outcome === "open").map((batch) => batch.from);
  const stable = open.length ? Math.min(...open) : found.end;
  return make("div", { class: "row" }, make("b", {}, found.name), drawn, make("span", {}, `start ${found.start} · stable ${stable} · end ${found.end}`));
}

function group(found) {
  const committed = [...found.committed].map(([place, offset]) => `${place}: ${offset}`).join(", ") || "none";
  const pending = [...found.pending].map(([place, { offset }]) => `${place}: ${offset}`).join(", ");
  return make("div", { class: "row" }, make("b", {}, found.id), make("div", {}, `generation ${found.generation}, members ${found.members.size}; committed ${committed}${pending ? `; pending ${pending}` : ""}`));
}

function request(exchange) {
  const row = make("tr", { "data-number": exchange.number, class: exchange.errors?.length ? "refusal" : "" });
  for (const text of [seconds(exchange.time_ms), exchange.client_id ?? "", exchange.api, exchange.reasons?.join("; ") || exchange.errors?.join("; ") || exchange.outcome]) row.append(make("td", {}, text));
  return chooses(row, exchange, `${exchange.api} number ${exchange.number}`);
}

/** Other children, of which that has the focus which looks like the one that had it. */
export function renew(section, children) {
  const focused = section.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  section.replaceChildren(...children);
  if (focused !== null) section.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function fill(id, found, draw) {
  const wanted = byId("filter").value;
  const named = [...found].filter((one) => (one.id ?? one.name ?? JSON.stringify(one)).includes(wanted));
  const shown = id === "requests" ? named.slice(-SHOWN) : named.slice(0, SHOWN);
  renew(byId(id), shown.map(draw));
  byId(`${id}-count`).textContent = shown.length < named.length ? `${shown.length} of ${named.length}` : String(named.length);
}

export function draw() {
  const count = Number(byId("time").value);
  const seen = exchanges.slice(0, count);
  const told = story(seen);
  const until = seen.length ? endOf(seen.at(-1)) : first;
  byId("now").textContent = `${count} of ${exchanges.length} exchanges, ${seconds(until)}`;
  fill("transactions", told.transactions.values(), (found) => lane(found, until));
  fill("partitions", told.partitions.values(), strip);
  fill("groups", told.groups.values(), group);
  fill("requests", byId("refusals").checked ? told.refusals : seen, request);
  mark();
}

let waiting = 0;
export function soon() {
  if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; draw(); });
}

document.addEventListener("pointerdown", () => { pressed = true; });
for (const event of ["pointerup", "pointercancel"]) document.addEventListener(event, () => { pressed = false; soon(); });
for (const [id, event] of [["time", "input"], ["filter", "input"], ["refusals", "change"], ["scale", "change"]]) byId(id).addEventListener(event, soon);
