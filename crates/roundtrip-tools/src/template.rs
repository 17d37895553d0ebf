//! URLs with places for what a request says: `https://registry.example/tools/{request/args/tool}`.
//!
//! A place at the very beginning stands for the beginning of a URL as it is, such as one that a
//! registry tells. Anywhere else a value is one part of a path or a query: whatever could lead
//! elsewhere is encoded.

use std::fmt::Write;

use hyper::Uri;
use hyper::http::uri::Authority;
use serde_json::Value;

/// A URL with places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlTemplate {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// A field of what is known, as a path.
    Place(String),
}

impl UrlTemplate {
    /// Reads a URL whose places name fields of these documents.
    pub fn read(text: &str, documents: &[&str]) -> Result<UrlTemplate, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            let (place, next) =
                after.split_once('}').ok_or_else(|| format!("{text:?} has a brace without its other"))?;
            let root = place.split('/').next().unwrap_or_default();
            if !documents.contains(&root) {
                let known: Vec<String> = documents.iter().map(|name| format!("{{{name}/…}}")).collect();
                return Err(format!("{text:?}: nobody knows {{{place}}}: use {}", known.join(" or ")));
            }
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(Part::Place(format!("/{place}")));
            rest = next;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        let template = UrlTemplate { parts };
        match template.parts.first() {
            Some(Part::Text(text)) if !(text.starts_with("http://") || text.starts_with("https://")) => {
                Err("a URL begins with http:// or https://, or with a place that stands for one".to_owned())
            }
            Some(Part::Text(first)) if template.parts.len() > 1 && !has_path(first) => Err(format!(
                "{text:?}: a place may not stand for the host: write the host, or a place for all of the URL"
            )),
            Some(_) => match template.fixed() {
                Some(url) => callable(url).map(|()| template.clone()),
                None => Ok(template),
            },
            None => Err("no URL is written".to_owned()),
        }
    }

    /// The URL, if it is the same for all requests.
    pub fn fixed(&self) -> Option<&str> {
        match &self.parts[..] {
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether it says itself whom to ask, and not what is known of a request.
    pub(crate) fn has_host(&self) -> bool {
        matches!(self.parts.first(), Some(Part::Text(_)))
    }

    /// The URL for what is known of a request.
    pub fn fill(&self, document: &Value) -> Result<String, String> {
        let mut url = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => url.push_str(text),
                Part::Place(path) => {
                    let value = match document.pointer(path) {
                        Some(Value::String(text)) => text.clone(),
                        Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
                        Some(_) => return Err(format!("{path} is no text that a URL could have")),
                        None => return Err(format!("there is no {path}")),
                    };
                    if url.is_empty() {
                        url.push_str(value.trim_end_matches('/'));
                    } else if matches!(value.as_str(), "" | "." | "..") {
                        return Err(format!("{path} is {value:?}, which is no part of a path"));
                    } else {
                        encode(&value, &mut url);
                    }
                }
            }
        }
        callable(&url)?;
        Ok(url)
    }
}

/// Whether a URL can be called at all: what cannot be would be tried for ever, or elsewhere.
fn callable(url: &str) -> Result<(), String> {
    let read: Option<Uri> = url.parse().ok();
    let is_web = |url: &Uri| matches!(url.scheme_str(), Some("http" | "https"));
    // A port that is no port is none to whoever reads it, and would become the usual one.
    let is_whole =
        |at: &Authority| !at.host().is_empty() && (at.as_str().ends_with(at.host()) || at.port_u16().is_some());
    match read.filter(is_web).is_some_and(|url| url.authority().is_some_and(is_whole)) {
        true => Ok(()),
        false => Err("it is no URL of a web server: http or https, a host, and a port up to 65535 if any".to_owned()),
    }
}

/// Whether a text is the beginning of a URL whose host is complete.
fn has_path(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| rest.contains(['/', '?']))
}

/// Everything but letters, digits and what never has a meaning in a URL.
fn encode(value: &str, into: &mut String) {
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => into.push(char::from(byte)),
            _ => {
                let _infallible = write!(into, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    const KNOWN: [&str; 3] = ["id", "request", "tool"];

    #[test]
    fn a_value_is_one_part_and_leads_nowhere_else() {
        let document = json!({"id": "ab", "request": {"name": "x/../y?z=1#é", "n": 7, "dots": "..", "list": []},
            "tool": {"url": "https://tool.example/base/"}});
        let fill = |text: &str| UrlTemplate::read(text, &KNOWN).unwrap().fill(&document);
        assert_eq!(fill("https://h/t/{request/name}/{id}").unwrap(), "https://h/t/x%2F..%2Fy%3Fz%3D1%23%C3%A9/ab");
        assert_eq!(fill("https://h/t?n={request/n}").unwrap(), "https://h/t?n=7");
        assert_eq!(fill("{tool/url}/invoke").unwrap(), "https://tool.example/base/invoke");
        assert_eq!(fill("https://h/{request/away}"), Err("there is no /request/away".to_owned()));
        assert!(fill("https://h/{request/list}").unwrap_err().contains("no text"));
        assert!(fill("https://h/{request/dots}").unwrap_err().contains("no part of a path"));
        assert_eq!(UrlTemplate::read("https://h/x", &KNOWN).unwrap().fixed(), Some("https://h/x"));
        assert_eq!(UrlTemplate::read("https://h/{id}", &KNOWN).unwrap().fixed(), None);
    }

    #[test]
    fn whom_a_request_names_can_be_called_or_is_refused() {
        let named =
            |url: &str| UrlTemplate::read("{request/url}", &KNOWN).unwrap().fill(&json!({"request": {"url": url}}));
        for url in ["http://h", "https://h:8443/x?y=z", "http://[::1]:80/", "http://me@h/x"] {
            assert!(named(url).is_ok(), "{url}");
        }
        for url in
            ["javascript:1", "file:///etc/passwd", "http://1.2.3.4:99999/", "http://h:/", "/x", "h", "http://a b/"]
        {
            assert!(named(url).unwrap_err().contains("no URL of a web server"), "{url}");
        }
    }

    #[test]
    fn what_is_no_url_says_why() {
        for (text, part) in [
            ("", "no URL"),
            ("ftp://h", "begins with"),
            ("https://h/{request", "brace"),
            ("https://h/{answer/x}", "nobody knows {answer/x}"),
            ("https://{request/host}/x", "may not stand for the host"),
            ("https://tools{request/host}", "may not stand for the host"),
            ("http://h:99999/x", "no URL of a web server"),
            ("http:///x", "no URL of a web server"),
        ] {
            let told = UrlTemplate::read(text, &KNOWN).unwrap_err();
            assert!(told.contains(part), "{text}: {told}");
        }
    }
}
