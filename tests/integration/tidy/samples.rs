//! Every rule finds what it is for, and nothing in code that keeps to it.

use std::path::Path;

use super::code;
use super::house;
use super::source::{paths, tokens};
use super::tree::{Finding, TextFile, without_test_files};

/// The lines of `text` that `rule` finds when `path` holds it.
fn lines(path: &str, text: &str, rule: impl Fn(&TextFile) -> Vec<Finding>) -> Vec<usize> {
    rule(&TextFile::new(path, text)).iter().map(|finding| finding.line).collect()
}

fn toolkit_imports(file: &TextFile) -> Vec<Finding> {
    code::imports(file, "src", code::TOOLKIT_FLOORS)
}

#[test]
fn a_finding_reads_as_file_line_and_what() {
    let file = TextFile::new("src/predict/fit.rs", "\nuse crate::optimizer::Choice;");
    assert_eq!(
        toolkit_imports(&file)[0].to_string(),
        "src/predict/fit.rs:2: `predict` imports `optimizer`, which stands above it; \
         imports only point down"
    );
}

#[test]
fn texts_characters_and_comments_are_not_code() {
    let text = r##"
        // a::b
        /* c::d /* e */ f::g */
        let s = "h::\"i\"::j"; let r = r#"k::"l""#; let b = b'\''; let c = '"'; let n = b"m::n";
        fn life<'a>(x: &'a o::P) {}
    "##;
    let found = paths(&tokens(text)).into_iter().filter(|path| path.segments.len() > 1);
    let found: Vec<(usize, Vec<&str>)> = found.map(|path| (path.line, path.segments)).collect();
    assert_eq!(found, [(5, vec!["o", "P"])]);
}

#[test]
fn a_use_with_braces_is_all_of_its_paths() {
    let tokens = tokens("use a::{b as c, d::{self, e}, f::*};");
    let found: Vec<String> = paths(&tokens).iter().map(|path| path.segments.join("::")).collect();
    assert_eq!(found, ["use", "a::b", "a::d::self", "a::d::e", "a::f::*"]);
}

#[test]
fn imports_from_the_same_floor_or_above_are_found_however_they_are_written() {
    let text = "use crate::models::Model;
        use crate::{data::load, run::Run};
        fn f() { crate::profile::measure() }
        use super::super::optimizer;
        mod inner { use super::super::super::cli; use super::super::optimizer; }
        use super::clock;";
    assert_eq!(lines("src/runtime/workers.rs", text, toolkit_imports), [2, 3, 4, 5]);
}

#[test]
fn tests_may_import_what_they_compare_with() {
    let text = "#[cfg(test)]\nmod tests {\n use crate::optimizer::X; fn f() { [0; 2]; }\n}
        #[cfg(test)]\nuse crate::report::Y;\nuse crate::cli::Z;";
    assert_eq!(lines("src/runtime/mod.rs", text, toolkit_imports), [7]);
}

#[test]
fn files_of_the_test_build_are_left_out_with_all_below_them() {
    let files = [
        TextFile::new("src/run/mod.rs", "#[cfg(test)]\nmod laws;\nmod paced;"),
        TextFile::new("src/run/laws.rs", ""),
        TextFile::new("src/run/laws/deep.rs", ""),
        TextFile::new("src/run/paced.rs", "#[cfg(test)] mod checks;"),
        TextFile::new("src/run/paced/checks.rs", ""),
        TextFile::new("src/run/lawsuit.rs", ""),
    ];
    let kept: Vec<String> = without_test_files(&files).into_iter().map(|file| file.path).collect();
    assert_eq!(kept, ["src/run/mod.rs", "src/run/paced.rs", "src/run/lawsuit.rs"]);
}

#[test]
fn a_module_without_a_floor_is_found() {
    assert_eq!(lines("src/novelty.rs", "", toolkit_imports), [1]);
}

#[test]
fn the_outside_world_is_found_in_the_simulator() {
    let text = "use std::time::Duration;
        use std::{collections::BTreeMap, thread};
        let x = std::fs::read(y);
        use std::collections::{BTreeSet, HashMap};
        fn f(x: HashSet<u8>) {}
        use burn_tensor::Tensor;
        use clap::Parser;
        let burned = time::now();";
    assert_eq!(lines("sim/src/engine.rs", text, code::outside_world), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn clocks_are_found_outside_of_the_modules_that_read_them() {
    let text =
        "use std::time::Duration;\nuse std::time::{Duration, Instant};\nuse std::time::SystemTime;";
    assert_eq!(lines("src/optimizer/mod.rs", text, code::clocks), [2, 3]);
    assert_eq!(lines("src/store/manifest.rs", text, code::clocks), [2]);
    assert_eq!(lines("src/profile.rs", text, code::clocks), [0; 0]);
}

#[test]
fn opened_files_are_found_outside_of_the_modules_that_open_them() {
    let text = "use std::fs;\nlet f = File::open(p);\nlet b = SVGBackend::new(p, s);\nlet b = SVGBackend::with_string(t, s);";
    assert_eq!(lines("src/report/figure.rs", text, code::files), [1, 2, 3]);
    assert_eq!(lines("src/store/mod.rs", text, code::files), [0; 0]);
}

#[test]
fn generators_without_a_named_stream_are_found() {
    let text = "let x = rand::rng();\nuse rand::rngs::StdRng;\nlet t = Tensor::random(s);\nlet y = ChaCha8Rng::seed_from_u64(1);";
    assert_eq!(lines("src/models/mod.rs", text, code::random_numbers), [1, 2, 3]);
}

#[test]
fn names_outside_of_the_glossary_are_found() {
    let text = "let group_size = 2;\nlet machines_per_group = 2;\nconst LEAST_FLOPS: u64 = 1;";
    assert_eq!(lines("src/run/mod.rs", text, code::names), [1]);
}

#[test]
fn unfinished_code_is_found() {
    let text = "fn f() { todo!() }\nfn g() { dbg!(1) }\n#[ignore]\n#[test]\nfn todo() {}";
    assert_eq!(lines("src/run/mod.rs", text, code::unfinished), [1, 2, 3]);
}

#[test]
fn panics_without_a_reason_are_found_outside_of_tests() {
    let text = "x.unwrap();\nx.unwrap_or(1);\nx.expect(\"y\");\n#[test]\nfn f() { x.unwrap() }
        #[cfg(test)]\nmod tests { fn g() { x.unwrap() } }";
    assert_eq!(lines("src/run/mod.rs", text, code::unexplained_panics), [1, 5]);
}

#[test]
fn lints_that_are_allowed_or_expected_without_a_reason_are_found() {
    let text = "#[allow(dead_code)]\n#![allow(x)]\n#[expect(x)]\n#[expect(x, reason = \"y\")]";
    assert_eq!(lines("src/run/mod.rs", text, code::lints), [1, 2, 3]);
}

#[test]
fn bool_parameters_are_found() {
    let text = "fn f(x: bool) {}
        fn g<F: Fn(u8) -> bool>(f: F, y: bool,) -> u8 {}
        fn h<F: Fn(u8) -> bool>(f: F) -> bool { let b: bool = f(1); b }
        impl Backend for Canvas { fn draw(&self, filled: bool) { if filled { self.fill() } } }";
    assert_eq!(lines("src/run/mod.rs", text, code::bool_parameters), [1, 2]);
}

#[test]
fn folders_of_one_machine_are_found() {
    let home = concat!("cd /ho", "me/someone/omnivore\n`/ro", "ot/x`\nsee a/wo", "rk/b\n");
    let example = concat!("/ho", "me/ada/.cache\nhttps://example.org/wo", "rk/x");
    assert_eq!(lines("README.md", home, house::machine_paths), [1, 2]);
    assert_eq!(lines("README.md", example, house::machine_paths), [0; 0]);
}

#[test]
fn reminders_are_found() {
    let text = concat!("// TO", "DO later\n# FIX", "ME\nmktemp XX", "XXXX");
    assert_eq!(lines("scripts/x", text, house::reminders), [1, 2]);
}

#[test]
fn experiments_and_results_that_lack_a_file_are_found() {
    let files = [
        TextFile::new("experiments/01-good/README.md", ""),
        TextFile::new("experiments/01-good/sweep.toml", ""),
        TextFile::new("experiments/02-bad/notes.md", ""),
        TextFile::new("experiments/networks/lenet.toml", ""),
        TextFile::new("results/README.md", ""),
        TextFile::new("results/bad/README.md", ""),
        TextFile::new("results/good/README.md", ""),
        TextFile::new("results/good/manifest.toml", ""),
        TextFile::new("results/good/plots/README.md", ""),
    ];
    assert_eq!(house::experiments(&files).len(), 2);
    let results: Vec<String> =
        house::results(&files).into_iter().map(|finding| finding.file).collect();
    assert_eq!(results, ["results/bad"]);
}

#[test]
fn empty_sections_of_the_changelog_are_found() {
    let text = "# Changelog\n\n## 0.2.0\n\n### Added\n\n### Fixed\n\n- a\n\n## 0.1.0\n";
    assert_eq!(lines("CHANGELOG.md", text, house::changelog), [5, 11]);
}

#[test]
fn links_to_missing_files_are_found() {
    let text = "[a](b.md) [c](https://example.org)\n[d](#e) [f](g.md#h)";
    let nowhere = Path::new(env!("CARGO_MANIFEST_DIR")).join("no-such-folder");
    assert_eq!(lines("README.md", text, |file| house::links(file, &nowhere)), [1, 2]);
}

#[test]
fn scripts_that_do_not_stop_at_errors_are_found() {
    assert_eq!(lines("scripts/x", "echo", house::scripts), [1]);
    assert_eq!(lines("scripts/x", "#!/usr/bin/env bash\necho", house::scripts), [1]);
    assert_eq!(
        lines("scripts/x", "#!/usr/bin/env bash\nset -euo pipefail\n", house::scripts),
        [0; 0]
    );
}
