//! What a whole process took: time, processor time, memory.

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often the memory is looked at; also how exact the time is.
const STEP: Duration = Duration::from_millis(1);

/// Unit of the times in /proc, the same on every machine.
const USER_HZ: f64 = 100.0;

/// Figures of a process that ended.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// From start to end.
    pub seconds: f64,
    /// Processor time of the process and its children.
    pub cpu: f64,
    /// The most memory that it had resident, without its children, in MB.
    pub peak: f64,
}

/// Runs a command, which must succeed. What it prints goes nowhere.
pub fn cost(command: &mut Command) -> Cost {
    let start = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let pid = Pid::from_child(&child);
    let mut peak = 0.0;
    // The kernel forgets the memory of a process at its end, and keeps the times until somebody asks for the status.
    while waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)
        .unwrap()
        .is_none()
    {
        peak = high_water(child.id()).unwrap_or(peak);
        std::thread::sleep(STEP);
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu = processor_time(child.id());
    assert!(child.wait().unwrap().success(), "{command:?}");
    Cost { seconds, cpu, peak }
}

/// `VmHWM` of /proc/PID/status, in MB.
fn high_water(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0 / 1e6)
}

/// Processor seconds of a process and of its children that have ended, to a hundredth: utime, stime, cutime and cstime of
/// /proc/PID/stat, fields 14 to 17. The name, which may have spaces, is the second.
pub fn processor_time(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks: f64 = fields.split_whitespace().skip(11).take(4).map(|field| field.parse::<f64>().unwrap()).sum();
    ticks / USER_HZ
}
