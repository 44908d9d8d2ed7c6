//! Names of the things that a run consists of, so that one number cannot stand in for another.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $label:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($label, " {}"), self.0)
            }
        }
    };
}

id! {
    /// A conv machine, numbered from 0. The merged FC server is one more and has no number.
    MachineId(u32), "machine"
}
id! {
    /// A compute group, numbered from 0.
    GroupId(u32), "group"
}
id! {
    /// The number of updates applied to a model so far.
    ModelVersion(u64), "version"
}
id! {
    /// Updates applied between a group's read of the model and its own write.
    Staleness(u64), "staleness"
}

impl MachineId {
    /// Position of this machine in a table with a row per machine.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl GroupId {
    /// Position of this group in a table with a row per group.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl ModelVersion {
    /// The version after one more update.
    #[must_use]
    pub const fn next(self) -> ModelVersion {
        ModelVersion(self.0 + 1)
    }

    /// Updates that lie between an earlier `read` and this version.
    pub fn since(self, read: ModelVersion) -> Staleness {
        Staleness(self.0.checked_sub(read.0).expect("a model is read before it is written"))
    }
}
