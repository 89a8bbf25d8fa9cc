// The steps with kafkajs.
import kafkajs from 'kafkajs'
import { SERVERS, SETTINGS, TOPIC, follow } from './steps.mjs'

const { Kafka, Partitioners, logLevel } = kafkajs
const { producer: own = {}, ...common } = SETTINGS
const kafka = new Kafka({ brokers: SERVERS, logLevel: logLevel.NOTHING, ...common })
let producer, transaction

await follow({
  async open(transactionalId) {
    producer = kafka.producer({
      idempotent: true, maxInFlightRequests: 1, transactionalId, createPartitioner: Partitioners?.LegacyPartitioner, ...own,
    })
    await producer.connect()
  },
  async begin() { transaction = await producer.transaction() },
  async send(value, partition) {
    const sender = transaction?.isActive() ? transaction : producer
    await sender.send({ topic: TOPIC, acks: -1, messages: [{ value, partition }] })
  },
  commit: () => transaction.commit(),
  abort: () => transaction.abort(),
})
