// minibroker beside a Node test, with kafkajs: a broker of its own, and a transaction that times out.
// Needs `minibroker` on PATH (pip install minibroker), or MINIBROKER naming it, and the package kafkajs.
// Run: node --test minibroker.test.mjs
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { after, before, test } from 'node:test'
import kafkajs from 'kafkajs'

const token = 'a-token-of-this-test'
let broker, bootstrap, control, kafka

before(async () => {
  const argv = ['serve', '--port', '0', '--ephemeral', '--control', '127.0.0.1:0', '--topic', 'orders']
  broker = spawn(process.env.MINIBROKER ?? 'minibroker', argv, {
    env: { ...process.env, MINIBROKER_CONTROL_TOKEN: token },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  // It prints two lines once it accepts connections: bootstrap.servers=… and control=….
  for await (const line of createInterface({ input: broker.stdout })) {
    const [key, value] = line.split('=')
    if (key === 'bootstrap.servers') bootstrap = value
    if (key === 'control') control = value
    if (control) break
  }
  assert.ok(control, 'the broker did not start')
  kafka = new kafkajs.Kafka({ brokers: [bootstrap], logLevel: kafkajs.logLevel.NOTHING })
})

after(() => broker.kill())

/** A command to the broker: a fault, the clock, its state (minibroker control --describe). */
async function tell(path, body) {
  const response = await fetch(`http://${control}/v1/${path}`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  })
  assert.equal(response.status, 200, await response.text())
}

test('what times out is never read, what a new instance commits is', { timeout: 60_000 }, async () => {
  const config = { transactionalId: 'app', idempotent: true, maxInFlightRequests: 1, transactionTimeout: 60_000 }
  const slow = kafka.producer(config)
  await slow.connect()
  const late = await slow.transaction()
  await late.send({ topic: 'orders', messages: [{ value: 'late' }] })
  await tell('clock/advance', { ms: 120_000 }) // two minutes pass at once; the coordinator aborts it
  await assert.rejects(late.commit())
  await slow.disconnect()

  const next = kafka.producer(config)
  await next.connect()
  const transaction = await next.transaction()
  await transaction.send({ topic: 'orders', messages: [{ value: 'in time' }] })
  await transaction.commit()
  await next.disconnect()

  const consumer = kafka.consumer({ groupId: 'g' }) // kafkajs reads committed records only
  await consumer.connect()
  await consumer.subscribe({ topic: 'orders', fromBeginning: true })
  const first = await new Promise((resolve) =>
    consumer.run({ eachMessage: async ({ message }) => resolve(`${message.value}`) }),
  )
  await consumer.disconnect()
  assert.equal(first, 'in time')
})
