//! Bearer tokens: asked of the token server that a registry names, kept as long as they last.

use super::secret::Secret;
use super::trouble::{self, Trouble};
use reqwest::{Client, Response, StatusCode, Url, header};
use serde::Deserialize;
use std::time::{Duration, Instant};

/// What a token server may answer.
const ANSWER_MAX: usize = 1 << 20;

/// How long a token lasts whose answer does not say.
const LIFETIME: Duration = Duration::from_secs(60);

/// A token is renewed this long before its end.
const MARGIN: Duration = Duration::from_secs(10);

/// A token and its end.
#[derive(Clone)]
pub(super) struct Token {
    text: String,
    until: Instant,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
    #[serde(default)]
    expires_in: Option<u64>,
}

impl Token {
    /// One that does not end during a test.
    #[cfg(test)]
    pub(super) fn lasting(text: &str) -> Self {
        Self { text: text.to_owned(), until: Instant::now() + Duration::from_secs(3600) }
    }

    /// The token, unless it is about to end.
    pub(super) fn live(&self) -> Option<&str> {
        (Instant::now() < self.until).then_some(&*self.text)
    }
}

/// Asks for a token that allows all of `scopes`. `client` follows no redirects: what it is given is for this server only.
pub(super) async fn fetch(
    client: &Client,
    realm: &Url,
    service: Option<&str>,
    scopes: &[String],
    secret: Option<&Secret>,
) -> Result<Token, Trouble> {
    let mut url = realm.clone();
    let request = match secret {
        Some(Secret::Identity(refresh)) => {
            let joined = scopes.join(" ");
            let mut form =
                vec![("grant_type", "refresh_token"), ("client_id", "lamina"), ("refresh_token", &**refresh)];
            form.push(("scope", &joined));
            form.extend(service.map(|service| ("service", service)));
            let body = encoded(realm, &form);
            client.post(url).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)
        }
        secret => {
            let pairs = service.map(|service| ("service", service)).into_iter();
            url.query_pairs_mut().extend_pairs(pairs.chain(scopes.iter().map(|scope| ("scope", &**scope))));
            match secret {
                Some(Secret::Basic(user, password)) => client.get(url).basic_auth(user, Some(password)),
                _ => client.get(url),
            }
        }
    };
    let response = request.timeout(Duration::from_secs(30)).send().await?;
    match response.status() {
        StatusCode::OK => read(response).await,
        _ => Err(trouble::of(response, &format!("a token from {}", realm.host_str().unwrap_or_default())).await),
    }
}

fn encoded(base: &Url, form: &[(&str, &str)]) -> String {
    let mut url = base.clone();
    url.set_query(None);
    url.query_pairs_mut().extend_pairs(form);
    url.query().unwrap_or_default().to_owned()
}

async fn read(mut response: Response) -> Result<Token, Trouble> {
    let refused = |why: &str| Trouble::Denied(format!("the token server's answer {why}"));
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() > ANSWER_MAX {
            return Err(refused("is too long"));
        }
    }
    let answer: Answer = serde_json::from_slice(&body).map_err(|_| refused("is not JSON"))?;
    let text = answer.token.or(answer.access_token).filter(|t| !t.is_empty()).ok_or_else(|| refused("has no token"))?;
    let lifetime = answer.expires_in.map_or(LIFETIME, |s| Duration::from_secs(s.min(86_400))).max(LIFETIME);
    Ok(Token { text, until: Instant::now() + lifetime - MARGIN })
}
