//! How long the runs that are still to be made will take.

/// How a run uses the machine; the two never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It has the machine for itself: it is on the wall clock, or a call of another verb.
    Alone,
    /// It is computed on one thread, beside others.
    Shared,
}

/// Runs of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// Seconds that were assumed for the runs that are still to be made, and for those made.
    left: f64,
    made: f64,
    /// Seconds that the latter took.
    took_s: f64,
}

impl Share {
    /// Assumed seconds over `at_once` at first, and as many times what they were as runs of this
    /// kind have taken since: their own seconds count like those of `PRIOR_S` more.
    fn left_s(&self, at_once: f64) -> f64 {
        const PRIOR_S: f64 = 20.0;
        let ratio = (self.took_s + PRIOR_S) / (self.made / at_once + PRIOR_S);
        self.left.max(0.0) / at_once * ratio
    }
}

/// Counts runs and seconds.
#[derive(Clone, Debug)]
pub struct Estimate {
    n_runs: usize,
    n_done: usize,
    alone: Share,
    shared: Share,
    threads: f64,
    /// When the last run ended, in seconds from the beginning.
    last_s: f64,
}

impl Estimate {
    /// Nothing to do yet, on so many threads.
    #[expect(clippy::cast_precision_loss, reason = "a number of threads")]
    pub fn new(threads: usize) -> Self {
        let (alone, shared) = (Share::default(), Share::default());
        Estimate { n_runs: 0, n_done: 0, alone, shared, threads: threads as f64, last_s: 0.0 }
    }

    fn share(&mut self, of: Use) -> &mut Share {
        match of {
            Use::Alone => &mut self.alone,
            Use::Shared => &mut self.shared,
        }
    }

    /// A run that is to be made, for which `seconds` of the machine or of a thread are assumed.
    pub fn expect(&mut self, of: Use, seconds: f64) {
        self.n_runs += 1;
        self.share(of).left += seconds;
    }

    /// A run has ended, `elapsed_s` after the beginning.
    pub fn ended(&mut self, of: Use, seconds: f64, elapsed_s: f64) {
        let took_s = elapsed_s - self.last_s;
        (self.n_done, self.last_s) = (self.n_done + 1, elapsed_s);
        let share = self.share(of);
        share.left -= seconds;
        share.made += seconds;
        share.took_s += took_s;
    }

    /// Seconds until all runs are made.
    pub fn left_s(&self) -> f64 {
        self.alone.left_s(1.0) + self.shared.left_s(self.threads)
    }

    /// For a line of progress.
    pub fn line(&self) -> String {
        let (n_done, n_runs) = (self.n_done, self.n_runs);
        let (elapsed, left) = (span(self.last_s), span(self.left_s()));
        format!("{n_done} of {n_runs} runs after {elapsed}, about {left} left")
    }
}

fn span(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten calls of 60 s and a hundred runs of 8 s of a thread, on two threads.
    fn all() -> Estimate {
        let mut estimate = Estimate::new(2);
        (0..10).for_each(|_| estimate.expect(Use::Alone, 60.0));
        (0..100).for_each(|_| estimate.expect(Use::Shared, 8.0));
        estimate
    }

    #[test]
    fn an_estimate_is_what_was_assumed_until_a_run_has_ended() {
        assert!((all().left_s() - (600.0 + 400.0)).abs() < 1e-9);
    }

    #[test]
    fn slow_calls_say_nothing_of_computed_runs() {
        let mut estimate = all();
        (1..=5).for_each(|call| estimate.ended(Use::Alone, 60.0, 120.0 * f64::from(call)));
        let calls_left = 300.0 * 620.0 / 320.0;
        assert!((estimate.left_s() - (calls_left + 400.0)).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_left_when_every_run_has_ended() {
        let mut estimate = all();
        (1..=10).for_each(|call| estimate.ended(Use::Alone, 60.0, 50.0 * f64::from(call)));
        (1..=100).for_each(|run| estimate.ended(Use::Shared, 8.0, 500.0 + f64::from(run)));
        assert!(estimate.left_s().abs() < 1e-9);
        assert_eq!(estimate.line(), "110 of 110 runs after 10 min, about 0 s left");
    }
}
