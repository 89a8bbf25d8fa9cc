// Aborts a transaction of two records, the first with a key of four zero bytes, commits another one, and reads.
import { appendFileSync } from 'node:fs'
import kafkajs from 'kafkajs'

const tell = (event) =>
  appendFileSync(process.env.MINIBROKER_HISTORY, `${JSON.stringify({ topic: 'orders', ...event })}\n`)
const kafka = new kafkajs.Kafka({ brokers: [process.env.BOOTSTRAP_SERVERS], logLevel: kafkajs.logLevel.NOTHING })
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId: 'tx' })
await producer.connect()
for (const [number, [values, outcome]] of [[['a', 'b'], 'abort'], [['c'], 'commit']].entries()) {
  const transaction = await producer.transaction()
  for (const value of values) {
    tell({ event: 'send', value, transaction: number })
    const key = value === 'a' ? Buffer.alloc(4) : value
    await transaction.send({ topic: 'orders', acks: -1, messages: [{ key, value, partition: 0 }] })
  }
  await transaction[outcome]()
  tell({ event: 'end', transaction: number, outcome })
}
const consumer = kafka.consumer({ groupId: 'g', readUncommitted: false })
await consumer.connect()
await consumer.subscribe({ topics: ['orders'], fromBeginning: true })
await consumer.run({
  eachMessage: async ({ partition, message }) => {
    const value = message.value.toString()
    tell({ event: 'read', value, partition, offset: Number(message.offset) })
    if (value === 'c') process.exit(0)
  },
})
