//! Who may call what: JSON Web Tokens with roles.
//!
//! Failure modes: a token that is forged, expired or of another algorithm is nobody's (401); one
//! that is good and lacks the role is refused (403). What a token says is never logged.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::problem::Problem;
use super::rate::Rates;

/// How short a secret may be.
pub const SECRET_BYTES_MIN: usize = 32;
/// Longest name of a caller.
const NAME_BYTES_MAX: usize = 128;
/// How far clocks may differ.
const LEEWAY_S: u64 = 30;

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look.
    Viewer,
    /// Submit requests, and look at them.
    Submitter,
    /// Take requests and answer them.
    Worker,
    /// Everything that a person does: pause, resume, retry, drop, cancel, reconcile; and look.
    Operator,
}

impl Role {
    fn words(roles: &[Role]) -> String {
        let word = |role: &Role| match role {
            Role::Viewer => "viewer",
            Role::Submitter => "submitter",
            Role::Worker => "worker",
            Role::Operator => "operator",
        };
        roles.iter().map(word).collect::<Vec<_>>().join(", ")
    }
}

/// What a token says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Claims {
    /// Who.
    pub sub: String,
    /// Until when, in seconds since 1970.
    pub exp: u64,
    /// What they may do.
    pub roles: Vec<Role>,
}

impl Claims {
    /// Until when this process takes them, as far as its clock can tell.
    fn until(&self) -> Option<Instant> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Instant::now().checked_add(Duration::from_secs(self.exp.saturating_add(LEEWAY_S)).saturating_sub(now))
    }
}

/// Whoever calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Their name.
    pub name: String,
    /// What they may do.
    pub roles: Vec<Role>,
    /// Until when they may be listened to.
    pub until: Option<Instant>,
    /// When their token expires, in seconds since 1970.
    pub expires_at_s: Option<u64>,
}

impl Caller {
    /// Whoever calls where nobody needs a token: they may do everything.
    fn anybody() -> Caller {
        let roles = vec![Role::Viewer, Role::Submitter, Role::Worker, Role::Operator];
        Caller { name: "anybody".to_owned(), roles, until: None, expires_at_s: None }
    }
}

/// How tokens are checked.
#[derive(Default)]
pub struct Keys {
    secret: Option<DecodingKey>,
    public: Option<DecodingKey>,
}

/// Why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// Too short to be a secret.
    #[error("a secret for tokens has at least {SECRET_BYTES_MIN} bytes")]
    Short,
    /// Not a key.
    #[error("this is no public key of Ed25519 as PEM")]
    NotPublic,
}

impl Keys {
    /// Tokens are signed with this secret, by HS256.
    pub fn secret(mut self, secret: &[u8]) -> Result<Keys, BadKey> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(BadKey::Short);
        }
        self.secret = Some(DecodingKey::from_secret(secret));
        Ok(self)
    }

    /// Tokens are signed with the key that belongs to this one, by EdDSA.
    pub fn public(mut self, pem: &[u8]) -> Result<Keys, BadKey> {
        self.public = Some(DecodingKey::from_ed_pem(pem).map_err(|_| BadKey::NotPublic)?);
        Ok(self)
    }

    /// What a token says, if it is good.
    pub fn read(&self, token: &str) -> Option<Claims> {
        let algorithm = jsonwebtoken::decode_header(token).ok()?.alg;
        let key = match algorithm {
            Algorithm::HS256 => self.secret.as_ref(),
            Algorithm::EdDSA => self.public.as_ref(),
            _ => None,
        }?;
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY_S;
        validation.validate_nbf = true;
        let claims = jsonwebtoken::decode::<Claims>(token, key, &validation).ok()?.claims;
        // A name with a line break in it would forge lines of the log.
        is_name(&claims.sub).then_some(claims)
    }
}

/// Whether a caller can be called this.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control)
}

/// Whether a call was meant for this machine: a page of somebody else in a browser of this
/// machine says whose it is in `Origin`, or comes under another name in `Host`.
fn is_local(request: &Request) -> bool {
    let text = |name| request.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = request.uri().authority().map(|authority| authority.as_str()).or(text(header::HOST));
    let origin = text(header::ORIGIN).map(|origin| origin.split_once("://").map_or(origin, |(_, host)| host));
    [host, origin].into_iter().flatten().all(|name| {
        let name = name.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(name, |(name, _)| name);
        name.eq_ignore_ascii_case("localhost")
            || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

/// A token for whoever has the secret to give.
pub fn sign(
    secret: &[u8],
    name: &str,
    roles: &[Role],
    length: Duration,
) -> Result<String, jsonwebtoken::errors::Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let claims = Claims { sub: name.to_owned(), exp: (now + length).as_secs(), roles: roles.to_vec() };
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &EncodingKey::from_secret(secret))
}

/// A link to the dashboard at this address that brings the token along. It is in the fragment, which
/// a browser sends to nobody: no log has it.
pub fn link(address: &str, token: &str) -> String {
    format!("{address}/#token={token}")
}

/// Lets a call pass that has one of the roles.
#[derive(Clone)]
pub(super) struct Guard {
    /// Without any, everybody may call.
    pub(super) keys: Option<Arc<Keys>>,
    pub(super) rates: Option<Arc<Rates>>,
    pub(super) roles: &'static [Role],
}

impl Guard {
    /// Whoever calls, if it may.
    fn caller(&self, request: &Request) -> Result<Caller, Problem> {
        let caller = match &self.keys {
            None if !is_local(request) => {
                let why = "without [api.auth] only this machine is served, under the names localhost and 127.0.0.1";
                return Err(Problem::new(StatusCode::FORBIDDEN, why));
            }
            None => Caller::anybody(),
            Some(keys) => {
                let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
                let token = given
                    .and_then(|text| text.split_once(' '))
                    .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
                let token = token.map(|(_, token)| token.trim());
                let claims = token.and_then(|token| keys.read(token));
                let nobody =
                    || Problem::new(StatusCode::UNAUTHORIZED, "a good token is needed: Authorization: Bearer TOKEN");
                let claims = claims.ok_or_else(nobody)?;
                if !claims.roles.iter().any(|role| self.roles.contains(role)) {
                    let roles = Role::words(self.roles);
                    let detail = format!("this needs one of the roles {roles}, and this token has none of them");
                    return Err(Problem::new(StatusCode::FORBIDDEN, detail));
                }
                Caller { until: claims.until(), name: claims.sub, roles: claims.roles, expires_at_s: Some(claims.exp) }
            }
        };
        if self.rates.as_ref().is_some_and(|rates| !rates.take(&caller.name, Instant::now())) {
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, format!("{} calls too often", caller.name)));
        }
        Ok(caller)
    }
}

/// Lets whoever may call pass.
pub(super) async fn guard(State(guard): State<Guard>, mut request: Request, next: Next) -> Result<Response, Problem> {
    let caller = guard.caller(&request)?;
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn only_what_was_meant_for_this_machine_is_local() {
        let call = |host: &str, origin: Option<&str>| {
            let builder = Request::builder().uri("/").header("host", host);
            let builder = origin
                .map_or(Request::builder().uri("/").header("host", host), |origin| builder.header("origin", origin));
            is_local(&builder.body(axum::body::Body::empty()).unwrap())
        };
        for host in ["localhost:8080", "127.0.0.1:8080", "LOCALHOST", "[::1]:8080", "127.0.0.1"] {
            assert!(call(host, None) && call(host, Some("http://localhost:3000")), "{host}");
            assert!(!call(host, Some("https://evil.example")) && !call(host, Some("null")), "{host}");
        }
        assert!(!call("evil.example:8080", None) && !call("localhost.evil.example", None));
    }

    #[test]
    fn only_what_the_secret_signed_and_has_not_expired_is_good() {
        let secret = [7; 32];
        let keys = Keys::default().secret(&secret).unwrap();
        let hour = Duration::from_secs(3600);
        let good = sign(&secret, "me", &[Role::Worker], hour).unwrap();
        assert_eq!(keys.read(&good).map(|claims| claims.sub), Some("me".to_owned()));
        let forged = sign(&[8; 32], "me", &[Role::Operator], hour).unwrap();
        let expired = jsonwebtoken::encode(
            &Header::new(Algorithm::HS256),
            &Claims { sub: "me".to_owned(), exp: 1_000_000, roles: vec![Role::Worker] },
            &EncodingKey::from_secret(&secret),
        );
        let other = jsonwebtoken::encode(
            &Header::new(Algorithm::HS384),
            &Claims { sub: "me".to_owned(), exp: u64::from(u32::MAX), roles: vec![Role::Worker] },
            &EncodingKey::from_secret(&secret),
        );
        let from = |at: u64| {
            let claims = serde_json::json!({"sub": "me", "exp": u32::MAX, "nbf": at, "roles": ["worker"]});
            jsonwebtoken::encode(&Header::default(), &claims, &EncodingKey::from_secret(&secret)).unwrap()
        };
        assert!(keys.read(&from(1_000_000)).is_some(), "it has begun");
        let early = from(u64::from(u32::MAX) - 1);
        for bad in [forged, early, expired.unwrap(), other.unwrap(), good.replace('.', ""), String::new()] {
            assert!(keys.read(&bad).is_none(), "{bad}");
        }
        assert_eq!(Keys::default().secret(b"short").err(), Some(BadKey::Short));
    }
}
