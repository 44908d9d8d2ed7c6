//! A TOML document whose every key and value knows where it was written.

use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Mistake, Problem};
use super::source::{Place, Source};

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

/// What a value is.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    /// Integers beyond 128 bits are cut off there: no key admits them anyway.
    Integer(i128),
    Float(f64),
    Boolean,
    Datetime,
    Array(Vec<Node>),
    Table(Table),
}

/// Entries in the order of the text.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) place: Place,
    pub(super) entries: Vec<Entry>,
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_place: Place,
    pub(super) node: Node,
}

/// Parses a whole text.
pub(super) fn parse(source: &Arc<Source>) -> Result<Table, Mistake> {
    match DeTable::parse(source.text()) {
        Ok(table) => {
            let span = table.span();
            Ok(convert_table(source, span, table.into_inner()))
        }
        Err(error) => Err(syntax(source, &error)),
    }
}

/// A parser's complaint as a mistake.
pub(super) fn syntax(source: &Arc<Source>, error: &toml::de::Error) -> Mistake {
    let reason = error.message().lines().collect::<Vec<_>>().join("; ");
    let span = error.span().unwrap_or(0..0);
    Mistake::new(Problem::Syntax { reason }, &Place::new(source, span))
}

pub(super) fn convert_table(source: &Arc<Source>, span: Range<usize>, table: DeTable<'_>) -> Table {
    let entry = |(key, value): (Spanned<std::borrow::Cow<'_, str>>, Spanned<DeValue<'_>>)| Entry {
        key_place: Place::new(source, key.span()),
        key: key.into_inner().into_owned(),
        node: convert(source, value),
    };
    let mut entries: Vec<Entry> = table.into_iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.key_place.span.start);
    Table { place: Place::new(source, span), entries }
}

fn convert(source: &Arc<Source>, value: Spanned<DeValue<'_>>) -> Node {
    let span = value.span();
    let value = match value.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) => {
            let (digits, radix) = (number.as_str(), number.radix());
            let beyond = if digits.starts_with('-') { i128::MIN } else { i128::MAX };
            Value::Integer(i128::from_str_radix(digits, radix).unwrap_or(beyond))
        }
        // What is no number becomes NaN, which no key admits.
        DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(_) => Value::Boolean,
        DeValue::Datetime(_) => Value::Datetime,
        DeValue::Array(items) => {
            Value::Array(items.into_iter().map(|item| convert(source, item)).collect())
        }
        DeValue::Table(table) => Value::Table(convert_table(source, span.clone(), table)),
    };
    Node { place: Place::new(source, span), value }
}

impl Node {
    /// The type in words, with an article.
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            Value::Text(_) => "a text",
            Value::Integer(_) => "a whole number",
            Value::Float(_) => "a number with a fraction",
            Value::Boolean => "a truth value",
            Value::Datetime => "a date",
            Value::Array(_) => "a list",
            Value::Table(_) => "a table",
        }
    }

    /// The value as the user wrote it, a text without its quotes.
    pub(super) fn written_whole(&self) -> String {
        match &self.value {
            Value::Text(text) => text.clone(),
            _ => self.place.text().trim().to_owned(),
        }
    }

    /// The value as the user wrote it, cut off where it is long.
    pub(super) fn written(&self) -> String {
        const LONGEST: usize = 60;
        let text = self.place.text().trim();
        let first: String = text.lines().next().unwrap_or_default().chars().take(LONGEST).collect();
        if first.len() < text.len() { format!("{first}...") } else { first }
    }
}

impl Table {
    pub(super) fn empty(place: &Place) -> Self {
        Table { place: place.clone(), entries: Vec::new() }
    }

    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// Puts a value under a path, over what is there; tables on the way are made.
    pub(super) fn put(&mut self, path: &[Key], node: Node) {
        let [key, rest @ ..] = path else { return };
        let at = match self.entries.iter().position(|entry| entry.key == key.name) {
            Some(at) => at,
            None => {
                let table = Value::Table(Table::empty(&key.place));
                let node = Node { place: key.place.clone(), value: table };
                let (key, key_place) = (key.name.clone(), key.place.clone());
                self.entries.push(Entry { key, key_place, node });
                self.entries.len() - 1
            }
        };
        let entry = &mut self.entries[at];
        if rest.is_empty() {
            entry.key_place = key.place.clone();
            entry.node = node;
            return;
        }
        if !matches!(entry.node.value, Value::Table(_)) {
            let table = Value::Table(Table::empty(&key.place));
            entry.node = Node { place: key.place.clone(), value: table };
        }
        if let Value::Table(table) = &mut entry.node.value {
            table.put(rest, node);
        }
    }

    /// Takes away the value under a path when `condemned` says so of its place.
    pub(super) fn remove(&mut self, path: &[&str], condemned: impl Fn(&Place) -> bool + Copy) {
        match path {
            [] => {}
            [key] => {
                self.entries.retain(|entry| entry.key != *key || !condemned(&entry.node.place))
            }
            [key, rest @ ..] => {
                for entry in self.entries.iter_mut().filter(|entry| entry.key == *key) {
                    if let Value::Table(table) = &mut entry.node.value {
                        table.remove(rest, condemned);
                    }
                }
            }
        }
    }
}

/// One part of a dotted key.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) place: Place,
}
