// Does the steps that come on standard input, and answers each with a line: docs/reference/museum.md.
import { createInterface } from 'node:readline'

export const SERVERS = process.env.BOOTSTRAP_SERVERS.split(',')
export const SETTINGS = JSON.parse(process.argv[2])
export const TOPIC = 'orders'

const say = (line) => process.stdout.write(`${line}\n`)

// client: open(id), begin(), commit(), abort(), and send(value, partition), which ends when the record is written.
export async function follow(client) {
  let waiting = []
  const steps = {
    ...client,
    send(value, partition) {
      const sent = client.send(value, +partition)
      sent.then(() => say(`ack ${value}`), (error) => say(`nack ${value} ${error.message}`))
      waiting.push(sent)
    },
    async flush() {
      const failed = (await Promise.allSettled(waiting.splice(0))).find((one) => one.reason)
      if (failed) throw failed.reason
    },
    async commit() {
      await steps.flush()
      await client.commit()
    },
  }
  for await (const line of createInterface({ input: process.stdin })) {
    const [word, ...rest] = line.split(' ')
    try {
      await steps[word](...rest)
      say('ok')
    } catch (error) {
      say(`error ${error.message}`)
    }
  }
  process.exit(0)
}
