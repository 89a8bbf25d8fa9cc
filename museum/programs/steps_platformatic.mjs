// The steps with @platformatic/kafka.
import { Producer, stringSerializers } from '@platformatic/kafka'
import { SERVERS, SETTINGS, TOPIC, follow } from './steps.mjs'

let producer, transaction

await follow({
  async open(transactionalId) {
    producer = new Producer({
      clientId: 'museum', bootstrapBrokers: SERVERS, serializers: stringSerializers, idempotent: true, transactionalId, ...SETTINGS,
    })
    transaction = undefined
  },
  async begin() { transaction = await producer.beginTransaction() },
  async send(value, partition) {
    await (transaction ?? producer).send({ messages: [{ topic: TOPIC, key: 'k', value, partition }] })
  },
  commit: () => transaction.commit(),
  abort: () => transaction.abort(),
})
