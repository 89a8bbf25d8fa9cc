// A producer is fenced and sends once more; the one that fenced it tries twenty times to send its next record.
import { appendFileSync } from 'node:fs'
import kafkajs from 'kafkajs'

const tell = (event) =>
  appendFileSync(process.env.MINIBROKER_HISTORY, `${JSON.stringify({ topic: 'orders', ...event })}\n`)
const kafka = new kafkajs.Kafka({ brokers: [process.env.BOOTSTRAP_SERVERS], logLevel: kafkajs.logLevel.NOTHING })
const begin = async () => {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId: 'tx' })
  await producer.connect()
  return producer.transaction()
}
const send = async (transaction, number, value) => {
  tell({ event: 'send', value, transaction: number })
  await transaction.send({ topic: 'orders', acks: -1, messages: [{ value, partition: 0 }] })
}
const zombie = await begin()
await send(zombie, 0, 'a')
const owner = await begin()
for (const value of ['b', 'c']) await send(owner, 1, value)
await send(zombie, 0, 'z').catch((error) => console.log(`zombie: ${error.message}`))
let reason = ''
for (let tries = 0; tries < 20; tries++) {
  try {
    await send(owner, 1, `d${tries}`)
    await owner.commit()
    tell({ event: 'end', transaction: 1, outcome: 'commit' })
    process.exit(0)
  } catch (error) {
    reason = error.message
    console.log(reason)
  }
}
tell({ event: 'give up', reason: `send failed 20 times, at last with ${reason}` })
process.exit(1)
