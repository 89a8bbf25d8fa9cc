// Commits an empty transaction, and then one with a record, each with at most 20 tries, all on the same producer.
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import kafkajs from 'kafkajs'

const { Kafka, logLevel } = kafkajs
const kafka = new Kafka({ brokers: [process.env.BOOTSTRAP_SERVERS], logLevel: logLevel.NOTHING })
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId: 'tx' })
await producer.connect()
for (const messages of [[], [{ value: 'a', partition: 0 }]]) {
  for (let done = false, tries = 0; !done; await sleep(200)) {
    try {
      const transaction = await producer.transaction()
      if (messages.length) await transaction.send({ topic: 'orders', acks: -1, messages })
      await transaction.commit()
      done = true
    } catch (error) {
      console.log(error.message)
      if (++tries < 20) continue
      const event = { event: 'give up', reason: `a transaction failed 20 times: ${error.message}` }
      appendFileSync(process.env.MINIBROKER_HISTORY, `${JSON.stringify(event)}\n`)
      process.exit(1)
    }
  }
}
process.exit(0)
