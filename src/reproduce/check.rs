//! Numbers that were found held against those that were expected.

use crate::config::{ExpectedNumber, InSmoke};

/// How thoroughly an experiment is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of its runs.
    Full,
    /// Runs of seconds, which show that everything works.
    Smoke,
}

/// What comes of an expectation.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The value is within its bound.
    Reproduced,
    /// It is not.
    Deviates {
        /// Difference to the expected number, in percent of it; absent where there is no value.
        percent: Option<f64>,
        /// Why, as far as is known.
        why: Option<String>,
    },
    /// It cannot be found out on this machine or with this program.
    NotReproducibleHere {
        /// Why not.
        why: String,
    },
    /// Runs of seconds say nothing about it.
    NotChecked,
}

impl Verdict {
    /// The word for it in a table and in JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Reproduced => "reproduced",
            Verdict::Deviates { .. } => "deviates",
            Verdict::NotReproducibleHere { .. } => "not reproducible here",
            Verdict::NotChecked => "not checked",
        }
    }

    /// The word with what is known beside it.
    pub fn sentence(&self) -> String {
        let because = |why: &Option<String>| why.as_ref().map(|why| format!(": {why}"));
        match self {
            Verdict::Deviates { percent: Some(percent), why } => {
                format!("deviates by {percent:+.0} %{}", because(why).unwrap_or_default())
            }
            Verdict::Deviates { percent: None, why } => {
                format!("deviates, no value{}", because(why).unwrap_or_default())
            }
            Verdict::NotReproducibleHere { why } => format!("not reproducible here: {why}"),
            Verdict::Reproduced | Verdict::NotChecked => self.word().to_owned(),
        }
    }
}

/// An expectation beside what was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The expectation.
    pub number: ExpectedNumber,
    /// What was found; absent where the quantity does not exist, such as updates to a target that
    /// was never reached.
    pub value: Option<f64>,
    /// What comes of it.
    pub verdict: Verdict,
}

impl Check {
    /// Holds a value against its expectation on a machine with so many cores.
    pub fn of(number: &ExpectedNumber, value: Option<f64>, extent: Extent, cores: usize) -> Self {
        let verdict = verdict(number, value, extent, cores);
        Check { number: number.clone(), value, verdict }
    }

    /// Whether an expectation was not met.
    pub fn is_unmet(&self) -> bool {
        matches!(self.verdict, Verdict::Deviates { .. })
    }
}

fn verdict(number: &ExpectedNumber, value: Option<f64>, extent: Extent, cores: usize) -> Verdict {
    if let Some(why) = &number.beyond {
        return Verdict::NotReproducibleHere { why: why.clone() };
    }
    if let Some(needed) = number.needs_cores.filter(|needed| cores < *needed as usize) {
        let why = format!("it takes {needed} cores, this machine has {cores}");
        return Verdict::NotReproducibleHere { why };
    }
    if extent == Extent::Smoke && number.in_smoke == InSmoke::Shown {
        return Verdict::NotChecked;
    }
    match value {
        Some(value) if number.bound.admits(value) => Verdict::Reproduced,
        _ => {
            let expected = number.bound.value();
            let percent = value
                .filter(|_| expected.abs() > 0.0)
                .map(|value| 100.0 * (value - expected) / expected.abs());
            Verdict::Deviates { percent, why: number.why.clone() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{NumberBound, Origin};

    fn number(bound: NumberBound) -> ExpectedNumber {
        ExpectedNumber {
            name: "n".to_owned(),
            bound,
            source: Origin::Derived,
            from: "here".to_owned(),
            why: Some("a reason".to_owned()),
            paper: None,
            needs_cores: None,
            beyond: None,
            in_smoke: InSmoke::Shown,
        }
    }

    fn about() -> ExpectedNumber {
        number(NumberBound::About { value: -2.0, tolerance: 0.5 })
    }

    #[test]
    fn a_value_within_its_tolerance_is_reproduced_and_one_beyond_deviates_by_so_many_percent() {
        let of = |value| Check::of(&about(), Some(value), Extent::Full, 2).verdict;
        assert_eq!(of(-2.5), Verdict::Reproduced);
        let why = Some("a reason".to_owned());
        assert_eq!(of(-1.0), Verdict::Deviates { percent: Some(50.0), why });
    }

    #[test]
    fn a_value_that_does_not_exist_or_is_no_number_meets_no_bound() {
        for bound in [NumberBound::AtLeast(0.0), NumberBound::AtMost(0.0), about().bound] {
            assert!(Check::of(&number(bound), None, Extent::Full, 2).is_unmet());
            assert!(Check::of(&number(bound), Some(f64::NAN), Extent::Full, 2).is_unmet());
        }
    }

    #[test]
    fn runs_of_seconds_judge_only_what_they_must_meet() {
        let shown = Check::of(&about(), Some(9.0), Extent::Smoke, 2);
        assert_eq!(shown.verdict, Verdict::NotChecked);
        let checked = ExpectedNumber { in_smoke: InSmoke::Checked, ..about() };
        assert!(Check::of(&checked, Some(9.0), Extent::Smoke, 2).is_unmet());
    }

    #[test]
    fn what_takes_more_cores_than_there_are_is_not_reproducible_here() {
        let wide = ExpectedNumber { needs_cores: Some(8), ..about() };
        let of = |cores| Check::of(&wide, Some(9.0), Extent::Full, cores).verdict;
        assert!(matches!(of(7), Verdict::NotReproducibleHere { .. }));
        assert!(matches!(of(8), Verdict::Deviates { .. }));
    }
}
