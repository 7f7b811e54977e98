//! One registry as HTTP: its address, its certificates, and every request with the credentials it wants.
//!
//! Credentials go to the registry's own origin and to the token server it names (`challenge`), nowhere else: not to what it
//! redirects to, and not to an upload location elsewhere.

use super::HostSettings;
use super::access::{Access, Scopes, Sent, Wanted};
use super::challenge::Challenge;
use super::credentials::{self, Found};
use super::reach;
use super::token;
use super::trouble::{self, Trouble};
use blobstore::https::{self, is_loopback};
use reqwest::header;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell};

const CONNECT: Duration = Duration::from_secs(10);

/// How long an answer, or the next bytes of one, may take.
const STALL: Duration = Duration::from_secs(60);

/// Docker's own registry does not live under the name that images have.
const DOCKER: (&str, &str) = ("docker.io", "registry-1.docker.io");

const REDIRECTS_MAX: usize = 10;

/// How often a request is sent that the registry wants with something else: without anything, with a token that ends just
/// then, with a new one, and once more for what others do meanwhile.
const TRIES: usize = 4;

/// One registry, for one of its repositories.
#[derive(Debug)]
pub(super) struct Registry {
    /// Its host, as image names have it.
    host: String,
    repository: String,
    settings: HostSettings,
    credential_files: Vec<PathBuf>,
    /// For what is downloaded: follows redirects.
    following: Client,
    /// For what is said to the registry or a token server alone.
    direct: Client,
    /// Where it is, found out at the first request.
    base: OnceCell<Url>,
    found: OnceCell<Found>,
    access: Mutex<Access>,
}

impl Registry {
    /// A registry; nothing is asked yet.
    pub(super) fn new(
        host: &str,
        repository: &str,
        settings: HostSettings,
        credential_files: Vec<PathBuf>,
    ) -> Result<Self, Trouble> {
        let local = local(host);
        let authorities = match &settings.ca_file {
            Some(path) => https::authorities(path).map_err(|e| Trouble::Lasting(format!("{}: {e}", path.display())))?,
            None => Vec::new(),
        };
        // Certificates of the machine are not needed where it may do without TLS.
        let without = local || settings.plain_http;
        let built = |builder: &dyn Fn() -> reqwest::ClientBuilder| {
            https::client(builder, &authorities, without).map_err(Trouble::from)
        };
        let plain = || {
            let builder = Client::builder()
                .user_agent(concat!("lamina/", env!("CARGO_PKG_VERSION")))
                .http1_only()
                .connect_timeout(CONNECT);
            if local { builder.no_proxy() } else { builder }
        };
        let following = built(&|| plain().read_timeout(STALL).redirect(Policy::custom(follow)))?;
        let direct = built(&|| plain().redirect(Policy::none()))?;
        Ok(Self {
            host: host.to_owned(),
            repository: repository.to_owned(),
            settings,
            credential_files,
            following,
            direct,
            base: OnceCell::new(),
            found: OnceCell::new(),
            access: Mutex::default(),
        })
    }

    /// For messages.
    pub(super) fn place(&self) -> String {
        format!("registry {}, repository {}", self.host, self.repository)
    }

    /// Its path in the registry.
    pub(super) fn repository(&self) -> &str {
        &self.repository
    }

    /// Its host, as image names have it.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// The URL of something in the repository: `manifests/…`, `blobs/…`.
    pub(super) async fn url(&self, what: &str) -> Result<Url, Trouble> {
        let base = self.base().await?;
        let path = format!("/v2/{}/{what}", self.repository);
        base.join(&path).map_err(|_| Trouble::Lasting(format!("{path} is no path")))
    }

    /// Asks for something that may lie elsewhere: redirects are followed.
    pub(super) async fn get(
        &self,
        scopes: &Scopes,
        build: impl Fn(&Client) -> RequestBuilder,
    ) -> Result<Response, Trouble> {
        self.authorized(scopes, || build(&self.following)).await
    }

    /// Says something to the registry alone; an answer that redirects is given back as it is.
    pub(super) async fn say(
        &self,
        scopes: &Scopes,
        build: impl Fn(&Client) -> RequestBuilder,
    ) -> Result<Response, Trouble> {
        self.authorized(scopes, || build(&self.direct)).await
    }

    /// The same with a body that can be sent once only, with the credentials that an earlier request found out about.
    pub(super) async fn send_once(
        &self,
        scopes: &Scopes,
        url: &Url,
        build: impl FnOnce(&Client) -> RequestBuilder,
    ) -> Result<Response, Trouble> {
        let (mut request, sent) = (build(&self.direct), self.authorization(url, scopes).await?);
        if let Some(value) = &sent.value {
            request = request.header(header::AUTHORIZATION, value);
        }
        let response = request.send().await?;
        if response.status() == StatusCode::UNAUTHORIZED && self.is_own(url).await? {
            let secret = self.found().await.secret.as_ref();
            self.access.lock().await.refused(secret, scopes, &sent);
        }
        Ok(response)
    }

    /// Sends a request with what the registry wants, as long as it says that it wants something else.
    async fn authorized(&self, scopes: &Scopes, build: impl Fn() -> RequestBuilder) -> Result<Response, Trouble> {
        let mut tries = 0;
        loop {
            let (client, request) = build().build_split();
            let mut request = request?;
            let sent = self.authorization(request.url(), scopes).await?;
            if let Some(value) = &sent.value {
                request.headers_mut().insert(header::AUTHORIZATION, value.clone());
            }
            let response = client.execute(request).await?;
            if response.status() != StatusCode::UNAUTHORIZED || !self.is_own(response.url()).await? {
                return Ok(response);
            }
            tries += 1;
            if !self.challenged(&response, scopes, &sent).await? || tries == TRIES {
                return Err(self.denied(trouble::of(response, "the request").await).await);
            }
        }
    }

    /// Learns from a 401 what is wanted. False: it cannot be had, or is what was sent.
    async fn challenged(&self, response: &Response, scopes: &Scopes, sent: &Sent) -> Result<bool, Trouble> {
        let challenge = Challenge::of(response, self.base().await?)?;
        let mut access = self.access.lock().await;
        access.challenge = challenge;
        Ok(access.challenge.is_some() && access.refused(self.found().await.secret.as_ref(), scopes, sent))
    }

    /// What a request to `url` is sent with, as far as is known what the registry wants.
    async fn authorization(&self, url: &Url, scopes: &Scopes) -> Result<Sent, Trouble> {
        if !self.is_own(url).await? {
            return Ok(Sent::default());
        }
        // Held while a token is fetched: others wait for it, and do not fetch their own.
        let mut access = self.access.lock().await;
        // Credentials are not looked for, nor helpers asked, before a registry wants any.
        if access.challenge.is_none() {
            return Ok(Sent::default());
        }
        let secret = self.found().await.secret.as_ref();
        match access.wanted(secret, scopes) {
            Wanted::Nothing => Ok(Sent::default()),
            Wanted::Known(text) => Sent::new(text, false),
            Wanted::Token { realm, service } => {
                let token = token::fetch(&self.direct, &realm, service.as_deref(), scopes.all(), secret).await;
                let token = match token {
                    Ok(token) => token,
                    Err(trouble) => return Err(self.denied(trouble).await),
                };
                let text = format!("Bearer {}", token.live().unwrap_or_default());
                access.keep(scopes, token);
                Sent::new(text, true)
            }
        }
    }

    async fn found(&self) -> &Found {
        let find = || credentials::find(&self.host, &self.repository, &self.credential_files);
        self.found.get_or_init(find).await
    }

    /// A denial says which credentials were tried.
    pub(super) async fn denied(&self, trouble: Trouble) -> Trouble {
        match trouble {
            Trouble::Denied(what) => {
                let (told, host) = (&self.found().await.told, &self.host);
                Trouble::Denied(format!("{what}; {told}; `docker login {host}` or `podman login {host}` sets them"))
            }
            trouble => trouble,
        }
    }

    /// Whether a URL is the registry's own: only there do credentials go.
    pub(super) async fn is_own(&self, url: &Url) -> Result<bool, Trouble> {
        Ok(self.base().await?.origin() == url.origin())
    }

    /// Where the registry is.
    pub(super) async fn base(&self) -> Result<&Url, Trouble> {
        self.base.get_or_try_init(|| self.find_base()).await
    }

    /// On this machine registries often do without TLS: there it is tried, and plain HTTP is spoken where it is not.
    async fn find_base(&self) -> Result<Url, Trouble> {
        let host = if self.host == DOCKER.0 { DOCKER.1 } else { &self.host };
        let with = |scheme: &str| {
            Url::parse(&format!("{scheme}://{host}/")).map_err(|_| Trouble::Lasting(format!("{host} is no host")))
        };
        if self.settings.plain_http {
            return with("http");
        }
        let secure = with("https")?;
        if !is_loopback(&secure) || self.settings.ca_file.is_some() {
            return Ok(secure);
        }
        let probe = secure.join("/v2/").map_err(|_| Trouble::Lasting(format!("{host} is no host")))?;
        match self.direct.get(probe).timeout(CONNECT).send().await {
            Err(error) if !https::is_untrusted(&error) => with("http"),
            _ => Ok(secure),
        }
    }
}

/// Whether a host is this machine.
fn local(host: &str) -> bool {
    Url::parse(&format!("http://{host}/")).is_ok_and(|url| is_loopback(&url))
}

/// Where all that led here may lead. Other hosts are followed to, and get no credentials (reqwest takes them out).
fn follow(attempt: reqwest::redirect::Attempt<'_>) -> reqwest::redirect::Action {
    if attempt.previous().len() > REDIRECTS_MAX {
        return attempt.error("too many redirects");
    }
    match attempt.previous().iter().try_for_each(|from| reach::checked(attempt.url(), from)) {
        Ok(()) => attempt.follow(),
        Err(why) => {
            let host = attempt.url().host_str().unwrap_or_default().to_owned();
            attempt.error(format!("a redirect to {host} is not followed, {why}"))
        }
    }
}
