//! The S3 client's connections, by our HTTP client: for the bucket, and for where credentials come from.

use super::answer::Service;
use crate::store::client::{CONNECT, Wanted};
use crate::store::connections::Connections;
use crate::store::settings::Settings;
use object_store::aws::AmazonS3Builder;
use object_store::client::{HttpClient, HttpConnector};
use object_store::{ClientConfigKey, ClientOptions, RetryConfig};
use reqwest::Url;
use reqwest::redirect::Policy;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Where credentials are asked for on a cloud's machine: it answers at once or is not there.
const CONNECT_NEAR: Duration = Duration::from_secs(1);

/// Gives the S3 client our HTTP clients, the same ones each time: what they know of certificates is much to read, and
/// connections are theirs.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    store: String,
    pub(super) settings: Settings,
    target: Option<Url>,
    /// By how they are to be.
    made: Arc<Mutex<HashMap<(bool, Duration), HttpClient>>>,
}

impl Connector {
    /// For the store at `store`, and what it is for as far as that is one place.
    pub(super) fn new(store: &str, settings: &Settings, target: Option<Url>) -> Self {
        Self { store: store.to_owned(), settings: settings.clone(), target, made: Arc::default() }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let asked = |key: &ClientConfigKey| options.get_config_value(key);
        let ours = ClientOptions::new().with_connect_timeout(CONNECT);
        let near = asked(&ClientConfigKey::ConnectTimeout) != ours.get_config_value(&ClientConfigKey::ConnectTimeout);
        let wanted = Wanted {
            target: self.target.clone(),
            plain_http: asked(&ClientConfigKey::AllowHttp).is_some_and(|value| value == "true"),
            connect: if near { CONNECT_NEAR } else { CONNECT },
            // A signature is for one host.
            redirects: Policy::none,
        };
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = made.get(&(wanted.plain_http, wanted.connect)) {
            return Ok(client.clone());
        }
        let connections = Connections::new(&self.store, &self.settings, &wanted);
        let connections = connections.map_err(|e| object_store::Error::Generic { store: "S3", source: Box::new(e) })?;
        let client = HttpClient::new(Service(connections));
        made.insert((wanted.plain_http, wanted.connect), client.clone());
        Ok(client)
    }
}

/// A builder that speaks through our client and leaves trying again to us.
pub(super) fn builder(connector: Connector, allow_http: bool) -> AmazonS3Builder {
    AmazonS3Builder::new()
        .with_client_options(options(allow_http))
        .with_http_connector(connector)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
}

/// Options by which [`Connector`] tells the store's clients from those that ask for credentials.
pub(super) fn options(allow_http: bool) -> ClientOptions {
    ClientOptions::new().with_connect_timeout(CONNECT).with_allow_http(allow_http)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_made_once_and_not_again_for_new_credentials() {
        let connector = Connector::new("s3://b", &Settings::default(), None);
        for _ in 0..3 {
            connector.clone().connect(&options(false)).unwrap();
            connector.connect(&ClientOptions::new().with_connect_timeout(Duration::from_millis(1))).unwrap();
        }
        assert_eq!(connector.made.lock().unwrap().len(), 2);
    }
}
