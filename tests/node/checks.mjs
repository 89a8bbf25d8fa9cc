// kafkajs against the broker named by the first argument: one line `ok NAME` or `FAIL NAME: why` a check.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import kafkajs from 'kafkajs'

const { CompressionTypes, Kafka, logLevel } = kafkajs
const PATIENCE = 30_000
const kafka = new Kafka({ brokers: process.argv[2].split(','), logLevel: logLevel.NOTHING, retry: { retries: 3 } })
const admin = kafka.admin()
const unique = (prefix) => `${prefix}-${randomUUID()}`

async function createTopic(numPartitions = 1) {
  const topic = unique('kafkajs')
  await admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: -1 }], waitForLeaders: true })
  return topic
}

async function withProducer(config, use) {
  const producer = kafka.producer(config)
  await producer.connect()
  try {
    return await use(producer)
  } finally {
    await producer.disconnect()
  }
}

const transactional = (use, transactionalId = unique('tx')) =>
  withProducer({ transactionalId, maxInFlightRequests: 1, idempotent: true }, use)

const send = (sender, topic, ...values) =>
  sender.send({ topic, acks: -1, messages: values.map((value) => ({ value, partition: 0 })) })

/** Values of partition 0 up to, and without, the first that equals `last`; kafkajs shows no end of its own. */
async function valuesBefore(topic, last, readUncommitted = false) {
  await withProducer({}, (producer) => send(producer, topic, last))
  const consumer = kafka.consumer({ groupId: unique('reader'), readUncommitted, maxWaitTimeInMs: 100 })
  const values = []
  await consumer.connect()
  try {
    await consumer.subscribe({ topic, fromBeginning: true })
    await consumer.run({ autoCommit: false, eachMessage: async ({ message }) => void values.push(`${message.value}`) })
    await until('the last value is read', () => values.includes(last))
  } finally {
    await consumer.disconnect()
  }
  return values.slice(0, values.indexOf(last))
}

async function until(what, condition) {
  const deadline = Date.now() + PATIENCE
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`not within ${PATIENCE} ms: ${what}`)
    await sleep(20)
  }
}

const checks = {
  async idempotent_produce() {
    const topic = await createTopic()
    const numbers = Array.from({ length: 100 }, (_, number) => `${number}`)
    await withProducer({ idempotent: true, maxInFlightRequests: 1 }, async (producer) => {
      for (const number of numbers) {
        const [{ baseOffset }] = await send(producer, topic, number)
        assert.equal(baseOffset, number)
      }
    })
    assert.deepEqual(await valuesBefore(topic, 'end'), numbers)
  },

  async commit_and_abort() {
    const topic = await createTopic()
    await transactional(async (producer) => {
      for (const word of ['kept', 'dropped', 'kept too']) {
        const transaction = await producer.transaction()
        await send(transaction, topic, word)
        await (word === 'dropped' ? transaction.abort() : transaction.commit())
      }
    })
    assert.deepEqual(await valuesBefore(topic, 'end'), ['kept', 'kept too'])
    assert.deepEqual(await valuesBefore(topic, 'end of all', true), ['kept', 'dropped', 'kept too', 'end'])
  },

  async second_producer_fences_first() {
    const topic = await createTopic()
    const id = unique('tx')
    await transactional(async (first) => {
      const zombie = await first.transaction()
      await send(zombie, topic, 'of the zombie')
      await transactional(async (second) => {
        const transaction = await second.transaction()
        await send(transaction, topic, 'of the living')
        await transaction.commit()
      }, id)
      await assert.rejects(async () => {
        await send(zombie, topic, 'too late')
        await zombie.commit()
      }, /epoch|fenced/i)
    }, id)
    assert.deepEqual(await valuesBefore(topic, 'end'), ['of the living'])
  },

  async offsets_in_transaction() {
    const source = await createTopic()
    const target = await createTopic()
    const consumerGroupId = unique('group')
    await withProducer({}, (producer) => send(producer, source, ...'0123456789'))
    const offsetsAt = (offset) => ({ consumerGroupId, topics: [{ topic: source, partitions: [{ partition: 0, offset }] }] })
    const committed = async () => {
      const [{ partitions }] = await admin.fetchOffsets({ groupId: consumerGroupId, topics: [source] })
      return partitions[0].offset
    }
    await transactional(async (producer) => {
      for (const offset of ['4', '9', '6']) {
        const transaction = await producer.transaction()
        await send(transaction, target, offset)
        await transaction.sendOffsets(offsetsAt(offset))
        await (offset === '9' ? transaction.abort() : transaction.commit())
        // A commit is answered before its marker reaches the group.
        const expected = offset === '6' ? '6' : '4'
        await until(`offset ${expected} is committed`, async () => (await committed()) === expected)
      }
    })
    assert.deepEqual(await valuesBefore(target, 'end'), ['4', '6'])
  },

  async group_rebalances() {
    const topic = await createTopic(4)
    const groupId = unique('group')
    const join = async () => {
      const consumer = kafka.consumer({ groupId, heartbeatInterval: 200, maxWaitTimeInMs: 100 })
      const member = { consumer, owned: 0 }
      consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
        member.owned = payload.memberAssignment[topic]?.length ?? 0
      })
      await consumer.connect()
      await consumer.subscribe({ topic })
      await consumer.run({ eachMessage: async () => {} })
      return member
    }
    const one = await join()
    await until('one member owns all', () => one.owned === 4)
    const two = await join()
    await until('two members share', () => one.owned === 2 && two.owned === 2)
    await two.consumer.disconnect()
    await until('one member owns all again', () => one.owned === 4)
    await one.consumer.disconnect()
  },

  async compressed_and_by_timestamp() {
    const topic = await createTopic()
    const start = Date.now() - 60_000
    await withProducer({}, async (producer) => {
      for (let number = 0; number < 10; number++) {
        const message = { value: `${number} `.repeat(1000), timestamp: `${start + number * 1000}`, partition: 0 }
        await producer.send({ topic, compression: CompressionTypes.GZIP, messages: [message] })
      }
    })
    const [{ offset }] = await admin.fetchTopicOffsetsByTimestamp(topic, start + 4500)
    assert.equal(offset, '5')
    assert.equal((await valuesBefore(topic, 'end')).length, 10)
  },

  async topics_created_listed_deleted() {
    const topic = await createTopic(3)
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
    assert.equal(topics[0].partitions.length, 3)
    assert.equal(await admin.createTopics({ topics: [{ topic }] }), false)
    await admin.deleteTopics({ topics: [topic] })
    await until('deleted', async () => !(await admin.listTopics()).includes(topic))
  },
}

await admin.connect()
for (const [name, check] of Object.entries(checks)) {
  try {
    await check()
    console.log(`ok ${name}`)
  } catch (wrong) {
    console.log(`FAIL ${name}: ${`${wrong}`.replaceAll('\n', ' ')}`)
  }
}
await admin.disconnect()
