//! The cores of the computer, and threads that stay on one of them.

#![cfg_attr(
    target_os = "linux",
    expect(unsafe_code, reason = "calls of the system, on plain sets of bits")
)]

/// All cores of the computer, if this process may use every one of them as long as it wants.
#[cfg(target_os = "linux")]
pub(super) fn of_the_computer() -> Option<Vec<usize>> {
    let cores = of_this_thread();
    // SAFETY: it only answers.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    // A quota of a container is no set of cores; the standard library knows it.
    let allowed = std::thread::available_parallelism().ok()?.get();
    (usize::try_from(online) == Ok(cores.len()) && allowed == cores.len()).then_some(cores)
}

/// Cores on which the calling thread may run.
#[cfg(target_os = "linux")]
pub(super) fn of_this_thread() -> Vec<usize> {
    // SAFETY: all bits of the set may be 0, and the system writes no more than its size.
    let (set, answer) = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let answer = libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
        (set, answer)
    };
    let count = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    // SAFETY: the number is below the size of the set.
    (0..count).filter(|&core| answer == 0 && unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

/// Lets the calling thread run on one core only. Where the system refuses, it stays as it was.
#[cfg(target_os = "linux")]
pub(super) fn stay_on(core: usize) {
    // SAFETY: the core is one of `of_the_computer`, so within the set, which lives longer than the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn of_the_computer() -> Option<Vec<usize>> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn stay_on(_core: usize) {}

#[cfg(all(test, not(target_os = "linux")))]
pub(super) fn of_this_thread() -> Vec<usize> {
    Vec::new()
}
