//! What the command tells the converter of registries: the configuration's tables, and where logins have left credentials.

use crate::config::Config;
use converter::registry::{HostSettings, Settings};
use std::env::var_os;
use std::path::PathBuf;

/// Settings for the registries.
pub(crate) fn settings(config: &Config) -> Settings {
    let host = |section: &crate::config::RegistrySection| HostSettings {
        mirrors: section.mirrors.clone(),
        ca_file: section.ca_file.clone(),
        plain_http: section.plain_http,
    };
    let hosts = config.registry.iter().map(|(name, section)| (name.clone(), host(section))).collect();
    Settings { hosts, credential_files: credential_files(|name| var_os(name).map(PathBuf::from)) }
}

/// Where `podman login` and `docker login` keep credentials; what was named on purpose first.
fn credential_files(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let below = |directory: Option<PathBuf>, file: &str| directory.map(|directory| directory.join(file));
    let variable = |name: &str| variable(name).filter(|value| !value.as_os_str().is_empty());
    let home = || variable("HOME");
    let files = [
        variable("REGISTRY_AUTH_FILE"),
        below(variable("DOCKER_CONFIG").or_else(|| below(home(), ".docker")), "config.json"),
        below(variable("XDG_RUNTIME_DIR"), "containers/auth.json"),
        below(variable("XDG_CONFIG_HOME").or_else(|| below(home(), ".config")), "containers/auth.json"),
    ];
    files.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_on_purpose_comes_first() {
        let files = |given: &'static [(&str, &str)]| {
            let find = move |name: &str| given.iter().find(|(n, _)| *n == name).map(|(_, value)| PathBuf::from(value));
            credential_files(find).iter().map(|p| p.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(files(&[("HOME", "/h")]), ["/h/.docker/config.json", "/h/.config/containers/auth.json"]);
        let all =
            [("HOME", "/h"), ("DOCKER_CONFIG", "/d"), ("XDG_RUNTIME_DIR", "/x"), ("REGISTRY_AUTH_FILE", "/a.json")];
        let all: &'static [_] = Box::leak(Box::new(all));
        let expected = ["/a.json", "/d/config.json", "/x/containers/auth.json", "/h/.config/containers/auth.json"];
        assert_eq!(files(all), expected);
    }
}
