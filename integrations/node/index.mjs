// A Kafka-protocol broker for tests: `minibroker serve`, or `minibroker proxy`, the file that the variable MINIBROKER names, or .minibroker/minibroker in this
// directory or one above it, or minibroker on PATH.
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'

const STOP_MS = 10_000
const KEPT_LINES = 20
const MISSING = 'install minibroker with pip and have it on PATH, or its executable file as .minibroker/minibroker, or name it with the variable MINIBROKER'

/** The project's own executable file, in this directory or one above it. */
function own(directory) {
  const file = join(directory, '.minibroker', 'minibroker')
  if (statSync(file, { throwIfNoEntry: false })?.isFile()) return file
  return dirname(directory) === directory ? undefined : own(dirname(directory))
}

/**
 * Starts a broker and resolves once it serves; rejects with what it said when it does not start.
 *
 * It has `bootstrapServers` (HOST:PORT), `control(command, body)` for any command that `minibroker control` lists, which
 * rejects with the reason of a refusal, `fault(rule)`, `records(topic)`, and `stop()`. `page` is the address of the live
 * page of a broker with '--page', `metrics` the HOST:PORT of one with '--metrics', '127.0.0.1:0'. It logs nothing, and ends
 * with this process however that ends.
 *
 * @param {...string} args further arguments of `minibroker serve`, such as '--topic', 'orders:3'
 */
export const minibroker = (...args) => start(['serve', '--ephemeral'], args)

/**
 * Starts a proxy in front of a cluster that runs elsewhere: `fault(rule)` acts on what passes, and commands that need the
 * brokers themselves are refused. Otherwise as `minibroker`.
 *
 * @param {string} upstream HOST:PORT[,HOST:PORT…] of some of its brokers
 * @param {...string} args further arguments of `minibroker proxy`
 */
export const proxy = (upstream, ...args) => start(['proxy', '--upstream', upstream], args)

async function start(what, args) {
  const token = randomUUID()
  const fixed = [...what, '--port', '0', '--control', '127.0.0.1:0']
  const quiet = ['--until-stdin-closes', '--log-level', 'warning']
  const program = process.env.MINIBROKER || own(process.cwd()) || 'minibroker'
  const broker = spawn(program, [...fixed, ...quiet, ...args], {
    env: { ...process.env, MINIBROKER_CONTROL_TOKEN: token },
    stdio: ['pipe', 'pipe', 'pipe'],
  })
  const said = []
  createInterface({ input: broker.stderr }).on('line', (line) => {
    said.push(line)
    if (said.length > KEPT_LINES) said.shift()
  })
  const ended = new Promise((resolve) => {
    broker.on('error', (error) => resolve(said.push(`${error.message}; ${MISSING}`)))
    broker.on('close', resolve)
  })
  // It prints a line for each address once it serves: bootstrap.servers=…, control=…, and those that were asked for.
  const wanted = ['control', ...['page', 'metrics'].filter((name) => args.includes(`--${name}`))]
  const told = {}
  const lines = createInterface({ input: broker.stdout })
  const serves = new Promise((resolve) => {
    lines.on('line', (line) => {
      const at = line.indexOf('=')
      told[line.slice(0, at)] = line.slice(at + 1)
      if (wanted.every((name) => told[name])) resolve()
    })
  })
  await Promise.race([serves, ended])
  if (!told.control) throw new Error(`minibroker did not start: ${said.join('\n')}`)

  async function control(command, body = {}) {
    const response = await fetch(`http://${told.control}/v1/${command.replaceAll('.', '/')}`, {
      method: 'POST',
      headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
      body: JSON.stringify(body),
    })
    const answer = await response.json()
    if (!response.ok) throw new Error(`${command}: ${answer.error.message}`)
    return answer.result
  }

  /**
   * Sets a rule, such as { api: 'EndTxn', action: 'drop_reply' }. The handle has `fired()`, `wait(times)`, which rejects
   * after ten seconds, `release()` for requests that it holds, and `close()`, which removes it.
   */
  async function fault(rule) {
    const { id } = await control('fault.add', rule)
    let last // its counts when it was removed
    return {
      id,
      fired: async () => (last ?? (await control('fault.get', { id }))).fired,
      wait: async (times = 1) => {
        const { fired } = await control('fault.wait', { id, times })
        if (fired < times) throw new Error(`rule ${id} acted ${fired} times, not ${times}`)
      },
      release: async () => (await control('fault.release', { id })).released,
      close: async () => { last ??= await control('fault.remove', { id }) },
    }
  }

  /** What a consumer with this isolation reads of a topic, from its start to its end: topic, partition, offset, key, value… */
  const records = (topic, isolation = 'read_committed') => control('read.records', { topic, isolation })

  async function stop() {
    if (broker.exitCode !== null || broker.signalCode !== null) return
    const closed = once(broker, 'close')
    broker.stdin.end()
    const killed = setTimeout(() => broker.kill('SIGKILL'), STOP_MS)
    await closed
    clearTimeout(killed)
  }

  const { page, metrics } = told
  return { bootstrapServers: told['bootstrap.servers'], page, metrics, control, fault, records, stop }
}

export default minibroker
