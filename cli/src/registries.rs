//! What the command tells the converter of registries: the configuration's tables, and where logins have left credentials.

use crate::config::{Config, RegistrySection};
use crate::environment;
use converter::registry::{HostSettings, Settings};

/// Settings for the registries.
pub(crate) fn settings(config: &Config) -> Settings {
    let host = |section: &RegistrySection| HostSettings {
        mirrors: section.mirrors.clone(),
        ca_file: section.ca_file.clone(),
        plain_http: section.plain_http,
    };
    let hosts = config.registry.iter().map(|(name, section)| (name.clone(), host(section))).collect();
    Settings { hosts, credential_files: environment::credential_files() }
}
