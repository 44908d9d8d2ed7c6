//! Ranges and ticks of an axis.
//!
//! A tick is an exact decimal (mantissa × 10^exponent), so a label never shows the noise of
//! binary fractions, and ticks exist for any pair of finite numbers.

use super::Scale;

/// Linear ranges narrower than this are shown as one value: their ticks could no longer be
/// told from zero.
const NARROWEST: f64 = 1e-300;

/// Ranges narrower than this part of their values are shown as one value.
const NARROWEST_RELATIVE: f64 = 1e-9;

/// The span of values an axis shows, in projected units: the values themselves on a linear
/// axis, their decimal logarithms on a logarithmic one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub scale: Scale,
    pub low: f64,
    pub high: f64,
}

/// Projects a value that the axis can show: finite, and positive on a logarithmic axis.
pub(super) fn project(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log => value.log10(),
    }
}

impl Range {
    /// The range that holds all projected values, `None` without any. A single value gets
    /// room on both sides.
    pub(super) fn around(scale: Scale, projected: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) =
            projected.filter(|p| p.is_finite()).fold(None, |span: Option<(f64, f64)>, p| {
                Some(span.map_or((p, p), |(low, high)| (low.min(p), high.max(p))))
            })?;
        let size = low.abs().max(high.abs());
        let pad = match scale {
            Scale::Log if high - low < NARROWEST_RELATIVE => 0.5,
            Scale::Linear if high - low < NARROWEST.max(size * NARROWEST_RELATIVE) => {
                if size == 0.0 { 1.0 } else { (size * 0.1).max(NARROWEST) }
            }
            Scale::Linear | Scale::Log => 0.0,
        };
        Some(Self { scale, low, high }.widened(pad, pad))
    }

    /// The range with room added below and above, in projected units.
    pub(super) fn widened(self, below: f64, above: f64) -> Self {
        Self {
            low: (self.low - below).max(f64::MIN),
            high: (self.high + above).min(f64::MAX),
            ..self
        }
    }

    /// The part `share` of the range, in projected units; never infinite.
    pub(super) fn part(&self, share: f64) -> f64 {
        (self.high * share - self.low * share).min(f64::MAX)
    }

    /// Where a projected value lies, from 0 at the low end to 1 at the high end; values
    /// beyond the ends, infinite ones too, lie at the end.
    pub(super) fn fraction(&self, projected: f64) -> f64 {
        let span = self.high - self.low;
        let fraction = if span.is_finite() {
            (projected - self.low) / span
        } else {
            // Halves keep the difference of two huge numbers finite.
            (projected / 2.0 - self.low / 2.0) / (self.high / 2.0 - self.low / 2.0)
        };
        fraction.clamp(0.0, 1.0)
    }
}

/// A number written exactly: mantissa × 10^exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decimal {
    mantissa: i64,
    exponent: i32,
}

impl Decimal {
    fn value(self) -> f64 {
        format!("{}e{}", self.mantissa, self.exponent).parse().unwrap_or(0.0)
    }

    fn log10(self) -> f64 {
        (self.mantissa as f64).log10() + f64::from(self.exponent)
    }

    /// Exponent of the leading digit; `None` for zero.
    fn magnitude(self) -> Option<i32> {
        let digits = i32::try_from(self.mantissa.unsigned_abs().checked_ilog10()?).ok()?;
        Some(digits + self.exponent)
    }

    /// Written out, with as many decimals as the exponent says.
    fn plain(self) -> String {
        let sign = if self.mantissa < 0 { "−" } else { "" };
        let digits = self.mantissa.unsigned_abs().to_string();
        if self.exponent >= 0 {
            let zeros = if self.mantissa == 0 { 0 } else { self.exponent as usize };
            return format!("{sign}{digits}{}", "0".repeat(zeros));
        }
        let decimals = self.exponent.unsigned_abs() as usize;
        let digits = format!("{digits:0>width$}", width = decimals + 1);
        let (whole, fraction) = digits.split_at(digits.len() - decimals);
        format!("{sign}{whole}.{fraction}")
    }

    /// As a multiple of a power of ten: `2.5×10⁶`.
    fn scientific(self) -> String {
        let Some(magnitude) = self.magnitude() else {
            return "0".to_owned();
        };
        let mut digits = self.mantissa;
        while digits % 10 == 0 {
            digits /= 10;
        }
        let places = digits.unsigned_abs().ilog10() as i32;
        let lead = Self { mantissa: digits, exponent: -places }.plain();
        format!("{lead}×10{}", superscript(magnitude))
    }

    /// `10⁶`, or `2×10⁶` where the mantissa is not one.
    fn power(self) -> String {
        if self.mantissa == 1 {
            format!("10{}", superscript(self.exponent))
        } else {
            self.scientific()
        }
    }
}

fn superscript(exponent: i32) -> String {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    exponent
        .to_string()
        .chars()
        .map(|c| c.to_digit(10).map_or('⁻', |digit| DIGITS[digit as usize]))
        .collect()
}

/// A labelled tick; `at` is its place on the axis from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub at: f64,
    pub label: String,
}

/// The ticks of an axis: labelled ones, and the places of small ones between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ticks {
    pub major: Vec<Tick>,
    pub minor: Vec<f64>,
}

/// Which numbers may carry a tick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TickNumbers {
    Any,
    /// Whole numbers between two that are shown.
    Whole {
        least: f64,
        most: f64,
    },
    /// On a logarithmic axis: powers of two, where everything that is shown is one.
    Doublings,
}

/// The most ticks, up to `most`, whose labels keep clear of each other on an axis of `length`.
///
/// `extent` gives the room a label needs along the axis, its gap to the next included.
pub(super) fn ticks(
    range: &Range,
    numbers: TickNumbers,
    length: f64,
    most: usize,
    extent: impl Fn(&str) -> f64,
) -> Ticks {
    let candidates = match range.scale {
        Scale::Log if numbers == TickNumbers::Doublings => doubling_candidates(range),
        Scale::Linear => linear_candidates(range.low, range.high, numbers, most)
            .map(|decimals| label_linear(range, &decimals))
            .collect::<Vec<_>>(),
        Scale::Log => log_candidates(range, most),
    };
    let clear = |ticks: &Vec<Tick>| keep_clear(ticks, length, &extent);
    let best = candidates
        .iter()
        .rev()
        .filter(|ticks| ticks.len() >= 2 && ticks.len() <= most && clear(ticks))
        .max_by_key(|ticks| ticks.len())
        .or_else(|| candidates.iter().find(|ticks| ticks.len() == 1));
    let major = match (best, candidates.last()) {
        (Some(ticks), _) => ticks.clone(),
        // Labels too wide for two of them: one says at least where the axis is.
        (None, Some(ticks)) => ticks.iter().take(1).cloned().collect(),
        (None, None) => Vec::new(),
    };
    let minor = match numbers {
        TickNumbers::Doublings => Vec::new(),
        TickNumbers::Whole { .. } => Vec::new(),
        TickNumbers::Any => minor_ticks(range),
    };
    Ticks { major, minor }
}

/// Largest power of two with a tick of its own.
const MOST_DOUBLINGS: u32 = 40;

/// Powers of two within the range, then every second, third, … of them.
fn doubling_candidates(range: &Range) -> Vec<Vec<Tick>> {
    let with_stride = |stride: usize| {
        (0..=MOST_DOUBLINGS)
            .step_by(stride)
            .map(|power| Decimal { mantissa: 1 << power, exponent: 0 })
            .filter(|decimal| (range.low - 1e-9..=range.high + 1e-9).contains(&decimal.log10()))
            .collect::<Vec<Decimal>>()
    };
    (1..=8).map(|stride| label_log(range, &with_stride(stride))).collect()
}

/// Whether a projected value of a logarithmic axis is a power of two.
pub(super) fn is_a_doubling(projected: f64) -> bool {
    let power = projected / std::f64::consts::LOG10_2;
    (power - power.round()).abs() < 1e-9
        && (0.0..=f64::from(MOST_DOUBLINGS)).contains(&power.round())
}

fn keep_clear(ticks: &[Tick], length: f64, extent: impl Fn(&str) -> f64) -> bool {
    ticks.windows(2).all(|pair| {
        let needed = (extent(&pair[0].label) + extent(&pair[1].label)) / 2.0;
        (pair[1].at - pair[0].at) * length >= needed
    })
}

/// Multiples of 1, 2 or 5 × 10^k within the range, from many to few.
fn linear_candidates(
    low: f64,
    high: f64,
    numbers: TickNumbers,
    most: usize,
) -> impl Iterator<Item = Vec<Decimal>> {
    (1..=most).rev().map(move |target| nice_multiples(low, high, target, numbers))
}

fn nice_multiples(low: f64, high: f64, target: usize, numbers: TickNumbers) -> Vec<Decimal> {
    let span = (high - low).min(f64::MAX);
    let raw = span / target as f64;
    let mut exponent = raw.log10().floor() as i32;
    let unit = |exponent: i32| Decimal { mantissa: 1, exponent }.value();
    let mut mantissa =
        [1, 2, 5].into_iter().find(|m| *m as f64 * unit(exponent) >= raw).unwrap_or(10);
    if mantissa == 10 {
        (mantissa, exponent) = (1, exponent + 1);
    }
    let (mut low, mut high) = (low, high);
    if let TickNumbers::Whole { least, most } = numbers {
        (low, high) = (low.max(least), high.min(most));
        if exponent < 0 {
            (mantissa, exponent) = (1, 0);
        }
    }
    let step = mantissa as f64 * unit(exponent);
    // A hair of slack: an end that is a multiple must not be lost to rounding.
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last)
        .take(4 * target + 4)
        .map(|count| Decimal { mantissa: count.saturating_mul(mantissa), exponent })
        .collect()
}

fn label_linear(range: &Range, decimals: &[Decimal]) -> Vec<Tick> {
    let largest = decimals.iter().filter_map(|d| d.magnitude()).max();
    let plain = largest.is_none_or(|magnitude| (-4..=5).contains(&magnitude));
    decimals
        .iter()
        .map(|decimal| Tick {
            at: range.fraction(project(range.scale, decimal.value())),
            label: if plain { decimal.plain() } else { decimal.scientific() },
        })
        .collect()
}

/// Ticks of a logarithmic axis from many to few: plain multiples where the range is less
/// than a decade, then parts of a decade, then every 2nd, 3rd, 5th, … decade.
fn log_candidates(range: &Range, most: usize) -> Vec<Vec<Tick>> {
    let mut candidates = Vec::new();
    if range.high - range.low <= 1.0 && range.high < 300.0 && range.low > -300.0 {
        let (low, high) = (10f64.powf(range.low), 10f64.powf(range.high));
        candidates.extend(
            linear_candidates(low, high, TickNumbers::Any, most)
                .map(|decimals| label_linear(range, &decimals)),
        );
    }
    for multiples in [&[1, 2, 5][..], &[1, 3], &[1]] {
        candidates.push(label_log(range, &decades(range, multiples, 1)));
    }
    for stride in [2, 3, 5, 10, 20, 50, 100, 200] {
        candidates.push(label_log(range, &decades(range, &[1], stride)));
    }
    candidates
}

/// The multiples of every `stride`-th power of ten within the range.
fn decades(range: &Range, multiples: &[i64], stride: i32) -> Vec<Decimal> {
    let (first, last) = (range.low.floor() as i32, range.high.ceil() as i32);
    (first..=last)
        .filter(|exponent| exponent.rem_euclid(stride) == 0)
        .flat_map(|exponent| {
            multiples.iter().map(move |mantissa| Decimal { mantissa: *mantissa, exponent })
        })
        .filter(|decimal| {
            let at = decimal.log10();
            range.low - 1e-9 <= at && at <= range.high + 1e-9
        })
        .collect()
}

fn label_log(range: &Range, decimals: &[Decimal]) -> Vec<Tick> {
    let plain = decimals.iter().all(|decimal| (-3..=4).contains(&decimal.exponent));
    decimals
        .iter()
        .map(|decimal| Tick {
            at: range.fraction(decimal.log10()),
            label: if plain { decimal.plain() } else { decimal.power() },
        })
        .collect()
}

/// On a logarithmic axis of few decades, every multiple of each power of ten.
fn minor_ticks(range: &Range) -> Vec<f64> {
    if range.scale == Scale::Linear || range.high - range.low > 12.0 {
        return Vec::new();
    }
    let all: Vec<i64> = (1..=9).collect();
    decades(range, &all, 1).into_iter().map(|decimal| range.fraction(decimal.log10())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(range: &Range, numbers: TickNumbers) -> Vec<String> {
        let ticks =
            ticks(range, numbers, 500.0, 8, |label| 10.0 + 7.0 * label.chars().count() as f64);
        ticks.major.into_iter().map(|tick| tick.label).collect()
    }

    fn linear(low: f64, high: f64) -> Range {
        Range { scale: Scale::Linear, low, high }
    }

    fn log(low: f64, high: f64) -> Range {
        Range { scale: Scale::Log, low: low.log10(), high: high.log10() }
    }

    #[test]
    fn an_axis_of_powers_of_two_has_its_ticks_there() {
        let of = |high| labels(&log(0.95, high), TickNumbers::Doublings);
        assert_eq!(of(33.0), ["1", "2", "4", "8", "16", "32"]);
        assert_eq!(of(2000.0), ["1", "4", "16", "64", "256", "1024"]);
        assert!(is_a_doubling(16_f64.log10()) && is_a_doubling(0.0));
        assert!(!is_a_doubling(12_f64.log10()) && !is_a_doubling(0.5_f64.log10()));
    }

    #[test]
    fn linear_ticks_are_round_numbers_without_binary_noise() {
        assert_eq!(
            labels(&linear(0.0, 0.7), TickNumbers::Any),
            ["0.0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7"]
        );
        assert_eq!(
            labels(&linear(-1.0, 1.0), TickNumbers::Any),
            ["−1.0", "−0.5", "0.0", "0.5", "1.0"]
        );
    }

    #[test]
    fn counts_carry_whole_ticks_only() {
        let whole = |least, most| TickNumbers::Whole { least, most };
        assert_eq!(labels(&linear(0.0, 2.0), whole(0.0, 2.0)), ["0", "1", "2"]);
        assert_eq!(labels(&linear(-1.6, 1.6), whole(0.0, 0.0)), ["0"], "one bar");
    }

    #[test]
    fn large_and_small_values_are_powers_of_ten() {
        assert_eq!(
            labels(&linear(0.0, 4e6), TickNumbers::Any),
            ["0", "1×10⁶", "2×10⁶", "3×10⁶", "4×10⁶"]
        );
        assert_eq!(
            labels(&linear(1e-7, 2.2e-7), TickNumbers::Any),
            ["1×10⁻⁷", "1.2×10⁻⁷", "1.4×10⁻⁷", "1.6×10⁻⁷", "1.8×10⁻⁷", "2×10⁻⁷", "2.2×10⁻⁷"]
        );
    }

    #[test]
    fn log_ticks_thin_out_with_the_number_of_decades() {
        assert_eq!(labels(&log(0.9, 60.0), TickNumbers::Any), ["1", "2", "5", "10", "20", "50"]);
        assert_eq!(
            labels(&log(1e-3, 1e3), TickNumbers::Any),
            ["0.001", "0.01", "0.1", "1", "10", "100", "1000"]
        );
        assert_eq!(
            labels(&log(1e-300, 1e300), TickNumbers::Any),
            ["10⁻³⁰⁰", "10⁻²⁰⁰", "10⁻¹⁰⁰", "10⁰", "10¹⁰⁰", "10²⁰⁰", "10³⁰⁰"]
        );
    }

    #[test]
    fn a_log_axis_of_less_than_a_decade_still_has_ticks() {
        assert_eq!(
            labels(&log(2.05, 2.32), TickNumbers::Any),
            ["2.05", "2.10", "2.15", "2.20", "2.25", "2.30"]
        );
    }

    #[test]
    fn one_value_gets_room_on_both_sides() {
        let range = Range::around(Scale::Linear, [5.0].into_iter()).unwrap();
        assert!(range.low < 5.0 && 5.0 < range.high);
        assert!((range.fraction(5.0) - 0.5).abs() < 1e-12);
        let range = Range::around(Scale::Log, [2.0].into_iter()).unwrap();
        assert_eq!((range.low, range.high), (1.5, 2.5));
        assert_eq!(Range::around(Scale::Linear, [f64::NAN].into_iter()), None);
    }

    proptest! {
        #[test]
        fn ticks_lie_on_the_axis_in_order_and_keep_clear(
            a in proptest::num::f64::NORMAL | proptest::num::f64::ZERO | proptest::num::f64::SUBNORMAL,
            b in proptest::num::f64::NORMAL | proptest::num::f64::ZERO | proptest::num::f64::SUBNORMAL,
            pick in 0usize..2,
        ) {
            let scale = [Scale::Linear, Scale::Log][pick];
            let shown = |v: f64| match scale { Scale::Linear => v, Scale::Log => project(scale, v.abs()) };
            let Some(range) = Range::around(scale, [shown(a), shown(b)].into_iter()) else {
                return Ok(());
            };
            prop_assert!(range.low < range.high);
            let extent = |label: &str| 10.0 + 7.0 * label.chars().count() as f64;
            let ticks = ticks(&range, TickNumbers::Any, 500.0, 8, extent);
            prop_assert!(ticks.major.len() <= 8);
            prop_assert!(ticks.major.iter().all(|t| (0.0..=1.0).contains(&t.at)));
            prop_assert!(keep_clear(&ticks.major, 500.0, extent), "{ticks:?}");
        }
    }
}
