"""Runs one scenario against a cluster."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from minibroker.client.connection import Connection
from minibroker.kernel.addresses import Address

from .cluster import ClusterUnderTest
from .failure import (
    ConnectionClosed,
    Differs,
    NoResponse,
    NotApplicable,
    ScenarioError,
    ScenarioFailed,
    SetUpFailed,
)
from .fewer_batches import batches_wanted, joined, next_offset
from .messages import decode_response, encode_request
from .paths import error_names, lookup, plain
from .patience import Patience
from .requests import request_body
from .routing import Router, group_of, transactional_ids
from .scenario import ANY_VERSION, KAFKA, Scenario, Step
from .traces import end_transaction
from .values import ABSENT, Comparison, Mismatch, Variables, as_bytes, resolve
from .weighing import (
    Difference,
    batch_key,
    goes_on,
    is_done_at_once,
    is_empty_list,
    is_refused_alike,
    never_became,
    of_another,
    weigh_answer,
)
from .weight import CODE, RECOVERY, Breach, heaviest

_TRANSIENT = frozenset(
    {
        "COORDINATOR_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "NOT_COORDINATOR",
        "CONCURRENT_TRANSACTIONS",
        "NOT_LEADER_OR_FOLLOWER",
        "LEADER_NOT_AVAILABLE",
    }
)
"""Errors after which `retry: true` asks again."""
_JOINING = frozenset({"AddPartitionsToTxn", "AddOffsetsToTxn", "Produce", "TxnOffsetCommit"})
"""What a transaction begins with."""
_LONG_NUMBER = re.compile(r"\d{3,}|mb-[0-9a-f]{6}-[\w-]*")
"""Producer ids and names, which are others in every scenario."""
_KINDS = {"raw": " (raw bytes)", "pipeline": " (pipelined requests)"}
_WAIT = "CONCURRENT_TRANSACTIONS"
_READS = frozenset({"Fetch", "ListOffsets", "OffsetFetch"})
"""What can be asked again and changes nothing."""
_SETTLE_SECONDS = 2.0
_RETRY_SECONDS = 0.05
_POLL_SECONDS = 0.1
_SILENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """timeout: seconds a response may take.
    patience: seconds a retried or polled step may.
    keep_going: after a mismatch go on and report all of them.
    verbose: print every response.
    keep_topics: don't delete them.
    expectation: what the broker is compared with.
    restart: restarts the broker, and returns once that is under way.
    """

    timeout: float = 10.0
    patience: float = 30.0
    keep_going: bool = False
    verbose: bool = False
    keep_topics: bool = False
    expectation: str = KAFKA
    restart: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class _Ticket:
    """A request under way."""

    connection: Connection
    correlation_id: int
    api: str
    version: int
    header_version: int | None


@dataclass(slots=True)
class ScenarioRun:
    """One run: its variables, connections and requests under way.

    token: makes names unique.
    now_ms: the wall clock, for batches and `$now`.
    breach: the heaviest of the run, None when it passed or the scenario itself is wrong.
    lawful: differences that a step allows.
    noted: differences of the set-up that do no harm, and what was not looked at.
    inapplicable: the answer that shows that the broker lacks the scenario's subject, as it may.
    unended: ids whose transaction may be open.
    stopped_by: the answer to the set-up that kept the scenario's subject from being requested.
    patience: shared by all steps of the run.
    where: the step that is under way or was the last one, in words.
    recorder: called with (step, path, answer) for every difference, which is then no failure.
    """

    cluster: ClusterUnderTest
    scenario: Scenario
    token: str
    options: Options
    now_ms: Callable[[], int]
    write: Callable[[str], None] = print
    variables: Variables = field(default_factory=dict)
    breach: Breach | None = None
    lawful: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    stopped_by: str = ""
    inapplicable: str = ""
    unended: set[str] = field(default_factory=set)
    recorder: Callable[[Step, str, Any], None] | None = None
    patience: Patience = field(default_factory=Patience)
    where: str = ""
    _connections: dict[tuple[str, Address], Connection] = field(default_factory=dict)
    _pending: dict[str, _Ticket] = field(default_factory=dict)
    _where: str = ""
    _mismatches: list[tuple[str, Breach | None]] = field(default_factory=list)
    _produced: set[str] = field(default_factory=set)
    _written: set[str] = field(default_factory=set)
    _neighbours: bool = False
    _unseen: bool = False
    _answered: str = ""
    _sooner: dict[str, Any] | None = None
    _unanswered: dict[tuple[Connection, int], str] = field(default_factory=dict)
    _groups_in_transactions: set[str | None] = field(default_factory=set)

    def again(self) -> ScenarioRun:
        """The same scenario once more, under other names."""
        return ScenarioRun(
            self.cluster,
            self.scenario,
            f"{self.token}-again",
            self.options,
            self.now_ms,
            self.write,
            patience=self.patience,
        )

    def run(self) -> str | None:
        """Why the scenario failed, or None. Never raises for what a broker does."""
        scenario = self.scenario
        self.variables["clock"] = self.now_ms()
        for name in (*scenario.names, *scenario.topics):
            self.variables[name] = f"mb-{self.token}-{name}"
        try:
            self._make_topics()
            self._run_steps(scenario.before, "before.")
            self._run_steps(scenario.steps, "")
            self._neighbours = True
            self._run_steps(scenario.after, "after.")
        except NotApplicable as exc:
            self.inapplicable = f"{self._where}: {exc}"
        except ScenarioError as exc:
            self._mismatches.append((f"{self._where}: scenario error: {exc}".removeprefix(": "), None))
        except SetUpFailed as exc:
            self._mismatches = [(str(exc), exc.breach)]
            self.stopped_by = exc.cause
        except Differs as exc:
            self._mismatches.append((str(exc), exc.breach))
        except ScenarioFailed as exc:
            self._mismatches.append((str(exc), RECOVERY))
        finally:
            self._tear_down()
        return self._verdict()

    def _verdict(self) -> str | None:
        """The heaviest difference, with `keep_going` all of them. A mistake in the scenario itself comes first."""
        if not self._mismatches:
            return None
        wrong = [text for text, breach in self._mismatches if breach is None]
        if not wrong:
            self.breach = heaviest(breach for _, breach in self._mismatches if breach)
        if self.options.keep_going:
            return "\n     ".join(text for text, _ in self._mismatches)
        return wrong[0] if wrong else next(text for text, breach in self._mismatches if breach is self.breach)

    def _make_topics(self) -> None:
        topics = self.scenario.topics
        if not topics:
            return
        try:
            ids = self.cluster.create_topics({self.variables[name]: spec for name, spec in topics.items()})
        except ScenarioFailed as exc:
            raise SetUpFailed(str(exc), str(exc).removeprefix("set-up: ")) from None
        for name in topics:
            self.variables[f"{name}.id"] = ids[self.variables[name]]

    def _tear_down(self) -> None:
        for connection in self._connections.values():
            connection.close()
        if self.options.keep_topics:
            return
        cluster = self.cluster.for_the_last_time() if self.cluster.abandoned else self.cluster
        self.unended -= {name for name in sorted(self.unended) if end_transaction(cluster, name)}
        topics = [self.variables[name] for name in self.scenario.topics]
        if topics:
            self.cluster.delete_topics(topics)

    def _run_steps(self, steps: tuple[Step, ...], prefix: str) -> None:
        for number, step in enumerate(steps, 1):
            where = f"step {prefix}{number}"
            self._where = f"{where} ({step.get('call')})" if step.api else where
            self.where = self._where + _KINDS.get(step.kind, "")
            if step.kind in ("loop", "versions"):
                self._loop(step, f"{prefix}{number}")
                continue
            with self._located(self._where):
                if not step.set_up:
                    self._run_step(step, steps[number] if number < len(steps) else None)
                    continue
                try:
                    self._run_step(step)
                except ScenarioFailed as exc:
                    breach = exc.breach if isinstance(exc, Differs) else RECOVERY
                    cause = f"{step.get('call')}: {_LONG_NUMBER.sub('N', str(exc))}"
                    raise SetUpFailed(str(exc), cause, breach) from None

    @contextlib.contextmanager
    def _located(self, where: str) -> Iterator[None]:
        try:
            yield
        except SetUpFailed as exc:
            raise SetUpFailed(f"{where}: {exc}", exc.cause, exc.breach) from None
        except Differs as exc:
            raise Differs(f"{where}: {exc}", exc.breach) from None
        except ScenarioFailed as exc:
            raise type(exc)(f"{where}: {exc}") from None

    def _loop(self, step: Step, place: str) -> None:
        if step.kind == "versions":
            for version in step.get("versions"):
                self.variables["v"] = version
                self._run_steps(step.steps, f"{place}[v{version}].")
            return
        for turn in range(int(resolve(step.get("loop"), self.variables, strict=True))):
            self.variables[step.get("as", "i")] = turn
            self._run_steps(step.steps, f"{place}[{turn}].")

    def _version(self, step: Step) -> int:
        return step.version if step.version != ANY_VERSION else int(self.variables["v"])

    def _run_step(self, step: Step, following: Step | None = None) -> None:
        if step.dispensable and self.cluster.lacks({(step.api, step.version)}):
            if not self._unseen:
                self.noted.append(f"{step.api} is not served: the states of transactions were not looked at")
            self._unseen = True
            return
        match step.kind:
            case "sleep":
                self.cluster.pause(step.get("sleep"))
            case "set":
                for name, value in step.get("set").items():
                    self.variables[name] = resolve(value, self.variables, strict=True)
            case "raw":
                self._raw(step)
            case "restart":
                self._restart()
            case "pipeline":
                self._pipeline(step)
            case "recv":
                ticket = self._pending.pop(step.get("recv"), None)
                if ticket is None:
                    raise ScenarioError(f"recv: nothing was sent as {step.get('recv')!r}")
                self._answered = ticket.api
                self._compare(step, self._receive(ticket, self._timeout(step)))
            case _:
                self._call(step, following)

    def _restart(self) -> None:
        if self.options.restart is None:
            raise ScenarioError("nothing here can restart the broker")
        for connection in self._connections.values():
            connection.close()
        self._connections, self._pending = {}, {}
        self.options.restart()
        self.cluster.wait_until_up(f"{self.token}-restarted")

    def _timeout(self, step: Step) -> float:
        whole = self.patience.limit(self.options.timeout, step.api)
        return float(step.get("timeout", whole))

    # One request

    def _connection(self, name: str, address: Address) -> Connection:
        key = (name, address)
        if key not in self._connections:
            self._connections[key] = self.cluster.connect(address)
        return self._connections[key]

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._connections = {key: value for key, value in self._connections.items() if value is not connection}

    def _send(self, step: Step, router: Router) -> _Ticket:
        header = step.get("header") or {}
        body: dict[str, Any] = {}
        raw_body = None
        if "rawBody" in step.options:
            raw_body = bytes.fromhex(step.get("rawBody"))
        else:
            body = request_body(step.api, self._version(step), step.options, self.variables, self.now_ms)
        if step.api in _JOINING:
            self.unended.update(transactional_ids(body))
            self._written.update(transactional_ids(body))
        if step.api == "TxnOffsetCommit":
            self._groups_in_transactions.add(group_of(body))
        connection = self._connection(step.get("conn", "main"), router.address(step, body))
        connection.correlation_id = header.get("correlationId", connection.correlation_id + 1)
        frame = encode_request(
            step.api,
            self._version(step),
            body,
            correlation_id=connection.correlation_id,
            client_id=header.get("clientId", self.cluster.client_id),
            header=header,
            raw_body=raw_body,
        )
        if step.get("cut"):
            frame = frame[: -step.get("cut")]
        frame += bytes.fromhex(step.get("tail", ""))
        connection.send_frame(frame, size_delta=step.get("sizeDelta", 0))
        if step.get("noResponse"):
            self._unanswered[connection, connection.correlation_id] = step.get("call")
        return _Ticket(
            connection,
            connection.correlation_id,
            header.get("responseApi", step.api),
            header.get("responseVersion", self._version(step)),
            header.get("responseHeaderVersion"),
        )

    def _receive(self, ticket: _Ticket, timeout: float) -> dict[str, Any]:
        try:
            frame = ticket.connection.receive(timeout)
        except (ConnectionClosed, NoResponse) as error:
            self._drop(ticket.connection)
            if isinstance(error, NoResponse) and timeout >= self.options.timeout:
                self.patience.failed(ticket.api)
            raise
        answered = int.from_bytes(frame[:4], "big", signed=True)
        unwanted = self._unanswered.get((ticket.connection, answered))
        if answered != ticket.correlation_id and unwanted is not None:
            raise ScenarioFailed(f"acks=0 was answered ({unwanted})")
        got, response = decode_response(frame, ticket.api, ticket.version, header_version=ticket.header_version)
        if got != ticket.correlation_id:
            raise ScenarioFailed(f"correlation id: expected {ticket.correlation_id}, got {got}")
        return response

    def _router(self) -> Router:
        return Router(self.cluster, self.variables)

    def _call(self, step: Step, following: Step | None) -> None:
        router = self._router()
        if step.get("outcome"):
            return self._check_outcome(step, self._send(step, router).connection)
        if step.get("noResponse"):
            self._send(step, router)
            return None
        if step.get("async"):
            self._pending[step.get("async")] = self._send(step, router)
            return None
        if self._sooner is not None:
            answer, self._sooner = self._sooner, None
            return self._compare(step, answer)
        answer = self._read_on(step, router, self._answer(step, router))
        if self._is_sooner(step, following, answer):
            self.lawful.append(f"{self._where}: answered at once, in Kafka {_WAIT}")
            self._sooner = answer
            return None
        return self._compare(step, answer)

    def _read_on(self, step: Step, router: Router, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer to a Fetch, with the batches that the broker keeps for the next one: how many it gives at once is
        its own matter."""
        wanted = batches_wanted(step, step.expected(self.options.expectation))
        answers = 1
        while (offset := next_offset(answer, wanted)) is not None:
            partition = str(step.get("at")).partition("@")[0]
            further = replace(step, options={**step.options, "at": f"{partition}@{offset}"})
            more = self._receive(self._send(further, router), self._timeout(step))
            if not joined(answer, more):
                break
            answers += 1
        if answers > 1:
            self.lawful.append(f"{self._where}: the batches came in {answers} answers, in Kafka in one")
        return answer

    def _is_sooner(self, step: Step, following: Step | None, answer: dict[str, Any]) -> bool:
        """Whether Kafka lets the client ask again, as the next step does, and the broker gives that answer now."""
        expected = step.expected(self.options.expectation)
        if following is None or _WAIT not in map(str, expected.values()) or step.get("req") != following.get("req"):
            return False
        later = following.expected(self.options.expectation)
        return (
            (step.api, step.version) == (following.api, following.version)
            and self._first_mismatch(dict(expected), answer) is not None
            and self._first_mismatch(dict(later), answer) is None
        )

    def _answer(self, step: Step, router: Router) -> dict[str, Any]:
        """The response that counts: asked again while it is a transient error or not what `until` wants."""
        begun = time.monotonic()
        retry = step.get("retry") or []
        again = _TRANSIENT if retry is True else frozenset(retry)
        until = step.get("until") or {}
        settles = False
        if self._unseen:  # a request whose answer was not awaited may still be under way
            expected = dict(step.expected(self.options.expectation))
            again |= {_WAIT} - {*map(str, expected.values())}
            if step.api in _READS and not until:
                until, settles = expected, True
        while True:
            response = self._receive(self._send(step, router), self._timeout(step))
            errors = again.intersection(error_names(response))
            if errors and not self._late(step, begun, errors):
                self.cluster.pause(_RETRY_SECONDS)
                router.forget()
                continue
            wrong = self._first_mismatch(until, response)
            if wrong is None or (settles and time.monotonic() - begun > _SETTLE_SECONDS):
                return response
            # Numbers are others in every scenario.
            if not settles and self._late(
                step, begun, {wrong.path, *([wrong.got] if isinstance(wrong.got, str) else [])}
            ):
                said = f"{wrong.path} never became {wrong.expected!r} (last: {wrong.got!r})"
                breach = self._never_became(step, response)
                self._differs(step, [(said, breach)], goes=breach.weight.light)
                return response
            self.cluster.pause(step.get("every", _POLL_SECONDS))

    def _late(self, step: Step, begun: float, answer: Iterable[str]) -> bool:
        """Whether a step is asked no more, because of the time since it `begun`.

        answer: what is wrong with the last one.
        """
        waited, way = time.monotonic() - begun, (step.api, frozenset(answer))
        if "within" in step.options:  # a time that the scenario is about
            return waited > float(step.get("within"))
        if waited > self.options.patience:
            self.patience.failed(way)
        return waited > self.patience.limit(self.options.patience, way)

    def _pipeline(self, step: Step) -> None:
        router = self._router()
        sent = [(inner, self._send(inner, router)) for inner in step.steps]
        for number, (inner, ticket) in enumerate(sent, 1):
            if not inner.get("noResponse"):
                with self._located(f"pipelined request {number} ({inner.get('call')})"):
                    self._compare(inner, self._receive(ticket, self._timeout(inner)))

    def _raw(self, step: Step) -> None:
        raw = step.get("raw")
        connection = self._connection(step.get("conn", "main"), self.cluster.bootstrap[0])
        connection.send((bytes.fromhex(raw) if isinstance(raw, str) else as_bytes(raw)) or b"")
        if step.get("outcome"):
            self._check_outcome(step, connection)

    def _check_outcome(self, step: Step, connection: Connection) -> None:
        """That the connection is closed, or that nothing comes."""
        wanted = step.get("outcome")
        limit = _SILENCE_SECONDS if wanted == "silent" else self.options.timeout
        try:
            got = f"a response of {len(connection.receive(float(step.get('timeout', limit))))} bytes"
        except ConnectionClosed:
            got = "closed"
        except NoResponse:
            got = "silent"
        self._drop(connection)
        if got != wanted:
            raise Differs(f"outcome: expected {wanted}, got {got}", step.breach or CODE)

    # What came back

    def _first_mismatch(self, expected: dict[str, Any], response: dict[str, Any]) -> Mismatch | None:
        for path, value in expected.items():
            if mismatch := self._mismatch(path, value, response):
                return mismatch
        return None

    def _mismatch(self, path: str, expected: Any, response: dict[str, Any]) -> Mismatch | None:
        got = lookup(response, path, self.variables)
        mismatch = Comparison(self.variables, self.now_ms).mismatch(expected, got)
        return mismatch and Mismatch(path + mismatch.path, mismatch.expected, mismatch.got)

    def _may(self, step: Step, path: str, response: dict[str, Any]) -> bool:
        """Whether the answer is another one that the protocol allows as well."""
        others = (step.get("may") or {}).get(path, [])
        return any(self._mismatch(path, other, response) is None for other in others)

    def _difference(self, step: Step, path: str, expected: Any, response: dict[str, Any]) -> Difference:
        request = resolve({**(step.get("req") or {}), "at": step.get("at")}, self.variables)
        wanted, got = resolve(expected, self.variables), lookup(response, path, self.variables)
        api = step.api or self._answered
        repeated = self._batch(step) in self._produced
        written = request.get("transactionalId") in self._written
        foreign = self._is_neighbours(step, request)
        in_transaction = group_of(request) in self._groups_in_transactions
        return Difference(api, path, wanted, got, request, response, repeated, written, foreign, in_transaction)

    def _is_neighbours(self, step: Step, request: dict[str, Any]) -> bool:
        ids = resolve([step.get("batch") or {}, *(request.get("transactions") or [])], self.variables)
        used = [request.get("producerId"), *(part.get("producerId", part.get("pid")) for part in ids)]
        return "neighbour" in self.variables and self.variables["neighbour"] in used

    def _batch(self, step: Step) -> str:
        return batch_key(resolve({key: step.get(key) for key in ("at", "batch")}, self.variables))

    def _weighed(self, step: Step, differences: list[Difference]) -> list[Breach]:
        breaches = [step.breach] * len(differences) if step.breach else weigh_answer(differences)
        return [of_another(breach) for breach in breaches] if self._neighbours else breaches

    def _never_became(self, step: Step, response: dict[str, Any]) -> Breach:
        differences = (
            self._difference(step, path, value, response)
            for path, value in (step.get("until") or {}).items()
            if self._mismatch(path, value, response)
        )
        return step.breach or heaviest(map(never_became, differences))

    def _compare(self, step: Step, response: dict[str, Any]) -> None:
        if self.options.verbose:
            shown = json.dumps(plain(response), default=str)
            self.write(f"    {self.scenario.name} {step.get('call') or step.get('recv')} {shown}")
        for path, value in (step.get("unless") or {}).items():
            if self._mismatch(path, value, response) is None:
                raise NotApplicable(f"{path} is {lookup(response, path, self.variables)!r}, as it may be")
        for name, path in (step.get("save") or {}).items():
            value = lookup(response, path, self.variables)
            if value == ABSENT:
                raise ScenarioFailed(f"save {name}: no {path} in the response")
            self.variables[name] = value
        wrongs: list[tuple[Mismatch, Difference]] = []
        done_at_once = False
        for path, expected in step.expected(self.options.expectation).items():
            wrong = self._mismatch(path, expected, response)
            if wrong is None:
                continue
            if self.recorder is not None and step not in (*self.scenario.before, *self.scenario.after):
                self.recorder(step, path, lookup(response, path, self.variables))
                continue
            difference = self._difference(step, path, expected, response)
            done_at_once = done_at_once or is_done_at_once(difference)
            is_lawful = is_empty_list(difference) or is_refused_alike(difference)
            if done_at_once or is_lawful or self._may(step, path, response):
                self.lawful.append(f"{self._where}: {wrong.path} is {wrong.got!r}, in Kafka {wrong.expected!r}")
                continue
            wrongs.append((wrong, difference))
        if batch := self._batch(step):
            self._produced.add(batch)
        if step.api == "EndTxn" and response.get("errorCode") == "NONE":
            self._written.discard(resolve(step.get("req") or {}, self.variables).get("transactionalId", ""))
        if wrongs:
            self._judge(step, wrongs)

    def _judge(self, step: Step, wrongs: list[tuple[Mismatch, Difference]]) -> None:
        """Raises Differs where nothing can be told of later steps."""
        breaches = self._weighed(step, [difference for _, difference in wrongs])
        said = [f"field {wrong.path}: expected {wrong.expected!r}, got {wrong.got!r}" for wrong, _ in wrongs]
        goes = all(goes_on(difference, its) for (_, difference), its in zip(wrongs, breaches, strict=True))
        self._differs(step, list(zip(said, breaches, strict=True)), goes=goes)

    def _differs(self, step: Step, differences: list[tuple[str, Breach]], *, goes: bool) -> None:
        """Raises Differs unless the scenario can continue: of the set-up only the resulting state matters."""
        if not goes and (step.set_up or not self.options.keep_going):
            breach = heaviest(its for _, its in differences)
            raise Differs(next(text for text, its in differences if its is breach), breach)
        if step.set_up:
            self.noted += [f"in the set-up, {self._where}: {text}" for text, _ in differences]
        else:
            self._mismatches += [(f"{self._where}: {text}", its) for text, its in differences]
