// What exchanges tell of transactions, partitions and groups. No document is needed: tests run this under Node.

import { learnNames, nameOf } from "./words.js";

const FENCING = new Set(["PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"]);
const ROUTINE = new Set(["MEMBER_ID_REQUIRED"]);
const STATE_SAID = /\b(\S+) is (Empty|Ongoing|PrepareCommit|PrepareAbort|CompleteCommit|CompleteAbort|Dead), producer id (-?\d+) epoch (-?\d+)/;

export function inOrderOfAnswers(exchanges) {
  return [...exchanges].sort((one, other) => endOf(one) - endOf(other) || one.number - other.number);
}

/** In whole ms, as the beginning is: a fraction would put an answer behind that of a request which came after it. */
export const endOf = (exchange) => Math.floor(exchange.time_ms + exchange.took_ms);

/** "PRODUCER_FENCED (90) at x" → "PRODUCER_FENCED". */
const codeOf = (error) => error.split(" ", 1)[0];

/** `take` is given the exchanges, as `minibroker trace --json` has them, in the order of their answers. */
export class Story {
  transactions = new Map();
  partitions = new Map();
  groups = new Map();
  refusals = [];
  #owners = new Map(); // producer id → transactional id
  #open = new Map(); // producer id → its batches without a marker
  #known = new Set(); // batches

  take(exchange) {
    learnNames(exchange);
    const codes = (exchange.errors ?? []).map(codeOf).filter((code) => !ROUTINE.has(code));
    if (codes.length || exchange.broken) this.#refused(exchange, codes);
    if (exchange.outcome !== "answered" || !exchange.response) return;
    const taken = TAKERS[exchange.api];
    if (taken) taken.call(this, exchange, exchange.request, exchange.response);
  }

  #refused(exchange, codes) {
    this.refusals.push(exchange);
    const id = this.#transactionalId(exchange.request);
    if (id === undefined) return;
    const lane = this.lane(id);
    const said = STATE_SAID.exec((exchange.reasons ?? []).join("\n"));
    if (said && said[1] === id) {
      Object.assign(lane, { producerId: Number(said[3]), epoch: Number(said[4]) });
      this.enter(lane, said[2], exchange);
    }
    const kind = exchange.broken ? "broken" : codes.some((code) => FENCING.has(code)) ? "fenced" : "refused";
    lane.marks.push({ at: endOf(exchange), kind, text: [...(exchange.broken ?? []), ...codes].join(", "), exchange });
  }

  #transactionalId(request) {
    const named = request?.transactional_id ?? request?.v3_and_below_transactional_id;
    if (named) return named;
    for (const topic of request?.topic_data ?? [])
      for (const partition of topic.partition_data ?? [])
        for (const batch of partition.records ?? [])
          if (this.#owners.has(batch.producer_id)) return this.#owners.get(batch.producer_id);
    return undefined;
  }

  lane(id) {
    if (!this.transactions.has(id))
      this.transactions.set(id, { id, state: "Empty", producerId: -1, epoch: -1, segments: [], marks: [], last: 0 });
    return this.transactions.get(id);
  }

  enter(lane, state, exchange) {
    lane.last = endOf(exchange);
    const open = lane.segments.at(-1);
    if (open && open.state === state && open.epoch === lane.epoch) return;
    if (open) open.to = endOf(exchange);
    lane.state = state;
    lane.segments.push({ from: endOf(exchange), to: null, state, producerId: lane.producerId, epoch: lane.epoch, exchange });
  }

  own(lane, producerId, epoch, exchange) {
    if (lane.epoch >= 0 && (epoch !== lane.epoch || producerId !== lane.producerId))
      lane.marks.push({ at: endOf(exchange), kind: "bump", text: `epoch ${lane.epoch} → ${epoch}`, exchange });
    this.#owners.set(producerId, lane.id);
    Object.assign(lane, { producerId, epoch });
  }

  /** The open batches and pending offsets of a producer have got their marker. */
  end(producerId, outcome) {
    for (const batch of this.#open.get(producerId) ?? []) batch.outcome = outcome;
    this.#open.delete(producerId);
    for (const group of this.groups.values())
      for (const [place, pending] of group.pending)
        if (pending.producerId === producerId) {
          if (outcome === "committed") group.committed.set(place, pending.offset);
          group.pending.delete(place);
        }
  }

  partition(topic, index) {
    const name = `${topic}-${index}`;
    if (!this.partitions.has(name)) this.partitions.set(name, { name, batches: [], start: 0, end: 0 });
    return this.partitions.get(name);
  }

  /** A batch that was sent again has the offset that it had. */
  append(partition, batch) {
    const id = `${partition.name} ${batch.from} ${batch.sequence} ${batch.epoch}`;
    if (this.#known.has(id)) return;
    this.#known.add(id);
    partition.batches.push(batch);
    if (batch.outcome !== "open") return;
    if (this.#open.has(batch.producerId)) this.#open.get(batch.producerId).push(batch);
    else this.#open.set(batch.producerId, [batch]);
  }

  group(id) {
    if (!this.groups.has(id))
      this.groups.set(id, { id, members: new Set(), generation: -1, committed: new Map(), pending: new Map() });
    return this.groups.get(id);
  }
}

function* offsetsOf(request, response) {
  for (const [place, topic] of (request.topics ?? []).entries())
    for (const [index, partition] of (topic.partitions ?? []).entries())
      if (response.topics?.[place]?.partitions?.[index]?.error_code === 0)
        yield [`${nameOf(topic)}-${partition.partition_index}`, partition.committed_offset];
}

function member(exchange, request, response) {
  if (response.error_code !== 0) return;
  const group = this.group(request.group_id);
  const generation = response.generation_id ?? response.member_epoch ?? request.generation_id;
  group.generation = Math.max(group.generation, generation ?? -1);
  group.members.add(response.member_id || request.member_id);
}

const TAKERS = {
  InitProducerId(exchange, request, response) {
    if (!request.transactional_id || response.error_code !== 0) return;
    const lane = this.lane(request.transactional_id);
    this.end(lane.producerId, "aborted");
    this.own(lane, response.producer_id, response.producer_epoch, exchange);
    this.enter(lane, "Empty", exchange);
  },
  AddPartitionsToTxn(exchange, request) {
    if (!exchange.errors?.length && request.v3_and_below_transactional_id)
      this.enter(this.lane(request.v3_and_below_transactional_id), "Ongoing", exchange);
  },
  AddOffsetsToTxn(exchange, request, response) {
    if (response.error_code === 0) this.enter(this.lane(request.transactional_id), "Ongoing", exchange);
  },
  Produce(exchange, request, response) {
    for (const [place, topic] of (request.topic_data ?? []).entries())
      for (const [index, sent] of (topic.partition_data ?? []).entries()) {
        const answer = response.responses?.[place]?.partition_responses?.[index];
        if (!answer || answer.error_code !== 0) continue;
        const partition = this.partition(nameOf(topic), sent.index);
        let offset = answer.base_offset;
        for (const batch of sent.records ?? []) {
          const transactional = (batch.attributes & 16) !== 0;
          this.append(partition, {
            from: offset, to: offset + batch.records, sequence: batch.base_sequence, producerId: batch.producer_id,
            epoch: batch.producer_epoch, outcome: transactional ? "open" : "plain", exchange,
          });
          offset += batch.records;
          partition.end = Math.max(partition.end, offset);
        }
        partition.start = Math.max(partition.start, answer.log_start_offset ?? 0);
      }
    if (request.transactional_id && !exchange.errors?.length) this.enter(this.lane(request.transactional_id), "Ongoing", exchange);
  },
  EndTxn(exchange, request, response) {
    if (response.error_code !== 0) return;
    const lane = this.lane(request.transactional_id);
    this.end(request.producer_id, request.committed ? "committed" : "aborted");
    if ((response.producer_id ?? -1) >= 0) this.own(lane, response.producer_id, response.producer_epoch, exchange);
    this.enter(lane, request.committed ? "CompleteCommit" : "CompleteAbort", exchange);
  },
  TxnOffsetCommit(exchange, request, response) {
    const group = this.group(request.group_id);
    for (const [place, offset] of offsetsOf(request, response)) group.pending.set(place, { offset, producerId: request.producer_id });
  },
  OffsetCommit(exchange, request, response) {
    const group = this.group(request.group_id);
    for (const [place, offset] of offsetsOf(request, response)) group.committed.set(place, offset);
  },
  JoinGroup: member,
  ConsumerGroupHeartbeat(exchange, request, response) {
    if (request.member_epoch < 0) this.group(request.group_id).members.delete(request.member_id);
    else member.call(this, exchange, request, response);
  },
  LeaveGroup(exchange, request, response) {
    if (response.error_code !== 0) return;
    for (const gone of request.members ?? [{ member_id: request.member_id }]) this.group(request.group_id).members.delete(gone.member_id);
  },
};
