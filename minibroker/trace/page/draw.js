import { endOf, inOrderOfAnswers, story } from "./story.js";

const SHOWN = 100; // lanes and strips at once; the filter finds the others
const A_FRAME = 50; // of them made in one frame
const WIDTH = 1000;
const SVG = "http://www.w3.org/2000/svg";
let exchanges = [], ends = [], first = 0, last = 1;
let chosen = null; // number of the exchange that is shown
const known = { partition: new Map(), group: new Map(), transaction: new Map(), broker: new Map() }; // as the cluster has it now
export let pressed = false; // what is being clicked must not be drawn anew before it is let go

/** Have these as well, to be drawn, and forget the oldest above `kept`; a slider at its end stays there. */
export function take(more, kept) {
  const slider = byId("time"), following = slider.value === slider.max;
  exchanges = inOrderOfAnswers([...exchanges, ...more]).slice(-kept);
  ends = exchanges.map(endOf);
  first = exchanges.length ? exchanges[0].time_ms : 0;
  last = exchanges.length ? ends.at(-1) : 1;
  slider.max = exchanges.length;
  if (following) slider.value = exchanges.length;
}

export function forget() {
  exchanges = [];
  for (const rows of Object.values(known)) rows.clear();
  take([], 1);
}

/** Lines about all of it, such as a verdict. */
export function say(lines) {
  byId("said").textContent = lines.join("\n");
  byId("said").hidden = !lines.length;
}

/** What a live page is told of partitions, groups and the like: see minibroker/control/live_state.py. */
export function learn(rows) {
  for (const row of rows) {
    if (row.gone) known[row.kind].delete(row.name);
    else known[row.kind].set(row.name, row);
  }
}

export const brokers = () => known.broker;

/** What exchanges tell, with what the cluster has now; first what has exchanges. */
function* joined(told, kind, empty) {
  const now = byId("time").value === byId("time").max ? known[kind] : new Map();
  for (const [name, found] of told) yield Object.assign(found, { live: now.get(name) });
  const all = byId("filter").value !== ""; // internal topics only when they are looked for
  for (const [name, row] of now) if (!told.has(name) && (all || !row.internal)) yield { ...empty, id: name, name, live: row };
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

/** Something that shows an exchange when it is chosen by a click, Enter or Space. */
function chooses(made, exchange, label, then = show) {
  made.setAttribute("tabindex", "0");
  made.setAttribute("role", "button");
  made.setAttribute("aria-label", label);
  if (made.namespaceURI === SVG) made.append(make("svg:title", {}, label)); // shown under the pointer
  made.addEventListener("click", () => then(exchange));
  made.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault(); // Space would scroll
    then(exchange);
  });
  return made;
}

/** One stop for Tab, the last thing in time or by offset; the arrow keys lead along the others. */
function along(drawn) {
  const stops = [...drawn.querySelectorAll("[tabindex]")].sort((one, other) => one.x.baseVal.value - other.x.baseVal.value);
  for (const stop of stops.slice(0, -1)) stop.setAttribute("tabindex", "-1");
  drawn.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const to = step && stops[stops.indexOf(document.activeElement) + step];
    if (!to) return;
    event.preventDefault(); // it would scroll
    to.focus();
  });
  return drawn;
}

export function show(exchange) {
  chosen = exchange.number;
  const { request, response, ...rest } = exchange;
  const about = make("dl");
  const said = { Broke: exchange.broken?.join("\n"), Answer: exchange.errors?.join(", ") || exchange.outcome, Reason: exchange.reasons?.join("\n"), Client: `${exchange.client_id} ${exchange.client}`, Broker: exchange.broker, Time: `${seconds(rest.time_ms)}, ${rest.took_ms} ms` };
  for (const [name, text] of Object.entries(said)) if (text) about.append(make("dt", {}, name), make("dd", {}, String(text)));
  const bodies = make("pre", {}, JSON.stringify({ request, response }, null, 1));
  delete byId("detail").dataset.partition;
  byId("detail").replaceChildren(make("h2", {}, `${exchange.api} v${exchange.version}, number ${exchange.number}`), about, ways(request), bodies);
  mark();
}

/** From an exchange to the transactional id, the partitions and the group that it names. */
function ways(request) {
  const topics = [...(request?.topic_data ?? []), ...(request?.topics ?? [])];
  const partitions = topics.flatMap((topic) => (topic.partition_data ?? topic.partitions ?? []).map((one) => `${topic.name}-${one.index ?? one.partition_index ?? one.partition ?? one}`));
  const names = [request?.transactional_id ?? request?.v3_and_below_transactional_id, request?.group_id, ...partitions];
  const links = [...new Set(names)].filter((name) => name && rowOf(name)).slice(0, SHOWN).map((name) => {
    const link = make("button", { type: "button" }, name);
    link.addEventListener("click", () => {
      const row = rowOf(name);
      row?.scrollIntoView({ block: "center" });
      (row?.querySelector("[tabindex]:last-of-type") ?? row)?.focus({ preventScroll: true });
    });
    return link;
  });
  return make("p", { class: "ways" }, ...(links.length ? ["See ", ...links] : []));
}

const rowOf = (name) => document.querySelector(`.row[data-name="${CSS.escape(name)}"]`);

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
  const { state, producer_id: producerId, epoch } = found.live ?? { ...found, producer_id: found.producerId };
  return make("div", { class: "row", "data-name": found.id }, make("b", {}, found.id), along(drawn), make("span", {}, `${state} · ${producerId}/${epoch}`));
}

function strip(found) {
  const drawn = make("svg:svg", { viewBox: `0 0 ${WIDTH} 26`, preserveAspectRatio: "none", class: "lane" });
  const { live } = found, end = Math.max(found.end, live?.end ?? 0);
  const scale = (offset) => (offset / Math.max(end, 1)) * WIDTH;
  const range = (from, to, attributes, title) => {
    const part = make("svg:rect", { x: scale(from), y: 4, width: Math.max(scale(to) - scale(from) - 0.5, 1), height: 18, ...attributes });
    if (title) part.append(make("svg:title", {}, title));
    return part;
  };
  if (live?.end > live?.start) drawn.append(range(live.start, live.end, { class: "kept", y: 10, height: 6 })); // markers and what no exchange tells of
  for (const [from, to] of live?.aborted ?? []) drawn.append(range(from, to + 1, { class: "range aborted" }, `aborted ${from}–${to}`));
  for (const [from, owner] of live?.open ?? []) drawn.append(range(from, end, { class: "range open" }, `open since ${from}, producer id ${owner}`));
  for (const batch of found.batches) {
    const label = `${found.name}: offsets ${batch.from}–${batch.to - 1}, ${batch.outcome}, producer id ${batch.producerId} epoch ${batch.epoch} sequence ${batch.sequence}`;
    drawn.append(chooses(range(batch.from, batch.to, { class: `batch ${batch.outcome}` }), batch.exchange, label));
  }
  const open = found.batches.filter((batch) => batch.outcome === "open").map((batch) => batch.from);
  const at = live?.end === undefined ? { start: found.start, stable: open.length ? Math.min(...open) : end } : live;
  const unused = live && live.end === undefined && !found.batches.length; // its log is not open, and is not opened to be shown
  for (const [kind, name] of [["start", "log start"], ["stable", "last stable offset"], ["high", "high watermark"]])
    if (at[kind] !== undefined && !unused) drawn.append(make("svg:rect", { x: Math.min(scale(at[kind]), WIDTH - 6), y: 0, width: 6, height: 26, class: `edge ${kind}` }, make("svg:title", {}, `${name} ${at[kind]}`)));
  const offsets = [`start ${at.start}`, `stable ${at.stable}`, at.high === undefined ? "" : `high ${at.high}`, `end ${end}`];
  const said = [live ? (live.leader < 0 ? "no leader" : `leader ${live.leader}`) : "", ...(unused ? ["not used since the broker's start"] : offsets)].filter(Boolean).join(" · ");
  const name = live ? chooses(make("b"), live, `About ${found.name}`, tell) : make("b");
  name.append(found.name);
  return make("div", { class: "row", "data-name": found.name }, name, along(drawn), make("span", { title: said }, said));
}

let tell = () => {};
/** What is to happen when a partition is chosen. */
export function telling(what) { tell = (row) => what(row); }

function group(found) {
  const { live } = found;
  const list = (pairs) => [...pairs].map(([place, offset]) => `${place}: ${offset}`).join(", ");
  const committed = list(live ? Object.entries(live.committed) : found.committed) || "none";
  const pending = list(live ? Object.entries(live.pending) : [...found.pending].map(([place, { offset }]) => [place, offset]));
  const said = [
    live ? `${live.state}${live.protocol ? `, ${live.protocol}` : ""}, coordinator ${live.coordinator}` : "",
    `generation ${live?.generation ?? found.generation}, ${live?.count ?? found.members.size} members${live?.members.length ? ` (${live.members.join(", ")})` : ""}`,
    `committed ${committed}`,
    pending ? `pending ${pending}` : "",
  ].filter(Boolean);
  return make("div", { class: "row", "data-name": found.id }, make("b", {}, found.id), make("div", {}, said.join("; ")));
}

function request(exchange) {
  const row = make("tr", { "data-number": exchange.number, class: exchange.errors?.length || exchange.broken ? "refusal" : "" });
  for (const text of [seconds(exchange.time_ms), exchange.client_id ?? "", exchange.api, exchange.broken?.join("; ") || exchange.reasons?.join("; ") || exchange.errors?.join("; ") || exchange.outcome]) row.append(make("td", {}, text));
  return chooses(row, exchange, `${exchange.api} number ${exchange.number}`);
}

/** Other children, of which that has the focus which looks like the one that had it. */
export function renew(section, children) {
  const focused = section.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  section.replaceChildren(...children);
  if (focused !== null) section.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function* fill(id, found, draw) {
  const wanted = byId("filter").value;
  const named = wanted ? [...found].filter((one) => (one.id ?? one.name ?? JSON.stringify(one)).includes(wanted)) : [...found];
  const shown = id === "requests" ? named.slice(-SHOWN).reverse() : named.slice(0, SHOWN);
  const rows = [];
  for (const one of shown) {
    if (rows.length && rows.length % A_FRAME === 0) yield;
    rows.push(draw(one));
  }
  renew(byId(id), rows);
  byId(`${id}-count`).textContent = shown.length < named.length ? `${shown.length} of ${named.length}` : String(named.length);
}

/** Draws a part in each frame. All at once would be one long task, in which the page reacts to nothing. */
function* parts() {
  const count = Number(byId("time").value);
  const seen = exchanges.slice(0, count);
  const told = story(seen);
  const until = seen.length ? endOf(seen.at(-1)) : first;
  byId("now").textContent = `${count} of ${exchanges.length} exchanges, ${seconds(until)}`;
  yield;
  yield* fill("transactions", joined(told.transactions, "transaction", { segments: [], marks: [] }), (found) => lane(found, until));
  yield;
  yield* fill("partitions", joined(told.partitions, "partition", { batches: [], start: 0, end: 0 }), strip);
  yield;
  yield* fill("groups", joined(told.groups, "group", { members: new Set(), committed: new Map(), pending: new Map() }), group);
  yield;
  yield* fill("requests", byId("refusals").checked ? told.refusals : seen, request);
  mark();
}

let drawing = false, again = false;
/** Draw what there is now, a part a frame; what comes while it is drawn is drawn after that. */
export async function soon() {
  again = true;
  if (drawing) return;
  drawing = true;
  while (again) {
    again = false;
    for (const _ of parts()) await new Promise(requestAnimationFrame);
  }
  drawing = false;
}

document.addEventListener("pointerdown", () => { pressed = true; });
for (const event of ["pointerup", "pointercancel"]) document.addEventListener(event, () => { pressed = false; soon(); });
for (const [id, event] of [["time", "input"], ["filter", "input"], ["refusals", "change"], ["scale", "change"]]) byId(id).addEventListener(event, soon);
