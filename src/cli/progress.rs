//! Progress on a terminal, and interruption by the user.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use omnivore_sim::cluster::Checkpoint;
use omnivore_sim::trace::CurvePoint;

use super::Failure;
use super::output::say;
use crate::run::RunProgress;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// What an interrupt that ends the process at once has to say.
static FAREWELL: Mutex<Option<&str>> = Mutex::new(None);

/// From now on the first interrupt asks runs to end with their state, and the second ends the
/// process at once; so does the first where nothing would be kept.
pub fn handle_interrupts() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        let farewell = FAREWELL.lock().expect("no thread panics with the lock");
        if let Some(words) = *farewell {
            say(format_args!("{words}"));
            std::process::exit(130);
        }
        if INTERRUPTED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    })
    .map_err(Failure::internal)
}

/// Does something of which an interrupt leaves nothing: the first one then ends the process at once,
/// with these words.
pub fn keeping_nothing<T>(words: &'static str, work: impl FnOnce() -> T) -> T {
    let set = |words| *FAREWELL.lock().expect("no thread panics with the lock") = words;
    set(Some(words));
    let done = work();
    set(None);
    done
}

/// Whether the user has asked to stop.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Whether progress and remarks go to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remarks {
    /// They do.
    Shown,
    /// `--quiet`.
    Hidden,
}

/// Keeps checkpoints of a real run.
pub type Keeper<'a> = &'a (dyn Fn(Checkpoint) -> Result<(), String> + Sync);

/// A bar on a terminal; nothing elsewhere.
pub struct Bar<'a> {
    bar: ProgressBar,
    keeper: Option<Keeper<'a>>,
}

impl<'a> Bar<'a> {
    /// A bar of `length` updates or pieces.
    pub fn new(what: &str, length: u64, remarks: Remarks) -> Self {
        let shown = remarks == Remarks::Shown && std::io::stderr().is_terminal();
        let target =
            if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        let template = "{msg} {wide_bar} {pos}/{len} {elapsed} (left {eta})";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        Bar { bar, keeper: None }
    }

    /// The same bar for a run whose checkpoints are kept.
    #[must_use]
    pub fn with_keeper(mut self, keeper: Keeper<'a>) -> Self {
        self.keeper = Some(keeper);
        self
    }

    /// Moves on by one piece.
    pub fn advance(&self) {
        self.bar.inc(1);
    }

    /// Moves to a fraction of the whole.
    pub fn set_fraction(&self, fraction: f64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a position on a screen"
        )]
        self.bar.set_position((fraction * self.bar.length().unwrap_or(0) as f64) as u64);
    }
}

impl Drop for Bar<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl RunProgress for Bar<'_> {
    fn updated(&self, updates: u64) {
        self.bar.set_position(updates);
    }

    fn evaluated(&self, _: &CurvePoint) {}

    fn is_interrupted(&self) -> bool {
        is_interrupted()
    }

    fn keeps_checkpoints(&self) -> bool {
        self.keeper.is_some()
    }

    fn checkpoint(&self, checkpoint: Checkpoint) -> Result<(), String> {
        self.keeper.map_or(Ok(()), |keep| keep(checkpoint))
    }
}

/// Asks whether the user has interrupted, and shows nothing: for runs side by side.
pub struct Silent;

impl RunProgress for Silent {
    fn is_interrupted(&self) -> bool {
        is_interrupted()
    }
}

/// A remark to standard error.
pub fn remark(remarks: Remarks, text: &str) {
    if remarks == Remarks::Shown {
        say(format_args!("{text}"));
    }
}
