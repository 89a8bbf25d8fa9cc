"""The controller as a node: Kafka's request objects in, responses out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from minibroker.controller.acls import AclControl
from minibroker.controller.configs import ConfigControl
from minibroker.controller.features import FeatureControl
from minibroker.controller.heartbeats import BrokerHeartbeats
from minibroker.controller.reassignments import ReassignmentControl
from minibroker.controller.replication import ReplicationControl
from minibroker.controller.scram import ScramControl
from minibroker.controller.state import ControllerState, Steps
from minibroker.controller.topics import TopicControl
from minibroker.kernel.clock import Timers
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import Executor
from minibroker.kernel.logs import get_logger
from minibroker.releases.semantics import KAFKA, Semantics
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode

log = get_logger(__name__)

_STEPS_AT_ONCE = 12
"""Topics, or each hundred partitions, made in one turn of the loop: some half a millisecond each."""


class Controller:
    """Serves the requests that change metadata, one at a time, in the order they arrive. A change is answered once the
    journal is synced, on the executor; waiting answers share a sync.

    failed: called once the journal has failed; from then on every change is refused.
    """

    def __init__(
        self,
        state: ControllerState,
        executor: Executor,
        timers: Timers,
        semantics: Semantics = KAFKA,
        failed: Callable[[ApiError], None] = lambda _: None,
    ) -> None:
        self._timers = timers
        self._failed = failed
        self._failure_reported = False
        self._working = False
        self._closed = False
        self._waiting: deque[tuple[Request, int, Deferred[Response]]] = deque()
        self.state = state
        self._executor = executor
        self._syncing = False
        self._unsynced: list[tuple[Deferred[Response], Response]] = []
        unknown_operation = ErrorCode[semantics.unknown_logger_operation]
        topics, configs = TopicControl(state), ConfigControl(state, executor, unknown_operation)
        features = FeatureControl(state, semantics.problems)
        self.replication = ReplicationControl(state)
        self.reassignments = ReassignmentControl(state, self.replication)
        self.heartbeats = BrokerHeartbeats(state, self.replication)
        acls = AclControl(state)
        self._handlers: dict[type[Request], Callable[[Any], Response | Steps[Any]]] = {
            m.CreateTopicsRequest: topics.creating,
            m.DeleteTopicsRequest: topics.delete_topics,
            m.CreatePartitionsRequest: topics.create_partitions,
            m.IncrementalAlterConfigsRequest: lambda request: self._configured(configs.incremental_alter(request)),
            m.AlterConfigsRequest: lambda request: self._configured(configs.alter(request)),
            m.UpdateFeaturesRequest: features.update,
            m.CreateAclsRequest: acls.create,
            m.DeleteAclsRequest: acls.delete,
            m.AlterUserScramCredentialsRequest: ScramControl(state).alter,
            m.BrokerHeartbeatRequest: self.heartbeats.heartbeat,
            m.AllocateProducerIdsRequest: self._allocate_producer_ids,
            m.ElectLeadersRequest: self.replication.elect_leaders,
            m.UnregisterBrokerRequest: self.replication.unregister,
            m.AlterPartitionReassignmentsRequest: self.reassignments.alter,
            m.ListPartitionReassignmentsRequest: self.reassignments.listed,
        }

    def handle(self, request: Request, api_version: int) -> Deferred[Response]:
        """Serve one request."""
        answer: Deferred[Response] = Deferred()
        refusal = self.state.journal.failed
        if refusal is not None:
            answer.fail(refusal)
        elif self._working:
            self._waiting.append((request, api_version, answer))
        else:
            self._serve(request, api_version, answer)
        return answer

    def close(self) -> None:
        """Another controller takes over: the running request stops after its current change."""
        self._closed = True
        self._waiting.clear()

    def _serve(self, request: Request, api_version: int, answer: Deferred[Response]) -> None:
        handler = self._handlers.get(type(request))
        if isinstance(request, m.AlterPartitionRequest):  # the only one whose meaning depends on its version

            def handler(request: Any) -> Response:
                return self.replication.alter_partition(request, api_version)

        if handler is None:
            answer.fail(
                ApiError(ErrorCode.UNSUPPORTED_VERSION, f"the controller does not serve {type(request).__name__}")
            )
            return
        try:
            response = handler(request)
        except Exception as error:
            answer.fail(error)
            self._look_at_journal()
            return
        if isinstance(response, Response):
            self._respond(answer, response)
        else:
            self._go_on(response, answer)

    def _go_on(self, work: Steps[Any], answer: Deferred[Response]) -> None:
        """Run some steps of long work, then yield to the loop. Other requests wait until all steps are done."""
        if self._closed:
            work.close()
            return
        self._working = False
        awaited: Deferred[Any] | None = None
        try:
            for _ in range(_STEPS_AT_ONCE):
                awaited = next(work)
                if awaited is not None and not awaited.done:
                    break
        except StopIteration as stop:
            self._respond(answer, stop.value)
        except Exception as error:
            answer.fail(error)
            self._look_at_journal()
        else:
            self._working = True
            if awaited is None or awaited.done:
                self._timers.call_later(0, lambda: self._go_on(work, answer))
            else:
                awaited.then(lambda _: self._go_on(work, answer))
        while self._waiting and not self._working:
            self._serve(*self._waiting.popleft())

    def _respond(self, answer: Deferred[Response], response: Response) -> None:
        if self._syncing or self.state.journal.unsynced:
            self._unsynced.append((answer, response))
            self._sync()
        else:
            answer.resolve(response)

    def _sync(self) -> None:
        if self._syncing:
            return
        self._syncing = True
        waiting, self._unsynced = self._unsynced, []
        self._executor.submit(self.state.journal.sync).then(lambda done: self._synced(done, waiting))

    def _synced(self, done: Deferred[None], waiting: list[tuple[Deferred[Response], Response]]) -> None:
        self._syncing = False
        try:
            done.result()
        except Exception as error:
            for answer, _ in waiting:
                answer.fail(error)
            self._look_at_journal()
        else:
            for answer, response in waiting:
                answer.resolve(response)
        if self._unsynced:
            self._sync()

    def _look_at_journal(self) -> None:
        error = self.state.journal.failed
        if error is not None and not self._failure_reported:
            self._failure_reported = True
            self._failed(error)

    def _configured(self, work: Steps[Response]) -> Steps[Response]:
        response = yield from work
        # unclean.leader.election.enable may just have been switched on for a partition that waits for it.
        self.replication.elect_missing()
        return response

    def _allocate_producer_ids(self, _: m.AllocateProducerIdsRequest) -> m.AllocateProducerIdsResponse:
        try:
            first, count = self.state.allocate_producer_ids()
        except ApiError as error:
            return m.AllocateProducerIdsResponse(error_code=error.code, producer_id_start=-1, producer_id_len=0)
        return m.AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=count)
