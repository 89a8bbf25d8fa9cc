// An application for `minibroker judge`: idempotent sends, transactions of which every third is aborted, another producer
// when one fails or is fenced, everything read back with read_committed, and a history of what it believes.
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import kafkajs from 'kafkajs'

const { Kafka, logLevel } = kafkajs
const TOPIC = 'orders'
const SENDS = 5
const TRANSACTIONS = 6
const IN_ONE = 2
const QUIET = 2_000
const kafka = new Kafka({ brokers: process.env.BOOTSTRAP_SERVERS.split(','), logLevel: logLevel.NOTHING })

const tell = (event, fields) =>
  appendFileSync(process.env.MINIBROKER_HISTORY, `${JSON.stringify({ event, topic: TOPIC, ...fields })}\n`)

const send = (sender, value) => sender.send({ topic: TOPIC, acks: -1, messages: [{ value, partition: 0 }] })

async function producer(config) {
  const made = kafka.producer({ idempotent: true, maxInFlightRequests: 1, ...config })
  await made.connect()
  return made
}

let plain = await producer({})
for (let number = 0; number < SENDS; number++) {
  const value = `i${number}`
  tell('send', { value })
  try {
    await send(plain, value)
    tell('ack', { value })
  } catch (error) {
    console.log(`${value}: ${error.message}`)
    await plain.disconnect()
    plain = await producer({})
  }
}
await plain.disconnect()

let sender = await producer({ transactionalId: 'tx' })
for (let transaction = 0; transaction < TRANSACTIONS; transaction++) {
  try {
    const own = await sender.transaction()
    for (let number = 0; number < IN_ONE; number++) {
      const value = `t${transaction}-${number}`
      tell('send', { value, transaction })
      await send(own, value)
    }
    if (transaction % 3 === 2) {
      await own.abort()
      tell('end', { transaction, outcome: 'abort' })
    } else {
      await own.commit()
      tell('end', { transaction, outcome: 'commit' })
    }
  } catch (error) {
    console.log(`transaction ${transaction}: ${error.message}`)
    await sender.disconnect()
    sender = await producer({ transactionalId: 'tx' })
  }
}
await sender.disconnect()

const reader = kafka.consumer({ groupId: 'g', maxWaitTimeInMs: 100 })
let last = Date.now()
await reader.connect()
await reader.subscribe({ topic: TOPIC, fromBeginning: true })
reader.on(reader.events.GROUP_JOIN, () => (last = Date.now()))
await reader.run({
  autoCommit: false,
  eachMessage: async ({ partition, message }) => {
    last = Date.now()
    tell('read', { partition, offset: Number(message.offset), value: `${message.value}` })
  },
})
while (Date.now() - last < QUIET) await sleep(20)
await reader.disconnect()
