//! Where a registry may send this machine: to a token server, by a redirect, to an upload's location.
//!
//! A registry may be anybody's. It cannot take a request out of TLS, and it cannot have this machine ask what only this
//! machine, or its link, can ask (a daemon on the loopback, a cloud's metadata service), unless it is on the loopback itself.
//! Told by literal addresses and `localhost` alone: a name that resolves to such an address passes, since what a name means
//! is decided when the connection is made, by a proxy perhaps. Other private networks are where registries live.

use blobstore::https::{is_loopback, is_near};
use reqwest::Url;

/// Whether a server at `from` may name `to`; if not, why: a clause that begins with "which".
pub(super) fn checked(to: &Url, from: &Url) -> Result<(), &'static str> {
    match (from.scheme(), to.scheme()) {
        (_, "https") | ("http", "http") => {}
        (_, "http") => return Err("which is not TLS, as the registry itself is"),
        _ => return Err("which is neither https nor http"),
    }
    match !is_loopback(from) && from.host() != to.host() && is_near(to) {
        true => Err("which is an address of this machine or its link, and the registry is elsewhere"),
        false => Ok(()),
    }
}

/// One host, or two names of the loopback.
pub(super) fn is_same_machine(a: &Url, b: &Url) -> bool {
    a.host_str() == b.host_str() || (is_loopback(a) && is_loopback(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(to: &str, from: &str) -> bool {
        checked(&to.parse().unwrap(), &from.parse().unwrap()).is_ok()
    }

    #[test]
    fn a_registry_elsewhere_cannot_send_this_machine_to_itself_or_its_link() {
        for near in [
            "localhost",
            "localhost.",
            "a.localhost",
            "127.0.0.1:8080",
            "127.1",
            "0x7f000001",
            "0.0.0.0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::ffff:169.254.169.254]",
            "169.254.169.254",
            "[fe80::1]",
        ] {
            for scheme in ["http", "https"] {
                let to = format!("{scheme}://{near}/x");
                assert!(!check(&to, "https://r.example") && !check(&to, "http://r.lan:5000"), "{to}");
            }
            assert!(check(&format!("https://{near}/x"), "http://127.0.0.1:5000"), "{near}");
        }
        assert!(check("https://169.254.1.1/x", "https://169.254.1.1:5000"), "a registry's own host");
        assert!(check("https://10.0.0.1/x", "https://r.example"), "registries live in private networks");
    }

    #[test]
    fn nothing_leads_out_of_tls() {
        assert!(check("https://cdn.example/x", "https://r.example"));
        assert!(check("https://cdn.example/x", "http://r.lan"));
        assert!(check("http://cdn.lan/x", "http://r.lan"));
        assert!(!check("http://r.example/x", "https://r.example"));
        assert!(!check("ftp://r.example/x", "http://r.example"));
    }
}
