//! For whoever writes a store: the conformance suite, and wrappers that are themselves
//! stores and fail, wait or watch.
//!
//! A store passes the suite by one type and one line:
//!
//! ```
//! use roundtrip::testkit::bench::InMemory;
//!
//! mod memory {
//!     use super::*;
//!     roundtrip::conformance!(InMemory::default());
//! }
//! ```
//!
//! The type is a [`bench::Harness`]: where the data is, and how to open it again. The
//! suite never sleeps; time is a [`crate::clock::ManualClock`].

pub mod bench;
pub mod chain;
pub mod faulty;
pub mod flaky;
pub mod observed;
pub mod picture;
pub mod samples;
pub mod script;
pub mod servers;
pub mod silent;
pub mod slow;
pub mod suite;

/// Runs the conformance suite on a store: one named test for each case, in a module
/// for each station, each on a fresh [`bench::Harness`] that the expression makes.
///
/// The crate that calls it needs `tokio` with the features `macros` and `rt`.
#[macro_export]
macro_rules! conformance {
    ($harness:expr) => {
        $crate::conformance! { @stations $harness;
            admit {
                a_new_request_is_queued
                a_request_waits_until_it_is_due
                an_occurrence_is_admitted_once
                a_live_id_takes_another_occurrence
                other_content_under_a_live_id_is_reported
                other_content_waits_behind_the_live_one
                superseding_takes_over_what_waits
                what_waits_behind_a_blocked_id_was_a_repeat
                a_known_occurrence_stays_known_after_the_end
                a_cancelled_request_is_not_admitted_again
                an_occurrence_of_an_ended_id_is_remembered
                a_cursor_moves_with_its_requests
                a_cursor_ahead_of_the_store_stops_every_lane
                an_admit_is_all_or_nothing
                a_paused_route_hands_out_nothing
                a_redefined_route_applies_to_what_is_here
                occurrences_are_bounded_and_all_recognised
                a_clock_that_steps_back_undoes_nothing
                a_flawed_request_is_a_dead_letter
            }
            amend {
                only_the_lead_amends
                what_is_final_stays_final
                a_reorg_takes_away_and_brings_back
                an_orphaned_answer_waits
                a_worker_at_work_is_told
                a_worker_at_work_is_told_again
                the_end_of_a_leased_request_is_hinted
                superseded_content_is_worked_on_anew
                superseded_content_takes_its_deadline_along
                an_answer_to_superseded_content_is_not_taken
                a_failure_of_superseded_content_is_not_taken
                only_final_content_is_published
                withdrawn_content_is_not_published
                withdrawal_takes_the_last_occurrence
                nothing_is_amended_after_assignment
                answered_elsewhere_ends_it
                each_origin_of_a_route_has_its_lead
            }
            work {
                each_request_is_handed_out_once
                a_replayed_claim_gets_the_same_grants
                impossible_leases_are_refused
                nothing_is_handed_out_past_its_deadline
                a_heartbeat_keeps_the_lease
                only_the_token_counts
                an_answer_is_recorded_once
                an_answer_brings_what_follows_from_it
                failures_cost_what_their_class_says
                a_retry_waits
                a_failure_can_be_published
                what_was_done_elsewhere_ends_without_an_answer
                a_worker_that_comes_too_late_is_told_the_end
                a_person_mends
                a_wrong_answer_is_worked_out_anew
                a_forgotten_lease_costs_nothing
                a_written_lease_survives_a_restart
            }
            aside {
                an_answer_that_can_never_be_sent_waits_for_a_person
                an_answer_that_changed_since_it_was_signed_gets_no_slot
                a_failure_response_takes_the_place_of_an_answer
                a_failure_response_has_the_length_of_a_payload
                an_answer_that_is_done_already_ends_well
            }
            send {
                a_seat_has_one_holder
                a_lane_is_written_by_its_holder_alone
                a_token_from_the_future_stops_every_lane
                slots_are_consecutive
                parcels_carry_what_is_ready_alone
                a_window_bounds_what_is_under_way
                attempts_are_stored_before_they_are_sent
                a_parcel_goes_through_its_stages
                a_final_transaction_is_judged
                a_delivered_failure_ends_dead
                an_answer_that_nobody_wants_any_longer_settles
                a_lane_obeys_its_orders
                a_gap_is_filled_once
                what_others_used_up_is_no_gap
                gaps_are_filled_as_the_lane_lets
                a_fill_may_go_beyond_the_window
                a_cancel_is_a_wish
                a_quarantine_ends
            }
            upkeep {
                a_silent_worker_loses_its_lease
                an_overdue_lease_holds_until_it_is_taken_back
                a_deadline_ends_a_request
                a_dead_letter_does_not_expire
                pruning_is_bounded
                a_floor_forgets_and_refuses
                upkeep_bears_a_clock_that_steps_back
            }
            time {
                a_request_waits_for_a_height
                a_height_does_not_stand_for_finality
                a_deadline_may_be_a_height
                a_request_waits_for_a_blocks_time
                a_deadline_may_be_by_a_chains_clock
                every_clock_is_looked_at
                heights_have_their_place_in_a_queue_by_deadline
                a_head_only_grows
                a_height_beyond_all_chains_is_refused
            }
            groups {
                an_item_joins_once
                items_are_paged
                a_seal_is_all_or_nothing
                a_group_is_forgotten_after_its_request
                a_full_group_seals_itself
                an_answer_may_seal_a_group
                a_timer_seals_a_group
                a_height_seals_a_group
                a_blocks_time_seals_a_group
                firing_is_bounded
                a_seal_waits_for_room
                a_plan_is_checked_when_it_is_made
            }
            publish {
                a_delivery_settles_once
                a_refused_delivery_keeps_its_answer
                an_answer_says_why_it_waits
                a_delivered_failure_ends_dead
                only_the_courier_publishes
                only_the_answer_that_was_delivered_ends
                lanes_and_couriers_do_not_mix
                ready_answers_are_paged
            }
            reads {
                lists_are_filtered_and_paged
                counts_are_exact
                a_timeline_tells_the_story
                a_timeline_tells_of_every_attempt
                the_journal_is_paged_and_bounded
                ready_answers_are_shown_in_order
                cursors_are_listed
                changes_are_hinted
                a_witness_is_told_of_each_step
            }
            limits {
                the_smallest_batches
                the_largest_batches
                payloads_of_nothing_and_of_the_most
                a_batch_of_too_many_bytes_is_refused
                the_largest_parcels
                ids_that_share_a_prefix_are_different
                a_refused_operation_is_refused_alone
            }
            policies {
                work_on
                publish_on
                horizon
                capacity
                capacity_lets_ended_ids_pass
                lease_ms
                rate
                policies_that_make_no_sense_are_refused
                attempts_max
                crashes_max
                destination_of_answers
                retention
                dead_ms
            }
            order {
                order
                deadlines_that_have_passed_are_passed_over
                random_order
                keyed_fifo
                a_key_waits_for_its_first
                a_dead_letter_does_not_hold_its_key
                what_waits_behind_does_not_hold_its_key
                a_thousand_keys_keep_their_order
                one_key_may_have_many
            }
            identity {
                an_id_that_is_not_the_hash_is_refused
                the_same_content_is_the_same_request
                named_fields_make_the_id
            }
            repeats {
                dropped
                nothing_is_dropped_that_may_be_needed
                rearmed
                a_dead_letter_is_left_alone
                new_generations
                generations_take_room_of_their_own
                a_group_outlives_the_generation_before
                votes_open_the_way
                votes_count_as_the_gates_want_them
                withdrawn_votes_are_gone
            }
            retry {
                backoff
                transport_errors_never_kill
                a_request_that_kills_its_workers_is_a_dead_letter
                a_snooze_costs_nothing
            }
            replay {
                a_replayed_batch_has_no_second_effect
                a_restart_leaves_everything_as_it_was
            }
        }

        mod cuts {
            use super::*;
            $crate::conformance! { @cuts $harness;
                before_the_commit(Before, false)
                before_the_commit_with_a_crash(Before, true)
                after_the_commit(After, false)
                after_the_commit_with_a_crash(After, true)
            }
        }
    };
    (@stations $harness:expr; $($station:ident { $($case:ident)* })*) => {
        $(mod $station {
            use super::*;
            $(#[tokio::test]
            async fn $case() {
                $crate::testkit::suite::$station::$case($crate::testkit::bench::Bench::open($harness).await).await;
            })*
        })*
    };
    (@cuts $harness:expr; $($name:ident($cut:ident, $crash:literal))*) => {
        $(#[tokio::test]
        async fn $name() {
            use $crate::testkit::{faulty::Cut, script};
            script::cut_at_every_commit(|| $harness, Cut::$cut, $crash).await;
        })*
    };
}

#[cfg(test)]
mod tests {
    /// A case that nobody runs proves nothing.
    #[test]
    fn every_case_is_listed() {
        let listed = include_str!("mod.rs");
        let stations = [
            include_str!("suite/admit.rs"),
            include_str!("suite/amend.rs"),
            include_str!("suite/groups.rs"),
            include_str!("suite/identity.rs"),
            include_str!("suite/limits.rs"),
            include_str!("suite/order.rs"),
            include_str!("suite/policies.rs"),
            include_str!("suite/publish.rs"),
            include_str!("suite/reads.rs"),
            include_str!("suite/repeats.rs"),
            include_str!("suite/replay.rs"),
            include_str!("suite/retry.rs"),
            include_str!("suite/send.rs"),
            include_str!("suite/time.rs"),
            include_str!("suite/upkeep.rs"),
            include_str!("suite/work.rs"),
        ];
        for line in stations.iter().flat_map(|station| station.lines()) {
            if let Some((case, _)) = line.strip_prefix("pub async fn ").and_then(|rest| rest.split_once('(')) {
                assert!(listed.lines().any(|line| line.trim() == case), "the macro does not list {case}");
            }
        }
    }
}
