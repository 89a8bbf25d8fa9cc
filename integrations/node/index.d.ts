/** A rule that is set. */
export interface Fault {
  readonly id: number
  /** How many requests it has acted on. */
  fired(): Promise<number>
  /** Resolves once it has acted so many times (1); rejects after ten seconds. */
  wait(times?: number): Promise<void>
  /** Lets the requests go on that it holds; how many. */
  release(): Promise<number>
  /** Removes the rule; no effect the second time. */
  close(): Promise<void>
}

/** One record; bytes that are no UTF-8 are in base64. */
export interface StoredRecord {
  topic: string
  partition: number
  offset: number
  timestamp_ms: number
  key: string | { base64: string } | null
  value: string | { base64: string } | null
  headers: [string | { base64: string }, string | { base64: string } | null][]
  producer_id: number
  producer_epoch: number
  transactional: boolean
}

/** A rule: which requests, and what happens to them; further fields as those of the command fault.add. */
export interface Rule {
  api?: string | string[]
  action: string | { name: string; [field: string]: unknown }
  nth?: number
  times?: number | null
  topic?: string
  group?: string
  transactional_id?: string
  client_id?: string
  [field: string]: unknown
}

export interface Broker {
  /** HOST:PORT for clients. */
  readonly bootstrapServers: string
  /** Address of the live page of a broker with '--page'. */
  readonly page: string | undefined
  /** HOST:PORT for Prometheus of a broker with '--metrics', '127.0.0.1:0'. */
  readonly metrics: string | undefined
  /** Any command that `minibroker control` lists; rejects with the reason of a refusal. */
  control(command: string, body?: Record<string, unknown>): Promise<any>
  fault(rule: Rule): Promise<Fault>
  records(topic: string, isolation?: 'read_committed' | 'read_uncommitted'): Promise<StoredRecord[]>
  stop(): Promise<void>
}

/** Starts a broker with further arguments of `minibroker serve`; resolves once it serves. */
export function minibroker(...args: string[]): Promise<Broker>

/** Starts a proxy in front of a cluster that runs elsewhere, HOST:PORT[,HOST:PORT…]. */
export function proxy(upstream: string, ...args: string[]): Promise<Broker>

export default minibroker
