//! Devices by name: `flex` and `ndarray` on the CPU, `cuda:N` on the N-th NVIDIA GPU.
//!
//! A device is opened at run time. Burn reports a missing GPU only by a panic in the middle of the
//! first computation, so [`open`] asks for what there is before it hands a device out.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

/// The name under which a user asks for a device.
///
/// ```
/// use omnivore::devices::DeviceName;
///
/// let name: DeviceName = "cuda:1".parse()?;
/// assert_eq!(name, DeviceName::Cuda(1));
/// assert_eq!(name.to_string(), "cuda:1");
/// # Ok::<(), omnivore::devices::DeviceError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceName {
    /// Burn's CPU backend with vector instructions and threads.
    Flex,
    /// Burn's older CPU backend on the `ndarray` crate.
    Ndarray,
    /// The NVIDIA GPU of this index, counted from 0.
    Cuda(usize),
}

/// Why a device cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// No device is called so.
    #[error("`{name}` is no device; possible are `flex`, `ndarray` and `cuda:N` with N from 0")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The device is known but not there.
    #[error("device `{name}` is not available: {reason}; available are {}", listed(available))]
    Unavailable {
        /// What was asked for.
        name: DeviceName,
        /// What is in the way.
        reason: Unavailable,
        /// What could be had instead.
        available: Vec<DeviceName>,
    },
}

/// What keeps a device from being used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The program does not contain the code for it.
    #[error("built without the cuda feature")]
    NotBuilt,
    /// There is no driver, or it knows no GPU.
    #[error("no CUDA driver, or no GPU that it knows")]
    NoGpu,
    /// GPUs are there, but fewer.
    #[error("this machine has {gpus} GPU(s), counted from 0")]
    NoSuchGpu {
        /// Number of GPUs.
        gpus: usize,
    },
    /// Kernels are compiled at run time, which needs the headers of CUDA.
    #[error("no CUDA headers; install the CUDA toolkit or set CUDA_PATH to where it is")]
    NoHeaders,
}

/// A device that this program knows, and whether it can be used here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStatus {
    /// The name to ask for.
    pub name: DeviceName,
    /// What is in the way, if anything.
    pub available: Result<(), Unavailable>,
    /// What it is, in words.
    pub description: &'static str,
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Flex => f.write_str("flex"),
            DeviceName::Ndarray => f.write_str("ndarray"),
            DeviceName::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl FromStr for DeviceName {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::Unknown { name: name.to_owned() };
        match (name, name.strip_prefix("cuda:")) {
            ("flex", _) => Ok(DeviceName::Flex),
            ("ndarray", _) => Ok(DeviceName::Ndarray),
            (_, Some(index)) if index.bytes().all(|byte| byte.is_ascii_digit()) => {
                index.parse().map(DeviceName::Cuda).map_err(|_| unknown())
            }
            _ => Err(unknown()),
        }
    }
}

impl TryFrom<String> for DeviceName {
    type Error = DeviceError;

    fn try_from(name: String) -> Result<Self, DeviceError> {
        name.parse()
    }
}

impl From<DeviceName> for String {
    fn from(name: DeviceName) -> Self {
        name.to_string()
    }
}

/// A device, ready to compute.
///
/// # Errors
/// [`DeviceError::Unavailable`] with the reason and the devices that are there.
pub fn open(name: DeviceName) -> Result<Device, DeviceError> {
    match status(name) {
        Ok(()) => Ok(build(name)),
        Err(reason) => Err(DeviceError::Unavailable { name, reason, available: available() }),
    }
}

/// Every device that this program knows, the usable and the others.
pub fn list() -> Vec<DeviceStatus> {
    let gpus = (0..n_gpus().max(1)).map(DeviceName::Cuda);
    [DeviceName::Flex, DeviceName::Ndarray]
        .into_iter()
        .chain(gpus)
        .map(|name| DeviceStatus { name, available: status(name), description: description(name) })
        .collect()
}

fn available() -> Vec<DeviceName> {
    list().into_iter().filter(|device| device.available.is_ok()).map(|device| device.name).collect()
}

fn description(name: DeviceName) -> &'static str {
    match name {
        DeviceName::Flex => "CPU, vector instructions, all cores",
        DeviceName::Ndarray => "CPU, through the ndarray crate",
        DeviceName::Cuda(_) => "NVIDIA GPU",
    }
}

fn status(name: DeviceName) -> Result<(), Unavailable> {
    match name {
        DeviceName::Flex | DeviceName::Ndarray => Ok(()),
        DeviceName::Cuda(index) => gpu_status(index),
    }
}

fn build(name: DeviceName) -> Device {
    match name {
        DeviceName::Flex => Device::flex(),
        #[expect(deprecated, reason = "this project keeps the backend that Burn is about to drop")]
        DeviceName::Ndarray => Device::ndarray(),
        DeviceName::Cuda(index) => build_gpu(index),
    }
}

fn listed(names: &[DeviceName]) -> String {
    names.iter().map(DeviceName::to_string).collect::<Vec<_>>().join(", ")
}

/// GPUs that the driver knows; 0 without a driver.
#[cfg(feature = "cuda")]
fn n_gpus() -> usize {
    Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec().len()
}

#[cfg(not(feature = "cuda"))]
fn n_gpus() -> usize {
    0
}

#[cfg(feature = "cuda")]
fn gpu_status(index: usize) -> Result<(), Unavailable> {
    match n_gpus() {
        0 => Err(Unavailable::NoGpu),
        gpus if index >= gpus => Err(Unavailable::NoSuchGpu { gpus }),
        _ if cubecl_cuda::install::cuda_path().is_none() => Err(Unavailable::NoHeaders),
        _ => Ok(()),
    }
}

#[cfg(not(feature = "cuda"))]
fn gpu_status(_index: usize) -> Result<(), Unavailable> {
    Err(Unavailable::NotBuilt)
}

#[cfg(feature = "cuda")]
fn build_gpu(index: usize) -> Device {
    Device::cuda(index)
}

#[cfg(not(feature = "cuda"))]
fn build_gpu(_index: usize) -> Device {
    unreachable!("a GPU is available only with the cuda feature")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        for name in [DeviceName::Flex, DeviceName::Ndarray, DeviceName::Cuda(0)] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
    }

    #[test]
    fn a_name_that_is_no_device_is_refused_with_the_possible_ones() {
        for name in ["gpu", "cuda", "cuda:", "cuda:-1", "cuda:+1", "Flex", ""] {
            let error = name.parse::<DeviceName>().expect_err("this is no device");
            assert_eq!(
                error.to_string(),
                format!(
                    "`{name}` is no device; possible are `flex`, `ndarray` and `cuda:N` with N \
                     from 0"
                )
            );
        }
        assert!("cuda:99999999999999999999999".parse::<DeviceName>().is_err());
    }

    #[test]
    fn the_cpu_devices_are_always_available() {
        for name in [DeviceName::Flex, DeviceName::Ndarray] {
            assert!(open(name).is_ok());
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_is_an_error_that_lists_what_is() {
        let error = open(DeviceName::Cuda(4096)).expect_err("no machine has so many GPUs");
        let text = error.to_string();
        assert!(text.starts_with("device `cuda:4096` is not available: "), "{text}");
        assert!(text.contains("; available are flex, ndarray"), "{text}");
    }

    #[test]
    fn the_list_says_of_every_kind_of_device_whether_it_can_be_used() {
        let list = list();
        let names: Vec<DeviceName> = list.iter().map(|device| device.name).collect();
        assert_eq!(names[..3], [DeviceName::Flex, DeviceName::Ndarray, DeviceName::Cuda(0)]);
        for device in list {
            assert_eq!(open(device.name).err().is_none(), device.available.is_ok());
        }
    }
}
