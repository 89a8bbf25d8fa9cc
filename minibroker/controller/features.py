"""Feature levels of the cluster (KIP-584, KIP-1022): what is supported, what is finalized, and UpdateFeatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minibroker.controller.state import ControllerState, Steps
from minibroker.releases.chain import NEWEST
from minibroker.releases.features import METADATA_VERSION, TRANSACTION_VERSION, Feature
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse

SUPPORTED_FEATURES: Mapping[str, Feature] = NEWEST.features
"""What this broker supports, by name. Kafka has more (share, streams, kraft …); they are not served here."""


def default_features(transaction_version: int) -> dict[str, int]:
    """What a new cluster finalizes."""
    levels = {name: feature.finalized for name, feature in SUPPORTED_FEATURES.items()}
    return levels | {TRANSACTION_VERSION: transaction_version}


_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


_ALL_FAILED = "The update failed for all features since the following feature had an error: "


class FeatureControl:
    """UpdateFeatures v0-2 against one `ControllerState`."""

    def __init__(self, state: ControllerState, problems: Callable[[int], list[str]] = lambda _: []) -> None:
        """problems(level): why transaction.version cannot have that level here."""
        self._state = state
        self._problems = problems

    def update(self, request: UpdateFeaturesRequest) -> Steps[UpdateFeaturesResponse]:
        """Apply all updates or none. A refusal is reported once; v2 has no results per feature."""
        results = []
        failed: ApiError | None = None
        for update in request.feature_updates:
            yield None
            try:
                self._check(update)
            except ApiError as error:
                failed = error.with_traceback(None)  # which would hold this frame, and it the error
                break
            results.append(
                UpdateFeaturesResponse.UpdatableFeatureResult(
                    feature=update.feature, error_code=ErrorCode.NONE, error_message="NONE"
                )
            )
        if failed is None and not request.validate_only:
            for update in request.feature_updates:
                self._state.set_feature(update.feature, update.max_version_level)
        return UpdateFeaturesResponse(
            error_code=failed.code if failed is not None else ErrorCode.NONE,
            error_message=f"{_ALL_FAILED}{failed.message}" if failed is not None else None,
            results=[] if failed is not None else results,
        )

    def _check(self, update: UpdateFeaturesRequest.FeatureUpdateKey) -> None:
        supported = SUPPORTED_FEATURES.get(update.feature)
        level = update.max_version_level
        if supported is None:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid update version {level} for feature {update.feature}. Local controller "
                f"{self._state.image.controller_id} does not support this feature.",
            )
        if level != 0 and not supported.lowest <= level <= supported.highest:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid update version {level} for feature {update.feature}. Local controller "
                f"{self._state.image.controller_id} only supports versions {supported.lowest}-{supported.highest}",
            )
        now = self._state.image.feature(update.feature)
        if update.upgrade_type not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid update version {level} for feature {update.feature}. The controller does not support the "
                f"given upgrade type.",
            )
        downgrade = update.upgrade_type != _UPGRADE  # v0's allowDowngrade says nothing to Kafka 4
        if level < now and not downgrade:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid update version {level} for feature {update.feature}. Can't downgrade the version of this "
                "feature without setting the upgrade type to either safe or unsafe downgrade.",
            )
        if level > now and downgrade:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid update version {level} for feature {update.feature}. Can't downgrade to a newer version.",
            )
        problems = self._problems(level) if update.feature == TRANSACTION_VERSION else []
        if problems:
            raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, f"{update.feature} {level}: {problems[0]}")
        if update.feature == METADATA_VERSION and level != now:
            raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, "metadata.version cannot be changed here.")
