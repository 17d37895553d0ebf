//! What a status means, as pure functions.

use std::collections::BTreeMap;

use crate::errand::Meaning;

/// What statuses mean, where it is something else than usual.
pub type Statuses = BTreeMap<u16, Meaning>;

/// What a status means; none if the body is the answer.
///
/// A tool that refuses says that it always will, except that it is busy or that the call came
/// too late or too early. One that fails may succeed later. Whoever stands in front of a tool that is
/// not there says so by 502, 503 or 504: the tool did not get to it.
pub(crate) fn meaning(status: u16, own: &Statuses) -> Option<Meaning> {
    if let Some(own) = own.get(&status) {
        return Some(*own);
    }
    match status {
        200..=299 => None,
        409 => Some(Meaning::AlreadyDone),
        408 | 425 => Some(Meaning::Retry),
        429 | 502..=504 => Some(Meaning::Unavailable),
        400..=499 => Some(Meaning::Fatal),
        _ => Some(Meaning::Retry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_status_means() {
        let check = |status: &[u16], expected: Option<Meaning>| {
            for status in status {
                assert_eq!(meaning(*status, &Statuses::new()), expected, "{status}");
            }
        };
        check(&[200, 201, 202, 204, 299], None);
        check(&[409], Some(Meaning::AlreadyDone));
        check(&[429, 502, 503, 504], Some(Meaning::Unavailable));
        check(&[408, 425, 500, 501, 505, 599, 301, 302, 307, 308, 304, 100], Some(Meaning::Retry));
        check(&[400, 401, 403, 404, 405, 410, 413, 422, 451, 499], Some(Meaning::Fatal));
        let own = Statuses::from([(404, Meaning::Retry), (200, Meaning::Fatal)]);
        assert_eq!((meaning(404, &own), meaning(200, &own)), (Some(Meaning::Retry), Some(Meaning::Fatal)));
    }
}
