//! What the commands take from the environment, beside `LAMINA_CONFIG` (`args`) and `LAMINA_LOG` (`output`):
//!
//! | variable | what it says |
//! |---|---|
//! | `TMPDIR` | where conversions have their work directory; else `/var/tmp` |
//! | `AWS_*`, `HOME` | what S3 is told where the configuration says nothing: [`blobstore::store::Environment`] |
//! | `REGISTRY_AUTH_FILE`, `DOCKER_CONFIG`, `HOME`, `XDG_RUNTIME_DIR`, `XDG_CONFIG_HOME` | where logins have left credentials for registries |
//!
//! The crates below read none of it. Proxies are the exception: the HTTP client knows their variables by itself.

use blobstore::store::Environment;
use std::env::var_os;
use std::ffi::OsString;
use std::path::PathBuf;

/// Where conversions have their work directory: on a disk, not in the memory that /tmp may be.
pub(crate) fn work_directory() -> PathBuf {
    work_directory_of(var_os)
}

/// Lets large arrays lie there, for commands that hold whole trees of layers.
pub(crate) fn large_arrays_on_disk() {
    // A directory that cannot be opened is an error of what else needs it.
    if let Err(error) = spill::to(&work_directory()) {
        tracing::debug!(%error, "large arrays stay in memory");
    }
}

/// What S3's own tools take from the environment.
pub(crate) fn for_stores() -> Environment {
    Environment::of(
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    )
}

/// Where `podman login` and `docker login` keep credentials; what was named on purpose first.
pub(crate) fn credential_files() -> Vec<PathBuf> {
    credential_files_of(var_os)
}

fn work_directory_of(variable: impl Fn(&'static str) -> Option<OsString>) -> PathBuf {
    path(variable("TMPDIR")).unwrap_or_else(|| PathBuf::from("/var/tmp"))
}

fn credential_files_of(variable: impl Fn(&'static str) -> Option<OsString>) -> Vec<PathBuf> {
    let below = |directory: Option<PathBuf>, file: &str| directory.map(|directory| directory.join(file));
    let variable = |name| path(variable(name));
    let home = || variable("HOME");
    let files = [
        variable("REGISTRY_AUTH_FILE"),
        below(variable("DOCKER_CONFIG").or_else(|| below(home(), ".docker")), "config.json"),
        below(variable("XDG_RUNTIME_DIR"), "containers/auth.json"),
        below(variable("XDG_CONFIG_HOME").or_else(|| below(home(), ".config")), "containers/auth.json"),
    ];
    files.into_iter().flatten().collect()
}

/// A variable that is set to nothing says nothing.
fn path(value: Option<OsString>) -> Option<PathBuf> {
    value.filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(set: &[(&'static str, &'static str)]) -> impl Fn(&'static str) -> Option<OsString> {
        move |name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into())
    }

    #[test]
    fn the_work_directory_is_on_a_disk_unless_another_is_named() {
        assert_eq!(work_directory_of(given(&[("TMPDIR", "/here")])), PathBuf::from("/here"));
        assert_eq!(work_directory_of(given(&[("TMPDIR", "")])), PathBuf::from("/var/tmp"));
        assert_eq!(work_directory_of(given(&[])), PathBuf::from("/var/tmp"));
    }

    #[test]
    fn credentials_that_are_named_on_purpose_come_first() {
        let files = |set| credential_files_of(given(set)).iter().map(|p| p.display().to_string()).collect::<Vec<_>>();
        assert_eq!(files(&[("HOME", "/h")]), ["/h/.docker/config.json", "/h/.config/containers/auth.json"]);
        let all =
            [("HOME", "/h"), ("DOCKER_CONFIG", "/d"), ("XDG_RUNTIME_DIR", "/x"), ("REGISTRY_AUTH_FILE", "/a.json")];
        let expected = ["/a.json", "/d/config.json", "/x/containers/auth.json", "/h/.config/containers/auth.json"];
        assert_eq!(files(&all), expected);
    }
}
