//! What all our HTTP clients share, those of stores and those of registries: which authorities are trusted, what TLS said
//! of a connection that failed, and which hosts are this machine.
//!
//! Timeouts, proxies, redirects and what an answer means are left to those who ask.

use crate::small_file;
use reqwest::{Certificate, Client, ClientBuilder, Url};
use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

/// Longest file of authorities: some ten times what a system trusts.
const AUTHORITIES_MAX: u64 = 4 << 20;

/// The certificates of a PEM file; there is at least one. The error does not name the file.
pub fn authorities(path: &Path) -> Result<Vec<Certificate>, String> {
    let pem = small_file::read(path, AUTHORITIES_MAX).map_err(|e| e.to_string())?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err("no certificates in PEM form".to_owned()),
    }
}

/// A client that trusts the machine's authorities and `own`. The machine may have none where there are others, or where
/// TLS need not be spoken (`plain`).
///
/// # Errors
/// What reqwest says of the settings, or of a machine without certificates.
pub fn client(builder: &dyn Fn() -> ClientBuilder, own: &[Certificate], plain: bool) -> reqwest::Result<Client> {
    // Once in the process: what is installed already is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let bare = |e| match own.is_empty() && !plain {
        true => Err(e),
        false => builder().tls_certs_only(own.to_vec()).build(),
    };
    builder().tls_certs_merge(own.to_vec()).build().or_else(bare)
}

/// What TLS has to say of an error, if it is its.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An io::Error's source is that of what it holds, not what it holds.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// Whether the other side speaks TLS, and is not trusted.
pub fn is_untrusted(error: &(dyn Error + 'static)) -> bool {
    let untrusted = |tls: &rustls::Error| {
        matches!(tls, rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)
    };
    tls_error(error).is_some_and(untrusted)
}

/// Whether what the other side speaks is not TLS.
pub fn is_not_tls(error: &(dyn Error + 'static)) -> bool {
    matches!(tls_error(error), Some(rustls::Error::InvalidMessage(_)))
}

/// Whether a URL's host is this machine, as far as the URL tells.
pub fn is_loopback(url: &Url) -> bool {
    is_localhost(url) || address(url).is_some_and(|address| address.is_loopback())
}

/// Whether a URL's host is this machine, or reached without any router, as far as the URL tells.
pub fn is_near(url: &Url) -> bool {
    let near = |address: IpAddr| match address {
        // What is unspecified connects to the loopback.
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local() || address.is_unspecified(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local() || address.is_unspecified(),
    };
    is_localhost(url) || address(url).is_some_and(near)
}

fn is_localhost(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let host = host.strip_suffix('.').unwrap_or(host);
    host == "localhost" || host.ends_with(".localhost")
}

/// A literal address; one of version 4 in the clothes of version 6 is of version 4.
fn address(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => host.parse().ok().map(|address: Ipv6Addr| address.to_canonical()),
        None => host.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_hosts_are_known() {
        for (host, loopback) in [
            ("localhost:1", true),
            ("localhost.", true),
            ("a.localhost", true),
            ("127.0.0.2", true),
            ("[::1]:9", true),
            ("[::ffff:127.0.0.1]", true),
            ("10.0.0.1", false),
            ("169.254.169.254", false),
            ("localhost.example", false),
        ] {
            assert_eq!(is_loopback(&format!("http://{host}/").parse().unwrap()), loopback, "{host}");
        }
    }
}
