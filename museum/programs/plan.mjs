// Goes through the plan of a case, and writes the history. The words of a plan: docs/museum.md.
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

export const SERVERS = process.env.BOOTSTRAP_SERVERS.split(',')
export const SETTINGS = JSON.parse(process.argv[2])
export const TOPIC = 'orders'

const tell = (event, fields) =>
  appendFileSync(process.env.MINIBROKER_HISTORY, `${JSON.stringify({ event, topic: TOPIC, ...fields })}\n`)

// client: open(id), begin(), send(value, partition), commit(), abort(); each a promise.
export async function follow(client) {
  const steps = process.argv.slice(3)
  let identity, transaction = -1, sent = []
  const open = async () => {
    for (let done = false; !done; ) {
      await client.open(identity).then(() => (done = true), (error) => console.log(`open: ${error}`))
    }
  }
  const flush = async () => {
    const waiting = sent
    sent = []
    for (const one of await Promise.allSettled(waiting)) if (one.reason) throw one.reason
  }
  const send = async (value, partition) => {
    await client.send(value, partition)
    tell('ack', { value })
  }
  const giveUp = async () => {
    try {
      await client.abort()
      tell('end', { transaction, outcome: 'abort' })
    } catch (error) {
      console.log(`abort: ${error}`)
      await open()
    }
  }
  while (steps.length) {
    const [word, what] = steps.shift().split(' ')
    try {
      if (word === 'open') await open((identity = what))
      else if (word === 'sleep') await sleep(1000 * what)
      else if (word === 'flush') await flush()
      else if (word === 'begin') (transaction++, await client.begin())
      else if (word === 'send' || word === 'insist') {
        const [value, partition = 0] = what.split('@')
        tell('send', identity ? { value, transaction } : { value })
        if (word === 'send') (sent.push(send(value, +partition)), sent.at(-1).catch(() => {}))
        else for (let done = false; !done; await sleep(300)) {
          await send(value, +partition).then(() => (done = true), (error) => console.log(`${value}: ${error}`))
        }
      } else {
        if (word === 'commit') await flush()
        await client[word]()
        tell('end', { transaction, outcome: word })
      }
    } catch (error) {
      console.log(`${word} ${what ?? ''}: ${error}`)
      if (!identity || word === 'open') continue
      await giveUp()
      if (word !== 'commit' && word !== 'abort') while (steps.length && !['commit', 'abort'].includes(steps.shift()));
    }
  }
  process.exit(0)
}
