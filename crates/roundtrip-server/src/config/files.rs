//! The files that a configuration names. Where a path is relative, it is one in the folder of the configuration, wherever
//! the command runs and whoever gave it: the file itself or the environment.

use std::path::{Path, PathBuf};

use super::model::{Config, EventConfig, RouteConfig, StoreConfig};
use super::work::WorkConfig;

impl StoreConfig {
    /// The file of an embedded store.
    pub fn file(&self) -> Option<&Path> {
        let path = self.url.strip_prefix("sqlite:")?;
        let path = path.strip_prefix("//").unwrap_or(path);
        (!path.is_empty()).then(|| Path::new(path))
    }
}

impl Config {
    /// Takes every file that it names from this folder.
    pub(super) fn settle_in(&mut self, folder: &Path) {
        if let Some(file) = self.store.file() {
            self.store.url = format!("sqlite:{}", folder.join(file).display());
        }
        if let Some(auth) = &mut self.api.auth {
            for source in [&mut auth.secret, &mut auth.public_key].into_iter().flatten() {
                source.settle_in(folder);
            }
        }
        if let Some(tls) = &mut self.api.tls {
            settle([&mut tls.certificate, &mut tls.key], folder);
        }
        let headers = self.telemetry.traces.iter_mut().flat_map(|traces| traces.headers.values_mut());
        headers.for_each(|source| source.settle_in(folder));
        self.lanes.values_mut().for_each(|lane| lane.signer.settle_in(folder));
        let webhooks = self.destinations.values_mut().filter_map(|destination| destination.webhook.as_mut());
        webhooks.for_each(|webhook| webhook.secret.settle_in(folder));
        self.routes.values_mut().for_each(|route| settle_route(route, folder));
    }
}

fn settle<'a>(paths: impl IntoIterator<Item = &'a mut PathBuf>, folder: &Path) {
    paths.into_iter().for_each(|path| *path = folder.join(&*path));
}

fn settle_route(route: &mut RouteConfig, folder: &Path) {
    let abi = |event: &'_ mut EventConfig| settle(&mut event.abi, folder);
    route.events.iter_mut().chain(&mut route.answered_elsewhere).for_each(abi);
    let Some(WorkConfig { http, grpc, tls, .. }) = &mut route.work else { return };
    if let Some(secret) = http.as_mut().and_then(|http| http.secret.as_mut()) {
        secret.settle_in(folder);
    }
    settle(grpc.iter_mut().filter_map(|grpc| grpc.descriptors.as_mut()), folder);
    if let Some(tls) = tls {
        settle([&mut tls.ca, &mut tls.certificate, &mut tls.key].into_iter().flatten(), folder);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use crate::config::load;

    /// Every key of the model that is a file, and those that only look like one.
    const TEXT: &str = r#"
[store]
url = "sqlite:FILE"
[api.auth]
secret = { file = "FILE" }
public_key = { file = "FILE" }
[api.tls]
certificate = "FILE"
key = "FILE"
[telemetry.traces]
endpoint = "http://h/FILE_NOT"
headers = { a = { file = "FILE" } }
[lanes.a]
signer = { key = { file = "FILE" } }
[lanes.b]
signer = { keystore = { file = "FILE", password = { file = "FILE" } } }
[lanes.c]
signer = { mnemonic = { phrase = { file = "FILE" } } }
[destinations.d.webhook]
url = "http://h/FILE_NOT"
secret = { file = "FILE" }
[[routes.r.events]]
chain = "c"
event = "E()"
abi = "FILE"
[[routes.r.answered_elsewhere]]
chain = "c"
event = "E()"
abi = "FILE"
[routes.r.work]
http = { url = "http://h/FILE_NOT", secret = { file = "FILE" } }
grpc = { urls = [], method = "a.B/C", descriptors = "FILE" }
tls = { ca = "FILE", certificate = "FILE", key = "FILE" }
"#;

    fn files(configuration: &str, named: &str) -> (usize, usize) {
        let loaded = load(configuration, &TEXT.replace("FILE_NOT", "x").replace("FILE", named), []).unwrap();
        // Secrets have no form to be written in, but one to be looked at.
        let shown = format!("{:?}", loaded.config);
        (shown.matches("/etc/rt/a/b").count(), shown.matches("a/b").count())
    }

    #[test]
    fn files_are_those_of_the_folder_of_the_configuration() {
        let all = TEXT.matches("FILE").count() - TEXT.matches("FILE_NOT").count();
        assert_eq!(files("/etc/rt/roundtrip.toml", "a/b"), (all, all));
        assert_eq!(files("roundtrip.toml", "a/b"), (0, all), "as it is written, where that is this folder");
        assert_eq!(files("elsewhere/roundtrip.toml", "/etc/rt/a/b"), (all, all), "a whole path stays as it is");
    }

    #[test]
    fn the_environment_names_files_of_the_same_folder() {
        let set = [("ROUNDTRIP__STORE__URL".to_owned(), "sqlite://b.db".to_owned())];
        let loaded = load("/etc/rt/roundtrip.toml", "[store]\nurl = \"memory:\"\n", set).unwrap();
        assert_eq!(loaded.config.store.url, "sqlite:/etc/rt/b.db");
        for url in ["memory:", "sqlite:", "postgres://h/d"] {
            let loaded = load("/etc/rt/roundtrip.toml", &format!("[store]\nurl = \"{url}\"\n"), []).unwrap();
            assert_eq!(loaded.config.store.url, url, "no file");
        }
    }
}
