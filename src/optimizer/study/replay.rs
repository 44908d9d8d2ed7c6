//! Searches that can be interrupted anywhere: a searcher is an ordinary function that is run
//! again from its beginning, with what earlier trials found, until it asks for more.

use super::trial::{Proposal, Trial};

/// Why a searcher was stopped.
#[derive(Clone, Debug, PartialEq)]
pub enum Pause {
    /// It asks for these trials, which nobody has made.
    Ask(Vec<Proposal>),
    /// The budget ended within the round that it asked for.
    Cut,
    /// It asks for something else than what was tried at this place.
    Other {
        /// The trial.
        number: u64,
    },
}

/// The trials of a study, handed out again in the order in which they were asked for.
///
/// So what a searcher proposes is a function of its seed, the number of the trial and what the
/// rounds before it found; not of who did the work, nor of how often it was interrupted.
#[derive(Clone, Copy, Debug)]
pub struct Replay<'a> {
    trials: &'a [Trial],
    next: usize,
}

impl<'a> Replay<'a> {
    /// All trials of a study, each of them final.
    pub fn new(trials: &'a [Trial]) -> Self {
        Replay { trials, next: 0 }
    }

    /// What a round of proposals found.
    ///
    /// # Errors
    /// [`Pause`], with which the searcher must end.
    pub fn round(&mut self, proposals: Vec<Proposal>) -> Result<&'a [Trial], Pause> {
        if proposals.is_empty() {
            return Ok(&[]);
        }
        let rest = &self.trials[self.next..];
        if rest.is_empty() {
            return Err(Pause::Ask(proposals));
        }
        let made = &rest[..rest.len().min(proposals.len())];
        let other = made.iter().zip(&proposals).find(|(trial, wanted)| trial.proposal != **wanted);
        if let Some((trial, _)) = other {
            return Err(Pause::Other { number: trial.number });
        }
        if made.len() < proposals.len() {
            return Err(Pause::Cut);
        }
        self.next += made.len();
        Ok(made)
    }

    /// What a single proposal found.
    ///
    /// # Errors
    /// [`Pause`].
    pub fn trial(&mut self, proposal: Proposal) -> Result<&'a Trial, Pause> {
        Ok(&self.round(vec![proposal])?[0])
    }

    /// The trials handed out so far.
    pub fn so_far(&self) -> &'a [Trial] {
        &self.trials[..self.next]
    }
}

/// A way to search.
pub trait Searcher: Sync {
    /// Asks for rounds of trials until it has chosen, or is paused.
    ///
    /// It must ask for the same as before whenever it is given the same findings.
    ///
    /// # Errors
    /// The [`Pause`] that it met.
    fn search(&self, replay: &mut Replay<'_>) -> Result<(), Pause>;
}
