// tests/support/applications/read_client.py with kafkajs.
import kafkajs from 'kafkajs'

const topic = process.env.MINIBROKER_TOPIC
const kafka = new kafkajs.Kafka({ brokers: process.env.BOOTSTRAP_SERVERS.split(','), logLevel: kafkajs.logLevel.NOTHING })
const consumer = kafka.consumer({ groupId: `readers-${topic}`, readUncommitted: false })
await consumer.connect()
await consumer.subscribe({ topics: [topic], fromBeginning: true })
await consumer.run({
  eachMessage: async ({ message }) => {
    process.stdout.write(`${message.offset} ${message.value}\n`)
    if (message.value.toString() === 'end') process.exit(0)
  },
})
