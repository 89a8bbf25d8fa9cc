// Consumes `in`, produces to `out` and sends its offset in the transaction, twice: the second time as after a restart.
import kafkajs from 'kafkajs'

const kafka = new kafkajs.Kafka({ brokers: [process.env.BOOTSTRAP_SERVERS], logLevel: kafkajs.logLevel.NOTHING })
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId: 'tx' })
const offsets = async () => {
  const admin = kafka.admin()
  await admin.connect()
  const [{ partitions }] = await admin.fetchOffsets({ groupId: 'g', topics: ['in'] })
  await admin.disconnect()
  return Number(partitions[0].offset)
}
const transact = async (value, offset) => {
  const transaction = await producer.transaction()
  await transaction.send({ topic: 'out', acks: -1, messages: [{ value, partition: 0 }] })
  try {
    const partitions = [{ partition: 0, offset: `${Number(offset) + 1}` }]
    await transaction.sendOffsets({ consumerGroupId: 'g', topics: [{ topic: 'in', partitions }] })
  } catch (error) {
    console.log(`sendOffsets: ${error.message}`)
  }
  await transaction.commit()
}
await producer.connect()
await producer.send({ topic: 'in', acks: -1, messages: [{ value: 'a', partition: 0 }] })
for (let starts = 0; starts < 2 && (await offsets()) < 1; starts++) {
  const consumer = kafka.consumer({ groupId: 'g', readUncommitted: false, maxWaitTimeInMs: 100 })
  await consumer.connect()
  await consumer.subscribe({ topics: ['in'], fromBeginning: true })
  await new Promise((resolve, reject) => consumer.run({
    autoCommit: false,
    eachMessage: ({ message }) => transact(message.value.toString(), message.offset).then(resolve, reject),
  }))
  await consumer.disconnect()
}
process.exit(0)
