//! Long tables on disk and small tables for reading.
//!
//! A [`LongTable`] is tidy: one observation a row, one quantity a column, the unit last in
//! the column's name (`time_s`). It becomes CSV for people and Parquet for programs. A
//! [`SummaryTable`] is the few rows that a terminal or a report shows.

use polars::prelude::{
    Column, CsvReadOptions, CsvWriter, DataFrame, DataType, NamedFrom, ParquetCompression,
    ParquetReader, ParquetWriter, PolarsError, SerReader, SerWriter, Series,
};
use std::collections::BTreeSet;
use std::io::{Cursor, Write};

/// Why a table could not be made, written or read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A column name that a program could not use as an identifier.
    #[error(
        "`{name}` cannot name a column; a name is lowercase letters, digits and underscores \
         and starts with a letter, such as `time_s`"
    )]
    Name {
        /// The name that was given.
        name: String,
    },
    /// Two columns of one name.
    #[error("the table already has a column `{name}`; names must differ")]
    Duplicate {
        /// The name that was given twice.
        name: String,
    },
    /// A column of another length than those before it.
    #[error("column `{name}` has {found} rows where the table has {expected}")]
    Length {
        /// The column.
        name: String,
        /// Its number of values.
        found: usize,
        /// The number of rows of the table.
        expected: usize,
    },
    /// A column that the table does not have.
    #[error("the table has no column `{name}`; its columns are {}", known.join(", "))]
    Missing {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A column of another kind than asked for.
    #[error("column `{name}` holds {found} where {wanted} was expected")]
    Kind {
        /// The column.
        name: String,
        /// The kind that it has.
        found: String,
        /// The kind that it should have.
        wanted: ColumnKind,
    },
    /// A field of a CSV file that is not of its column's kind.
    #[error("`{text}` in column `{name}`, row {row}, is not {wanted}")]
    Field {
        /// The column.
        name: String,
        /// The row, counted from 1 after the header.
        row: usize,
        /// What stands there.
        text: String,
        /// The kind that the column should have.
        wanted: ColumnKind,
    },
    /// The bytes are no such file, or could not be written.
    #[error("cannot convert the table")]
    Convert(#[from] PolarsError),
}

/// What a column holds. Every kind may have absent values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Double-precision numbers, among them NaN and the infinities.
    Float,
    /// Whole numbers from 0.
    Integer,
    /// Text.
    Text,
}

impl std::fmt::Display for ColumnKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Float => "a number",
            Self::Integer => "a whole number from 0",
            Self::Text => "text",
        })
    }
}

impl ColumnKind {
    fn of(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::Float64 => Some(Self::Float),
            DataType::UInt64 => Some(Self::Integer),
            DataType::String => Some(Self::Text),
            _ => None,
        }
    }
}

/// A tidy table: named columns of equal length.
///
/// ```
/// # use omnivore::report::table::LongTable;
/// let table = LongTable::new()
///     .integer("update", [0, 1])?
///     .float("time_s", [0.0, 0.25])?
///     .float("loss", [Some(2.3), None])?
///     .constant("source", "measured")?;
/// let csv = String::from_utf8(table.to_csv()?).unwrap();
/// assert_eq!(csv, "update,time_s,loss,source\n0,0.0,2.3,measured\n1,0.25,,measured\n");
/// # Ok::<(), omnivore::report::table::TableError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LongTable {
    frame: DataFrame,
}

impl LongTable {
    /// A table without columns; the first column sets its number of rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// The table with a column of numbers; `None` is an absent value, which NaN is not.
    pub fn float<V: Into<Option<f64>>>(
        self,
        name: &str,
        values: impl IntoIterator<Item = V>,
    ) -> Result<Self, TableError> {
        let values: Vec<Option<f64>> = values.into_iter().map(Into::into).collect();
        self.with(Series::new(name.into(), values))
    }

    /// The table with a column of whole numbers.
    pub fn integer<V: Into<Option<u64>>>(
        self,
        name: &str,
        values: impl IntoIterator<Item = V>,
    ) -> Result<Self, TableError> {
        let values: Vec<Option<u64>> = values.into_iter().map(Into::into).collect();
        self.with(Series::new(name.into(), values))
    }

    /// The table with a column of text. An empty text is kept apart from an absent one.
    pub fn text<V: Into<Option<String>>>(
        self,
        name: &str,
        values: impl IntoIterator<Item = V>,
    ) -> Result<Self, TableError> {
        let values: Vec<Option<String>> = values.into_iter().map(Into::into).collect();
        self.with(Series::new(name.into(), values))
    }

    /// The table with a column that holds one text in every row, such as the run's name.
    pub fn constant(self, name: &str, value: &str) -> Result<Self, TableError> {
        let rows = self.rows();
        self.text(name, std::iter::repeat_n(value.to_owned(), rows))
    }

    fn with(mut self, series: Series) -> Result<Self, TableError> {
        let name = series.name().to_string();
        check_name(&name)?;
        if self.names().contains(&name) {
            return Err(TableError::Duplicate { name });
        }
        let (found, expected) = (series.len(), self.rows());
        if self.frame.width() > 0 && found != expected {
            return Err(TableError::Length { name, found, expected });
        }
        let mut columns = self.frame.columns().to_vec();
        columns.push(Column::from(series));
        self.frame = DataFrame::new(found, columns)?;
        Ok(self)
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.frame.height()
    }

    /// The names of the columns, in order.
    pub fn names(&self) -> Vec<String> {
        let names = self.frame.get_column_names();
        names.into_iter().map(ToString::to_string).collect()
    }

    /// The names and kinds of the columns, in order: what [`LongTable::from_csv`] needs.
    pub fn kinds(&self) -> Vec<(String, ColumnKind)> {
        let columns = self.frame.columns().iter();
        columns
            .filter_map(|column| Some((column.name().to_string(), ColumnKind::of(column.dtype())?)))
            .collect()
    }

    /// The values of a column of numbers.
    pub fn floats(&self, name: &str) -> Result<Vec<Option<f64>>, TableError> {
        let column = self.column(name, ColumnKind::Float)?;
        Ok(column.f64()?.iter().collect())
    }

    /// The values of a column of whole numbers.
    pub fn integers(&self, name: &str) -> Result<Vec<Option<u64>>, TableError> {
        let column = self.column(name, ColumnKind::Integer)?;
        Ok(column.u64()?.iter().collect())
    }

    /// The values of a column of text.
    pub fn texts(&self, name: &str) -> Result<Vec<Option<String>>, TableError> {
        let column = self.column(name, ColumnKind::Text)?;
        Ok(column.str()?.iter().map(|text| text.map(str::to_owned)).collect())
    }

    fn column(&self, name: &str, wanted: ColumnKind) -> Result<&Column, TableError> {
        let column = self
            .frame
            .column(name)
            .map_err(|_| TableError::Missing { name: name.to_owned(), known: self.names() })?;
        let found = ColumnKind::of(column.dtype());
        if found != Some(wanted) {
            let name = name.to_owned();
            let found = found.map_or_else(|| column.dtype().to_string(), |kind| kind.to_string());
            return Err(TableError::Kind { name, found, wanted });
        }
        Ok(column)
    }

    /// The table as polars sees it, for grouping and joining.
    pub fn frame(&self) -> &DataFrame {
        &self.frame
    }

    /// The rows of several tables under each other. Columns go by name; where a table lacks
    /// one, its values are absent there. Fails where a name has two kinds.
    pub fn stack(tables: &[Self]) -> Result<Self, TableError> {
        let mut stacked = Self::new();
        let mut done = BTreeSet::new();
        for (name, kind) in tables.iter().flat_map(Self::kinds) {
            if !done.insert(name.clone()) {
                continue;
            }
            stacked = match kind {
                ColumnKind::Float => {
                    stacked.float(&name, gather(tables, &name, |table| table.floats(&name))?)?
                }
                ColumnKind::Integer => {
                    stacked.integer(&name, gather(tables, &name, |table| table.integers(&name))?)?
                }
                ColumnKind::Text => {
                    stacked.text(&name, gather(tables, &name, |table| table.texts(&name))?)?
                }
            };
        }
        Ok(stacked)
    }

    /// The table as CSV with a header. Numbers are written so that they read back exactly;
    /// an absent value is an empty field, an empty text is `""`.
    pub fn to_csv(&self) -> Result<Vec<u8>, TableError> {
        let mut file = Vec::new();
        CsvWriter::new(&mut file).finish(&mut self.frame.clone())?;
        Ok(file)
    }

    /// The table as Parquet, compressed.
    pub fn to_parquet(&self) -> Result<Vec<u8>, TableError> {
        let mut file = Vec::new();
        ParquetWriter::new(&mut file)
            .with_compression(ParquetCompression::Zstd(None))
            .finish(&mut self.frame.clone())?;
        Ok(file)
    }

    /// Writes tables with the same columns under each other as one CSV file, as they come.
    pub fn stream_csv<E: From<TableError>>(
        tables: impl Iterator<Item = Result<Self, E>>,
        file: &mut dyn Write,
    ) -> Result<(), E> {
        let mut writer = None;
        let mut file = Some(file);
        for table in tables {
            let table = table?;
            if let Some(file) = file.take() {
                let opened = CsvWriter::new(file).batched(table.frame.schema());
                writer = Some(opened.map_err(TableError::from)?);
            }
            if let Some(writer) = &mut writer {
                writer.write_batch(&table.frame).map_err(TableError::from)?;
            }
        }
        let ended = writer.map_or(Ok(()), |mut writer| writer.finish());
        Ok(ended.map_err(TableError::from)?)
    }

    /// The same as a compressed Parquet file, with a row group for each table.
    pub fn stream_parquet<E: From<TableError>>(
        tables: impl Iterator<Item = Result<Self, E>>,
        file: &mut dyn Write,
    ) -> Result<(), E> {
        let mut writer = None;
        let mut file = Some(file);
        for table in tables {
            let table = table?;
            if let Some(file) = file.take() {
                let compressed =
                    ParquetWriter::new(file).with_compression(ParquetCompression::Zstd(None));
                let opened = compressed.batched(table.frame.schema());
                writer = Some(opened.map_err(TableError::from)?);
            }
            if let Some(writer) = &mut writer {
                writer.write_batch(&table.frame).map_err(TableError::from)?;
            }
        }
        let ended = writer.map_or(Ok(0), |writer| writer.finish());
        Ok(ended.map(drop).map_err(TableError::from)?)
    }

    /// Reads a Parquet file. Columns of kinds other than [`ColumnKind`] are refused.
    pub fn from_parquet(file: &[u8]) -> Result<Self, TableError> {
        let frame = ParquetReader::new(Cursor::new(file)).finish()?;
        for column in frame.columns() {
            if ColumnKind::of(column.dtype()).is_none() {
                return Err(TableError::Kind {
                    name: column.name().to_string(),
                    found: column.dtype().to_string(),
                    wanted: ColumnKind::Float,
                });
            }
        }
        Ok(Self { frame })
    }

    /// Reads the named columns of a CSV file as the kinds given. The kinds have to be told,
    /// because a column of absent values, or of text that looks like numbers, has none.
    pub fn from_csv(
        file: &[u8],
        kinds: &[(impl AsRef<str>, ColumnKind)],
    ) -> Result<Self, TableError> {
        let raw = Self {
            frame: CsvReadOptions::default()
                .with_infer_schema_length(Some(0))
                .into_reader_with_file_handle(Cursor::new(file))
                .finish()?,
        };
        let mut table = Self::new();
        for (name, kind) in kinds {
            let name = name.as_ref();
            let fields = raw.texts(name)?;
            table = match kind {
                ColumnKind::Float => table.float(name, parse::<f64>(name, fields, *kind)?)?,
                ColumnKind::Integer => table.integer(name, parse::<u64>(name, fields, *kind)?)?,
                ColumnKind::Text => table.text(name, fields)?,
            };
        }
        Ok(table)
    }
}

fn check_name(name: &str) -> Result<(), TableError> {
    let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(known) {
        Ok(())
    } else {
        Err(TableError::Name { name: name.to_owned() })
    }
}

/// The column of one name from all tables, absent values for a table that lacks it.
fn gather<V: Clone>(
    tables: &[LongTable],
    name: &str,
    read: impl Fn(&LongTable) -> Result<Vec<Option<V>>, TableError>,
) -> Result<Vec<Option<V>>, TableError> {
    let mut all = Vec::new();
    for table in tables {
        if table.names().iter().any(|known| known == name) {
            all.extend(read(table)?);
        } else {
            all.extend(std::iter::repeat_n(None, table.rows()));
        }
    }
    Ok(all)
}

fn parse<V: std::str::FromStr>(
    name: &str,
    fields: Vec<Option<String>>,
    wanted: ColumnKind,
) -> Result<Vec<Option<V>>, TableError> {
    let parse_field = |(row, field): (usize, Option<String>)| match field {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| TableError::Field {
            name: name.to_owned(),
            row: row + 1,
            text,
            wanted,
        }),
    };
    fields.into_iter().enumerate().map(parse_field).collect()
}

/// One value of a summary.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Text, set to the left.
    Text(String),
    /// A whole number.
    Integer(u64),
    /// A number, shown with this many significant digits.
    Float {
        /// The number; NaN and the infinities have names of their own.
        value: f64,
        /// Significant digits, at least 1.
        digits: usize,
    },
    /// A quantity that does not apply.
    Absent,
}

impl Cell {
    /// A number with four significant digits.
    pub fn number(value: f64) -> Self {
        Self::Float { value, digits: 4 }
    }

    /// A number where there is one.
    pub fn optional(value: Option<f64>) -> Self {
        value.map_or(Self::Absent, Self::number)
    }

    /// An interval as `low to high`; an end that is not known is a dash.
    pub fn interval(low: Option<f64>, high: Option<f64>) -> Self {
        if low.is_none() && high.is_none() {
            return Self::Absent;
        }
        let end = |end: Option<f64>| {
            end.map_or(Self::Absent, |value| Self::Float { value, digits: 3 }).show()
        };
        Self::Text(format!("{} to {}", end(low), end(high)))
    }

    /// The cell as it is shown. Line breaks and other control characters become spaces.
    pub fn show(&self) -> String {
        match self {
            Self::Text(text) => {
                text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
            }
            Self::Integer(value) => value.to_string(),
            Self::Float { value, digits } => show_number(*value, *digits),
            Self::Absent => "–".to_owned(),
        }
    }
}

/// A number with `digits` significant digits, as a decimal where that is short, else with
/// an exponent: `0.02500`, `1.250e9`.
fn show_number(value: f64, digits: usize) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let places = digits.clamp(1, 17) - 1;
    let scientific = format!("{value:.places$e}");
    // The exponent after rounding: 9.9996 with four digits is 1.000e1.
    let exponent: i32 =
        scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    if (-4..7).contains(&exponent) {
        let decimals = (places as i32 - exponent).max(0) as usize;
        format!("{value:.decimals$}")
    } else {
        scientific
    }
}

/// A small table for reading: a caption, headers, rows of cells.
///
/// Rows may be shorter than the header; what is missing is shown as absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SummaryTable {
    /// What the table shows; may be empty.
    pub caption: String,
    /// The names of the columns, with their units.
    pub headers: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
}

impl SummaryTable {
    /// A table without rows.
    pub fn new<H: Into<String>>(
        caption: impl Into<String>,
        headers: impl IntoIterator<Item = H>,
    ) -> Self {
        Self {
            caption: caption.into(),
            headers: headers.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// The number of columns: of the header, or of a row that is longer.
    pub(super) fn width(&self) -> usize {
        let rows = self.rows.iter().map(Vec::len);
        rows.chain([self.headers.len()]).max().unwrap_or(0)
    }

    /// The header and the rows as shown, all of one width.
    pub(super) fn shown(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let width = self.width();
        let mut headers: Vec<String> =
            self.headers.iter().map(|header| Cell::Text(header.clone()).show()).collect();
        headers.resize(width, String::new());
        let rows = self
            .rows
            .iter()
            .map(|row| {
                let mut cells: Vec<String> = row.iter().map(Cell::show).collect();
                cells.resize(width, Cell::Absent.show());
                cells
            })
            .collect();
        (headers, rows)
    }

    /// How each column is set: numbers to the right, columns with any text to the left.
    pub(super) fn alignments(&self) -> Vec<Alignment> {
        (0..self.width())
            .map(|column| {
                let mut cells = self.rows.iter().filter_map(|row| row.get(column));
                if cells.any(|cell| matches!(cell, Cell::Text(_))) {
                    Alignment::Left
                } else {
                    Alignment::Right
                }
            })
            .collect()
    }

    /// The table for a terminal: aligned columns, two spaces apart, a rule under the header.
    ///
    /// ```
    /// # use omnivore::report::table::{Cell, SummaryTable};
    /// let mut table = SummaryTable::new("", ["source", "time (s)"]);
    /// table.rows.push(vec![Cell::Text("predicted".into()), Cell::number(1.25)]);
    /// assert_eq!(table.to_text(), "\
    /// source     time (s)
    /// ---------  --------
    /// predicted     1.250
    /// ");
    /// ```
    pub fn to_text(&self) -> String {
        let (headers, rows) = self.shown();
        let alignments = self.alignments();
        let length = |text: &String| text.chars().count();
        let widths: Vec<usize> = (0..self.width())
            .map(|column| {
                let cells = rows.iter().map(|row| length(&row[column]));
                cells.chain([length(&headers[column])]).max().unwrap_or(0)
            })
            .collect();
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        let mut text = String::new();
        if !self.caption.is_empty() {
            text.push_str(&Cell::Text(self.caption.clone()).show());
            text.push('\n');
        }
        for row in [&headers, &rule].into_iter().chain(&rows) {
            let cells = row.iter().zip(&widths).zip(&alignments);
            let line: Vec<String> = cells
                .map(|((cell, width), alignment)| match alignment {
                    Alignment::Left => format!("{cell:<width$}"),
                    Alignment::Right => format!("{cell:>width$}"),
                })
                .collect();
            text.push_str(line.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// On which side of its column a cell stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alignment {
    Left,
    Right,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(values: &[Option<f64>]) -> Vec<Option<u64>> {
        // Every NaN reads back as NaN, but which one is not kept by CSV.
        let one = |v: f64| if v.is_nan() { f64::NAN } else { v }.to_bits();
        values.iter().map(|value| value.map(one)).collect()
    }

    fn assert_same(a: &LongTable, b: &LongTable) {
        assert_eq!(a.kinds(), b.kinds());
        for (name, kind) in a.kinds() {
            match kind {
                ColumnKind::Float => {
                    assert_eq!(bits(&a.floats(&name).unwrap()), bits(&b.floats(&name).unwrap()));
                }
                ColumnKind::Integer => {
                    assert_eq!(a.integers(&name).unwrap(), b.integers(&name).unwrap());
                }
                ColumnKind::Text => assert_eq!(a.texts(&name).unwrap(), b.texts(&name).unwrap()),
            }
        }
    }

    #[test]
    fn tables_that_are_written_as_they_come_are_one_table() {
        let table = |from: u64, n: u64| {
            let rows = from..from + n;
            let name = |row: u64| format!("row {row}");
            let table = LongTable::new().integer("row", rows.clone()).unwrap();
            table.text("name", rows.map(name)).unwrap()
        };
        let pieces =
            || [table(0, 3), table(3, 3), table(6, 1)].into_iter().map(Ok::<_, TableError>);
        let (mut csv, mut parquet) = (Vec::new(), Vec::new());
        LongTable::stream_csv(pieces(), &mut csv).unwrap();
        LongTable::stream_parquet(pieces(), &mut parquet).unwrap();
        assert_eq!(csv, table(0, 7).to_csv().unwrap());
        assert_same(&LongTable::from_parquet(&parquet).unwrap(), &table(0, 7));
        // What goes wrong on the way is said.
        let broken = || [Ok(table(0, 1)), Err(check_name("No name").unwrap_err())].into_iter();
        assert!(LongTable::stream_csv(broken(), &mut Vec::new()).is_err());
        assert!(LongTable::stream_parquet(broken(), &mut Vec::new()).is_err());
    }

    fn awkward() -> LongTable {
        let floats = [
            Some(0.1 + 0.2),
            Some(f64::NAN),
            Some(f64::NEG_INFINITY),
            None,
            Some(-0.0),
            Some(5e-324),
            Some(f64::MAX),
        ];
        let texts = ["plain", "", "a,b", "say \"no\"", "two\nlines", " 12 ", "ε"];
        LongTable::new()
            .float("loss", floats)
            .unwrap()
            .integer("update", [Some(0), None, Some(u64::MAX), Some(3), Some(4), Some(5), Some(6)])
            .unwrap()
            .text("name", texts.map(str::to_owned))
            .unwrap()
            .text("reason", [None, None, None, None, None, None, Some("nan".to_owned())])
            .unwrap()
    }

    #[test]
    fn a_table_reads_back_from_parquet_bit_for_bit() {
        let table = awkward();
        assert_same(&LongTable::from_parquet(&table.to_parquet().unwrap()).unwrap(), &table);
    }

    #[test]
    fn a_table_reads_back_from_csv_bit_for_bit() {
        let table = awkward();
        let file = table.to_csv().unwrap();
        assert_same(&LongTable::from_csv(&file, &table.kinds()).unwrap(), &table);
    }

    #[test]
    fn a_table_without_rows_keeps_its_columns() {
        let table = LongTable::new()
            .float("time_s", Vec::<f64>::new())
            .unwrap()
            .constant("run", "a")
            .unwrap();
        assert_same(&LongTable::from_parquet(&table.to_parquet().unwrap()).unwrap(), &table);
        let file = table.to_csv().unwrap();
        assert_same(&LongTable::from_csv(&file, &table.kinds()).unwrap(), &table);
    }

    #[test]
    fn the_same_table_gives_the_same_bytes() {
        let rows = 10_000u64;
        let table = || {
            LongTable::new()
                .integer("update", 0..rows)
                .unwrap()
                .float("loss", (0..rows).map(|i| (i as f64).sqrt()))
                .unwrap()
                .constant("run", "a")
                .unwrap()
        };
        assert_eq!(table().to_parquet().unwrap(), table().to_parquet().unwrap());
        assert_eq!(table().to_csv().unwrap(), table().to_csv().unwrap());
    }

    #[test]
    fn a_bad_column_is_refused_with_its_name() {
        let table = || LongTable::new().float("time_s", [1.0, 2.0]).unwrap();
        let message = |result: Result<LongTable, TableError>| result.unwrap_err().to_string();
        assert_eq!(
            message(table().float("loss", [1.0])),
            "column `loss` has 1 rows where the table has 2"
        );
        assert_eq!(
            message(table().float("time_s", [1.0, 2.0])),
            "the table already has a column `time_s`; names must differ"
        );
        for name in ["", "Time", "time (s)", "1st", "_x"] {
            assert!(message(table().float(name, [1.0, 2.0])).contains("cannot name a column"));
        }
        let missing = table().floats("los").unwrap_err().to_string();
        assert_eq!(missing, "the table has no column `los`; its columns are time_s");
        let kind = table().texts("time_s").unwrap_err().to_string();
        assert_eq!(kind, "column `time_s` holds a number where text was expected");
    }

    #[test]
    fn a_field_that_is_no_number_is_named_with_its_row() {
        let file = b"time_s\n1.0\nsoon\n";
        let error = LongTable::from_csv(file, &[("time_s", ColumnKind::Float)]).unwrap_err();
        assert_eq!(error.to_string(), "`soon` in column `time_s`, row 2, is not a number");
        assert!(LongTable::from_parquet(b"no parquet").is_err());
    }

    #[test]
    fn stacked_tables_keep_all_rows_and_fill_what_one_lacks() {
        let a = LongTable::new().float("time_s", [1.0]).unwrap().constant("run", "a").unwrap();
        let b = LongTable::new().float("time_s", [2.0]).unwrap().float("loss", [0.5]).unwrap();
        let stacked = LongTable::stack(&[a.clone(), b]).unwrap();
        assert_eq!(stacked.names(), ["time_s", "run", "loss"]);
        assert_eq!(stacked.floats("time_s").unwrap(), [Some(1.0), Some(2.0)]);
        assert_eq!(stacked.texts("run").unwrap(), [Some("a".to_owned()), None]);
        assert_eq!(stacked.floats("loss").unwrap(), [None, Some(0.5)]);
        let other = LongTable::new().integer("time_s", [1]).unwrap();
        assert!(LongTable::stack(&[a, other]).is_err());
        assert_eq!(LongTable::stack(&[]).unwrap().rows(), 0);
    }

    #[test]
    fn numbers_have_the_digits_asked_for() {
        let cases = [
            (1.25, 4, "1.250"),
            (9.9996, 4, "10.00"),
            (123_456.7, 4, "123457"),
            (1.25e9, 4, "1.250e9"),
            (0.000_012_5, 3, "1.25e-5"),
            (0.025, 4, "0.02500"),
            (0.0, 4, "0.000"),
            (-3.0, 2, "-3.0"),
            (f64::NAN, 4, "nan"),
            (f64::INFINITY, 4, "inf"),
            (f64::NEG_INFINITY, 4, "-inf"),
        ];
        for (value, digits, shown) in cases {
            assert_eq!(Cell::Float { value, digits }.show(), shown);
        }
    }

    #[test]
    fn a_summary_is_aligned_and_names_what_is_absent() {
        let mut table = SummaryTable::new("top 3", ["g", "strategy", "time to target (s)"]);
        let text = |t: &str| Cell::Text(t.to_owned());
        table.rows.push(vec![Cell::Integer(16), text("groups"), Cell::number(12.5)]);
        table.rows.push(vec![Cell::Integer(1), text("sync\n"), Cell::number(f64::NAN)]);
        table.rows.push(vec![Cell::Integer(2), Cell::Absent]);
        let expected = "\
top 3
 g  strategy  time to target (s)
--  --------  ------------------
16  groups                 12.50
 1  sync                     nan
 2  –                          –
";
        assert_eq!(table.to_text(), expected);
        assert_eq!(SummaryTable::default().to_text(), "\n\n");
    }

    proptest! {
        #[test]
        fn any_numbers_and_texts_read_back_from_csv_and_parquet(
            floats in prop::collection::vec(prop::option::of(any::<f64>()), 1..20),
            seed in any::<u64>(),
            texts in prop::collection::vec(prop::option::of("[ -~\\n\\u{e4}\"',;]{0,12}"), 20),
        ) {
            let rows = floats.len();
            let table = LongTable::new()
                .float("value", floats).unwrap()
                .integer("count", (0..rows as u64).map(|i| seed.wrapping_mul(i + 1))).unwrap()
                .text("text", texts.into_iter().take(rows)).unwrap();
            assert_same(&LongTable::from_parquet(&table.to_parquet().unwrap()).unwrap(), &table);
            let file = table.to_csv().unwrap();
            assert_same(&LongTable::from_csv(&file, &table.kinds()).unwrap(), &table);
        }

        #[test]
        fn every_line_of_a_summary_is_as_wide_as_its_rule_or_shorter(
            cells in prop::collection::vec(prop::collection::vec(".{0,8}", 0..4), 0..5)
        ) {
            let mut table = SummaryTable::new("", ["a", "b"]);
            table.rows = cells
                .into_iter()
                .map(|row| row.into_iter().map(Cell::Text).collect())
                .collect();
            let text = table.to_text();
            let width = text.lines().nth(1).unwrap().chars().count();
            prop_assert_eq!(text.split('\n').count(), table.rows.len() + 3);
            prop_assert!(text.split('\n').all(|line| line.chars().count() <= width));
        }
    }
}
