// Aborts two transactions in another order than they began, commits one, and reads all of it.
import { appendFileSync } from 'node:fs'
import kafkajs from 'kafkajs'

const tell = (event) =>
  appendFileSync(process.env.MINIBROKER_HISTORY, `${JSON.stringify({ topic: 'orders', ...event })}\n`)
const kafka = new kafkajs.Kafka({ brokers: [process.env.BOOTSTRAP_SERVERS], logLevel: kafkajs.logLevel.NOTHING })
const begin = async (id) => {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId: id })
  await producer.connect()
  return producer.transaction()
}
const send = async (transaction, number, value) => {
  tell({ event: 'send', value, transaction: number })
  await transaction.send({ topic: 'orders', acks: -1, messages: [{ value, partition: 0 }] })
}
const end = async (transaction, number, outcome) => {
  await transaction[outcome]()
  tell({ event: 'end', transaction: number, outcome })
}
const [first, second, third] = [await begin('tx-0'), await begin('tx-1'), await begin('tx-2')]
await send(first, 0, 'a')
await send(second, 1, 'b')
await end(second, 1, 'abort')
await send(first, 0, 'c')
await end(first, 0, 'abort')
await send(third, 2, 'd')
await end(third, 2, 'commit')
const consumer = kafka.consumer({ groupId: 'g', readUncommitted: false })
await consumer.connect()
await consumer.subscribe({ topics: ['orders'], fromBeginning: true })
await consumer.run({
  eachMessage: async ({ partition, message }) => {
    const value = message.value.toString()
    tell({ event: 'read', value, partition, offset: Number(message.offset) })
    if (value === 'd') process.exit(0)
  },
})
