//! What a registry is known to want with a request, and the tokens it gave out.

use super::challenge::Challenge;
use super::secret::Secret;
use super::token::Token;
use super::trouble::Trouble;
use base64::Engine;
use reqwest::Url;
use reqwest::header::HeaderValue;
use std::collections::HashMap;

/// What a token must allow: `repository:NAME:pull` and the like.
#[derive(Debug, Clone)]
pub(super) struct Scopes(Vec<String>);

/// See the module.
#[derive(Default)]
pub(super) struct Access {
    /// As the registry said last.
    pub(super) challenge: Option<Challenge>,
    /// By scope.
    tokens: HashMap<String, Token>,
}

/// What goes into a request's header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Nothing, or nothing that there is.
    Nothing,
    /// This.
    Known(String),
    /// A token that is to be had at `realm`.
    Token { realm: Url, service: Option<String> },
}

/// What a request was sent with.
#[derive(Debug, Clone, Default)]
pub(super) struct Sent {
    /// The header's value.
    pub(super) value: Option<HeaderValue>,
    /// Whether it is a token that was fetched for this very request.
    pub(super) fresh: bool,
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

    /// Each.
    pub(super) fn all(&self) -> &[String] {
        &self.0
    }

    fn key(&self) -> String {
        self.0.join(" ")
    }
}

impl Access {
    /// What goes into a request's header, with these credentials.
    pub(super) fn wanted(&self, secret: Option<&Secret>, scopes: &Scopes) -> Wanted {
        match (&self.challenge, secret) {
            (Some(Challenge::Basic), Some(Secret::Basic(user, password))) => {
                let engine = base64::engine::general_purpose::STANDARD;
                Wanted::Known(format!("Basic {}", engine.encode(format!("{user}:{password}"))))
            }
            (None | Some(Challenge::Basic), _) => Wanted::Nothing,
            (Some(Challenge::Bearer { .. }), Some(Secret::Bearer(token))) => Wanted::Known(format!("Bearer {token}")),
            (Some(Challenge::Bearer { realm, service }), _) => {
                match self.tokens.get(&scopes.key()).and_then(Token::live) {
                    Some(token) => Wanted::Known(format!("Bearer {token}")),
                    None => Wanted::Token { realm: realm.clone(), service: service.clone() },
                }
            }
        }
    }

    /// Keeps a token.
    pub(super) fn keep(&mut self, scopes: &Scopes, token: Token) {
        self.tokens.insert(scopes.key(), token);
    }

    /// Takes note that what was sent is not taken; whether there is something else to send. Requests go out side by side, so
    /// another may have learned of credentials, or renewed a token, since: only what would be sent again is no use.
    pub(super) fn refused(&mut self, secret: Option<&Secret>, scopes: &Scopes, sent: &Sent) -> bool {
        match self.wanted(secret, scopes) {
            Wanted::Nothing => false,
            Wanted::Token { .. } => true,
            Wanted::Known(text) if sent.value.as_ref().is_none_or(|value| value.as_bytes() != text.as_bytes()) => true,
            // A token may have ended early, unless it has only just been fetched. Credentials are what they are.
            Wanted::Known(_) => self.tokens.remove(&scopes.key()).is_some() && !sent.fresh,
        }
    }
}

impl Sent {
    /// A header's value, which is not to be shown.
    pub(super) fn new(text: String, fresh: bool) -> Result<Self, Trouble> {
        let mut value = HeaderValue::try_from(text)
            .map_err(|_| Trouble::Denied("the credentials have characters no header can hold".into()))?;
        value.set_sensitive(true);
        Ok(Self { value: Some(value), fresh })
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("challenge", &self.challenge).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(text: &str, fresh: bool) -> Sent {
        Sent::new(text.to_owned(), fresh).unwrap()
    }

    #[test]
    fn a_request_is_denied_only_for_what_would_be_sent_again() {
        let (scopes, user) = (Scopes::pulling("a"), Secret::Basic("robot".into(), "secret".into()));
        let basic = Some(Challenge::Basic);
        let mut access = Access { challenge: basic, ..Access::default() };
        // Two went out before anything was known; then both are sent with the password, which is wrong.
        assert!(access.refused(Some(&user), &scopes, &Sent::default()));
        assert!(access.refused(Some(&user), &scopes, &Sent::default()));
        let Wanted::Known(text) = access.wanted(Some(&user), &scopes) else { panic!("a password") };
        assert!(!access.refused(Some(&user), &scopes, &sent(&text, false)));
        assert!(!access.refused(None, &scopes, &Sent::default()));
    }

    #[test]
    fn a_token_is_renewed_once_for_all_that_were_refused_with_it() {
        let scopes = Scopes::pulling("a");
        let realm: Url = "https://auth.example/t".parse().unwrap();
        let challenge = Some(Challenge::Bearer { realm: realm.clone(), service: None });
        let mut access = Access { challenge, ..Access::default() };
        let (one, two) = (sent("Bearer one", false), sent("Bearer two", true));
        access.keep(&scopes, Token::lasting("one"));
        assert!(access.refused(None, &scopes, &one));
        assert_eq!(access.wanted(None, &scopes), Wanted::Token { realm, service: None });
        assert!(access.refused(None, &scopes, &one), "nothing is there yet");
        access.keep(&scopes, Token::lasting("two"));
        assert!(access.refused(None, &scopes, &one), "another's answer does not cost the new token");
        assert_eq!(access.wanted(None, &scopes), Wanted::Known("Bearer two".into()));
        assert!(!access.refused(None, &scopes, &two), "a new one that is not taken is a denial");
    }
}
