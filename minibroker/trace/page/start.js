import { byId, make } from "./draw.js";

// What a page without exchanges shows: programs to copy that make the first ones.

const PROGRAMS = {
  Python: (servers) => `from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": "${servers}", "transactional.id": "app-1"})
producer.init_transactions()
producer.begin_transaction()
producer.produce("orders", b"hello")
producer.commit_transaction()`,
  Java: (servers) => `var config = Map.<String, Object>of("bootstrap.servers", "${servers}", "transactional.id", "app-1");
try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
    producer.initTransactions();
    producer.beginTransaction();
    producer.send(new ProducerRecord<>("orders", "hello"));
    producer.commitTransaction();
}`,
  Node: (servers) => `import { Kafka } from 'kafkajs'

const kafka = new Kafka({ brokers: [${servers.split(",").map((one) => `'${one}'`).join(", ")}] })
const producer = kafka.producer({ transactionalId: 'app-1', idempotent: true, maxInFlightRequests: 1 })
await producer.connect()
const transaction = await producer.transaction()
await transaction.send({ topic: 'orders', messages: [{ value: 'hello' }] })
await transaction.commit()
await producer.disconnect()`,
  Shell: (servers) => `kafka-console-producer.sh --bootstrap-server ${servers} --topic orders`,
};

let drawn = "";

/** Show how to connect, while no client has. */
export function nothingYet(servers, anything) {
  const section = byId("nothing");
  section.hidden = anything;
  if (anything || drawn === servers) return;
  drawn = servers;
  const programs = Object.entries(PROGRAMS).map(([name, program], place) => {
    const text = program(servers), copy = make("button", { type: "button", "aria-label": `Copy: ${name}` }, "Copy");
    copy.addEventListener("click", () => navigator.clipboard?.writeText(text).then(() => { copy.textContent = "Copied"; }));
    return make("details", { name: "program", ...(place ? {} : { open: "" }) }, make("summary", {}, name), copy, make("pre", {}, text));
  });
  section.replaceChildren(make("h2", {}, "No client has connected yet"), make("p", {}, "Brokers wait at ", make("code", {}, servers), ". What a client does is shown here at once:"), ...programs);
}
