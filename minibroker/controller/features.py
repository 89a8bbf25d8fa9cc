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


class FeatureControl:
    """UpdateFeatures v0-2 against one `ControllerState`."""

    def __init__(self, state: ControllerState, problems: Callable[[int], list[str]] = lambda _: []) -> None:
        """problems(level): why transaction.version cannot have that level here."""
        self._state = state
        self._problems = problems

    def update(self, request: UpdateFeaturesRequest) -> Steps[UpdateFeaturesResponse]:
        """All updates or none (v2 reports a top-level error, earlier versions one per feature)."""
        results = []
        failed: ApiError | None = None
        for update in request.feature_updates:
            yield
            try:
                self._check(update)
                code, message = ErrorCode.NONE, None
            except ApiError as error:
                failed = failed or error
                code, message = error.code, error.message
            results.append(
                UpdateFeaturesResponse.UpdatableFeatureResult(
                    feature=update.feature, error_code=code, error_message=message
                )
            )
        if failed is None and not request.validate_only:
            for update in request.feature_updates:
                self._state.set_feature(update.feature, update.max_version_level)
        return UpdateFeaturesResponse(
            error_code=failed.code if failed is not None else ErrorCode.NONE,
            error_message=failed.message if failed is not None else None,
            results=results,
        )

    def _check(self, update: UpdateFeaturesRequest.FeatureUpdateKey) -> None:
        supported = SUPPORTED_FEATURES.get(update.feature)
        level = update.max_version_level
        if supported is None:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION, f"The controller does not support the given feature {update.feature}."
            )
        if level != 0 and not supported.lowest <= level <= supported.highest:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{update.feature}: expected a level from {supported.lowest} to {supported.highest}, got {level}",
            )
        now = self._state.image.feature(update.feature)
        downgrade = update.allow_downgrade or update.upgrade_type in (_SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE)
        if level < now and not downgrade:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Can't downgrade the version of feature {update.feature} without setting the upgrade type.",
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
