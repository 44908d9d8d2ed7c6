//! Reads keys of a table into typed values and collects every mistake on the way.

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;

use super::error::{MissingKey, Mistake, Problem};
use super::keys::{Meant, Section, nearest};
use super::source::Place;
use super::tree::{Node, Table, Value};

/// The mistakes found so far.
#[derive(Debug, Default)]
pub(super) struct Mistakes(RefCell<Vec<Mistake>>);

impl Mistakes {
    pub(super) fn add(&self, mistake: Mistake) {
        self.0.borrow_mut().push(mistake);
    }

    /// Adds a problem at a place; `None` stands for the value that cannot be had.
    pub(super) fn at<T>(&self, place: &Place, problem: Problem) -> Option<T> {
        self.add(Mistake::new(problem, place));
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub(super) fn into_vec(self) -> Vec<Mistake> {
        self.0.into_inner()
    }
}

/// Which numbers a key admits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    Finite,
    NotNegative,
    Positive,
    /// −1 < x < 1.
    Momentum,
    /// 0 < x ≤ 1.
    Fraction,
    /// 0 ≤ x ≤ 1.
    Share,
}

impl Bound {
    pub(super) fn admits(self, value: f64) -> bool {
        value.is_finite()
            && match self {
                Bound::Finite => true,
                Bound::NotNegative => value >= 0.0,
                Bound::Positive => value > 0.0,
                Bound::Momentum => value > -1.0 && value < 1.0,
                Bound::Fraction => value > 0.0 && value <= 1.0,
                Bound::Share => (0.0..=1.0).contains(&value),
            }
    }

    /// Whether the number is still admitted when rounded to single precision, in which models are
    /// computed.
    pub(super) fn admits_single(self, value: f64) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "the rounding is what is asked about")]
        let single = value as f32;
        self.admits(value) && self.admits(f64::from(single))
    }

    pub(super) fn expected(self) -> &'static str {
        match self {
            Bound::Finite => "a finite number",
            Bound::NotNegative => "a number of at least 0",
            Bound::Positive => "a number above 0",
            Bound::Momentum => "a number between -1 and 1, both excluded",
            Bound::Fraction => "a number above 0 and at most 1",
            Bound::Share => "a number from 0 to 1",
        }
    }
}

/// A value with the dotted key under which messages speak of it.
#[derive(Clone)]
pub(super) struct Field<'a> {
    pub(super) name: String,
    pub(super) node: &'a Node,
    pub(super) mistakes: &'a Mistakes,
}

impl<'a> Field<'a> {
    pub(super) fn refuse<T>(&self, problem: Problem) -> Option<T> {
        self.mistakes.at(&self.node.place, problem)
    }

    pub(super) fn wrong_type<T>(&self, expected: impl Into<String>) -> Option<T> {
        let found = match self.node.value {
            Value::Text(_) | Value::Integer(_) | Value::Float(_) => {
                format!("{} ({})", self.node.kind(), self.node.written())
            }
            _ => self.node.kind().to_owned(),
        };
        let key = self.name.clone();
        self.refuse(Problem::WrongType { key, found, expected: expected.into() })
    }

    fn out_of_range<T>(&self, expected: impl Into<String>) -> Option<T> {
        let (key, value) = (self.name.clone(), self.node.written());
        self.refuse(Problem::OutOfRange { key, value, expected: expected.into() })
    }

    /// A text that is not empty.
    pub(super) fn text(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Text(text) if text.trim().is_empty() => {
                self.out_of_range("a text that is not empty")
            }
            Value::Text(text) => Some(text),
            _ => self.wrong_type("a text in quotes"),
        }
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        self.choice_beside(&[], choices)
    }

    /// One of a few words, where a table with one of a few keys would have done too, of which
    /// messages speak as well.
    pub(super) fn choice_beside<T: Copy>(
        &self,
        tables: &[&'static str],
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let words = || choices.iter().map(|(word, _)| *word);
        let quoted = words().map(|word| format!("\"{word}\""));
        let braced = tables.iter().map(|key| format!("{{ {key} = ... }}"));
        let expected = one_of(quoted.chain(braced).collect());
        let Value::Text(text) = &self.node.value else {
            return self.wrong_type(expected);
        };
        match choices.iter().find(|(word, _)| word == text) {
            Some((_, choice)) => Some(*choice),
            None => self.unknown_choice(&expected, nearest(text, words())),
        }
    }

    pub(super) fn unknown_choice<T>(&self, choices: &str, meant: Option<&str>) -> Option<T> {
        self.refuse(Problem::UnknownChoice {
            key: self.name.clone(),
            value: self.node.written(),
            choices: choices.to_owned(),
            advice: meant.map(|meant| format!("did you mean \"{meant}\"?")),
        })
    }

    /// A whole number in a range.
    pub(super) fn whole(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let expected = match (range.start(), range.end()) {
            (least, &u64::MAX) => format!("a whole number of at least {least}"),
            (least, most) => format!("a whole number from {least} to {most}"),
        };
        match self.node.value {
            Value::Integer(number) => match u64::try_from(number) {
                Ok(number) if range.contains(&number) => Some(number),
                _ => self.out_of_range(expected),
            },
            _ => self.wrong_type(expected),
        }
    }

    /// A whole number that fits 32 bits, in a range.
    pub(super) fn count(&self, range: RangeInclusive<u32>) -> Option<u32> {
        let number = self.whole(u64::from(*range.start())..=u64::from(*range.end()))?;
        Some(u32::try_from(number).expect("the range ends within 32 bits"))
    }

    /// A number within a bound; whole numbers serve too.
    pub(super) fn number(&self, bound: Bound) -> Option<f64> {
        let value = match self.node.value {
            Value::Float(value) => value,
            #[expect(clippy::cast_precision_loss, reason = "numbers of measured quantities")]
            Value::Integer(value) => value as f64,
            _ => return self.wrong_type(bound.expected()),
        };
        if bound.admits_single(value) {
            Some(value)
        } else if bound.admits(value) {
            self.out_of_range(format!("{} in single precision", bound.expected()))
        } else {
            self.out_of_range(bound.expected())
        }
    }

    /// The entries of a list that is not empty.
    pub(super) fn items(&self, of: &str) -> Option<Vec<Field<'a>>> {
        let Value::Array(items) = &self.node.value else {
            return self.wrong_type(format!("a list of {of}"));
        };
        if items.is_empty() {
            return self.out_of_range(format!("a list of {of} with at least one entry"));
        }
        let (name, mistakes) = (&self.name, self.mistakes);
        let field = |(index, node)| Field { name: format!("{name}[{index}]"), node, mistakes };
        Some(items.iter().enumerate().map(field).collect())
    }

    /// A list whose entries are all read, so that every mistake in it is found.
    pub(super) fn list<T>(
        &self,
        of: &str,
        read: impl Fn(&Field<'a>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let items: Vec<Option<T>> = self.items(of)?.iter().map(read).collect();
        items.into_iter().collect()
    }

    /// A list whose entries differ from each other.
    pub(super) fn set<T: PartialEq>(
        &self,
        of: &str,
        read: impl Fn(&Field<'a>) -> Option<T>,
    ) -> Option<Vec<T>> {
        // Every entry is compared with every other.
        const MOST_ENTRIES: usize = 10_000;
        let n_entries = self.items(of)?.len();
        if n_entries > MOST_ENTRIES {
            return self.out_of_range(format!("a list of at most {MOST_ENTRIES} {of}"));
        }
        let values = self.list(of, read)?;
        let twin = (1..values.len()).find(|index| values[..*index].contains(&values[*index]));
        match (twin, self.items(of)) {
            (Some(index), Some(items)) => {
                let (key, value) = (self.name.clone(), items[index].node.written());
                items[index].refuse(Problem::Twice { key, value })
            }
            _ => Some(values),
        }
    }

    /// A table as a reader of its keys.
    pub(super) fn table(&self, section: &'static Section) -> Option<Reader<'a>> {
        match &self.node.value {
            Value::Table(table) => Some(Reader::open(
                table,
                &self.node.place,
                self.name.clone(),
                section,
                self.mistakes,
            )),
            _ => self.wrong_type("a table"),
        }
    }

    /// The only entry of a table that chooses one of several kinds.
    pub(super) fn only_entry(&self, kinds: &'static [&'static str]) -> Option<Field<'a>> {
        let expected = || {
            let forms: Vec<String> =
                kinds.iter().map(|kind| format!("{{ {kind} = ... }}")).collect();
            forms.join(" or ")
        };
        let Value::Table(table) = &self.node.value else { return self.wrong_type(expected()) };
        let unknown = table.entries.iter().find(|entry| !kinds.contains(&entry.key.as_str()));
        if let Some(entry) = unknown {
            let advice = match nearest(&entry.key, kinds.iter().copied()) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("possible keys are {}", kinds.join(", ")),
            };
            let key = format!("{}.{}", self.name, entry.key);
            let problem = Problem::UnknownKey { key, section: "a choice of one kind", advice };
            return self.mistakes.at(&entry.key_place, problem);
        }
        match table.entries.as_slice() {
            [entry] => Some(Field {
                name: format!("{}.{}", self.name, entry.key),
                node: &entry.node,
                mistakes: self.mistakes,
            }),
            [] => self.out_of_range(expected()),
            [first, second, ..] => {
                let name = |key: &str| format!("{}.{key}", self.name);
                let keys = vec![name(&first.key), name(&second.key)];
                let mistake = Mistake::new(Problem::ExcludeEachOther { keys }, &second.key_place);
                self.mistakes.add(mistake.and(&first.key_place));
                None
            }
        }
    }
}

/// `"a", "b" or "c"`.
pub(super) fn alternatives(words: impl Iterator<Item = &'static str>) -> String {
    one_of(words.map(|word| format!("\"{word}\"")).collect())
}

fn one_of(parts: Vec<String>) -> String {
    match parts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Reads the keys of one table; [`Reader::close`] reports the required ones that are missing.
pub(super) struct Reader<'a> {
    table: &'a Table,
    place: Place,
    prefix: String,
    section: &'static Section,
    /// Keys that are there under a wrong name, so that they are not also missing.
    meant: Vec<&'static str>,
    missing: RefCell<Vec<MissingKey>>,
    whole_file: Cell<bool>,
    pub(super) mistakes: &'a Mistakes,
}

impl<'a> Reader<'a> {
    /// A reader of a table, whose unknown keys it reports at once.
    pub(super) fn open(
        table: &'a Table,
        place: &Place,
        prefix: String,
        section: &'static Section,
        mistakes: &'a Mistakes,
    ) -> Self {
        let mut meant = Vec::new();
        for entry in table.entries.iter().filter(|entry| section.key(&entry.key).is_none()) {
            let (key, section_title) = (entry.key.clone(), section.title);
            let (name, problem) = match section.meant(&entry.key) {
                Meant::WithUnit(with_unit) => (Some(with_unit), Problem::NoUnit { key, with_unit }),
                Meant::InUnit(with_unit) => {
                    (Some(with_unit), Problem::OtherUnit { key, with_unit })
                }
                Meant::Key(name, advice) => {
                    (Some(name), Problem::UnknownKey { key, section: section_title, advice })
                }
                Meant::Advice(advice) => {
                    (None, Problem::UnknownKey { key, section: section_title, advice })
                }
            };
            meant.extend(name);
            mistakes.add(Mistake::new(problem, &entry.key_place));
        }
        Reader {
            table,
            place: place.clone(),
            prefix,
            section,
            meant,
            missing: RefCell::default(),
            whole_file: Cell::new(false),
            mistakes,
        }
    }

    /// A reader of a whole file.
    pub(super) fn open_file(
        table: &'a Table,
        section: &'static Section,
        mistakes: &'a Mistakes,
    ) -> Self {
        let reader = Reader::open(table, &table.place, String::new(), section, mistakes);
        reader.whole_file.set(true);
        reader
    }

    /// The dotted name of a key.
    pub(super) fn name(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.to_owned() } else { format!("{}.{key}", self.prefix) }
    }

    /// A key that may be left out.
    pub(super) fn optional(&self, key: &'static str) -> Option<Field<'a>> {
        debug_assert!(self.section.key(key).is_some(), "`{key}` is listed in its section");
        let node = self.table.get(key)?;
        Some(Field { name: self.name(key), node, mistakes: self.mistakes })
    }

    /// A key that must be there.
    pub(super) fn required(&self, key: &'static str) -> Option<Field<'a>> {
        let field = self.optional(key);
        if field.is_none() {
            self.miss(key);
        }
        field
    }

    /// Reports a key as missing.
    pub(super) fn miss(&self, key: &'static str) {
        let info = self.section.key(key).expect("a required key is listed in its section");
        if !self.meant.contains(&key) {
            self.missing.borrow_mut().push(*info);
        }
    }

    /// Reports the missing keys, all at once. They count as found at the place of the table.
    pub(super) fn close(self) {
        let keys = self.missing.into_inner();
        if keys.is_empty() {
            return;
        }
        // A picture of the first line would only distract from a list of what a file lacks.
        let mistake = if self.whole_file.get() {
            let section = format!("`{}`", self.place.source.name());
            Mistake::without_place(Problem::MissingKeys { section, keys })
        } else {
            let section = self.section.title.to_owned();
            Mistake::new(Problem::MissingKeys { section, keys }, &self.place)
        };
        self.mistakes.add(mistake);
    }
}
