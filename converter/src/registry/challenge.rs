//! What a registry asks for when it answers 401: the `WWW-Authenticate` headers.

use super::reach::{self, is_same_machine};
use super::trouble::Trouble;
use reqwest::{Response, Url, header};

/// How a registry wants to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User and password with every request.
    Basic,
    /// A token that another server gives out.
    Bearer {
        /// The token server.
        realm: Url,
        /// What the token server calls the registry.
        service: Option<String>,
    },
}

impl Challenge {
    /// That of an answer; a token is preferred. `registry` is where the answer is from.
    pub(super) fn of(response: &Response, registry: &Url) -> Result<Option<Self>, Trouble> {
        let values = response.headers().get_all(header::WWW_AUTHENTICATE).iter().filter_map(|v| v.to_str().ok());
        let mut basic = None;
        for value in values {
            // A header that is malformed counts as far as it can be read.
            for challenge in http_auth::parser::ChallengeParser::new(value).map_while(Result::ok) {
                let parameter = |name: &str| {
                    let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                    found.map(|(_, value)| value.to_unescaped())
                };
                if challenge.scheme.eq_ignore_ascii_case("bearer") {
                    let realm = token_server(&parameter("realm").unwrap_or_default(), registry)?;
                    return Ok(Some(Self::Bearer { realm, service: parameter("service") }));
                }
                if challenge.scheme.eq_ignore_ascii_case("basic") {
                    basic = Some(Self::Basic);
                }
            }
        }
        Ok(basic)
    }
}

/// A token server is named by the registry, which may be anybody's: it is asked only over TLS, or where the registry itself is
/// reached without, on the same host, and only where `reach` allows. So a registry cannot have credentials sent in the
/// clear.
fn token_server(realm: &str, registry: &Url) -> Result<Url, Trouble> {
    let refused = |why: &str| Trouble::Denied(format!("the registry names the token server '{realm}', {why}"));
    let url = Url::parse(realm).map_err(|_| refused("which is no URL"))?;
    if !url.username().is_empty() || url.password().is_some() || url.host_str().is_none() {
        return Err(refused("which is no plain URL"));
    }
    reach::checked(&url, registry).map_err(refused)?;
    match url.scheme() == "https" || is_same_machine(&url, registry) {
        true => Ok(url),
        false => Err(refused("which is not asked: it is neither https nor on the registry's own host")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_server_is_asked_over_tls_or_on_the_registrys_own_host() {
        let check = |realm: &str, registry: &str| token_server(realm, &registry.parse().unwrap());
        assert!(check("https://auth.example/t", "https://r.example").is_ok());
        assert!(check("https://auth.example/t", "http://127.0.0.1:5000").is_ok());
        assert!(check("http://localhost:5001/t", "http://127.0.0.1:5000").is_ok());
        assert!(check("http://r.lan/t", "http://r.lan:5000").is_ok());
        for (realm, registry) in [
            ("http://auth.example/t", "https://r.example"),
            ("http://r.example/t", "https://r.example"),
            ("http://127.0.0.1/t", "https://r.example"),
            ("http://169.254.169.254/latest", "http://r.lan:5000"),
            ("http://127.0.0.1/t", "http://r.lan:5000"),
            ("https://127.0.0.1/t", "https://r.example"),
            ("https://user:pass@auth.example/t", "https://r.example"),
            ("file:///etc/passwd", "http://127.0.0.1:5000"),
            ("", "https://r.example"),
        ] {
            assert!(matches!(check(realm, registry), Err(Trouble::Denied(_))), "{realm} of {registry}");
        }
    }
}
