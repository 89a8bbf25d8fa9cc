import { anything, brokers, byId, clockIs, closing, forget, learn, make, pressed, renew, show, soon, take, telling } from "./draw.js";
import { nothingYet } from "./start.js";
import { able, act, authorization, know, onToken } from "./hands.js";

const KEPT = 5000; // exchanges; older ones are forgotten
const now = byId("now-section");
now.hidden = false;

/** What the cluster does now: a line, the brokers, the rules, and the requests that they hold. */
function state(told) {
  clockIs(told.clock.now_ms);
  nothingYet(told.servers, anything());
  const parts = [
    `clock ${new Date(told.clock.now_ms).toISOString()}${told.clock.frozen ? ", frozen" : ""}`,
    told.recording ? "" : "nothing is recorded",
    told.missed ? "more exchanges came than are shown" : "",
  ];
  const line = make("p", {}, parts.filter(Boolean).join(" · "), " · ", make("a", { href: "trace.jsonl", download: "trace.jsonl" }, "save the trace"));
  know(told.rules);
  const rules = told.rules.map((set) => make("li", { class: "rule" }, ruleSaid(set), ...(able() ? [" ", ...ruleActs(set)] : [])));
  const held = told.waiting.map((exchange) => {
    const button = make("button", { "aria-label": `waiting ${exchange.correlation_id}` }, `${exchange.api} of ${exchange.client_id ?? exchange.client} waits, held by rule ${exchange.fault}`);
    button.addEventListener("click", () => show(exchange));
    return make("li", { class: "held" }, button);
  });
  renew(now, [line, make("ul", { "aria-label": "Brokers" }, ...told.all_brokers.map((id) => broker(id, told))), make("ul", {}, ...rules, ...held)]);
}

function broker(id, told) {
  const runs = told.brokers.includes(id), paused = told.paused_brokers.includes(id), row = brokers().get(String(id));
  const said = [
    `Broker ${id}`,
    runs ? (paused ? "paused" : "runs") : "does not run",
    row?.controller ? "active controller" : "",
    row ? `leads ${row.leads} partitions` : "",
  ].filter(Boolean).join(", ");
  const acts = !able() ? [] : !runs ? [act("Start", "state.start_broker", { broker: id })] : [
    act("Kill", "state.kill_broker", { broker: id }), act("Stop", "state.stop_broker", { broker: id }),
    paused ? act("Resume", "state.resume_broker", { broker: id }) : act("Pause", "state.pause_broker", { broker: id }),
  ];
  return make("li", { class: runs ? "broker" : "broker away" }, said, " ", ...acts);
}

function ruleSaid(set) {
  const { action, api, times, nth, probability, seed, ...match } = set.rule;
  const details = Object.entries(action).filter(([name]) => name !== "name").map(([, value]) => (typeof value === "string" ? value : JSON.stringify(value)));
  const matched = Object.entries(match).filter(([, value]) => value !== null && value !== false).map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`);
  const chance = probability < 1 ? [`one in ${Math.round(1 / probability)}`] : [];
  const first = nth > 1 ? [`from number ${nth} on`] : [];
  const what = [[action.name, ...details].join(" ") + ` on ${api?.join(", ") ?? "any request"}`, ...matched, ...first, ...chance];
  return `rule ${set.id}: ${what.join(", ")}; acted ${set.fired}${times === null ? "" : ` of ${times}`}, holds ${set.held}`;
}

function ruleActs(set) {
  const remove = act("Remove", "fault.remove", { id: set.id }, `Remove rule ${set.id}`);
  return set.held ? [act("Release", "fault.release", { id: set.id }, `Release rule ${set.id}`), remove] : [remove];
}

function tell(row) {
  const shown = byId("detail");
  shown.dataset.partition = row.name;
  const about = make("dl");
  for (const name of ["leader", "epoch", "replicas", "isr", "start", "stable", "high", "end"])
    if (row[name] !== undefined) about.append(make("dt", {}, name), make("dd", {}, String(row[name])));
  const others = able() ? row.replicas.filter((id) => id !== row.leader) : [];
  const acts = others.map((to) => act(`Have broker ${to} lead it`, "state.move_leader", { topic: row.topic, partition: row.partition, to }));
  document.body.classList.add("choosing");
  renew(shown, [closing(), make("h2", {}, row.name), about, ...acts]);
}
telling(tell);

const AGAIN_MS = 3000;
const heard = {
  begin() { forget(); soon(); },
  exchanges(finished) { take(finished, KEPT); if (!pressed) soon(); },
  rows(rows) {
    learn(rows);
    if (pressed) return;
    soon();
    const shown = rows.find((row) => row.kind === "partition" && row.name === byId("detail").dataset.partition && !row.gone);
    if (shown) tell(shown);
  },
  state(told) { document.body.classList.remove("lost"); if (!pressed) state(told); },
};

function hear(event) {
  const [name, data] = event.split("\n");
  heard[name.replace("event: ", "")](JSON.parse(data.replace("data: ", "")));
}

/** Read the stream of events until it ends. An EventSource cannot send the token, which gets a page its place. */
async function follow(signal) {
  const answer = await fetch("events", { headers: authorization(), cache: "no-store", signal });
  if (!answer.ok) throw new Error(answer.statusText);
  const decoder = new TextDecoder(), reader = answer.body.getReader();
  let begun = ""; // an event that has not ended
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    const events = (begun + decoder.decode(read.value, { stream: true })).split("\n\n");
    begun = events.pop();
    events.forEach(hear);
  }
}

let stop = new AbortController(), next;
async function connect() {
  clearTimeout(next);
  stop.abort();
  const { signal } = (stop = new AbortController());
  try {
    await follow(signal);
  } catch (failed) {
    if (!signal.aborted && !(failed instanceof TypeError)) console.error(failed);
  }
  if (signal.aborted) return;
  document.body.classList.add("lost");
  next = setTimeout(connect, AGAIN_MS);
}
onToken(connect);
connect();
