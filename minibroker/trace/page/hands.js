import { byId, make } from "./draw.js";

// What the page does to the cluster, for those who have the token. Each act is a command of the control API.

const hands = byId("hands-section");
hands.hidden = false;
let token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
if (token) history.replaceState(null, "", location.pathname); // not in the history, nor in a picture of the window
let rules = new Map(); // number → rule
const acts = make("section", { id: "acts", "aria-label": "What was done" }); // stays in sight
document.body.append(acts);

export const able = () => token !== "";
export const authorization = () => (able() ? { Authorization: `Bearer ${token}` } : {});
/** Called when a token was entered. */
let changed = () => {};
export const onToken = (call) => { changed = call; };
export const know = (told) => { rules = new Map(told.map((set) => [set.id, set.rule])); };

/** A button that runs a command. */
export function act(text, command, given = {}, label = `${text} ${Object.values(given).join(" ")}`.trim()) {
  const button = make("button", { type: "button", "aria-label": label }, text);
  button.addEventListener("click", () => run(command, given));
  return button;
}

async function run(command, given) {
  const said = make("p", { role: "status" }, "…");
  const same = make("div", { class: "same" }, made("On the command line", shell(command, given)), made("In Python", python(command, given)));
  const close = make("button", { type: "button", "aria-label": "Close what was done" }, "×");
  close.addEventListener("click", () => acts.replaceChildren());
  acts.replaceChildren(make("h3", {}, close, " ", command), said, same);
  try {
    const answer = await fetch(`/v1/${command.replace(".", "/")}`, {
      method: "POST",
      headers: { ...authorization(), "Content-Type": "application/json" },
      body: JSON.stringify(given),
    });
    const { result, error } = await answer.json();
    if (answer.status === 401) lock();
    said.textContent = error ? `${error.code}: ${error.message}` : `Done${result === null ? "" : `: ${JSON.stringify(result)}`}`;
    said.className = error ? "refused" : "done";
  } catch (failed) {
    said.textContent = String(failed);
    said.className = "refused";
  }
}

/** Text to copy. */
function made(name, text) {
  const copy = make("button", { type: "button", "aria-label": `Copy: ${name}` }, "Copy");
  copy.addEventListener("click", () => navigator.clipboard?.writeText(text));
  return make("div", {}, make("small", {}, name, " ", copy), make("pre", {}, text));
}

const quoted = (text) => (/^[\w.,:=@%+/-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`);

/** Text that looks like JSON, such as the id 123, is written as JSON, or it would be taken for a number. */
const worded = (value) => (typeof value === "string" && /^[A-Za-z_]/.test(value) && !/^(true|false|null|NaN|Infinity)$/.test(value) ? value : JSON.stringify(value));

export function shell(command, given) {
  const values = Object.entries(given).map(([name, value]) => quoted(`${name}=${worded(value)}`));
  return ["minibroker control --control", location.host, command, ...values].join(" ");
}

function literal(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}

const named = (given) => Object.entries(given).map(([name, value]) => `${name}=${literal(value)}`).join(", ");

function injected({ api, action, ...match }) {
  return `broker.faults.inject(${[literal(api), literal(action), named(match)].filter(Boolean).join(", ")})`;
}

export function python(command, given) {
  const [group, name] = command.split(".");
  if (command === "fault.add") return `fault = ${injected(given)}`;
  if (group === "fault" && "id" in given) {
    const { id, ...others } = given;
    return `fault = ${rules.has(id) ? injected(rules.get(id)) : "…"}\nfault.${name}(${named(others)})`;
  }
  if (group === "fault") return `broker.faults.${name}(${named(given)})`;
  return `broker.${{ state: "state.", clock: "clock." }[group] ?? ""}${name}(${named(given)})`;
}

/** `fault.add api=EndTxn times=2` as the command line has it: JSON, or text. */
function parsed(line) {
  const [command, ...words] = line.trim().match(/(?:[^\s'"]|'[^']*'|"[^"]*")+/g) ?? [];
  const given = {};
  for (const word of words) {
    const [, name, value] = /^([^=]*)=?(.*)$/s.exec(word);
    const text = /^'.*'$/s.test(value) ? value.slice(1, -1) : value;
    try { given[name] = JSON.parse(text); } catch { given[name] = text; }
  }
  return [command ?? "", given];
}

function field(name, label, attributes = {}) {
  return make("label", {}, `${label} `, make("input", { name, autocomplete: "off", ...attributes }));
}

function form(label, parts, submitted) {
  const drawn = make("form", { "aria-label": label }, ...parts);
  drawn.addEventListener("submit", (event) => { event.preventDefault(); submitted(new FormData(drawn), drawn); });
  return drawn;
}

function lock() {
  token = "";
  hands.replaceChildren(
    form("Token", [
      field("token", "Token", { type: "password", required: "" }), " ", make("button", {}, "Use it"), " ",
      make("small", {}, "With the control API's token this page acts; without it, it only shows."),
    ], (entered) => { token = entered.get("token").trim(); changed(); unlock(); }),
  );
}

/** What a description of the control API says of its actions: name -> what its first field must be, null without one. */
function fieldsOf(description) {
  return new Map(description.components.schemas.Action.oneOf.map(({ properties }) => {
    const [field] = Object.keys(properties).filter((name) => name !== "name");
    return [properties.name.const, field === undefined ? null : { field, type: [properties[field].type ?? "string"].flat() }];
  }));
}

/** The value of an action's first field as it was typed. */
const typed = (text, types) => (types.includes("string") && Number.isNaN(Number(text)) ? text : JSON.parse(text));

async function unlock() {
  const description = await described();
  if (!description) return;
  const actions = fieldsOf(description);
  const rule = form("A rule", [
    field("api", "Requests", { value: "EndTxn", size: 14 }), " ",
    make("label", {}, "Action ", make("select", { name: "action" }, ...[...actions.keys()].map((name) => make("option", {}, name)))), " ",
    field("detail", "with", { size: 16 }), " ",
    field("transactional_id", "of transactional id", { placeholder: "any", size: 12 }), " ",
    field("times", "times", { type: "number", min: 1, value: 1, size: 3 }), " ", make("button", {}, "Set rule"),
  ], (entered) => {
    const name = entered.get("action"), detail = entered.get("detail").trim();
    const first = actions.get(name);
    const action = { name, ...(detail && first && { [first.field]: typed(detail, first.type) }) };
    const given = { api: entered.get("api"), action, times: Number(entered.get("times")) };
    if (entered.get("transactional_id")) given.transactional_id = entered.get("transactional_id");
    run("fault.add", given);
  });
  const any = form("A command", [
    field("line", "Any command", { placeholder: "state.move_coordinator to=2 transactional_id=app", size: 50, list: "commands" }), " ",
    make("button", {}, "Run"), make("datalist", { id: "commands" }),
  ], (entered) => run(...parsed(entered.get("line"))));
  const clock = [["10 s", { seconds: 10 }], ["1 min", { minutes: 1 }], ["1 h", { hours: 1 }], ["1 day", { days: 1 }]];
  const ahead = clock.map(([text, given]) => act(`+${text}`, "clock.advance", given, `Advance the clock by ${text}`));
  hands.replaceChildren(
    make("p", {}, "Clock ", act("Freeze", "clock.freeze"), " ", act("Unfreeze", "clock.unfreeze"), " ", ...ahead, " ", act("Sweep", "clock.sweep")),
    rule, any,
  );
  const asked = () => { rule.elements.detail.placeholder = actions.get(rule.elements.action.value)?.field ?? "nothing"; };
  rule.elements.action.addEventListener("change", asked);
  asked();
  byId("commands").replaceChildren(...Object.keys(description.paths).map((path) => make("option", { value: path.replace("/v1/", "").replace("/", ".") })));
}

/** The control API's description of its commands and actions; nothing when the token is wrong, which is said. */
async function described() {
  const answer = await fetch("/v1/openapi.json", { headers: authorization() });
  if (answer.status === 401) {
    lock();
    acts.replaceChildren(make("p", { class: "refused", role: "status" }, "That is not the token."));
    return null;
  }
  return (await answer.json()).result;
}

if (token) unlock(); else lock();
