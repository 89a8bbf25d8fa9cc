// Commits a transaction, then tries twenty times to abort one without records.
import { appendFileSync } from 'node:fs'
import { Producer, stringSerializers } from '@platformatic/kafka'

const tell = (event) =>
  appendFileSync(process.env.MINIBROKER_HISTORY, `${JSON.stringify({ topic: 'orders', ...event })}\n`)
const producer = new Producer({
  clientId: 'museum', bootstrapBrokers: process.env.BOOTSTRAP_SERVERS.split(','), serializers: stringSerializers,
  idempotent: true, transactionalId: 'tx', retries: 1, retryDelay: 50,
})
const first = await producer.beginTransaction()
tell({ event: 'send', value: 'a', transaction: 0 })
await first.send({ messages: [{ topic: 'orders', value: 'a', partition: 0 }] })
await first.commit()
tell({ event: 'end', transaction: 0, outcome: 'commit' })
let reason = ''
const empty = await producer.beginTransaction()
for (let tries = 0; tries < 20; tries++) {
  try {
    await empty.abort()
    process.exit(0)
  } catch (error) {
    reason = error.errors?.at(-1)?.message ?? error.message
    console.log(reason)
  }
}
tell({ event: 'give up', reason: `abort failed 20 times, at last with ${reason}` })
process.exit(1)
