//! A stand-in for `cubecl-llvm` 0.11.3 that compiles nothing.
//!
//! `cubecl-cuda` names these items even when its feature `cpp` makes NVRTC the compiler of every
//! kernel. What would hold a result of LLVM cannot be constructed, and a request to compile is
//! answered with an error that says what to enable. See the README beside this crate.

use core::convert::Infallible;

use cubecl_core::ir::attributes::BufferIOAttr;
use cubecl_core::ir::nvidia::SmArch;
use cubecl_environment::backtrace::BackTrace;
use cubecl_runtime::compiler::{CompilationError, Compiler};
use cubecl_runtime::kernel::KernelDefinition;

use crate::nvptx::ptx_version::PtxVersion;

/// What the absent compiler would generate code for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LlvmTarget {
    /// NVIDIA GPUs.
    Nvptx,
}

/// The absent compiler; every call of [`Compiler::compile`] fails.
#[derive(Clone, Debug)]
pub struct PlironCompiler {
    /// What it would generate code for.
    pub target: LlvmTarget,
}

/// Options of the absent compiler; nothing reads them.
#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    /// Architecture of an AMD device; there is none here.
    pub arch: Option<Infallible>,
    /// Architecture of an NVIDIA device.
    pub sm_arch: Option<SmArch>,
    /// The PTX version to emit.
    pub ptx_version: Option<PtxVersion>,
    /// Whether scalars travel in the parameter block.
    pub grid_constants: bool,
}

/// A compiled kernel; cannot be constructed.
#[derive(Clone, Debug)]
pub struct NvptxModule {
    /// NUL-terminated PTX.
    pub ptx: Vec<core::ffi::c_char>,
    /// The intermediate representation as text.
    pub ir: String,
    /// Bytes of shared memory per launch.
    pub shared_memory_size: usize,
    /// How the kernel uses each buffer.
    pub io: Vec<BufferIOAttr>,
    _never: Infallible,
}

/// What the absent compiler would return; cannot be constructed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PlironArtifact {
    /// Code for an NVIDIA device.
    NvptxCode(NvptxModule),
}

impl core::fmt::Display for PlironArtifact {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            PlironArtifact::NvptxCode(module) => f.write_str(&module.ir),
        }
    }
}

impl Compiler for PlironCompiler {
    type Representation = PlironArtifact;
    type CompilationOptions = PlironOptions;

    fn compile(
        &mut self,
        _kernel: KernelDefinition,
        _options: &PlironOptions,
    ) -> Result<PlironArtifact, CompilationError> {
        Err(CompilationError::Generic {
            reason: "this build has no LLVM compiler; enable the feature `cpp` of `cubecl-cuda` \
                     so that NVRTC compiles the kernels"
                .to_owned(),
            backtrace: BackTrace::capture(),
        })
    }

    fn extension(&self) -> &'static str {
        "ll"
    }

    fn lang_tag(&self) -> &'static str {
        "llvm"
    }
}

/// NVIDIA's side of the absent compiler.
pub mod nvptx {
    /// Versions of the PTX language.
    pub mod ptx_version {
        /// A PTX version; there is none without a compiler that emits it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum PtxVersion {}

        impl PtxVersion {
            /// The newest version that a driver loads: unknown here.
            pub fn for_driver(_driver: i32) -> Option<Self> {
                None
            }
        }

        impl core::fmt::Display for PtxVersion {
            fn fmt(&self, _: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self {}
            }
        }
    }
}

/// What the targets of the absent compiler share.
pub mod shared {
    /// Which features of a device the absent compiler could use.
    pub mod lowered_features {
        use cubecl_core::ir::DeviceProperties;

        /// The device whose features are narrowed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum GpuTarget {
            /// NVIDIA GPUs.
            Nvptx,
        }

        /// Narrows a device to what LLVM lowers. NVRTC needs no narrowing, and `cubecl-cuda`
        /// calls this only when LLVM is its compiler.
        pub fn restrict_features(_properties: &mut DeviceProperties, _target: GpuTarget) {}
    }
}
