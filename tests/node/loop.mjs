// The loop of tests/support/applications/loop_client.py, without a mistake, with kafkajs.
import kafkajs from 'kafkajs'

const { Kafka, logLevel } = kafkajs
const INPUTS = 6
const IN_ONE = 2
// kafkajs 1 waits for ever unless it is to enforce its timeouts.
const waits = { connectionTimeout: 10_000, enforceRequestTimeout: true }
const common = { brokers: process.env.BOOTSTRAP_SERVERS.split(','), logLevel: logLevel.NOTHING, ...waits }
// A script leaves requests of transactions without an answer, no others; a machine may be busy.
const [short, kafka] = [3000, 20_000].map((requestTimeout) => new Kafka({ ...common, requestTimeout }))

async function open(transactionalId, client = short) {
  const producer = client.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId, transactionTimeout: 20_000 })
  await producer.connect()
  return producer
}

// With admin: what `ask` is told of the topic `in`. kafkajs does not ask again while the coordinator loads its group.
async function asked(ask, tries = 10) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await ask(admin)
  } catch (error) {
    if (!error.retriable || tries === 1) throw error
    await new Promise((resolve) => setTimeout(resolve, 300))
    return await asked(ask, tries - 1)
  } finally {
    await admin.disconnect()
  }
}

async function committed() {
  // kafkajs 1 asks for one topic, and answers with its partitions.
  const [first] = await asked((admin) => admin.fetchOffsets({ groupId: 'loop', topic: 'in', topics: ['in'] }))
  return Math.max(0, Number((first.partitions?.[0] ?? first).offset))
}

// The whole input in one Produce, so that the script's failures of Produce are left to the loop.
const [{ high }] = await asked((admin) => admin.fetchTopicOffsets('in'))
if (Number(high) === 0) {
  const feeder = await open(undefined, kafka)
  const messages = Array.from({ length: INPUTS }, (_, number) => ({ value: `v${number}`, partition: 0 }))
  await feeder.send({ topic: 'in', acks: -1, messages })
  await feeder.disconnect()
}

let producer = await open('loop')

async function transact(messages) {
  const transaction = await producer.transaction()
  try {
    await transaction.send({ topic: 'out', acks: -1, messages: messages.map(({ value }) => ({ value, partition: 0 })) })
    const offset = `${Number(messages.at(-1).offset) + 1}`
    await transaction.sendOffsets({ consumerGroupId: 'loop', topics: [{ topic: 'in', partitions: [{ partition: 0, offset }] }] })
    await transaction.commit()
  } catch (error) {
    await transaction.abort().catch(() => {})
    throw error
  }
}

const consumer = kafka.consumer({
  groupId: 'loop', readUncommitted: false, maxWaitTimeInMs: 100, sessionTimeout: 6000, heartbeatInterval: 1000,
})
let next = await committed()
await consumer.connect()
await consumer.subscribe({ topic: 'in', fromBeginning: true })
await consumer.run({
  autoCommit: false,
  eachBatchAutoResolve: false,
  eachBatch: async ({ batch }) => {
    for (let at = 0; at < batch.messages.length; ) {
      const messages = batch.messages.slice(at, at + IN_ONE)
      try {
        await transact(messages)
        at += IN_ONE
        next = Number(messages.at(-1).offset) + 1
      } catch (error) {
        console.log(error.message)
        await producer.disconnect()
        producer = await open('loop')
        // To what the group has committed: a commit whose outcome nobody told may have succeeded.
        next = await committed()
        consumer.seek({ topic: 'in', partition: 0, offset: `${next}` })
        return
      }
    }
    consumer.seek({ topic: 'in', partition: 0, offset: `${next}` })
  },
})
while (next < INPUTS) await new Promise((resolve) => setTimeout(resolve, 20))
process.exit(0)
