"""Each setting with an effect has a test that fails when no code reads it.

The rows name those tests; every night each of them runs with its setting ignored, and must fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from ignored_setting import VARIABLE
from packages import ROOT

from minibroker.config.groups import GROUP_KEYS
from minibroker.config.keys import BROKER_KEYS, TOPIC_KEYS
from minibroker.config.types import ConfigKey

SEEN: dict[str, dict[str, str]] = {
    "minibroker/broker/test_checkpoint_intervals.py": {
        "log.flush.offset.checkpoint.interval.ms": "test_each_checkpoint_has_its_own_interval",
        "log.flush.start.offset.checkpoint.interval.ms": "test_each_checkpoint_has_its_own_interval",
        "replica.high.watermark.checkpoint.interval.ms": "test_each_checkpoint_has_its_own_interval",
    },
    "minibroker/broker/test_log_cleaner.py": {
        "log.cleaner.backoff.ms": "test_a_sweep_compacts_what_is_dirty_and_remembers_how_far",
        "log.cleaner.enable": "test_nothing_is_compacted_while_the_cleaner_is_off",
        "log.retention.bytes": "test_a_fetch_that_waits_is_told_when_retention_takes_its_records",
        "log.retention.check.interval.ms": "test_a_log_whose_old_segments_cannot_be_deleted_keeps_no_other_from_it",
        "log.retention.ms": "test_a_log_whose_old_segments_cannot_be_deleted_keeps_no_other_from_it",
        "producer.id.expiration.check.interval.ms": "test_a_sweep_forgets_producers_that_were_idle_for_too_long",
        "producer.id.expiration.ms": "test_a_sweep_forgets_producers_that_were_idle_for_too_long",
    },
    "minibroker/requests/test_not_yet.py": {
        "minibroker.not.yet.answers": "test_the_first_coordinator_of_each_kind",
    },
    "minibroker/broker/test_replica_fetcher.py": {
        "replica.fetch.max.bytes": "test_a_follower_fetches_within_its_limits",
        "replica.fetch.min.bytes": "test_a_follower_fetches_within_its_limits",
        "replica.fetch.response.max.bytes": "test_a_follower_fetches_within_its_limits",
        "replica.fetch.wait.max.ms": "test_a_follower_fetches_within_its_limits",
    },
    "minibroker/cluster/test_coordinator_failover.py": {
        "minibroker.semantics.marker_without_leader": "test_a_marker_for_a_partition_that_nobody_leads",
    },
    "minibroker/cluster/test_failing_disk.py": {
        "log.flush.interval.messages": "test_a_replica_that_cannot_be_synced_holds_up_no_other",
    },
    "minibroker/cluster/test_failover.py": {
        "auto.leader.rebalance.enable": "test_preferred_leaders_come_back_by_themselves",
        "leader.imbalance.check.interval.seconds": "test_preferred_leaders_come_back_by_themselves",
        "topic:unclean.leader.election.enable": "test_unclean_elections_may_be_allowed",
        "unclean.leader.election.enable": "test_unclean_elections_may_be_allowed",
    },
    "minibroker/cluster/test_lost_data.py": {
        "log.cleanup.policy": "test_a_start_says_that_a_segment_is_missing_with_all_its_files",
        "minibroker.refuse.lost.data": "test_a_start_says_what_is_gone_and_can_be_refused",
    },
    "minibroker/cluster/test_replication.py": {
        "replica.lag.time.max.ms": "test_a_follower_that_stops_fetching_is_dropped_after_the_lag_time",
    },
    "minibroker/cluster/test_sessions.py": {
        "broker.heartbeat.interval.ms": "test_heartbeats_that_are_too_rare_are_told_of",
        "broker.session.timeout.ms": "test_heartbeats_that_are_too_rare_are_told_of",
    },
    "minibroker/cluster/test_socket_network.py": {
        "minibroker.inter.broker.sockets": "test_a_cluster_over_sockets_replicates_and_fails_over",
    },
    "minibroker/config/test_settings_reach.py": {
        "compression.gzip.level": "test_a_brokers_setting_reaches_its_logs",
        "compression.type": "test_a_brokers_setting_reaches_its_logs",
        "compression.zstd.level": "test_a_brokers_setting_reaches_its_logs",
        "connections.max.idle.ms": "test_settings_reach_the_limits_of_connections",
        "default.replication.factor": "test_settings_reach_the_topics_that_are_created",
        "delete.topic.enable": "test_a_topic_is_not_deleted_where_that_is_disabled",
        "group.consumer.assignors": "test_settings_reach_the_coordinators",
        "group.consumer.heartbeat.interval.ms": "test_settings_reach_the_coordinators",
        "group.consumer.max.assignment.interval.ms": "test_a_broker_says_how_far_its_groups_may_go",
        "group.consumer.max.heartbeat.interval.ms": "test_a_broker_says_how_far_its_groups_may_go",
        "group.consumer.max.session.timeout.ms": "test_a_broker_says_how_far_its_groups_may_go",
        "group.consumer.min.assignment.interval.ms": "test_a_broker_says_how_often_a_group_may_be_assigned_at_most",
        "group.consumer.min.heartbeat.interval.ms": "test_a_broker_says_how_far_its_groups_may_go",
        "group.consumer.min.session.timeout.ms": "test_a_broker_says_how_far_its_groups_may_go",
        "group.consumer.session.timeout.ms": "test_settings_reach_the_coordinators",
        "group.initial.rebalance.delay.ms": "test_settings_reach_the_coordinators",
        "group.max.session.timeout.ms": "test_settings_reach_the_coordinators",
        "group.min.session.timeout.ms": "test_settings_reach_the_coordinators",
        "group:consumer.assignment.interval.ms": "test_a_groups_setting_reaches_its_configuration",
        "group:consumer.heartbeat.interval.ms": "test_a_groups_setting_reaches_its_configuration",
        "group:consumer.session.timeout.ms": "test_a_groups_setting_reaches_its_configuration",
        "log.cleaner.delete.retention.ms": "test_a_brokers_setting_reaches_its_logs",
        "log.cleaner.max.compaction.lag.ms": "test_a_brokers_setting_reaches_its_logs",
        "log.cleaner.min.cleanable.ratio": "test_a_brokers_setting_reaches_its_logs",
        "log.cleaner.min.compaction.lag.ms": "test_a_brokers_setting_reaches_its_logs",
        "log.flush.scheduler.interval.ms": "test_a_brokers_setting_reaches_its_logs",
        "log.index.interval.bytes": "test_a_brokers_setting_reaches_its_logs",
        "log.index.size.max.bytes": "test_a_brokers_setting_reaches_its_logs",
        "log.message.timestamp.after.max.ms": "test_a_brokers_setting_reaches_its_logs",
        "log.message.timestamp.before.max.ms": "test_a_brokers_setting_reaches_its_logs",
        "log.message.timestamp.type": "test_a_brokers_setting_reaches_its_logs",
        "log.retention.hours": "test_a_brokers_setting_reaches_its_logs",
        "log.retention.minutes": "test_a_brokers_setting_reaches_its_logs",
        "log.roll.hours": "test_a_brokers_setting_reaches_its_logs",
        "log.roll.jitter.hours": "test_a_brokers_setting_reaches_its_logs",
        "log.roll.jitter.ms": "test_a_brokers_setting_reaches_its_logs",
        "log.roll.ms": "test_a_brokers_setting_reaches_its_logs",
        "log.segment.bytes": "test_a_brokers_setting_reaches_its_logs",
        "log.segment.delete.delay.ms": "test_a_brokers_setting_reaches_its_logs",
        "max.decompressed.message.bytes": "test_a_brokers_setting_reaches_its_logs",
        "max.incremental.fetch.session.cache.slots": "test_there_are_so_many_fetch_sessions",
        "max.request.partition.size.limit": "test_a_description_of_topics_has_so_many_partitions",
        "message.max.bytes": "test_a_brokers_setting_reaches_its_logs",
        "min.insync.replicas": "test_a_brokers_setting_reaches_its_logs",
        "minibroker.queued.max.response.bytes": "test_settings_reach_the_limits_of_connections",
        "num.partitions": "test_settings_reach_the_topics_that_are_created",
        "offset.metadata.max.bytes": "test_settings_reach_the_coordinators",
        "offsets.topic.num.partitions": "test_settings_reach_the_topics_that_are_created",
        "offsets.topic.segment.bytes": "test_settings_reach_the_topics_that_are_created",
        "queued.max.request.bytes": "test_settings_reach_the_limits_of_connections",
        "topic:cleanup.policy": "test_a_topics_setting_reaches_its_log",
        "topic:compression.gzip.level": "test_a_topics_setting_reaches_its_log",
        "topic:compression.type": "test_a_topics_setting_reaches_its_log",
        "topic:compression.zstd.level": "test_a_topics_setting_reaches_its_log",
        "topic:delete.retention.ms": "test_a_topics_setting_reaches_its_log",
        "topic:file.delete.delay.ms": "test_a_topics_setting_reaches_its_log",
        "topic:flush.messages": "test_a_topics_setting_reaches_its_log",
        "topic:flush.ms": "test_a_topics_setting_reaches_its_log",
        "topic:index.interval.bytes": "test_a_topics_setting_reaches_its_log",
        "topic:internal.segment.bytes": "test_a_topics_segment_size_for_tests_reaches_its_log",
        "topic:max.compaction.lag.ms": "test_a_topics_setting_reaches_its_log",
        "topic:max.decompressed.message.bytes": "test_a_topics_setting_reaches_its_log",
        "topic:max.message.bytes": "test_a_topics_setting_reaches_its_log",
        "topic:message.timestamp.after.max.ms": "test_a_topics_setting_reaches_its_log",
        "topic:message.timestamp.before.max.ms": "test_a_topics_setting_reaches_its_log",
        "topic:message.timestamp.type": "test_a_topics_setting_reaches_its_log",
        "topic:min.cleanable.dirty.ratio": "test_a_topics_setting_reaches_its_log",
        "topic:min.compaction.lag.ms": "test_a_topics_setting_reaches_its_log",
        "topic:min.insync.replicas": "test_a_topics_setting_reaches_its_log",
        "topic:retention.bytes": "test_a_topics_setting_reaches_its_log",
        "topic:retention.ms": "test_a_topics_setting_reaches_its_log",
        "topic:segment.bytes": "test_a_topics_setting_reaches_its_log",
        "topic:segment.index.bytes": "test_a_topics_setting_reaches_its_log",
        "topic:segment.jitter.ms": "test_a_topics_setting_reaches_its_log",
        "topic:segment.ms": "test_a_topics_setting_reaches_its_log",
        "transaction.max.timeout.ms": "test_settings_reach_the_coordinators",
        "transaction.state.log.min.isr": "test_settings_reach_the_topics_that_are_created",
        "transaction.state.log.num.partitions": "test_settings_reach_the_topics_that_are_created",
        "transaction.state.log.replication.factor": "test_settings_reach_the_topics_that_are_created",
        "transaction.state.log.segment.bytes": "test_settings_reach_the_topics_that_are_created",
        "transaction.two.phase.commit.enable": "test_settings_reach_the_coordinators",
        "transactional.id.expiration.ms": "test_settings_reach_the_coordinators",
    },
    "minibroker/coordinator_runtime/test_transaction_service.py": {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "test_timeouts_are_looked_for_every_cleanup_interval",  # noqa: E501
    },
    "minibroker/coordinator_runtime/test_transaction_verifier.py": {
        "add.partitions.to.txn.retry.backoff.max.ms": "test_how_often_version_12_asks",
        "add.partitions.to.txn.retry.backoff.ms": "test_how_often_version_12_asks",
    },
    "minibroker/coordinators/groups/test_classic_timers.py": {
        "group.max.size": "test_group_max_size_members_and_not_one_more",
    },
    "minibroker/coordinators/groups/test_consumer_groups.py": {
        "group.consumer.assignment.interval.ms": "test_a_new_target_waits_for_the_interval_of_assignments",
        "group.consumer.max.size": "test_a_full_group",
        "group.coordinator.rebalance.protocols": "test_the_protocol_can_be_off",
        "minibroker.semantics.assignor_bumps_epoch": "test_another_assignor_and_an_empty_group",
        "minibroker.semantics.empty_group_is_assigned": "test_another_assignor_and_an_empty_group",
    },
    "minibroker/coordinators/groups/test_expressions.py": {
        "group.consumer.regex.refresh.interval.ms": "test_they_are_matched_again_after_the_interval_of_the_setting",
    },
    "minibroker/coordinators/groups/test_group_migration.py": {
        "group.consumer.migration.policy": "test_groups_that_do_not_change_over",
    },
    "minibroker/coordinators/groups/test_offsets.py": {
        "offsets.retention.check.interval.ms": "test_how_often_expired_offsets_are_looked_for",
        "offsets.retention.minutes": "test_each_thing_alone_keeps_a_group",
    },
    "minibroker/coordinators/groups/test_txn_offsets.py": {
        "transaction.partition.verification.enable": "test_without_verification_old_versions_are_believed",
    },
    "minibroker/coordinators/transactions/test_partitions.py": {
        "minibroker.semantics.join_while_ending": "test_who_joins_while_a_transaction_ends",
    },
    "minibroker/faults/test_between_brokers.py": {
        "replica.fetch.backoff.ms": "test_followers_get_over_every_trouble_with_a_fetch",
    },
    "minibroker/handlers/test_as_kafka.py": {
        "auto.create.topics.enable": "test_an_internal_topic_is_one_before_there_is_any",
    },
    "minibroker/handlers/test_limits.py": {
        "fetch.max.bytes": "test_a_fetch_has_no_more_bytes_than_client_and_broker_allow",
    },
    "minibroker/handlers/test_made_up_api.py": {
        "authorizer.class.name": "test_who_has_no_right_is_refused_item_by_item",
        "super.users": "test_who_has_no_right_is_refused_item_by_item",
    },
    "minibroker/handlers/test_random_requests.py": {
        "unstable.api.versions.enable": "test_random_requests_are_answered_or_closed",
    },
    "minibroker/handlers/test_waiting_answers.py": {
        "offsets.commit.timeout.ms": "test_an_answer_that_waits_too_long",
        "offsets.topic.replication.factor": "test_an_answer_that_waits_for_a_follower",
        "request.timeout.ms": "test_an_answer_that_waits_too_long",
    },
    "minibroker/partitions/test_log_flush.py": {
        "log.flush.interval.ms": "test_flush_ms_counts_from_the_first_record_that_waits",
        "minibroker.acknowledge.after.sync": "test_an_answer_waits_for_the_sync_and_so_do_readers",
    },
    "minibroker/releases/test_older_answers.py": {
        "minibroker.semantics.advertise_describe_transaction_state": "test_whether_describe_transaction_state_is_listed",  # noqa: E501
        "minibroker.semantics.leaders_add_for_version": "test_for_which_clients_a_leader_adds_a_partition",
        "minibroker.semantics.unknown_logger_operation": "test_an_unknown_operation_on_a_logger",
        "minibroker.semantics.unreadable_subscription": "test_a_classic_member_whose_subscription_cannot_be_read",
    },
    "minibroker/security/test_acls.py": {
        "allow.everyone.if.no.acl.found": "test_without_an_entry_the_answer_is_no_unless_the_setting_says_otherwise",
    },
    "minibroker/seeds/test_duplicate_window.py": {
        "minibroker.semantics.snapshot_all_batches": "test_with_kips_semantics_a_clean_restart_keeps_the_whole_window",
    },
    "minibroker/seeds/test_kip_360.py": {
        "minibroker.semantics.check_unknown_producer": "test_the_hole_of_the_draft_and_its_check",
        "minibroker.semantics.init_compares_epoch_while_ongoing": "test_any_other_epoch_is_fenced",
        "minibroker.semantics.persist_last_epoch": "test_a_last_epoch_that_is_not_logged_is_lost",
        "minibroker.semantics.producer_state_expiration": "test_producer_state_goes_with_time",
        "minibroker.semantics.remember_offered_producer_id": "test_epochs_that_are_used_up_rotate_the_producer_id",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "test_an_expired_id_gets_a_new_producer_id",
    },
    "minibroker/seeds/test_kip_447.py": {
        "minibroker.semantics.forget_with_records": "test_what_a_broker_before_2_5_forgot",
    },
    "minibroker/seeds/test_kip_588.py": {
        "minibroker.semantics.timed_out_codes": "test_what_the_old_epoch_is_told",
        "minibroker.semantics.timeout_keeps_last_epoch": "test_a_timeout_bumps_and_the_old_epoch_may_claim_it",
    },
    "minibroker/seeds/test_out_of_order.py": {
        "minibroker.semantics.log_start_with_unknown_producer": "test_an_unknown_producer_is_told_the_log_start_whoever_says_so",  # noqa: E501
        "minibroker.semantics.stale_sequence_error": "test_what_is_not_remembered_any_more",
        "minibroker.semantics.unknown_producer_sequence": "test_state_gone_in_every_way",
    },
    "minibroker/seeds/test_refusals.py": {
        "minibroker.semantics.fenced_code": "test_a_number_that_is_none_of_kafkas",
    },
    "minibroker/seeds/test_transaction_state_message.py": {
        "minibroker.semantics.transaction_state_layout": "test_the_literal_layout_of_a_new_instance",
    },
    "minibroker/server/test_listener_config.py": {
        "advertised.listeners": "test_each_listener_has_its_own_address_for_clients",
        "broker.id": "test_node_and_cluster_id_are_the_given_ones",
        "broker.rack": "test_the_rack_is_told_to_clients",
        "listeners": "test_without_an_advertised_address_it_is_the_one_the_client_came_to",
        "minibroker.cluster.id": "test_node_and_cluster_id_are_the_given_ones",
        "node.id": "test_node_id_outweighs_broker_id",
    },
    "minibroker/server/test_options.py": {
        "log.dir": "test_log_dirs_counts_where_nothing_else_says_where_data_goes",
        "log.dirs": "test_log_dirs_counts_where_nothing_else_says_where_data_goes",
    },
    "minibroker/server/test_security.py": {
        "minibroker.sasl.users": "test_a_user_gets_in_and_a_stranger_is_told_why_not",
        "minibroker.security.protocol": "test_who_has_not_said_who_it_is_gets_no_answer",
        "minibroker.ssl.ca.location": "test_a_certificate_is_made_where_none_is_given",
        "sasl.enabled.mechanisms": "test_a_mechanism_that_is_not_offered_closes_the_connection_after_its_answer",
        "sasl.server.max.receive.size": "test_before_a_login_a_request_has_sasl_server_max_receive_size_at_most",
        "ssl.enabled.protocols": "test_versions_of_tls_are_those_enabled",
    },
    "minibroker/server/test_settings_of_serving.py": {
        "max.connections": "test_connections_and_requests_have_their_limits",
        "minibroker.ephemeral.max.bytes": "test_what_is_kept_in_memory_is_bounded_over_all_brokers",
        "minibroker.shutdown.timeout.ms": "test_a_stop_waits_for_answers_as_long_as_the_setting_says",
        "minibroker.uvloop": "test_the_event_loop_is_uvloops_where_the_setting_says_so",
        "socket.listen.backlog.size": "test_the_queue_of_connections_to_accept_has_the_length_of_the_setting",
        "socket.request.max.bytes": "test_connections_and_requests_have_their_limits",
    },
    "minibroker/server/test_tls.py": {
        "listener.security.protocol.map": "test_clients_are_told_the_name_they_asked_for",
        "ssl.client.auth": "test_a_client_that_must_show_a_certificate",
        "ssl.key.password": "test_keys_may_be_in_the_settings_and_have_a_password",
        "ssl.keystore.certificate.chain": "test_keys_may_be_in_the_settings_and_have_a_password",
        "ssl.keystore.key": "test_keys_may_be_in_the_settings_and_have_a_password",
        "ssl.keystore.location": "test_clients_are_told_the_name_they_asked_for",
        "ssl.truststore.certificates": "test_a_client_that_must_show_a_certificate",
        "ssl.truststore.location": "test_a_client_that_must_show_a_certificate",
    },
    "minibroker/server/test_watchdog.py": {
        "minibroker.loop.lag.max.ms": "test_a_broker_watches_its_loop_where_a_setting_says_so",
    },
    "storage/test_producer_rules.py": {
        "minibroker.semantics.expire_by": "test_expiry",
        "minibroker.semantics.stale_epoch_is_verified": "test_a_refused_batch_of_a_zombie",
        "minibroker.semantics.verification_ends": "test_what_a_batch_that_waited_leaves",
        "minibroker.semantics.waiting_sequence_check": "test_duplicate_that_opened_the_verification",
    },
    "storage/test_recovery.py": {
        "minibroker.semantics.rebuild_from": "test_what_a_start_knows_of_producers_whose_records_are_gone",
    },
}
"""By file: a setting, and the test that fails without it. ``topic:`` and ``group:`` are keys of one topic or group."""

ROWS = {setting: (file, test) for file, rows in SEEN.items() for setting, test in rows.items()}


def effective() -> Iterator[str]:
    keys: tuple[tuple[str, dict[str, ConfigKey]], ...] = (
        ("", dict(BROKER_KEYS)), ("topic:", dict(TOPIC_KEYS)), ("group:", dict(GROUP_KEYS)),
    )  # fmt: skip
    for scope, of_scope in keys:
        for name, key in of_scope.items():
            # With one value there is nothing to read: another one is refused.
            if key.effect and "without effect" not in key.doc and key.refusal is None and len(key.choices) != 1:
                yield f"{scope}{name}"


def test_every_setting_with_an_effect_has_a_test() -> None:
    assert sorted({*effective()} ^ ROWS.keys()) == []
    assert len(ROWS) == sum(map(len, SEEN.values()))


@pytest.mark.parametrize("file", SEEN)
def test_the_tests_exist(file: str) -> None:
    text = (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert [test for test in SEEN[file].values() if f"def {test}(" not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("setting", ROWS)
def test_the_test_fails_when_no_code_reads_the_setting(setting: str) -> None:
    file, test = ROWS[setting]
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "ignored_setting", f"tests/{file}::{test}"]
    path = os.pathsep.join([str(ROOT / "tests" / "support" / "damage_and_defects"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, VARIABLE: setting, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-2000:]
