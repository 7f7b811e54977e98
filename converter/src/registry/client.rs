//! One registry as HTTP: its address, its certificates, and every request with the credentials it wants.
//!
//! Credentials go to the registry's own origin and to the token server it names (`challenge`), nowhere else: not to what it
//! redirects to, and not to an upload location elsewhere.

use super::HostSettings;
use super::challenge::{Challenge, is_loopback};
use super::credentials::{self, Found, Secret};
use super::token::{self, Token};
use super::trouble::{self, Trouble, is_about_certificates};
use base64::Engine;
use reqwest::header::{self, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, RequestBuilder, Response, StatusCode, Url};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell};

const CONNECT: Duration = Duration::from_secs(10);

/// How long an answer, or the next bytes of one, may take.
const STALL: Duration = Duration::from_secs(60);

/// Docker's own registry does not live under the name that images have.
const DOCKER: (&str, &str) = ("docker.io", "registry-1.docker.io");

const REDIRECTS_MAX: usize = 10;

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

/// What the registry is known to want.
#[derive(Default)]
struct Access {
    challenge: Option<Challenge>,
    /// By scope.
    tokens: HashMap<String, Token>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("challenge", &self.challenge).finish_non_exhaustive()
    }
}

/// What a token must allow: `repository:NAME:pull` and the like.
#[derive(Debug, Clone)]
pub(super) struct Scopes(Vec<String>);

impl Registry {
    /// A registry; nothing is asked yet.
    pub(super) fn new(
        host: &str,
        repository: &str,
        settings: HostSettings,
        credential_files: Vec<PathBuf>,
    ) -> Result<Self, Trouble> {
        // Once in the process: what is installed already is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let local = local(host);
        let authorities = match &settings.ca_file {
            Some(path) => authorities(path).map_err(|e| Trouble::Lasting(format!("{}: {e}", path.display())))?,
            None => Vec::new(),
        };
        // Certificates of the machine are not needed where it may do without TLS.
        let without = local || settings.plain_http;
        let built = |builder: &dyn Fn() -> reqwest::ClientBuilder| {
            let build = builder().tls_certs_merge(authorities.clone()).build();
            let bare = |e| if without { builder().tls_certs_only(authorities.clone()).build() } else { Err(e) };
            build.or_else(bare).map_err(Trouble::from)
        };
        let plain = || {
            let builder =
                Client::builder().user_agent(concat!("lamina/", env!("CARGO_PKG_VERSION"))).connect_timeout(CONNECT);
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
        let mut request = build(&self.direct);
        if self.is_own(url).await?
            && let Some(value) = self.authorization(scopes).await?
        {
            request = request.header(header::AUTHORIZATION, value);
        }
        let response = request.send().await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            self.forget(scopes).await;
        }
        Ok(response)
    }

    /// Sends a request with what the registry wants; a token that it does not take any more is renewed once.
    async fn authorized(&self, scopes: &Scopes, build: impl Fn() -> RequestBuilder) -> Result<Response, Trouble> {
        let mut renewed = false;
        loop {
            let (client, request) = build().build_split();
            let mut request = request?;
            if self.is_own(request.url()).await?
                && let Some(value) = self.authorization(scopes).await?
            {
                request.headers_mut().insert(header::AUTHORIZATION, value);
            }
            let response = client.execute(request).await?;
            if response.status() != StatusCode::UNAUTHORIZED || !self.is_own(response.url()).await? {
                return Ok(response);
            }
            if renewed || !self.challenged(&response, scopes).await? {
                return Err(self.denied(trouble::of(response, "the request").await).await);
            }
            renewed = true;
        }
    }

    /// Learns from a 401 what is wanted. False: it cannot be had.
    async fn challenged(&self, response: &Response, scopes: &Scopes) -> Result<bool, Trouble> {
        let challenge = Challenge::of(response, self.base().await?)?;
        let mut access = self.access.lock().await;
        let known = access.challenge == challenge;
        let token = access.tokens.remove(&scopes.key()).is_some();
        access.challenge = challenge;
        // Asked again in the same way, the answer would be the same.
        Ok(access.challenge.is_some() && (!known || token))
    }

    /// A token that the registry does not take is of no use.
    async fn forget(&self, scopes: &Scopes) {
        self.access.lock().await.tokens.remove(&scopes.key());
    }

    /// What goes into the request's header, as far as is known what the registry wants.
    async fn authorization(&self, scopes: &Scopes) -> Result<Option<HeaderValue>, Trouble> {
        let mut access = self.access.lock().await;
        let Some(challenge) = access.challenge.clone() else { return Ok(None) };
        let found = self.found().await;
        let text = match (challenge, &found.secret) {
            (Challenge::Basic, Some(Secret::Basic(user, password))) => {
                let engine = base64::engine::general_purpose::STANDARD;
                format!("Basic {}", engine.encode(format!("{user}:{password}")))
            }
            (Challenge::Basic, _) => return Ok(None),
            (Challenge::Bearer { .. }, Some(Secret::Bearer(token))) => format!("Bearer {token}"),
            (Challenge::Bearer { realm, service }, secret) => {
                let key = scopes.key();
                if access.tokens.get(&key).and_then(Token::live).is_none() {
                    let token = token::fetch(&self.direct, &realm, service.as_deref(), &scopes.0, secret.as_ref());
                    let token = match token.await {
                        Ok(token) => token,
                        Err(trouble) => return Err(self.denied(trouble).await),
                    };
                    access.tokens.insert(key.clone(), token);
                }
                format!("Bearer {}", access.tokens.get(&key).and_then(Token::live).unwrap_or_default())
            }
        };
        let value = HeaderValue::try_from(text);
        let mut value =
            value.map_err(|_| Trouble::Denied("the credentials have characters no header can hold".into()))?;
        value.set_sensitive(true);
        Ok(Some(value))
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
            Err(error) if !trouble::tls(&error).is_some_and(is_about_certificates) => with("http"),
            _ => Ok(secure),
        }
    }
}

impl Scopes {
    /// What reading needs.
    pub(super) fn pulling(repository: &str) -> Self {
        Self(vec![format!("repository:{repository}:pull")])
    }

    /// What pushing needs, and reading from another repository beside.
    pub(super) fn pushing(repository: &str, from: Option<&str>) -> Self {
        let from = from.map(|from| format!("repository:{from}:pull"));
        Self([format!("repository:{repository}:pull,push")].into_iter().chain(from).collect())
    }

    fn key(&self) -> String {
        self.0.join(" ")
    }
}

/// Whether a host is this machine.
fn local(host: &str) -> bool {
    Url::parse(&format!("http://{host}/")).is_ok_and(|url| is_loopback(&url))
}

/// Never from TLS to plain HTTP. Other hosts are followed to, and get no credentials (reqwest takes them out).
fn follow(attempt: reqwest::redirect::Attempt<'_>) -> reqwest::redirect::Action {
    let was_secure = attempt.previous().last().is_some_and(|url| url.scheme() == "https");
    match (was_secure, attempt.url().scheme()) {
        _ if attempt.previous().len() > REDIRECTS_MAX => attempt.error("too many redirects"),
        (true, "http") => attempt.error("a redirect from https to http is not followed"),
        _ => attempt.follow(),
    }
}

fn authorities(path: &std::path::Path) -> Result<Vec<Certificate>, String> {
    let pem = std::fs::read(path).map_err(|e| e.to_string())?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err("no certificates in PEM form".to_owned()),
    }
}
