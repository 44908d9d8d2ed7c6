//! Rules for Rust.

use super::source::{CodePath, Token, paths, tokens, without_tests, without_trait_implementations};
use super::tree::{Finding, TextFile, module_of};

/// The floors from the ground up: a module imports only from floors below its own.
///
/// `lib.rs` and `main.rs` stand on the roof. What is said here is said in ARCHITECTURE.md too.
pub const SIMULATOR_FLOORS: &[&[&str]] = &[
    &["units", "ids", "parameters"],
    &["rng"],
    &["engine", "hardware", "workload", "protocol"],
    &["objective"],
    &["trace"],
    &["cluster", "analytic"],
];
pub const TOOLKIT_FLOORS: &[&[&str]] = &[
    &["files"],
    &["data", "kernels", "config", "store", "memory", "threads"],
    &["models", "devices"],
    &["profile", "runtime"],
    &["run"],
    &["predict"],
    &["optimizer"],
    &["report"],
    &["reproduce"],
    &["cli", "serve"],
];

/// The modules of the toolkit that open files.
const READ_FILES: &[&str] = &["files", "data", "config", "store"];

/// The modules of the toolkit that read the wall clock, and what each may use of it.
const READ_CLOCKS: &[(&str, &[&str])] = &[
    ("profile", &["Instant", "SystemTime"]),
    ("runtime", &["Instant", "SystemTime"]),
    // A manifest carries the date of its run.
    ("store", &["SystemTime", "UNIX_EPOCH"]),
];

/// Words that the glossary rules out as names, and what to write. Only those that mean nothing
/// else in this code.
const NOT_IN_THE_GLOSSARY: &[(&str, &str)] = &[
    ("group_size", "machines_per_group"),
    ("machines_per_batch", "machines_per_group"),
    ("master", "parameter_server"),
    ("parameter_master", "parameter_server"),
    ("training_step", "update"),
    ("effective_momentum", "total_momentum"),
    ("algorithmic_momentum", "explicit_momentum"),
    ("slow_node", "straggler"),
    ("throttled", "paced"),
    ("tuner", "optimizer"),
    ("planner", "optimizer"),
    ("Tuner", "Optimizer"),
    ("Planner", "Optimizer"),
    ("FLOPS", "Flops or FlopsPerSecond"),
    ("GFLOPS", "a rate in FlopsPerSecond"),
    ("TYPE1", "the name of the lowering"),
    ("TYPE2", "the name of the lowering"),
    ("TYPE3", "the name of the lowering"),
];

/// Generators that differ between platforms, versions or threads.
const FOREIGN_GENERATORS: &[&str] = &[
    "StdRng",
    "SmallRng",
    "ThreadRng",
    "OsRng",
    "SysRng",
    "thread_rng",
    "from_os_rng",
    "from_rng",
];

/// Findings at paths outside of test items.
fn product_paths(file: &TextFile, rule: impl Fn(&CodePath<'_>) -> Option<String>) -> Vec<Finding> {
    at_paths(file, &without_tests(&tokens(&file.text)), rule)
}

/// Findings at paths; what an import of several names breaks several times is said once.
fn at_paths(
    file: &TextFile,
    tokens: &[Token<'_>],
    rule: impl Fn(&CodePath<'_>) -> Option<String>,
) -> Vec<Finding> {
    let broken = |path: CodePath<'_>| rule(&path).map(|what| file.finding(path.line, what));
    let mut findings: Vec<Finding> = paths(tokens).into_iter().filter_map(broken).collect();
    findings.dedup();
    findings
}

/// Findings at tokens: `rule` gets all tokens from one on.
fn at_tokens(
    file: &TextFile,
    tokens: &[Token<'_>],
    rule: impl Fn(&[Token<'_>]) -> Option<String>,
) -> Vec<Finding> {
    let broken = |at: usize| rule(&tokens[at..]).map(|what| file.finding(tokens[at].line, what));
    (0..tokens.len()).filter_map(broken).collect()
}

/// Imports in `folder` that do not point down. Test items may look at what they compare with.
pub fn imports(file: &TextFile, folder: &str, floors: &[&[&str]]) -> Vec<Finding> {
    let Some(module) = module_of(file, folder).filter(|module| !module.is_empty()) else {
        return Vec::new();
    };
    let floor_of = |name: &str| floors.iter().position(|floor| floor.contains(&name));
    let Some(floor) = floor_of(module[0]) else {
        let what =
            format!("module `{}` has no floor; give it one in ARCHITECTURE.md and here", module[0]);
        return vec![file.finding(1, what)];
    };
    product_paths(file, |path| {
        let n_supers = path.segments.iter().take_while(|segment| **segment == "super").count();
        let leads_to_the_root = path.segments[0] == "crate"
            || (n_supers > 0 && n_supers == module.len() + path.n_modules_around);
        let imported = *path.segments.get(n_supers.max(1)).filter(|_| leads_to_the_root)?;
        let other = floor_of(imported).filter(|other| imported != module[0] && *other >= floor)?;
        Some(format!(
            "`{}` imports `{imported}`, which stands {} it; imports only point down",
            module[0],
            if other == floor { "beside" } else { "above" },
        ))
    })
}

/// What the simulator must not know; test items are held to it too.
pub fn outside_world(file: &TextFile) -> Vec<Finding> {
    let tokens = tokens(&file.text);
    let reason = |path: &CodePath<'_>| -> Option<&str> {
        match path.segments.as_slice() {
            ["std" | "core", "time", ..] => Some("the simulator has a virtual clock only"),
            ["std", "thread", ..] => Some("the simulator starts no threads"),
            ["std", "fs", ..] => Some("the simulator opens no files"),
            ["clap", ..] => Some("the simulator knows no command line"),
            [name, _, ..] if name.starts_with("burn") => Some("the simulator knows no tensors"),
            [.., "HashMap" | "HashSet"] => Some("its order differs between processes; use a BTree"),
            _ => None,
        }
    };
    at_paths(file, &tokens, |path| {
        Some(format!("`{}`: {}", path.segments.join("::"), reason(path)?))
    })
}

/// Wall clocks read by a module of the toolkit that must not.
pub fn clocks(file: &TextFile) -> Vec<Finding> {
    let module = module_of(file, "src").and_then(|module| module.first().copied());
    let allowed = READ_CLOCKS
        .iter()
        .find(|(name, _)| module == Some(*name))
        .map_or(&[][..], |(_, uses)| uses);
    product_paths(file, |path| {
        let ["std", "time", uses @ ..] = path.segments.as_slice() else { return None };
        let name = uses.first().copied().unwrap_or("time");
        let is_allowed =
            name == "Duration" || name == "self" && !allowed.is_empty() || allowed.contains(&name);
        (!is_allowed).then(|| {
            format!("`std::time::{name}`: only `runtime` and `profile` read the wall clock; take elapsed time from them")
        })
    })
}

/// Files opened by a module of the toolkit that must not.
pub fn files(file: &TextFile) -> Vec<Finding> {
    let module = module_of(file, "src").and_then(|module| module.first().copied());
    if module.is_some_and(|module| READ_FILES.contains(&module)) {
        return Vec::new();
    }
    product_paths(file, |path| {
        let opens = matches!(
            path.segments.as_slice(),
            ["std", "fs", ..]
                | ["fs", _, ..]
                | ["tempfile", _, ..]
                | ["image", "open", ..]
                | [.., "File", "open" | "create" | "options"]
                | [.., "BitMapBackend" | "SVGBackend", "new"]
        );
        opens.then(|| {
            format!("`{}`: only `data`, `config` and `store` open files", path.segments.join("::"))
        })
    })
}

/// Random numbers that come from no named stream.
pub fn random_numbers(file: &TextFile) -> Vec<Finding> {
    product_paths(file, |path| {
        let foreign = path.segments.iter().any(|segment| FOREIGN_GENERATORS.contains(segment))
            || matches!(path.segments.as_slice(), ["rand", "rng" | "random", ..])
            || path.segments.ends_with(&["Tensor", "random"]);
        foreign.then(|| {
            let name = path.segments.join("::");
            format!("`{name}`: random numbers come from named streams, `omnivore_sim::rng`")
        })
    })
}

/// Names that the glossary rules out.
pub fn names(file: &TextFile) -> Vec<Finding> {
    at_tokens(file, &tokens(&file.text), |tokens| {
        let (name, instead) =
            NOT_IN_THE_GLOSSARY.iter().find(|(name, _)| *name == tokens[0].text)?;
        Some(format!("`{name}` is not a word of the glossary; write {instead}"))
    })
}

/// Code that is not finished, and tests that do not run.
pub fn unfinished(file: &TextFile) -> Vec<Finding> {
    at_tokens(file, &tokens(&file.text), |tokens| match tokens {
        [name, mark, ..]
            if mark.text == "!" && ["todo", "unimplemented", "dbg"].contains(&name.text) =>
        {
            Some(format!("`{}!` does not belong in a commit", name.text))
        }
        [sign, bracket, name, ..]
            if sign.text == "#"
                && bracket.text == "["
                && ["ignore", "should_panic"].contains(&name.text) =>
        {
            Some(format!("`#[{}]`: assert what the code does, and return errors", name.text))
        }
        _ => None,
    })
}

/// Panics that do not say which invariant would have to be broken.
pub fn unexplained_panics(file: &TextFile) -> Vec<Finding> {
    at_tokens(file, &without_tests(&tokens(&file.text)), |tokens| {
        let begins = tokens.iter().take(4).map(|token| token.text).eq([".", "unwrap", "(", ")"]);
        begins.then(|| "`unwrap`: return an error, or `expect` the invariant in words".to_owned())
    })
}

/// Lints that are allowed, or expected without a reason.
pub fn lints(file: &TextFile) -> Vec<Finding> {
    at_tokens(file, &tokens(&file.text), |tokens| {
        let words: Vec<&str> = tokens.iter().take(4).map(|token| token.text).collect();
        match words.as_slice() {
            ["#", "[", "allow", ..] | ["#", "!", "[", "allow"] => {
                Some("a lint is never allowed; write #[expect(lint, reason = \"...\")]".to_owned())
            }
            ["#", "[", "expect", ..] | ["#", "!", "[", "expect"] => {
                let mut attribute = tokens.iter().take_while(|token| token.text != "]");
                let has_reason = attribute.any(|token| token.text == "reason");
                (!has_reason).then(|| "#[expect] lacks its reason".to_owned())
            }
            _ => None,
        }
    })
}

/// Functions that take a `bool`, which says nothing where they are called. What a trait prescribes
/// is left out.
pub fn bool_parameters(file: &TextFile) -> Vec<Finding> {
    at_tokens(file, &without_trait_implementations(&tokens(&file.text)), |tokens| {
        let [keyword, name, ..] = tokens else { return None };
        if keyword.text != "fn" || !name.is_word() {
            return None;
        }
        let parameters = parameters(&tokens[2..]);
        let takes_bool = parameters.windows(3).any(|three| {
            three[0].text == ":" && three[1].text == "bool" && [",", ")"].contains(&three[2].text)
        });
        takes_bool
            .then(|| format!("`{}` takes a bool; write an enum that says what it means", name.text))
    })
}

/// The tokens of a function's parameter list with its parentheses, from those after its name.
fn parameters<'a, 'b>(tokens: &'b [Token<'a>]) -> &'b [Token<'a>] {
    let mut n_angles = 0;
    let begin = (0..tokens.len()).find(|&at| {
        match tokens[at].text {
            "<" => n_angles += 1,
            ">" if tokens[at - 1].text != "-" => n_angles -= 1,
            _ => {}
        }
        n_angles == 0 && tokens[at].text == "("
    });
    let list = &tokens[begin.unwrap_or(tokens.len())..];
    let mut depth = 0;
    let end = list.iter().position(|token| {
        match token.text {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    end.map_or(list, |end| &list[..=end])
}
