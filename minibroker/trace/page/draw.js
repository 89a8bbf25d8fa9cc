import { Story, endOf, inOrderOfAnswers } from "./story.js";
import { placesOf, idOf, resultOf, subjectOf } from "./words.js";

const SHOWN = 100; // lanes and strips at once; the filter finds the others
const PARTS = 200; // of one lane or strip, the last ones
const A_SLICE = 5; // ms of work in one frame
const WIDTH = 1000;
const LETTER_PX = 6.2; // width of a letter of a name, about
const TRACK = innerWidth > 960 ? 0.5 : innerWidth > 576 ? 0.75 : 1; // of a row, how much its lane takes
const FIRST = 8; // open transactions at a glance
const MARKS = { fenced: "fenced", refused: "refused", bump: "new epoch", broken: "broken promise" };
const SVG = "http://www.w3.org/2000/svg";
let exchanges = [], ends = [], first = 0, last = 1;
let origin = Infinity; // when the first exchange began, which may be forgotten
let chosen = null; // number of the exchange that is shown
const known = { partition: new Map(), group: new Map(), transaction: new Map(), broker: new Map() }; // as the cluster has it now
export let pressed = false; // what is being clicked must not be drawn anew before it is let go

/** Have these as well, to be drawn, and forget the oldest above `kept`; a slider at its end stays there. */
export function take(more, kept) {
  const slider = byId("time"), following = slider.value === slider.max;
  const at = before(Math.min(...more.map(endOf))); // what ended before is in order
  exchanges = [...exchanges.slice(0, at), ...inOrderOfAnswers([...exchanges.slice(at), ...more])].slice(-kept);
  ends = exchanges.map(endOf);
  first = exchanges.length ? exchanges[0].time_ms : 0;
  last = exchanges.length ? ends.at(-1) : 1;
  if (exchanges.length) origin = Math.min(origin, first);
  slider.max = exchanges.length;
  if (following) slider.value = exchanges.length;
}

export function forget() {
  exchanges = [];
  origin = Infinity;
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

/** Whether a client has done anything: sent a request, or left something in the cluster. */
export const anything = () => exchanges.length > 0 || known.group.size > 0 || known.transaction.size > 0;

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
  return rounded(share * WIDTH);
}
const rounded = (length) => Math.round(length * 100) / 100; // less than that is not seen, and would be drawn again
const seconds = (at) => `${(Math.max(at - origin, 0) / 1000).toFixed(3)} s`;
export const byId = (id) => document.getElementById(id);

export function make(name, attributes = {}, ...inside) {
  const made = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside); // text stays text, whatever it says
  return made;
}

const shown = new WeakMap(); // element → what was set
/** Set attributes, the text, the text under the pointer, and what happens when it is chosen: only what differs, as the browser draws that again. */
function set(element, told) {
  const had = shown.get(element) ?? {};
  shown.set(element, told);
  for (const key in told) {
    if (had[key] === told[key] || key === "choose") continue;
    if (key === "text") element.textContent = told.text;
    else if (key === "hint") element.replaceChildren(make("svg:title", {}, told.hint));
    else element.setAttribute(key, told[key]);
  }
  return element;
}

/** Renew, move and remove children only where they differ, so that the rest is not laid out again and keeps the focus. */
function* arrange(parent, things, keyOf, draw) {
  const before = drawnIn.get(parent) ?? new Map(), after = new Map();
  drawnIn.set(parent, after);
  for (const thing of things) after.set(keyOf(thing), before.get(keyOf(thing)));
  for (const [key, child] of before) if (!after.has(key)) child.remove();
  let next = parent.firstChild;
  for (const thing of things) {
    const key = keyOf(thing), child = draw(thing, after.get(key));
    after.set(key, child);
    if (child === next) next = next.nextSibling;
    else {
      const focused = child.contains(document.activeElement) && document.activeElement;
      parent.insertBefore(child, next);
      if (focused) focused.focus({ preventScroll: true });
    }
    if (late()) yield;
  }
}
const drawnIn = new WeakMap(); // element → its children by key

/** To the next row of a request, or the one before. */
function along(step) {
  const rows = [...byId("requests").children], at = rows.findIndex((one) => one === document.activeElement || one.dataset.number === String(chosen));
  const next = rows[at < 0 ? 0 : at + step];
  if (!next) return;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
  choiceOf(next)?.();
}

const SHORT = {
  "/": () => byId("filter").focus(),
  r: () => byId("refusals").click(),
  j: () => along(1),
  k: () => along(-1),
  Escape: () => unchoose(),
  "?": () => byId("keys").click(),
};
byId("keys").addEventListener("click", () => {
  byId("keys-list").hidden = !byId("keys-list").hidden;
  byId("keys").setAttribute("aria-expanded", String(!byId("keys-list").hidden));
});

// Where the browser keeps nothing, as for a file, the choice lasts as long as the page.
const themes = ["", "light", "dark"];
const kept = (() => { try { return localStorage; } catch { return null; } })();
function theme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = { light: "Light", dark: "Dark" }[name] ?? "Light or dark";
  byId("theme").setAttribute("aria-label", `Colours: ${name || "as the system has them"}`);
}
theme(themes.includes(kept?.getItem("minibroker.theme")) ? kept.getItem("minibroker.theme") : "");
byId("theme").addEventListener("click", () => {
  const next = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
  theme(next);
  kept?.setItem("minibroker.theme", next);
});

const choiceOf = (element) => shown.get(element)?.choose;
document.addEventListener("click", (event) => choiceOf(event.target.closest("[role=button]"))?.());
document.addEventListener("keydown", (event) => {
  const { target, key } = event, choice = choiceOf(target);
  const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (SHORT[key] && !event.ctrlKey && !event.metaKey && !event.altKey && (key === "Escape" || !target.closest("input, select, textarea"))) {
    event.preventDefault();
    SHORT[key]();
  } else if (choice && (key === "Enter" || key === " ")) {
    event.preventDefault(); // Space would scroll
    choice();
  } else if (step && target.closest(".lane")) {
    event.preventDefault(); // it would scroll
    const stops = [...target.closest(".lane").querySelectorAll("[tabindex]")].sort((one, other) => one.x.baseVal.value - other.x.baseVal.value);
    stops[stops.indexOf(target) + step]?.focus();
  }
});

export function show(exchange) {
  chosen = exchange.number;
  const { request, response, ...rest } = exchange;
  const about = make("dl");
  document.body.classList.add("choosing"); // on a small screen what is chosen lies over the rest
  const said = { Broke: exchange.broken?.join("\n"), Answer: exchange.errors?.join(", ") || exchange.outcome, Reason: exchange.reasons?.join("\n"), Client: `${exchange.client_id} ${exchange.client}`, Broker: exchange.broker, Time: `${seconds(rest.time_ms)}, ${rest.took_ms} ms` };
  for (const [name, text] of Object.entries(said)) if (text) about.append(make("dt", {}, name), make("dd", {}, String(text)));
  const bodies = make("pre", {}, JSON.stringify({ request, response }, null, 1));
  delete byId("detail").dataset.partition;
  const { kind, text } = resultOf(exchange);
  byId("detail").replaceChildren(closing(), make("h2", {}, `${exchange.api} v${exchange.version}, number ${exchange.number}`), make("p", {}, make("span", { class: `result ${kind}` }, text)), about, ways(request), bodies);
  mark();
}

/** The button that closes what is shown beside the rest. */
export function closing() {
  const close = make("button", { type: "button", class: "close", "aria-label": "Close what is shown" }, "×");
  close.addEventListener("click", unchoose);
  return close;
}

function unchoose() {
  chosen = null;
  document.body.classList.remove("choosing");
  delete byId("detail").dataset.partition;
  byId("detail").replaceChildren(make("h2", {}, "Nothing chosen"), make("p", {}, "Choose a bar, a range or a request."));
  mark();
}

/** From an exchange to the transactional id, the partitions and the group that it names. */
function ways(request) {
  const names = [idOf(request), request?.group_id, ...placesOf(request)];
  const links = [...new Set(names)].filter((name) => name && rowOf(name)).slice(0, SHOWN).map((name) => {
    const link = make("button", { type: "button" }, name);
    link.addEventListener("click", () => goTo(name));
    return link;
  });
  return make("p", { class: "ways" }, ...(links.length ? ["See ", ...links] : []));
}

function goTo(name) {
  const row = rowOf(name);
  row?.scrollIntoView({ block: "center" });
  (row?.querySelector("[tabindex]:last-of-type") ?? row)?.focus({ preventScroll: true });
}

const rowOf = (name) => document.querySelector(`.row[data-name="${CSS.escape(name)}"]`);

function mark() {
  for (const row of document.querySelectorAll("#requests tr")) row.classList.toggle("chosen", row.dataset.number === String(chosen));
}

/** A rectangle of a lane; its exchange is shown when it is chosen. Tab stops at one of a lane only, the arrow keys lead on. */
function part({ key: _, exchange, ...look }, drawn, isStop) {
  const choice = exchange && { role: "button", "aria-label": look.hint, tabindex: isStop ? 0 : -1, choose: () => show(exchange) };
  return set(drawn ?? make("svg:rect"), { ...look, ...choice });
}

/** Words under a lane, each where its line is; those that would lie over each other are joined. */
function named(lines) {
  const wide = LETTER_PX * WIDTH / Math.max(byId("transactions").clientWidth * TRACK, 200), words = [];
  const laid = (one) => {
    const text = [...new Set(one.names)].join(" · "), width = (text.length + 1) * wide;
    const last = one.at + width > WIDTH; // it ends at its line instead: how wide its letters are is only guessed
    return { ...one, text, last, from: last ? Math.max(one.to - width, 0) : one.at, end: last ? one.to : one.at + width };
  };
  for (const { x: at, name } of [...lines].sort((one, other) => one.x - other.x)) {
    let word = laid({ at, to: at, names: [name] });
    for (let last = words.at(-1); last && last.end > word.from; last = words.at(-1)) {
      words.pop();
      word = laid({ at: last.at, to: word.to, names: [...last.names, ...word.names] });
    }
    words.push(word);
  }
  return words;
}

function word({ text, from, end, last }, drawn) {
  const made = set(drawn ?? make("small"), { text });
  // A style of the script's own is no style attribute of the page.
  made.style.left = last ? "" : `${(from / WIDTH) * 100}%`;
  made.style.right = last ? `${100 - (end / WIDTH) * 100}%` : "";
  return made;
}

/** {name, said, live, parts: its rectangles, lines: what its lines are called, if it is a lane} → its row. */
function row({ name, said, live, parts, lines }, drawn) {
  const made = drawn ?? make("div", { class: "row", "data-name": name }, make("b", { title: name }, name),
    ...(parts ? [make("div", { class: "track" }, make("svg:svg", { viewBox: `0 0 ${WIDTH} 26`, preserveAspectRatio: "none", class: "lane" }), make("div", { class: "names", "aria-hidden": "true" })), make("span")] : [make("div")]));
  if (live) set(made.firstChild, { tabindex: 0, role: "button", "aria-label": `About ${name}`, choose: () => tell(live) });
  set(made.lastChild, parts ? { text: said, title: said } : { text: said });
  if (!parts) return made;
  const stop = parts.reduce((found, one) => (one.exchange && !(found?.x > one.x) ? one : found), undefined);
  const [svg, names] = made.children[1].children;
  for (const _ of arrange(svg, parts, (one) => one.key, (one, old) => part(one, old, one === stop)));
  for (const _ of arrange(names, named(lines), (one) => one.text, word));
  return made;
}

function lane(found, until) {
  let drawnTo = 0; // states of one millisecond lie beside each other: under the next one, the first cannot be chosen
  const segments = found.segments.slice(-PARTS).map(({ from, to, state, producerId, epoch, exchange }) => {
    const begin = Math.max(x(from), drawnTo), width = Math.max(rounded(x(to ?? until) - begin), 1.5);
    drawnTo = rounded(begin + width);
    const hint = `${found.id}: ${state}, producer id ${producerId} epoch ${epoch}, from ${seconds(from)}`;
    return { key: `${exchange.number} ${state}`, x: begin, y: 4, width, height: 18, class: `state ${state}`, hint, exchange };
  });
  const marks = found.marks.slice(-PARTS).map(({ at, kind, text, exchange }) => {
    const hint = `${found.id}: ${kind}, ${text}, ${seconds(at)}`;
    return { key: `${exchange.number} ${kind}`, x: rounded(x(at) - 2), y: 0, width: 4, height: 26, class: `mark ${kind}`, hint, exchange };
  });
  const lines = marks.map((one) => ({ x: one.x, name: MARKS[one.class.replace("mark ", "")] }));
  const { state, producer_id: producerId, epoch } = found.live ?? { ...found, producer_id: found.producerId };
  return { name: found.id, said: `${state} · ${producerId}/${epoch}${left(found.segments)}`, parts: [...segments, ...marks], lines };
}

const left = (all) => (all.length > PARTS ? ` · the last ${PARTS} of ${all.length} drawn` : "");

function strip(found) {
  const { live, name } = found, end = Math.max(found.end, live?.end ?? 0);
  const scale = (offset) => rounded((offset / Math.max(end, 1)) * WIDTH);
  const parts = [];
  const range = (from, to, kind, rest) => parts.push({ key: `${from} ${kind}`, x: scale(from), y: 4, width: Math.max(rounded(scale(to) - scale(from) - 0.5), 1), height: 18, class: kind, ...rest });
  if (live?.end > live?.start) range(live.start, live.end, "kept", { y: 10, height: 6 }); // markers and what no exchange tells of
  for (const [from, to] of live?.aborted ?? []) range(from, to + 1, "range aborted", { hint: `aborted ${from}–${to}` });
  for (const [from, owner] of live?.open ?? []) range(from, end, "range open", { hint: `open since ${from}, producer id ${owner}` });
  for (const { exchange, ...batch } of found.batches.slice(-PARTS)) {
    const hint = `${name}: offsets ${batch.from}–${batch.to - 1}, ${batch.outcome}, producer id ${batch.producerId} epoch ${batch.epoch} sequence ${batch.sequence}`;
    range(batch.from, batch.to, `batch ${batch.outcome}`, { key: `${exchange.number} ${batch.from}`, hint, exchange });
  }
  const stable = found.batches.reduce((least, batch) => (batch.outcome === "open" ? Math.min(least, batch.from) : least), end);
  const at = live?.end === undefined ? { start: found.start, stable } : live;
  const unused = live && live.end === undefined && !found.batches.length; // its log is not open, and is not opened to be shown
  for (const [kind, title] of [["start", "log start"], ["stable", "last stable offset"], ["high", "high watermark"]])
    if (at[kind] !== undefined && !unused) parts.push({ key: kind, x: Math.min(scale(at[kind]), WIDTH - 6), y: 0, width: 6, height: 26, class: `edge ${kind}`, hint: `${title} ${at[kind]}` });
  const lines = unused ? [] : [["start", "log start"], ["stable", "last stable"], ["high", "high watermark"]].filter(([kind]) => at[kind] !== undefined).map(([kind, title]) => ({ x: scale(at[kind]), name: `${title} ${at[kind]}` }));
  const offsets = [`start ${at.start}`, `stable ${at.stable}`, at.high === undefined ? "" : `high ${at.high}`, `end ${end}${left(found.batches)}`];
  const said = [live ? (live.leader < 0 ? "no leader" : `leader ${live.leader}`) : "", ...(unused ? ["not used since the broker's start"] : offsets)].filter(Boolean).join(" · ");
  return { name, said, live, parts, lines };
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
    `${(live?.generation ?? found.generation) < 0 ? "" : `generation ${live?.generation ?? found.generation}, `}${live?.count ?? found.members.size} members${live?.members.length ? ` (${live.members.join(", ")})` : ""}`,
    `committed ${committed}`,
    pending ? `pending ${pending}` : "",
  ].filter(Boolean);
  return { name: found.id, said: said.join("; ") };
}

function request(exchange, drawn) {
  const { number, api } = exchange;
  const made = drawn ?? make("tr", { "data-number": number, class: exchange.errors?.length || exchange.broken ? "refusal" : "" }, ...Array.from({ length: 4 }, () => make("td")), make("td", {}, make("span"), make("small")));
  const { text: result, why, kind } = resultOf(exchange);
  const texts = [seconds(exchange.time_ms), exchange.client_id ?? "", api, subjectOf(exchange)];
  for (const [place, text] of texts.entries()) set(made.children[place], { text });
  set(made.lastChild.firstChild, { text: result, class: `result ${kind}` });
  set(made.lastChild.lastChild, { text: why ?? "" });
  return set(made, { tabindex: 0, role: "button", "aria-label": `${api} number ${number}`, choose: () => show(exchange) });
}

/** Other children, of which that has the focus which looks like the one that had it. */
export function renew(section, children) {
  const focused = section.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  section.replaceChildren(...children);
  if (focused !== null) section.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function* fill(id, found, draw, keyOf) {
  const wanted = byId("filter").value, named = [];
  for (const one of found) {
    if (!wanted || (one.id ?? one.name ?? JSON.stringify(one)).includes(wanted)) named.push(one);
    if (late()) yield;
  }
  const shown = id === "requests" ? named.slice(-SHOWN).reverse() : named.slice(0, SHOWN);
  yield* arrange(byId(id), shown, keyOf, draw);
  byId(`${id}-count`).textContent = shown.length < named.length ? `${shown.length} of ${named.length}` : String(named.length);
}

/** What one wants to know first: which transaction is open, and why a request was refused. */
function* glance(told, until) {
  const open = [...joined(told.transactions, "transaction", { segments: [], marks: [] })].filter((one) => isOpen(stateOf(one)));
  yield* arrange(byId("open"), open.slice(0, FIRST), (one) => one.id, (one, old) => openLine(one, until, told, old));
  byId("open-count").textContent = open.length > FIRST ? `${FIRST} of ${open.length}` : "";
  byId("open").classList.toggle("none", !open.length);
  const last = told.refusals.at(-1), about = byId("refused");
  if (about.dataset.number === String(last?.number)) return;
  about.dataset.number = String(last?.number);
  if (!last) return about.replaceChildren("No request was refused.");
  const { text, why, kind } = resultOf(last), subject = subjectOf(last);
  const button = make("button", { type: "button" }, `${last.api}${subject ? ` of ${subject}` : ""}`);
  button.addEventListener("click", () => show(last));
  about.replaceChildren(button, " ", make("span", { class: `result ${kind}` }, text), make("p", {}, why ?? ""));
}

const stateOf = (one) => one.live?.state ?? one.state ?? "Empty";
const isOpen = (state) => state === "Ongoing" || state.startsWith("Prepare");

function openLine(one, until, told, drawn) {
  const made = drawn ?? make("li", {}, make("button", { type: "button" }, one.id), " ", make("span"), " ", make("span"));
  if (!drawn) made.firstChild.addEventListener("click", () => goTo(one.id));
  const state = stateOf(one), began = one.segments.findLast((segment) => segment.state === "Ongoing")?.from;
  const places = one.live?.partitions ?? [...told.partitions.values()].filter((place) => place.batches.some((batch) => batch.outcome === "open" && batch.producerId === one.producerId)).map((place) => place.name);
  const since = one.live?.started ? clockNow - one.live.started : began === undefined ? NaN : until - began;
  set(made.children[1], { text: state, class: `result ${state}` });
  set(made.children[2], { text: [Number.isNaN(since) ? "" : `for ${lasting(since)}`, places.length ? `on ${shownPlaces(places).slice(0, 4).join(", ")}${places.length > 4 ? " …" : ""}` : ""].filter(Boolean).join(" ") });
  return made;
}

/** Topics first; partitions of committed offsets by what they are. */
function shownPlaces(places) {
  const own = places.filter((place) => !place.startsWith("__consumer_offsets-"));
  return own.length < places.length ? [...own, "offsets of a group"] : own;
}

const lasting = (ms) => (ms < 60_000 ? `${(Math.max(ms, 0) / 1000).toFixed(1)} s` : `${Math.floor(ms / 60_000)} min`);
let clockNow = 0;
/** The broker clock of a live page, in ms. */
export function clockIs(ms) { clockNow = ms; }

/** Draws a slice at a time. All at once would be one long task, in which the page reacts to nothing. */
function* parts() {
  const count = Number(byId("time").value);
  const seen = exchanges.slice(0, count);
  const told = new Story();
  for (const exchange of seen) {
    told.take(exchange);
    if (late()) yield;
  }
  const until = seen.length ? endOf(seen.at(-1)) : first;
  byId("now").textContent = `${count} of ${exchanges.length} exchanges, ${seconds(until)}`;
  const named = (one) => `${one.name ?? one.id} ${Boolean(one.live)}`;
  yield;
  yield* glance(told, until);
  yield;
  yield* fill("transactions", joined(told.transactions, "transaction", { segments: [], marks: [] }), (found, drawn) => row(lane(found, until), drawn), named);
  yield;
  yield* fill("partitions", joined(told.partitions, "partition", { batches: [], start: 0, end: 0 }), (found, drawn) => row(strip(found), drawn), named);
  yield;
  yield* fill("groups", joined(told.groups, "group", { members: new Set(), committed: new Map(), pending: new Map() }), (found, drawn) => row(group(found), drawn), named);
  yield;
  yield* fill("requests", byId("refusals").checked ? told.refusals : seen, request, (one) => one.number);
  mark();
}

let began = 0;
export const late = () => performance.now() - began > A_SLICE;

/** Take steps that yield when they are late: a slice in each frame. */
export async function paced(steps) {
  do {
    await new Promise(requestAnimationFrame);
    began = performance.now();
  } while (!steps.next().done);
}

let drawing = false, again = false;
/** Draw what there is now; what comes while it is drawn is drawn after that. */
export async function soon() {
  again = true;
  if (drawing) return;
  drawing = true;
  while (again) {
    again = false;
    await paced(parts());
  }
  drawing = false;
}

document.addEventListener("pointerdown", () => { pressed = true; });
for (const event of ["pointerup", "pointercancel"]) document.addEventListener(event, () => { pressed = false; soon(); });
for (const [id, event] of [["time", "input"], ["filter", "input"], ["refusals", "change"], ["scale", "change"]]) byId(id).addEventListener(event, soon);
