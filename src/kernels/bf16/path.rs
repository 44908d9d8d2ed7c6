//! Which arithmetic the layers of a network use, and by which instructions.

use std::fmt;
use std::str::FromStr;

use super::super::microkernel::has_tiles;
use super::super::{Instructions, KernelError, Lowering};

/// Ways to compute in mixed precision, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MixedPath {
    /// Products on tiles of 16 rows of 16 pairs on x86-64, and what is no product by
    /// [`MixedPath::Avx512Bf16`]. It has never been run on such a processor.
    Amx,
    /// Products of pairs in 512-bit vectors on x86-64.
    Avx512Bf16,
    /// Factors rounded to bf16, then the portable kernels of single precision: on any processor,
    /// and slower than single precision.
    Portable,
}

impl MixedPath {
    /// All paths, best first.
    pub const ALL: [Self; 3] = [Self::Amx, Self::Avx512Bf16, Self::Portable];

    /// The best path that the processor has instructions for, if any.
    pub fn detect() -> Option<Self> {
        Self::ALL.into_iter().find(|path| *path != Self::Portable && path.is_available())
    }

    /// Whether the processor this runs on can take this path.
    pub fn is_available(self) -> bool {
        match self {
            Self::Amx => Self::Avx512Bf16.is_available() && has_tiles(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => {
                is_x86_feature_detected!("avx512bf16") && Instructions::Avx512.is_available()
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512Bf16 => false,
            Self::Portable => true,
        }
    }

    /// An error unless the processor can take this path.
    ///
    /// # Errors
    /// [`KernelError::MissingMixedPath`], with the paths that there are.
    pub fn require(self) -> Result<(), KernelError> {
        if self.is_available() {
            return Ok(());
        }
        let available = Self::ALL.into_iter().filter(|path| path.is_available());
        let available: Vec<&str> = available.map(Self::word).collect();
        Err(KernelError::MissingMixedPath { wanted: self, available: available.join(", ") })
    }

    /// The word under which a path is asked for.
    pub fn word(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Avx512Bf16 => "avx512_bf16",
            Self::Portable => "portable",
        }
    }
}

impl fmt::Display for MixedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amx => "AMX",
            Self::Avx512Bf16 => "AVX-512 BF16",
            Self::Portable => "portable bf16",
        })
    }
}

impl FromStr for MixedPath {
    type Err = KernelError;

    fn from_str(word: &str) -> Result<Self, KernelError> {
        let path = Self::ALL.into_iter().find(|path| path.word() == word);
        let possible = || Self::ALL.map(Self::word).join(", ");
        path.ok_or_else(|| KernelError::UnknownMixedPath {
            word: word.to_owned(),
            possible: possible(),
        })
    }
}

/// What convolutions and fully-connected layers are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// `f32` throughout.
    Single(Instructions),
    /// Factors rounded to bf16, products and sums in `f32`; see [`super`].
    Mixed(MixedPath),
}

impl Arithmetic {
    /// Mixed precision by the path of that name, or without one by the best path that the
    /// processor has instructions for, if any.
    ///
    /// # Errors
    /// [`KernelError::UnknownMixedPath`] and [`KernelError::MissingMixedPath`] for a path that is
    /// none, or that the processor lacks.
    pub fn mixed(word: Option<&str>) -> Result<Option<Self>, KernelError> {
        let path = match word {
            None => MixedPath::detect(),
            Some(word) => {
                let path: MixedPath = word.parse()?;
                path.require()?;
                Some(path)
            }
        };
        Ok(path.map(Self::Mixed))
    }

    /// An error unless the processor can compute in it.
    ///
    /// # Errors
    /// [`KernelError::MissingInstructions`] and [`KernelError::MissingMixedPath`].
    pub fn require(self) -> Result<(), KernelError> {
        match self {
            Self::Single(instructions) => instructions.require(),
            Self::Mixed(path) => path.require(),
        }
    }

    /// How convolutions are computed in it, at their fastest.
    pub fn lowering(self) -> Lowering {
        match self {
            Self::Single(instructions) => Lowering::Winograd(instructions),
            Self::Mixed(path) => Lowering::Mixed(path),
        }
    }
}

impl Default for Arithmetic {
    /// Single precision, as fast as this processor can.
    fn default() -> Self {
        Self::Single(Instructions::detect())
    }
}

impl From<Instructions> for Arithmetic {
    fn from(instructions: Instructions) -> Self {
        Self::Single(instructions)
    }
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(instructions) => write!(f, "f32, {instructions}"),
            Self::Mixed(path) => write!(f, "bf16 with f32 sums, {path}"),
        }
    }
}
