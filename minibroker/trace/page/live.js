import { byId, forget, make, pressed, renew, show, soon, take } from "./draw.js";

const now = byId("now-section");
now.hidden = false;

/** What the cluster does now: a line, the rules, and the requests that they hold. */
function state(told) {
  const away = told.all_brokers.filter((id) => !told.brokers.includes(id));
  const parts = [
    `Brokers ${told.brokers.join(", ")}`,
    away.length ? `not running ${away.join(", ")}` : "",
    told.paused_brokers.length ? `paused ${told.paused_brokers.join(", ")}` : "",
    `clock ${new Date(told.clock.now_ms).toISOString()}${told.clock.frozen ? ", frozen" : ""}`,
    told.recording ? "" : "nothing is recorded",
  ];
  const line = make("p", {}, parts.filter(Boolean).join(" · "), " · ", make("a", { href: "trace.jsonl", download: "trace.jsonl" }, "save the trace"));
  const rules = told.rules.map((set) => make("li", { class: "rule" }, ruleSaid(set)));
  const held = told.waiting.map((exchange) => {
    const button = make("button", { "aria-label": `waiting ${exchange.correlation_id}` }, `${exchange.api} of ${exchange.client_id ?? exchange.client} waits, held by rule ${exchange.fault}`);
    button.addEventListener("click", () => show(exchange));
    return make("li", { class: "held" }, button);
  });
  renew(now, [line, make("ul", {}, ...rules, ...held)]);
}

function ruleSaid(set) {
  const { action, ...match } = set.rule;
  return `rule ${set.id}: ${action.name} ${JSON.stringify(match)}, acted ${set.fired}, holds ${set.held}`;
}

const source = new EventSource("events");
source.addEventListener("begin", () => { forget(); soon(); });
source.addEventListener("exchanges", (event) => { take(JSON.parse(event.data)); if (!pressed) soon(); });
source.addEventListener("state", (event) => { document.body.classList.remove("lost"); if (!pressed) state(JSON.parse(event.data)); });
source.addEventListener("error", () => { document.body.classList.add("lost"); });
