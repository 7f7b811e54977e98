//! The HTTP client of the stores on the network: proxy, times; certificates by way of [`https`]. `connections` has one for as
//! long as its connections live.

use super::connections::IDLE;
use super::settings::Settings;
use super::{Result, StoreError};
use crate::https::{self, is_loopback};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, NoProxy, Proxy, Url};
use std::time::Duration;

/// How long a connection may take to be there.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// How long a server may be silent: before its answer, and between two pieces of it.
pub(super) const STALL: Duration = Duration::from_secs(20);

/// How long all that a server tells of a refusal may take to come.
pub(super) const TOLD: Duration = Duration::from_secs(10);

/// Where clouds give out credentials: reached without a proxy, which would ask in its own name.
const CREDENTIAL_HOSTS: &str = "169.254.0.0/16,fd00:ec2::/32";

/// How a client is to be.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// What it is for, as far as that is one place.
    pub(super) target: Option<Url>,
    /// Whether it may speak without TLS.
    pub(super) plain_http: bool,
    pub(super) connect: Duration,
    pub(super) redirects: fn() -> Policy,
}

/// A client for the store at `store`, by the settings.
pub(super) fn client(store: &str, settings: &Settings, wanted: &Wanted) -> Result<Client> {
    let refuse = |what: String| StoreError::Unsupported { store: store.to_owned(), what };
    let own = match &settings.ca_file {
        Some(path) => {
            https::authorities(path).map_err(|e| refuse(format!("[fetch] ca_file = {}: {e}", path.display())))?
        }
        None => Vec::new(),
    };
    let proxy = proxy(settings).map_err(|e| refuse(format!("[fetch] proxy: {e}")))?;
    let builder = || base(wanted, &proxy, settings);
    https::client(&builder, &own, wanted.plain_http).map_err(|e| refuse(crate::causes(&e)))
}

fn base(wanted: &Wanted, proxy: &Option<Proxy>, settings: &Settings) -> ClientBuilder {
    // Many connections: what one of them loses on the way stops only its own requests.
    let builder = Client::builder()
        .user_agent(concat!("lamina/", env!("CARGO_PKG_VERSION")))
        .http1_only()
        .https_only(!wanted.plain_http)
        .connect_timeout(wanted.connect)
        .tcp_nodelay(true)
        .pool_idle_timeout(IDLE)
        .redirect((wanted.redirects)());
    match proxy {
        Some(proxy) => builder.proxy(proxy.clone()),
        None if settings.proxy.is_some() || wanted.target.as_ref().is_some_and(is_loopback) => builder.no_proxy(),
        None => builder,
    }
}

/// The proxy that the settings name; `None` where they name none, or say that there is none.
fn proxy(settings: &Settings) -> std::result::Result<Option<Proxy>, String> {
    let Some(url) = settings.proxy.as_ref().map(|proxy| proxy.expose()).filter(|url| !url.is_empty()) else {
        return Ok(None);
    };
    let proxy = Proxy::all(url).map_err(|_| "not a URL such as http://HOST:PORT".to_owned())?;
    Ok(Some(proxy.no_proxy(NoProxy::from_string(CREDENTIAL_HOSTS))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(settings: &Settings) -> Result<Client> {
        let wanted = Wanted { target: None, plain_http: true, connect: CONNECT, redirects: Policy::none };
        client("s3://b", settings, &wanted)
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let missing = Settings { ca_file: Some("/not/there.pem".into()), ..Settings::default() };
        assert!(build(&missing).unwrap_err().to_string().contains("ca_file = /not/there.pem"));
        let empty = tempfile::NamedTempFile::new().unwrap();
        let empty = Settings { ca_file: Some(empty.path().to_owned()), ..Settings::default() };
        assert!(build(&empty).unwrap_err().to_string().contains("no certificates"));
        let proxy = Settings { proxy: Some("http://user:hush@[".into()), ..Settings::default() };
        let error = build(&proxy).unwrap_err().to_string();
        assert!(error.contains("[fetch] proxy") && !error.contains("hush"), "{error}");
    }
}
