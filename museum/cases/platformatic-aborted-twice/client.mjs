// Aborts two transactions, commits one, and reads all of it with READ_COMMITTED.
import { appendFileSync } from 'node:fs'
import { Consumer, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const tell = (event) =>
  appendFileSync(process.env.MINIBROKER_HISTORY, `${JSON.stringify({ topic: 'orders', ...event })}\n`)
const how = { clientId: 'museum', bootstrapBrokers: process.env.BOOTSTRAP_SERVERS.split(',') }
const producer = new Producer({ ...how, serializers: stringSerializers, idempotent: true, transactionalId: 'tx' })
for (const [number, value] of ['a', 'b', 'c'].entries()) {
  const transaction = await producer.beginTransaction()
  tell({ event: 'send', value, transaction: number })
  await transaction.send({ messages: [{ topic: 'orders', value, partition: 0 }] })
  const outcome = value === 'c' ? 'commit' : 'abort'
  await transaction[outcome]()
  tell({ event: 'end', transaction: number, outcome })
}
const consumer = new Consumer({ ...how, groupId: 'g', deserializers: stringDeserializers, isolationLevel: 1 })
const stream = await consumer.consume({ topics: ['orders'], mode: 'earliest', autocommit: false })
for await (const { value, partition, offset } of stream) {
  tell({ event: 'read', value, partition, offset: Number(offset) })
  if (value === 'c') break
}
process.exit(0)
