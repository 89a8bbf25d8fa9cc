"""The Node package; the test on its page must work as it stands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from broker import installed_command, project_program
from samples_of_pages import INTEGRATIONS, sample
from toolchain import DOWNLOAD_SECONDS, Unavailable, node_program, tool

pytestmark = pytest.mark.node

PACKAGE = INTEGRATIONS / "node"
TYPESCRIPT = "typescript@7.0.2"


def run(directory: Path, test: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`node --test` of a program that has kafkajs and the package."""
    given = directory / "given.test.mjs"
    given.write_text(test)
    app = directory / "app"
    app.mkdir()
    try:
        node, program = node_program(str(given), app)
    except Unavailable as missing:
        pytest.skip(str(missing))
    shutil.copytree(PACKAGE, app / "node_modules" / "minibroker")
    argv = [node, "--test", "--test-reporter=tap", program]
    environment = {**installed_command(directory), **variables}
    return subprocess.run(argv, cwd=app, env=environment, capture_output=True, text=True, timeout=400)


def test_the_test_on_the_page(tmp_path: Path) -> None:
    done = run(tmp_path, sample(PACKAGE / "README.md", "js"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n# pass 1\n" in done.stdout
    assert "minibroker:" not in done.stdout + done.stderr


TYPED = """
import { minibroker, proxy, type Broker, type Fault, type StoredRecord } from 'minibroker'

const broker: Broker = await minibroker('--topic', 'orders')
const lost: Fault = await broker.fault({ api: 'EndTxn', action: { name: 'delay', ms: 5 }, times: null, broker: 1 })
const counts: number[] = [lost.id, await lost.fired(), await lost.release()]
await lost.wait(2)
await lost.close()
const records: StoredRecord[] = await broker.records('orders', 'read_uncommitted')
await broker.control('clock.advance', { minutes: 2 })
const between: Broker = await proxy(broker.bootstrapServers)
const page: string | undefined = between.page ?? broker.metrics
await broker.stop()
"""
MISTAKES = """
import { minibroker } from 'minibroker'
const broker = await minibroker()
broker.bootstrap
await broker.fault({ api: 'EndTxn' })
await broker.records('orders', 'committed')
"""


def test_typescript_knows_what_a_broker_has(tmp_path: Path) -> None:
    """Every name that the package has, and an error for each line with a mistake."""
    try:
        node, npm = tool("node"), tool("npm")
    except Unavailable as missing:
        pytest.skip(str(missing))
    argv = [npm, "install", "--silent", "--no-audit", "--no-fund", TYPESCRIPT]
    if subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=DOWNLOAD_SECONDS).returncode:
        pytest.skip("npm could not fetch typescript")
    shutil.copytree(PACKAGE, tmp_path / "node_modules" / "minibroker")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "right.ts").write_text(TYPED)
    (tmp_path / "wrong.ts").write_text(MISTAKES)
    checker = [node, str(tmp_path / "node_modules" / "typescript" / "bin" / "tsc"), "--noEmit", "--strict"]
    checker += ["--module", "nodenext", "--target", "es2022", "right.ts", "wrong.ts"]
    done = subprocess.run(checker, cwd=tmp_path, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
    told = [line.partition(":")[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [name.partition(",")[0] for name in told] == ["wrong.ts(4", "wrong.ts(5", "wrong.ts(6"], done.stdout
    running = "import('minibroker').then((all) => console.log(Object.keys(all).sort().join()))"
    names = subprocess.run([node, "-e", running], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert names.strip() == "default,minibroker,proxy"


FAILS = """
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:net'
import { test } from 'node:test'
import { minibroker, proxy } from 'minibroker'

test('refused', async (t) => {
  const broker = await minibroker()
  t.after(() => broker.stop())
  await broker.control('clock.advance', { minuts: 2 })
})

test('handles', async (t) => {
  const broker = await minibroker('--page', '--metrics', '127.0.0.1:0', '--topic', 't')
  t.after(() => broker.stop())
  const lost = await broker.fault({ api: 'EndTxn', action: 'hold' })
  assert.equal(await lost.fired(), 0)
  assert.equal(await lost.release(), 0)
  await lost.close()
  await lost.close()
  assert.equal(await lost.fired(), 0)
  assert.deepEqual(await broker.records('t'), [])
  const between = await proxy(broker.bootstrapServers)
  t.after(() => between.stop())
  const closed = await between.fault({ api: 'ApiVersions', action: 'close' })
  const [host, port] = between.bootstrapServers.split(':')
  const socket = connect(port, host)
  socket.write(Buffer.from([0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 255, 255])) // ApiVersions
  await once(socket.resume(), 'close')
  assert.equal(await closed.fired(), 1)
  await assert.rejects(between.control('clock.advance', { hours: 2 }), /those behind a proxy are not ours/)
  assert.match(broker.page, /^http/)
  assert.match(broker.metrics, /^127/)
})

test('no broker', () => minibroker('--topic', 'a/b'))
"""


def test_a_refusal_and_a_broker_that_does_not_start_reject_with_the_reason(tmp_path: Path) -> None:
    done = run(tmp_path, FAILS)
    assert done.returncode == 1
    assert "\n# fail 2\n" in done.stdout
    assert "\nok 2 - handles" in done.stdout
    assert "did you mean minutes?" in done.stdout
    assert "minibroker did not start" in done.stdout
    assert "a/b" in done.stdout


def test_without_minibroker_the_test_says_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path, FAILS, MINIBROKER="no-such-program")
    assert done.returncode == 1
    assert "spawn no-such-program ENOENT; install minibroker with pip" in done.stdout


def test_the_file_of_the_project_comes_before_the_path(tmp_path: Path) -> None:
    said = project_program(tmp_path)
    done = run(tmp_path, FAILS, MINIBROKER="")
    assert done.returncode == 1
    assert said in done.stdout
