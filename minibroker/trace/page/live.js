import { brokers, byId, forget, learn, make, pressed, renew, show, soon, take, telling } from "./draw.js";
import { able, act, know } from "./hands.js";

const KEPT = 5000; // exchanges; older ones are forgotten
const now = byId("now-section");
now.hidden = false;

/** What the cluster does now: a line, the brokers, the rules, and the requests that they hold. */
function state(told) {
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
  const { action, ...match } = set.rule;
  return `rule ${set.id}: ${action.name} ${JSON.stringify(match)}, acted ${set.fired}, holds ${set.held}`;
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
  renew(shown, [make("h2", {}, row.name), about, ...acts]);
}
telling(tell);

const source = new EventSource("events");
source.addEventListener("begin", () => { forget(); soon(); });
source.addEventListener("exchanges", (event) => { take(JSON.parse(event.data), KEPT); if (!pressed) soon(); });
source.addEventListener("rows", (event) => {
  const rows = JSON.parse(event.data);
  learn(rows);
  if (pressed) return;
  soon();
  const shown = rows.find((row) => row.kind === "partition" && row.name === byId("detail").dataset.partition && !row.gone);
  if (shown) tell(shown);
});
source.addEventListener("state", (event) => { document.body.classList.remove("lost"); if (!pressed) state(JSON.parse(event.data)); });
source.addEventListener("error", () => { document.body.classList.add("lost"); });
