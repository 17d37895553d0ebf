//! Calls to others over HTTP: what webhooks and tools have in common.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use hyper::header::{HeaderMap, RETRY_AFTER};
use sha2::Sha256;

use crate::words::UnixMs;

const SECRET_PREFIX: &str = "whsec_";
/// How short a secret may be.
pub(crate) const SECRET_BYTES_MIN: usize = 24;

/// A text that is no secret to sign with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use whsec_ and base64 of at least {SECRET_BYTES_MIN} bytes")]
pub struct BadSecret;

/// What calls are signed with, by the Standard Webhooks specification. `Debug` does not show it.
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    /// A key from `whsec_` and base64.
    pub fn read(secret: &str) -> Result<SigningKey, BadSecret> {
        let key = secret.strip_prefix(SECRET_PREFIX).and_then(|text| BASE64.decode(text).ok()).ok_or(BadSecret)?;
        if key.len() < SECRET_BYTES_MIN {
            return Err(BadSecret);
        }
        Hmac::new_from_slice(&key).map(SigningKey).map_err(|_length| BadSecret)
    }

    /// The signature of a message, as the header `webhook-signature` has it; the timestamp is in seconds.
    pub fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

/// The longest that the other side is left alone, whatever it asks for: it must not put a request off for good.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// How long the other side asks to be left alone, in seconds or by a date; at most an hour.
pub fn retry_after(headers: &HeaderMap, now: UnixMs) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let asked = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at: SystemTime = httpdate::parse_http_date(text).ok()?;
            at.duration_since(UNIX_EPOCH + Duration::from_millis(now.0)).ok()?
        }
    };
    Some(asked.min(RETRY_AFTER_MAX))
}

/// What went wrong, down to its first cause; hyper itself only says where.
pub fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// The vector of the specification's own test suite.
    #[test]
    fn signatures_are_the_standards() {
        let key = SigningKey::read("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(format!("{key:?}"), "SigningKey");
    }

    #[test]
    fn receivers_ask_in_seconds_or_by_date() {
        let check = |text: &str, asked: Option<u64>| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            let after = retry_after(&headers, UnixMs(784_111_777_000));
            assert_eq!(after, asked.map(Duration::from_secs), "{text}");
        };
        check("120", Some(120));
        check(" 0 ", Some(0));
        check("Sun, 06 Nov 1994 08:50:07 GMT", Some(30));
        check("Sun, 06 Nov 1994 08:00:00 GMT", None);
        check("99999999999999", Some(3600));
        check("Mon, 06 Nov 2034 08:50:07 GMT", Some(3600));
        check("soon", None);
        check("-1", None);
        assert_eq!(retry_after(&HeaderMap::new(), UnixMs(0)), None);
    }
}
