// Commits a transaction, then tries twenty times to begin one with a new producer, as after a restart.
import { appendFileSync } from 'node:fs'
import { Producer, stringSerializers } from '@platformatic/kafka'

const tell = (event) =>
  appendFileSync(process.env.MINIBROKER_HISTORY, `${JSON.stringify({ topic: 'orders', ...event })}\n`)
const open = (transactionalId) => new Producer({
  clientId: 'museum', bootstrapBrokers: process.env.BOOTSTRAP_SERVERS.split(','), serializers: stringSerializers,
  idempotent: true, transactionalId, retries: 1, retryDelay: 50,
})
const message = (value) => ({ messages: [{ topic: 'orders', value, partition: 0 }] })
const transact = async (producer, number) => {
  const transaction = await producer.beginTransaction()
  const value = `t${number}`
  tell({ event: 'send', value, transaction: number })
  await transaction.send(message(value))
  await transaction.commit()
  tell({ event: 'end', transaction: number, outcome: 'commit' })
}
tell({ event: 'send', value: 'first' })
await open().send(message('first')) // takes the producer id 0, which the next one then does not have
await transact(open('tx'), 0)
let reason = ''
for (let tries = 1; tries <= 20; tries++) {
  try {
    await transact(open('tx'), tries)
    process.exit(0)
  } catch (error) {
    reason = error.errors?.at(-1)?.message ?? error.message
    console.log(reason)
  }
}
tell({ event: 'give up', reason: `a new producer failed 20 times, at last with ${reason}` })
process.exit(1)
