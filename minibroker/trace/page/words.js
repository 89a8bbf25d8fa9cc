// What an exchange is about and what came of it, in a few words. No document is needed: tests run this under Node.

const FEW = 3; // names of a list

function listed(names) {
  const found = [...new Set(names.filter((name) => name !== undefined && name !== null && name !== ""))];
  return found.slice(0, FEW).join(", ") + (found.length > FEW ? ` and ${found.length - FEW} more` : "");
}

const topicsOf = (request) => [...(request?.topic_data ?? []), ...(request?.topics ?? []), ...(request?.v3_and_below_topics ?? [])];
const namesById = new Map(); // topic id → name

/** Learn the names of topic ids from an answer to Metadata: Fetch, Produce and commits have the id alone. */
export function learnNames({ api, response }) {
  if (api === "Metadata")
    for (const { topic_id: id, name } of response?.topics ?? []) if (id && name) namesById.set(id, name);
}

export const nameOf = (topic) => topic?.name ?? topic?.topic ?? namesById.get(topic?.topic_id) ?? topic?.topic_id ?? (typeof topic === "string" ? topic : undefined);

/** Names of the partitions that a request is about; of the topic, where it names no partition. */
export function placesOf(request) {
  return topicsOf(request).flatMap((topic) => {
    const partitions = topic.partition_data ?? topic.partitions ?? topic.partition_indexes ?? [];
    if (!Array.isArray(partitions) || !partitions.length) return [nameOf(topic)];
    return partitions.map((one) => `${nameOf(topic)}-${one?.index ?? one?.partition_index ?? one?.partition ?? one}`);
  });
}

export const idOf = (request) => request?.transactional_id ?? request?.v3_and_below_transactional_id ?? undefined;

/** The ids and partitions of a request: "app, orders-0". */
export function subjectOf({ request }) {
  const keys = request?.coordinator_keys ?? (request?.key === undefined ? [] : [request.key]);
  const groups = [request?.group_id, ...(request?.groups ?? []).map((one) => one?.group_id)];
  const producer = idOf(request) === undefined && (request?.producer_id ?? -1) >= 0 ? `producer ${request.producer_id}` : undefined;
  return listed([idOf(request), producer, ...groups, ...keys, ...placesOf(request)]);
}

const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const RESULTS = {
  InitProducerId: (_, { producer_id: id, producer_epoch: epoch }) => `producer ${id}, epoch ${epoch}`,
  Produce(_, { responses }) {
    const offsets = (responses ?? []).flatMap((topic) => (topic.partition_responses ?? []).map((one) => one.base_offset));
    return offsets.length ? `at offset ${listed(offsets)}` : "";
  },
  EndTxn: ({ committed }) => (committed ? "committed" : "aborted"),
  Fetch(_, { responses }) {
    const read = (responses ?? []).flatMap((topic) => topic.partitions ?? []).flatMap((one) => one.records ?? []);
    return read.length ? counted(read.reduce((sum, batch) => sum + (batch.records ?? 0), 0), "record") : "nothing new";
  },
  FindCoordinator(_, { coordinators, node_id: node }) {
    return `broker ${coordinators ? listed(coordinators.map((one) => one.node_id)) : node}`;
  },
  Metadata: (_, { brokers, topics }) => `${counted(brokers?.length ?? 0, "broker")}, ${counted(topics?.length ?? 0, "topic")}`,
  JoinGroup: (_, { generation_id: generation, members }) => `generation ${generation}${members?.length ? `, leads ${counted(members.length, "member")}` : ""}`,
  ConsumerGroupHeartbeat: ({ member_epoch: sent }, { member_epoch: epoch }) => (sent < 0 ? "left" : `member epoch ${epoch}`),
  TxnOffsetCommit: (request) => `pending ${listed(commitsOf(request))}`,
  OffsetCommit: (request) => `committed ${listed(commitsOf(request))}`,
  AddPartitionsToTxn: () => "added",
  AddOffsetsToTxn: () => "added",
  ApiVersions: ({ client_software_name: name, client_software_version: version }) => (name ? `${name} ${version}` : "ok"),
};

function commitsOf(request) {
  return (request.topics ?? []).flatMap((topic) =>
    (topic.partitions ?? []).map((one) => `${nameOf(topic)}-${one.partition_index}: ${one.committed_offset}`));
}

/** {text, why, kind}: what came of it. kind: refused, broken, fault, waiting, or done. why: the reason of a refusal. */
export function resultOf(exchange) {
  const { api, broken, errors, reasons, outcome, fault, request, response } = exchange;
  if (broken?.length) return { kind: "broken", text: "broken promise", why: broken.join("; ") };
  if (errors?.length) {
    const codes = listed(errors.map((error) => error.split(" ", 1)[0]));
    return { kind: "refused", text: codes, why: reasonsOf(reasons).join("; ") || errors.join("; ") };
  }
  if (outcome === "waiting") return { kind: "waiting", text: fault ? `held by rule ${fault}` : "waits" };
  if (outcome !== "answered") return { kind: fault ? "fault" : "refused", text: outcome, why: reasonsOf(reasons).join("; ") };
  const text = (response && RESULTS[api]?.(request ?? {}, response)) || "ok";
  return fault ? { kind: "fault", text: `${text}, rule ${fault} acted` } : { kind: "done", text };
}

/** Reasons without the code and the place that a row shows already: "PRODUCER_FENCED (90) of app: why" → "why". */
const reasonsOf = (reasons) => (reasons ?? []).map((reason) => reason.replace(/^\S+ \(-?\d+\) of .*?: /s, ""));
