// Commits two transactions, of two records and of one; the errors of single sends are printed.
import { appendFileSync } from 'node:fs'
import { Producer, stringSerializers } from '@platformatic/kafka'

const tell = (event) =>
  appendFileSync(process.env.MINIBROKER_HISTORY, `${JSON.stringify({ topic: 'orders', ...event })}\n`)
const producer = new Producer({
  clientId: 'museum', bootstrapBrokers: process.env.BOOTSTRAP_SERVERS.split(','), serializers: stringSerializers,
  idempotent: true, transactionalId: 'tx', retries: 1, retryDelay: 100,
})
for (const [number, values] of [['a', 'b'], ['c']].entries()) {
  const transaction = await producer.beginTransaction()
  for (const value of values) {
    tell({ event: 'send', value, transaction: number })
    try {
      await transaction.send({ messages: [{ topic: 'orders', value, partition: 0 }] })
    } catch (error) {
      console.log(value, error.errors?.at(-1)?.message ?? error.message)
    }
  }
  await transaction.commit()
  tell({ event: 'end', transaction: number, outcome: 'commit' })
}
process.exit(0)
