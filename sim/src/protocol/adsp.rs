//! Adaptive synchronous parallel: machines never wait, and all commit equally often.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, Edge, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::solo::{Habit, Merge, Solo};
use super::{Change, LocalMomentum, Loss, Parcel, ProtocolError, Roster, ServerRule, Strategy};
use crate::ids::MachineId;
use crate::units::{SimDuration, SimTime};

/// Each machine makes local steps w_i ← w_i − η·g without waiting for anybody, sums their
/// gradients, and commits the sum once per interval Γ: w ← w − (η/N)·Σ g for N machines, with the
/// explicit momentum on the server. It then reads the model.
///
/// The n-th commit of a machine is due n·Γ after the run began, and happens with the first
/// gradient from then on; so all commit equally often, and make local steps in proportion to their
/// speed. N counts the machines that are there.
///
/// With a trial time T > 0 the rate is searched while training goes on: c = T/Γ commits of each
/// machine are tried for T, then c + 1, and so on as long as the loss falls faster than in the trial
/// before; the last rate that did better stays. How fast it falls is the slope of 1/loss against time
/// over the mini-batches of a trial, by least squares: it is the same early and late in training
/// where the loss goes with 1/t. Where losses are not known, as in a simulation of times alone, Γ
/// stays.
///
/// Source: Hu et al., "Distributed Machine Learning through Heterogeneous Edge Systems" (ADSP),
/// AAAI 2020, arXiv:1911.06949, with one search instead of one an epoch, and a loss that goes to 0
/// in place of a fitted end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adsp {
    /// Γ, time between two commits of a machine in milliseconds, at first.
    pub commit_interval_ms: f32,
    /// T in milliseconds; 0 for a rate that stays.
    pub trial_ms: f32,
}

impl Kind for Adsp {
    const CARD: Card = Card {
        name: "adsp",
        rule: "local steps without waiting; once per interval Γ, which is searched by loss decrease, each \
               machine commits: w ← w − (η/N)·Σ g",
        source: "ADSP, arXiv:1911.06949",
        grouping: Grouping::PerMachine,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[
            Knob {
                name: "commit_interval_ms",
                meaning: "Γ, time between two commits of a machine, at first",
                values: KnobValues::Number {
                    above: Edge::Included(1e-3),
                    below: Edge::Included(1e9),
                },
                typical: Typical::Number(100.0),
            },
            Knob {
                name: "trial_ms",
                meaning: "T, time for which each commit rate is tried; 0 for one that stays",
                values: KnobValues::Number {
                    above: Edge::Included(0.0),
                    below: Edge::Included(1e9),
                },
                typical: Typical::Number(0.0),
            },
        ],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        let kind = Adsp {
            commit_interval_ms: knobs.number("commit_interval_ms"),
            trial_ms: knobs.number("trial_ms"),
        };
        kind.check().map(|()| kind)
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![KnobValue::Number(self.commit_interval_ms), KnobValue::Number(self.trial_ms)]
    }

    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2²⁴ machines")]
    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        self.check()?;
        let interval = span(self.commit_interval_ms)?;
        let commits = Commits {
            interval,
            machines: roster.conv_machines as f32,
            due: vec![None; roster.conv_machines as usize],
            search: match self.trial_ms {
                trial if trial > 0.0 => Some(Search::new(span(trial)?, interval)),
                _ => None,
            },
        };
        Ok(Box::new(Solo::new(Box::new(commits), roster)))
    }
}

impl Adsp {
    fn check(self) -> Result<(), ProtocolError> {
        let Adsp { commit_interval_ms, trial_ms } = self;
        if trial_ms > 0.0 && trial_ms < commit_interval_ms {
            let reason = format!(
                "a rate is tried for {trial_ms} ms, but a commit is due only every \
                 {commit_interval_ms} ms; `trial_ms` must be 0 or at least `commit_interval_ms`"
            );
            return Err(ProtocolError::Knobs { strategy: Self::CARD.name, reason });
        }
        Ok(())
    }
}

fn span(milliseconds: f32) -> Result<SimDuration, ProtocolError> {
    SimDuration::from_secs_f64(f64::from(milliseconds) / 1e3).map_err(|error| {
        let (strategy, reason) = (Adsp::CARD.name, error.to_string());
        ProtocolError::Knobs { strategy, reason }
    })
}

/// When each machine is to commit next.
#[derive(Clone, Debug)]
struct Commits {
    interval: SimDuration,
    machines: f32,
    due: Vec<Option<SimTime>>,
    /// The search for the rate, until it has ended.
    search: Option<Search>,
}

/// A search for the rate at which the loss falls fastest.
#[derive(Clone, Debug)]
struct Search {
    /// T.
    trial: SimDuration,
    /// Commits of each machine in a trial that is under way.
    commits: u64,
    /// When it began, once there was a loss.
    began: Option<SimTime>,
    /// (seconds since then, 1/loss) of its mini-batches.
    seen: Vec<(f64, f64)>,
    /// How fast the loss fell in the trial before.
    before: Option<f64>,
}

impl Search {
    fn new(trial: SimDuration, interval: SimDuration) -> Self {
        let commits = (trial.as_nanos() / interval.as_nanos()).max(1);
        Search { trial, commits, began: None, seen: Vec::new(), before: None }
    }

    fn interval(&self, commits: u64) -> SimDuration {
        SimDuration::from_nanos((self.trial.as_nanos() / commits).max(1))
    }

    /// Takes in a loss; at the end of a trial the interval from then on, and whether it stays.
    fn see(&mut self, loss: f64, now: SimTime) -> Option<(SimTime, SimDuration, Stays)> {
        let began = *self.began.get_or_insert(now);
        let end = began + self.trial;
        if now < end {
            self.seen.push(((now - began).as_secs_f64(), 1.0 / loss));
            return None;
        }
        let fell = slope(&self.seen);
        if self.before.is_some_and(|before| fell <= before) {
            return Some((end, self.interval(self.commits - 1), Stays::Yes));
        }
        (self.before, self.began) = (Some(fell), Some(end));
        self.commits += 1;
        self.seen = vec![((now - end).as_secs_f64(), 1.0 / loss)];
        Some((end, self.interval(self.commits), Stays::No))
    }
}

/// Whether a rate is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    Yes,
    No,
}

/// Slope of a straight line through points by least squares; 0 where there are too few.
#[expect(clippy::cast_precision_loss, reason = "far fewer than 2⁵³ mini-batches")]
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let product: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let square: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if square > 0.0 { product / square } else { 0.0 }
}

impl Habit for Commits {
    fn wants_losses(&self) -> bool {
        self.search.is_some()
    }

    fn computed(&mut self, loss: Option<Loss>, now: SimTime) {
        let Some((search, loss)) = self.search.as_mut().zip(loss) else { return };
        // A loss of 0 or below has no inverse to go by.
        if loss.get() <= 0.0 {
            return;
        }
        let Some((from, interval, stays)) = search.see(loss.get(), now) else { return };
        self.interval = interval;
        self.due.iter_mut().flatten().for_each(|due| *due = from + interval);
        if stays == Stays::Yes {
            self.search = None;
        }
    }

    fn started(&mut self, machine: MachineId, now: SimTime) {
        self.due[machine.index()] = Some(now + self.interval);
    }

    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2²⁴ machines")]
    fn takes_part(&mut self, there: &[bool]) {
        self.machines = there.iter().filter(|is_there| **is_there).count() as f32;
    }

    fn pushes(&mut self, machine: MachineId, _steps: u32, now: SimTime) -> bool {
        let due = &mut self.due[machine.index()];
        if due.is_some_and(|due| now < due) {
            return false;
        }
        *due = due.map(|due| due + self.interval);
        true
    }

    fn changes(&self) -> Vec<Change> {
        vec![Change::Sum { weight: 1.0 }, Change::Step { momentum: LocalMomentum::None, rate: 1.0 }]
    }

    fn parcel(&self, _steps: u32) -> Parcel {
        Parcel::Sum { divisor: self.machines }
    }

    fn merge(&mut self, _machine: MachineId) -> Merge {
        Merge::Apply(ServerRule::Scaled(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Losses that fall fastest at three commits a trial, seen every millisecond.
    #[test]
    fn the_search_stays_at_the_rate_at_which_the_loss_falls_fastest() {
        let milliseconds = SimDuration::from_millis;
        let mut commits = Commits {
            interval: milliseconds(100),
            machines: 1.0,
            due: vec![Some(SimTime::ZERO)],
            search: Some(Search::new(milliseconds(100), milliseconds(100))),
        };
        let (mut inverse, mut now, mut tried) = (1.0, SimTime::ZERO, Vec::new());
        while commits.wants_losses() {
            now = now + milliseconds(1);
            let rate = milliseconds(100).as_nanos() / commits.interval.as_nanos();
            if tried.last() != Some(&rate) {
                tried.push(rate);
            }
            inverse += [0.1, 0.2, 0.4, 0.3][usize::try_from(rate - 1).expect("a few rates")];
            commits.computed(Loss::new(1.0 / inverse), now);
        }
        assert_eq!(tried, [1, 2, 3, 4]);
        assert_eq!(commits.interval.as_nanos(), 100_000_000 / 3);
    }

    #[test]
    fn a_straight_line_has_its_own_slope() {
        assert!((slope(&[(0.0, 1.0), (1.0, 3.0), (3.0, 7.0)]) - 2.0).abs() < 1e-12);
        assert!(slope(&[(1.0, 5.0)]).abs() < 1e-12);
    }
}
