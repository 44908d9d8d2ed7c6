//! The rules of the house that a machine can check: ARCHITECTURE.md and CONTRIBUTING.md say why.
//!
//! Every finding is printed as `file:line: what`.

mod code;
mod house;
mod samples;
mod source;
mod tree;

use tree::{Finding, TextFile, root, text_files, without_test_files};

/// Fails with all findings, one a line.
#[track_caller]
fn assert_none(findings: impl IntoIterator<Item = Finding>) {
    let lines: Vec<String> = findings.into_iter().map(|finding| finding.to_string()).collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}

/// The Rust files below `folder`, those of the test build included.
fn rust_files(folder: &str) -> Vec<TextFile> {
    let mut files = text_files();
    files.retain(|file| file.is_rust() && file.below(folder).is_some());
    files
}

/// The Rust files below `folder` that are part of the product.
fn product_files(folder: &str) -> Vec<TextFile> {
    without_test_files(&rust_files(folder))
}

fn all_rust_files() -> Vec<TextFile> {
    let mut files = text_files();
    files.retain(TextFile::is_rust);
    files
}

/// The files of the repository at `path` and below it.
fn files_at(path: &str) -> Vec<TextFile> {
    let mut files = text_files();
    files.retain(|file| file.path == path || file.below(path).is_some());
    files
}

#[test]
fn the_checks_see_the_source_of_both_packages() {
    assert!(rust_files("src").len() > 10);
    assert!(rust_files("sim/src").len() > 10);
}

#[test]
fn imports_of_the_toolkit_only_point_down() {
    let check = |file: &TextFile| code::imports(file, "src", code::TOOLKIT_FLOORS);
    assert_none(product_files("src").iter().flat_map(check));
}

#[test]
fn imports_of_the_simulator_only_point_down() {
    let check = |file: &TextFile| code::imports(file, "sim/src", code::SIMULATOR_FLOORS);
    assert_none(product_files("sim/src").iter().flat_map(check));
}

#[test]
fn closed_forms_and_cluster_share_no_trace() {
    let floors: &[&[&str]] =
        &[&["units", "ids", "rng"], &["engine", "hardware", "workload"], &["analytic", "trace"]];
    let mut files = product_files("sim/src");
    files.retain(|file| file.below("sim/src/analytic").is_some());
    assert_none(files.iter().flat_map(|file| code::imports(file, "sim/src", floors)));
}

#[test]
fn the_simulator_knows_no_clock_thread_file_tensor_or_hash_map() {
    assert_none(rust_files("sim/src").iter().flat_map(code::outside_world));
}

#[test]
fn only_runtime_and_profile_read_the_wall_clock() {
    assert_none(product_files("src").iter().flat_map(code::clocks));
}

#[test]
fn only_data_config_and_store_open_files() {
    assert_none(product_files("src").iter().flat_map(code::files));
}

#[test]
fn every_random_number_comes_from_a_named_stream() {
    let files = [product_files("src"), product_files("sim/src")].concat();
    assert_none(files.iter().flat_map(code::random_numbers));
}

#[test]
fn names_are_words_of_the_glossary() {
    assert_none(all_rust_files().iter().flat_map(code::names));
}

#[test]
fn nothing_is_left_unfinished() {
    assert_none(all_rust_files().iter().flat_map(code::unfinished));
    assert_none(text_files().iter().flat_map(house::reminders));
}

#[test]
fn every_panic_names_the_invariant_that_it_guards() {
    let files = [product_files("src"), product_files("sim/src")].concat();
    assert_none(files.iter().flat_map(code::unexplained_panics));
}

#[test]
fn lints_are_expected_with_a_reason_and_never_allowed() {
    assert_none(all_rust_files().iter().flat_map(code::lints));
}

#[test]
fn no_function_takes_a_bool() {
    assert_none(all_rust_files().iter().flat_map(code::bool_parameters));
}

#[test]
fn no_file_names_a_folder_of_one_machine() {
    assert_none(text_files().iter().flat_map(house::machine_paths));
}

#[test]
fn every_numbered_experiment_says_what_it_is_and_what_to_run() {
    assert_none(house::experiments(&text_files()));
}

#[test]
fn every_kept_run_says_how_it_was_made() {
    assert_none(house::results(&text_files()));
}

#[test]
fn no_section_of_the_changelog_is_empty() {
    assert_none(files_at("CHANGELOG.md").iter().flat_map(house::changelog));
}

#[test]
fn links_between_texts_lead_somewhere() {
    let mut files = text_files();
    files.retain(|file| file.path.ends_with(".md"));
    assert_none(files.iter().flat_map(|file| house::links(file, root())));
}

#[test]
fn scripts_stop_at_the_first_error() {
    let files = [files_at("scripts"), files_at(".ci/run")].concat();
    assert_none(files.iter().flat_map(house::scripts));
}
