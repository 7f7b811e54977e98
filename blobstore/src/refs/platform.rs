//! Platforms, and which image runs on which machine: the rules are containerd's, which chooses the manifest that a node
//! runs.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A platform, in the words of the OCI specifications (GOOS, GOARCH).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Platform {
    /// `linux`
    pub os: String,
    /// `amd64`, `arm64` …
    pub architecture: String,
    /// `v7`, `v8` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// This machine's.
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Self { os: std::env::consts::OS.to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    /// Whether what is made for `self` runs on `on`.
    pub fn fits(&self, on: &Self) -> bool {
        self.distance(on).is_some()
    }

    /// How far what is made for `self` is from the best that runs on `on`: 0 is the best, `None` does not run there. A
    /// machine runs what is made for lower variants of its architecture, too.
    pub fn distance(&self, on: &Self) -> Option<u32> {
        if self.os != on.os || self.architecture != on.architecture {
            return None;
        }
        match (self.level(), on.level()) {
            (Some(made), Some(machine)) => machine.checked_sub(made),
            _ => {
                let open = self.variant.is_none() || on.variant.is_none();
                (open || self.variant == on.variant).then_some(u32::from(self.variant != on.variant))
            }
        }
    }

    /// The variant as a number, where the architecture's are numbered; one that is not said is the usual one.
    fn level(&self) -> Option<u32> {
        let usual = match self.architecture.as_str() {
            "amd64" => 1,
            "arm" => 7,
            "arm64" => 8,
            _ => return None,
        };
        self.variant.as_deref().map_or(Some(usual), |variant| variant.trim_start_matches('v').parse().ok())
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|v| write!(f, "/{v}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        let mut parts = text.split('/').map(str::to_owned);
        let mut next = || parts.next();
        Platform { os: next().unwrap(), architecture: next().unwrap(), variant: next() }
    }

    #[test]
    fn a_machine_runs_lower_variants_of_its_architecture_and_no_other() {
        for (made, on, distance) in [
            ("linux/amd64", "linux/amd64", Some(0)),
            ("linux/amd64/v1", "linux/amd64", Some(0)),
            ("linux/amd64/v3", "linux/amd64", None),
            ("linux/amd64", "linux/amd64/v3", Some(2)),
            ("linux/arm64", "linux/arm64/v8", Some(0)),
            ("linux/arm/v7", "linux/arm", Some(0)),
            ("linux/arm/v6", "linux/arm/v7", Some(1)),
            ("linux/arm/v7", "linux/arm/v6", None),
            ("linux/arm", "linux/arm64", None),
            ("linux/amd64", "windows/amd64", None),
            ("linux/mips/hard", "linux/mips", Some(1)),
            ("linux/mips/hard", "linux/mips/soft", None),
            ("linux/riscv64", "linux/riscv64", Some(0)),
        ] {
            assert_eq!(platform(made).distance(&platform(on)), distance, "{made} on {on}");
        }
    }
}
