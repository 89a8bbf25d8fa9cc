// An application for `minibroker judge`: idempotent sends, transactions of which every third is aborted, another producer
// when one fails or is fenced, everything read back with read_committed, and a history of what it believes. JUDGED_TIMEOUT_MS and
// JUDGED_TOGETHER as in judged_client.py.
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import kafkajs from 'kafkajs'

const { Kafka, logLevel } = kafkajs
const TOPIC = 'orders'
const TIMEOUT_MS = Number(process.env.JUDGED_TIMEOUT_MS ?? 0)
const TOGETHER = process.env.JUDGED_TOGETHER === '1'
const SENDS = TOGETHER ? 20 : 5
const TRANSACTIONS = 6
const IN_ONE = TOGETHER ? 6 : 2
const QUIET = 2_000
const RESTARTS = process.env.MINIBROKER_RESTARTS ?? '0'
const AGAIN = RESTARTS === '0' ? '' : `again${RESTARTS}-`
const kafka = new Kafka({
  brokers: process.env.BOOTSTRAP_SERVERS.split(','),
  logLevel: logLevel.NOTHING,
  ...(TIMEOUT_MS ? { requestTimeout: TIMEOUT_MS } : {}),
})

const tell = (event, fields) =>
  appendFileSync(process.env.MINIBROKER_HISTORY, `${JSON.stringify({ event, topic: TOPIC, client: `run ${RESTARTS}`, ...fields })}\n`)

const send = (sender, value) => sender.send({ topic: TOPIC, acks: -1, messages: [{ value, partition: 0 }] })

async function producer(config) {
  const made = kafka.producer({ idempotent: true, maxInFlightRequests: 1, ...config })
  await made.connect()
  return made
}

async function sendAll(sender, values, fields) {
  const tasks = []
  for (const value of values) {
    tell('send', { value, ...fields })
    const task = send(sender, value).then(() => tell('ack', { value }))
    tasks.push(task)
    task.catch(() => {})
    await (TOGETHER ? sleep(1) : task)
  }
  await Promise.allSettled(tasks)
  await Promise.all(tasks)
}

const named = (name, count) => Array.from({ length: count }, (_, number) => `${AGAIN}${name}${number}`)

let plain = await producer({})
for (const values of TOGETHER ? [named('i', SENDS)] : named('i', SENDS).map((value) => [value])) {
  try {
    await sendAll(plain, values, {})
  } catch (error) {
    if (TIMEOUT_MS) continue
    console.log(`${values}: ${error.message}`)
    await plain.disconnect()
    plain = await producer({})
  }
}
await plain.disconnect()

let sender = await producer({ transactionalId: 'tx' })
for (let transaction = 0; transaction < TRANSACTIONS; transaction++) {
  let own
  let committing = false
  try {
    own = await sender.transaction()
    await sendAll(own, named(`t${transaction}-`, IN_ONE), { transaction })
    if (transaction % 3 === 2) {
      await own.abort()
      tell('end', { transaction, outcome: 'abort' })
    } else {
      committing = true
      await own.commit()
      tell('end', { transaction, outcome: 'commit' })
    }
  } catch (error) {
    console.log(`transaction ${transaction}: ${error.message}`)
    if (!committing) tell('end', { transaction, outcome: 'abort' })
    if (TOGETHER && own) {
      try {
        await own.abort()
        tell('end', { transaction, outcome: 'abort' })
        continue
      } catch {}
    }
    await sender.disconnect()
    sender = await producer({ transactionalId: 'tx' })
  }
}
await sender.disconnect()

const reader = kafka.consumer({
  groupId: 'g',
  maxWaitTimeInMs: 100,
  ...(TIMEOUT_MS ? { sessionTimeout: 2 * TIMEOUT_MS, heartbeatInterval: TIMEOUT_MS / 3 } : {}),
})
let last = Date.now()
await reader.connect()
await reader.subscribe({ topic: TOPIC, fromBeginning: true })
let joins = 0 // it commits nothing, and begins anew each time
reader.on(reader.events.GROUP_JOIN, () => {
  joins++
  last = Date.now()
})
await reader.run({
  autoCommit: false,
  eachMessage: async ({ partition, message }) => {
    last = Date.now()
    tell('read', { reader: `${joins}`, partition, offset: Number(message.offset), value: `${message.value}` })
  },
})
while (Date.now() - last < QUIET) await sleep(20)
// While it joins a group anew a consumer does not disconnect.
await Promise.race([reader.disconnect(), sleep(QUIET)])
process.exit(0)
