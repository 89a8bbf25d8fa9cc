// A consumer loses its connection while it joins its group, begins anew, and is disconnected while it joins.
import { setTimeout as sleep } from 'node:timers/promises'
import kafkajs from 'kafkajs'

const kafka = new kafkajs.Kafka({ brokers: process.env.BOOTSTRAP_SERVERS.split(','), logLevel: kafkajs.logLevel.NOTHING })
const consumer = kafka.consumer({ groupId: 'g', sessionTimeout: 6_000 })
await consumer.connect()
await consumer.subscribe({ topic: 'orders' })
const crashed = new Promise((resolve) => consumer.on(consumer.events.CRASH, resolve))
consumer.on(consumer.events.GROUP_JOIN, () => console.log('joined the group'))
consumer.run({ eachMessage: async () => {} })
await Promise.race([crashed, sleep(5_000)])
await sleep(1_500) // it joins again after 0.3 s, and waits for the session of the member before to end
await consumer.disconnect()
console.log('disconnected')
