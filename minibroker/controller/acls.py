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
        """For each filter the deleted entries."""
        results = []
        for filter_ in request.filters:
            yield None
            results.append(self._delete(filter_))
        return m.DeleteAclsResponse(filter_results=results)

    def _delete(self, filter_: m.DeleteAclsRequest.DeleteAclsFilter) -> _Deleted:
        if not self._enabled:
            return _Deleted(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        gone = sorted(filter(AclBindingFilter.of(filter_).matches, self._state.image.acls))
        for entry in gone:
            self._state.remove_acl(entry)
        matching = [
            m.DeleteAclsResponse.DeleteAclsMatchingAcl(
                resource_type=entry.resource_type,
                resource_name=entry.resource_name,
                pattern_type=entry.pattern_type,
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
            for entry in gone
        ]
        return _Deleted(matching_acls=matching)
