//! Reads Rust just well enough to check it: tokens with their lines, and the paths they spell.

use std::collections::BTreeSet;

/// A word, a number, `::` or another sign. Comments, texts and characters are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    pub line: usize,
    pub text: &'a str,
}

impl Token<'_> {
    pub fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c == '_' || c.is_alphabetic())
    }
}

/// A path such as `crate::units::SimTime`; those of a `use` with braces come one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodePath<'a> {
    pub line: usize,
    pub segments: Vec<&'a str>,
    /// How many `mod name { … }` stand around it.
    pub n_modules_around: usize,
}

/// The tokens of a file in order.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let (length, is_token) = measure(rest, first);
        let (piece, after) = rest.split_at(length);
        if is_token {
            found.push(Token { line, text: piece });
        }
        line += piece.matches('\n').count();
        rest = after;
    }
    found
}

/// The length in bytes of what `rest` begins with, and whether that is a token.
fn measure(rest: &str, first: char) -> (usize, bool) {
    if first.is_whitespace() {
        (first.len_utf8(), false)
    } else if rest.starts_with("//") {
        (rest.find('\n').unwrap_or(rest.len()), false)
    } else if rest.starts_with("/*") {
        (block_comment(rest), false)
    } else if let Some(length) = quoted(rest) {
        (length, false)
    } else if rest.starts_with("r#") {
        (2, false)
    } else if first == '_' || first.is_alphanumeric() {
        (word(rest), true)
    } else if first == '\'' {
        (1 + word(&rest[1..]), false)
    } else if rest.starts_with("::") {
        (2, true)
    } else {
        (first.len_utf8(), true)
    }
}

fn word(text: &str) -> usize {
    text.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(text.len())
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while let Some(mark) = text[at..].find(['/', '*']) {
        at += mark;
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            at += 1;
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The length of a text, byte text, raw text or character literal at the beginning.
fn quoted(text: &str) -> Option<usize> {
    let bare = text.strip_prefix(['b', 'c']).unwrap_or(text);
    let prefix = text.len() - bare.len();
    let raw =
        bare.strip_prefix('r').map(|tail| (tail, tail.len() - tail.trim_start_matches('#').len()));
    if let Some((tail, n_hashes)) = raw.filter(|(tail, n)| tail[*n..].starts_with('"')) {
        let end = format!("\"{}", "#".repeat(n_hashes));
        let body = &tail[n_hashes + 1..];
        let length = body.find(&end).map_or(body.len(), |at| at + end.len());
        return Some(prefix + 1 + n_hashes + 1 + length);
    }
    let mut inside = bare.char_indices();
    match inside.next()?.1 {
        '"' => Some(prefix + closing(bare, '"')),
        '\'' => {
            let (_, content) = inside.next()?;
            let is_character = content == '\\' || inside.next().is_some_and(|(_, c)| c == '\'');
            is_character.then(|| prefix + closing(bare, '\''))
        }
        _ => None,
    }
}

/// The length of a literal up to and with the mark that ends it.
fn closing(text: &str, mark: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if !escaped && c == mark {
            return at + mark.len_utf8();
        }
        escaped = !escaped && c == '\\';
    }
    text.len()
}

/// The paths that tokens spell, in order. A single word is a path too.
pub fn paths<'a>(tokens: &[Token<'a>]) -> Vec<CodePath<'a>> {
    let mut found = Vec::new();
    let mut braces_are_modules: Vec<bool> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].text {
            "{" => braces_are_modules.push(at >= 2 && tokens[at - 2].text == "mod"),
            "}" => drop(braces_are_modules.pop()),
            _ if tokens[at].is_word() => {
                let n_modules_around =
                    braces_are_modules.iter().filter(|is_module| **is_module).count();
                let begin = found.len();
                at = path(tokens, at, Vec::new(), &mut found);
                found[begin..].iter_mut().for_each(|path| path.n_modules_around = n_modules_around);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Reads the path that begins at `at` with a word; returns where it ends.
fn path<'a>(
    tokens: &[Token<'a>],
    mut at: usize,
    mut segments: Vec<&'a str>,
    found: &mut Vec<CodePath<'a>>,
) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let line = tokens[at].line;
    segments.push(tokens[at].text);
    at += 1;
    while text(at) == "::"
        && (text(at + 1) == "*" || tokens.get(at + 1).is_some_and(Token::is_word))
    {
        segments.push(text(at + 1));
        at += 2;
    }
    if text(at) == "::" && text(at + 1) == "{" {
        at += 2;
        while !["}", ""].contains(&text(at)) {
            if text(at) == "as" {
                at += 2;
            } else if text(at) == "*" || tokens[at].is_word() {
                at = path(tokens, at, segments.clone(), found);
            } else {
                at += 1;
            }
        }
        return at + 1;
    }
    found.push(CodePath { line, segments, n_modules_around: 0 });
    at
}

/// The tokens without the items that only a test build has.
pub fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    without_items(tokens, |at| is_test_attribute(&tokens[at..]))
}

/// The tokens without `impl Trait for Type { … }`.
pub fn without_trait_implementations<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    without_items(tokens, |at| {
        let is_item = at == 0 || ["{", "}", ";", "]", "unsafe"].contains(&tokens[at - 1].text);
        let mut header = tokens[at..].iter().take_while(|token| token.text != "{");
        tokens[at].text == "impl" && is_item && header.any(|token| token.text == "for")
    })
}

/// The tokens without the items that begin where `is_begin` says so.
fn without_items<'a>(tokens: &[Token<'a>], is_begin: impl Fn(usize) -> bool) -> Vec<Token<'a>> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if is_begin(at) {
            at = end_of_item(tokens, at + 1);
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// The names of the modules in files of their own that only a test build has.
pub fn test_modules<'a>(tokens: &[Token<'a>]) -> BTreeSet<&'a str> {
    (0..tokens.len())
        .filter(|at| is_test_attribute(&tokens[*at..]))
        .filter_map(|at| {
            let item =
                &tokens[at + TEST_ATTRIBUTE.len()..end_of_item(tokens, at + TEST_ATTRIBUTE.len())];
            match item {
                [.., keyword, name, end] if keyword.text == "mod" && end.text == ";" => {
                    Some(name.text)
                }
                _ => None,
            }
        })
        .collect()
}

const TEST_ATTRIBUTE: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];

fn is_test_attribute(tokens: &[Token<'_>]) -> bool {
    let begin = tokens.iter().take(TEST_ATTRIBUTE.len()).map(|token| token.text);
    begin.eq(TEST_ATTRIBUTE)
}

/// One past the `;` or the closing brace of the item that begins at `at`.
fn end_of_item(tokens: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            "}" if depth == 1 => return index + 1,
            "}" => depth -= 1,
            ";" if depth == 0 => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}
