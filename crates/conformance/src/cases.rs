//! The test cases, by topic.

pub mod attrs;
pub mod data;
pub mod dirs;
pub mod links;
pub mod numbers;
pub mod parallel;
pub mod rename;
pub mod special;
pub mod xattrs;

use crate::Case;

macro_rules! cases {
    ($($module:ident: $($name:ident),+ ;)+) => {
        /// All cases.
        pub const ALL: &[Case] = &[$($(Case { name: stringify!($name), run: $module::$name },)+)+];
    };
}

cases! {
    dirs: names_are_bytes, lookup_of_missing_names, creating_existing_names_fails, listings_are_complete,
        listings_resume_at_any_cookie, listings_survive_changes, large_directories_are_listed_once,
        numbers_agree_everywhere, link_counts_of_directories, removing_directories, removed_directories_are_empty,
        only_directories_have_entries, deep_trees;
    rename: plain_renames, renames_replace, renames_that_can_not_be, rename_noreplace, rename_exchange, rename_whiteout,
        renames_between_names_of_one_file_do_nothing, renamed_directories_keep_their_contents, numbers_survive_renames;
    links: hard_links_are_one_object, links_that_can_not_be, unlinked_files_live_while_held, unlinking_a_directory_fails,
        unnamed_files, symbolic_links, vnodes_of_removed_files_answer;
    numbers: objects_are_found_by_number, names_are_told, numbers_lead_to_what_was_renamed, numbers_of_nothing_are_stale;
    data: reads_end_at_the_end, writes_at_offsets, appends_go_to_the_end, truncating, opening_with_truncation,
        holes_are_found, allocating, copying, copies_can_be_interrupted, flushes_and_syncs, nonblocking_reads,
        access_modes_are_enforced;
    attrs: modes_and_umasks, owners_are_the_callers, set_group_id_directories, times_to_the_nanosecond, set_id_bits_are_cleared,
        setattr_returns_new_attributes, entry_changes_update_times, statfs_is_consistent;
    special: every_kind_of_node, special_files_can_not_be_opened;
    xattrs: xattrs_are_stored, attributes_of_everything, attribute_flags, attribute_sizes, default_acls,
        modes_follow_acls, writing_drops_capabilities;
    parallel: makers_in_one_directory, movers_between_directories, readers_of_one_directory;
}
