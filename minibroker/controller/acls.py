"""CreateAcls (30) and DeleteAcls (31) at the controller (Kafka's ``AclControlManager``)."""

from __future__ import annotations

from minibroker.controller.state import ControllerState, Steps
from minibroker.security.acls import NO_AUTHORIZER, AclBinding, AclBindingFilter, problem_of
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

_Created = m.CreateAclsResponse.AclCreationResult
_Deleted = m.DeleteAclsResponse.DeleteAclsFilterResult


class AclControl:
    """Changes the entries of the image; SECURITY_DISABLED where no authorizer is set."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state

    @property
    def _enabled(self) -> bool:
        return bool(self._state.settings.get_string("authorizer.class.name"))

    def create(self, request: m.CreateAclsRequest) -> Steps[m.CreateAclsResponse]:
        """One result for each entry; INVALID_REQUEST for an invalid one. An existing entry stays."""
        results = []
        for creation in request.creations:
            yield None
            results.append(self._create(creation))
        return m.CreateAclsResponse(results=results)

    def _create(self, creation: m.CreateAclsRequest.AclCreation) -> _Created:
        if not self._enabled:
            return _Created(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        entry = AclBinding.of(creation)
        problem = problem_of(entry)
        if problem is not None:
            return _Created(error_code=ErrorCode.INVALID_REQUEST, error_message=problem)
        if entry not in self._state.image.acls:
            self._state.add_acl(entry)
        return _Created()

    def delete(self, request: m.DeleteAclsRequest) -> Steps[m.DeleteAclsResponse]:
        """For each filter the entries that match it, also those that an earlier one of the request deletes.
        INVALID_REQUEST for an unknown value."""
        results = []
        deleted: set[AclBinding] = set()
        for filter_ in request.filters:
            yield None
            results.append(self._matching(filter_, deleted))
        if deleted := deleted & self._state.image.acls:  # another request may have been faster
            self._state.remove_acls(sorted(deleted))
        return m.DeleteAclsResponse(filter_results=results)

    def _matching(self, filter_: m.DeleteAclsRequest.DeleteAclsFilter, deleted: set[AclBinding]) -> _Deleted:
        if not self._enabled:
            return _Deleted(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        wanted = AclBindingFilter.of(filter_)
        if wanted.problem is not None:
            return _Deleted(error_code=ErrorCode.INVALID_REQUEST, error_message=wanted.problem)
        entries = sorted(filter(wanted.matches, self._state.image.acls))
        deleted.update(entries)
        return _Deleted(matching_acls=[entry.into(m.DeleteAclsResponse.DeleteAclsMatchingAcl) for entry in entries])
