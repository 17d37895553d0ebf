//! Whoever takes the orders: an instance that runs, over its API; or its store, while none runs.
//!
//! ```text
//!   command ──▶ Desk ──▶ --url, or an instance at api.listen ──▶ HTTP
//!                └─────▶ --store, or the configuration's store ──▶ the same calls, in this process
//! ```
//!
//! The calls are those of the API in both cases, served in this process where no instance runs: so a
//! command is written once, and refused in the same words. Whoever only looks at a store changes nothing of
//! it. Failure modes: an embedded store that somebody owns can be looked at, and takes no orders; a store on a
//! server can be worked on beside instances.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, Request, StatusCode, header};
use roundtrip::clock::SystemClock;
use roundtrip::station::Shutdown;
use roundtrip::store::condition::{Condition, condition};
use roundtrip::store::{ReadExt, Store, StoreError, look as look_at_store, without_password};
use roundtrip_evm::rpc::{web_client, web_client_trusting};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower_service::Service;

use super::given::Reach;
use crate::api::auth::{self, Role};
use crate::api::{Api, Intake, Manners, Premises, Problem};
use crate::config::{ApiConfig, Config, Loaded};
use crate::doctor::Outside;
use crate::plan::Plan;
use crate::run::{open_store_at, read_secret, store_options};
use crate::telemetry::{Scope, Telemetry};

/// How long an instance has to say that it is there.
const THERE_WITHIN: Duration = Duration::from_secs(5);
/// How long a call may take, beyond what it asks to wait.
const CALL_WITHIN: Duration = Duration::from_secs(120);
/// For how long a token for one command is good.
const TOKEN_LASTS: Duration = Duration::from_secs(3600);
/// Largest answer of a call that is made in this process.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Who calls, as the instance's log shows it.
const NAME: &str = "cli";

/// Whoever takes the orders.
pub(super) struct Desk {
    way: Way,
    /// As messages name it.
    place: String,
}

enum Way {
    Instance { client: reqwest::Client, base: String, token: Option<String> },
    Store { router: Router, store: Arc<dyn Store> },
}

/// What a store is opened for, where no instance runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To be looked at.
    Look,
    /// To be changed.
    Order,
}

/// What was said to a call.
pub(super) struct Said {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// A call that was refused, in the words of whoever refused it.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub(super) struct Refused {
    /// By which status.
    pub(super) status: StatusCode,
    detail: String,
}

/// An instance that nothing was heard of.
#[derive(Debug, thiserror::Error)]
#[error("the instance at {base} was not reached: {what}: {to_do}")]
pub(super) struct NotReached {
    pub(super) base: String,
    pub(super) what: &'static str,
    pub(super) to_do: &'static str,
}

impl Desk {
    /// Finds out who takes the orders.
    async fn open(reach: &Reach, purpose: Purpose) -> anyhow::Result<Desk> {
        if let Some(url) = &reach.url {
            let token = match &reach.token {
                Some(token) => Some(token.clone()),
                None => match reach.load()? {
                    Some(loaded) => own_token(&loaded.config.api).await?,
                    None => None,
                },
            };
            let desk = Desk::instance(url, token, reach.ca.as_deref())?;
            desk.must_answer().await?;
            return Ok(desk);
        }
        let found = reach.load()?;
        if let Some(url) = &reach.store {
            return Desk::store(url, found.as_ref(), purpose).await;
        }
        let Some(loaded) = found else {
            bail!(
                "there is no roundtrip.toml here: name the configuration (--config), a running instance (--url) or a store (--store)"
            );
        };
        match running(&loaded.config.api).await? {
            Some(base) => {
                let own = own_token(&loaded.config.api).await?;
                Desk::instance(&base, reach.token.clone().or(own), None)
            }
            None => Desk::store(&loaded.config.store.url, Some(&loaded), purpose).await,
        }
    }

    fn instance(url: &str, token: Option<String>, ca: Option<&Path>) -> anyhow::Result<Desk> {
        let base = url.trim_end_matches('/').to_owned();
        let client = match ca {
            None => web_client(CALL_WITHIN)?,
            Some(file) => trusting(file).with_context(|| format!("--ca: {}", file.display()))?,
        };
        Ok(Desk { place: format!("the instance at {base}"), way: Way::Instance { client, base, token } })
    }

    /// Refuses an instance that says nothing at all: what it is asked next may take its time.
    async fn must_answer(&self) -> anyhow::Result<()> {
        let Way::Instance { client, base, .. } = &self.way else { return Ok(()) };
        let asked = client.get(format!("{base}/health")).timeout(THERE_WITHIN).send().await;
        asked.map(drop).map_err(|error| unreachable(base, &error))
    }

    async fn store(url: &str, found: Option<&Loaded>, purpose: Purpose) -> anyhow::Result<Desk> {
        not_in_memory(url)?;
        must_be_there(url).await?;
        let config = found.map(|loaded| &loaded.config);
        let store = match purpose {
            Purpose::Look => look_at(url, config)?,
            Purpose::Order => open_alone(url, config)?,
        };
        let plan = found.map(Plan::of).transpose()?;
        let routes = match &plan {
            Some(plan) => plan.routes.iter().map(|(name, route)| (name.clone(), route.intake())).collect(),
            None => {
                let routes = store.routes().await?.into_iter();
                let intake = |identity| Intake { submit: true, path: None, forms: false, identity };
                routes.map(|route| (route.name.to_string(), intake(route.policy.identity))).collect()
            }
        };
        let manners = Manners {
            keys: None,
            calls_per_second: None,
            wait_max: CALL_WITHIN,
            store_wait_max: CALL_WITHIN,
            body_bytes_max: ApiConfig::default().body_bytes_max,
        };
        let (outside, calls) = (Outside::of(url, plan.as_ref()), plan.as_ref().map(Plan::calls).unwrap_or_default());
        let deliveries = plan.as_ref().map(Plan::deliveries).unwrap_or_default();
        let explorer = plan.as_ref().map(Plan::explorer).unwrap_or_default();
        let premises = Premises { routes, outside, calls, deliveries, explorer, ..Premises::default() };
        let clock = Arc::new(SystemClock::new());
        let telemetry = Telemetry::start(store.clone(), clock, Scope::default(), None);
        let router = Api::new(store.clone(), Arc::new(premises), manners, telemetry, Shutdown::new()).router();
        let place = format!("the store {}", without_password(url));
        Ok(Desk { way: Way::Store { router, store }, place })
    }

    /// Whether an instance takes the orders.
    pub(super) fn is_instance(&self) -> bool {
        matches!(self.way, Way::Instance { .. })
    }

    /// As messages name it.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Reads something.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.read(self.call(Method::GET, path, &[], Bytes::new()).await?)
    }

    /// Reads what a query names.
    pub(super) async fn find<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize) -> anyhow::Result<T> {
        self.get(&format!("{path}?{}", serde_urlencoded::to_string(query)?)).await
    }

    /// Orders something.
    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        let body = serde_json::to_vec(body)?.into();
        self.read(self.call(Method::POST, path, &[("content-type", "application/json")], body).await?)
    }

    /// One call, whatever comes back.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> anyhow::Result<Said> {
        match &self.way {
            Way::Instance { client, base, token } => {
                let mut call = client.request(method, format!("{base}{path}")).body(body);
                if let Some(token) = token {
                    call = call.bearer_auth(token);
                }
                for (name, value) in headers {
                    call = call.header(*name, *value);
                }
                let answer = call.send().await.map_err(|error| unreachable(base, &error))?;
                let status = answer.status();
                Ok(Said { status, body: answer.bytes().await.map_err(|error| unreachable(base, &error))? })
            }
            Way::Store { router, .. } => {
                let mut call = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
                for (name, value) in headers {
                    call = call.header(*name, *value);
                }
                let call = call.body(Body::from(body)).with_context(|| format!("{path} is no call"))?;
                let Ok(answer) = router.clone().call(call).await;
                let status = answer.status();
                Ok(Said { status, body: axum::body::to_bytes(answer.into_body(), ANSWER_BYTES_MAX).await? })
            }
        }
    }

    /// What an answer says, or why there is none.
    pub(super) fn read<T: DeserializeOwned>(&self, said: Said) -> anyhow::Result<T> {
        if said.status.is_success() {
            return serde_json::from_slice(&said.body)
                .with_context(|| format!("{} is of another version: its answer cannot be read", self.place));
        }
        Err(self.refused(&said).into())
    }

    fn refused(&self, said: &Said) -> Refused {
        let problem: Option<Problem> = serde_json::from_slice(&said.body).ok();
        let detail = match problem {
            Some(problem) => problem.detail,
            None => format!("{} answered {} and nothing that can be read: is it Roundtrip?", self.place, said.status),
        };
        let detail = match said.status {
            StatusCode::UNAUTHORIZED => format!(
                "{} does not know this caller: give a token (--token, or ROUNDTRIP_TOKEN); `roundtrip token create` makes one where the secret is",
                self.place
            ),
            StatusCode::FORBIDDEN => format!("{}: {detail}", self.place),
            _ => detail,
        };
        Refused { status: said.status, detail }
    }

    /// Ends what was opened.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        if let Way::Store { store, router } = self.way {
            drop(router);
            store.close().await.with_context(|| format!("closing {}", self.place))?;
        }
        Ok(())
    }
}

/// Orders something at a desk, and closes it whatever came of that.
pub(super) async fn order<T>(reach: &Reach, work: impl AsyncFnOnce(&Desk) -> anyhow::Result<T>) -> anyhow::Result<T> {
    at(reach, Purpose::Order, work).await
}

/// Looks at something; a store stays as it is.
pub(super) async fn look<T>(reach: &Reach, work: impl AsyncFnOnce(&Desk) -> anyhow::Result<T>) -> anyhow::Result<T> {
    at(reach, Purpose::Look, work).await
}

async fn at<T>(
    reach: &Reach,
    purpose: Purpose,
    work: impl AsyncFnOnce(&Desk) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let desk = Desk::open(reach, purpose).await?;
    let done = work(&desk).await;
    desk.close().await?;
    done
}

/// A client that trusts none but the authorities in this file.
fn trusting(file: &Path) -> anyhow::Result<reqwest::Client> {
    let authorities = std::fs::read(file)?;
    ensure!(!reqwest::Certificate::from_pem_bundle(&authorities)?.is_empty(), "it holds no certificate as PEM");
    Ok(web_client_trusting(CALL_WITHIN, &authorities)?)
}

/// What is wrong with the certificate of whoever was called, if that is what is wrong.
fn distrusted(error: &reqwest::Error) -> Option<String> {
    const KNOWN: [(&str, &str); 4] = [
        ("UnknownIssuer", "nobody who is trusted here vouches for its certificate"),
        ("not valid for name", "its certificate is for another name"),
        ("expired", "its certificate has expired"),
        // What `openssl req -x509` makes unless it is told otherwise.
        ("CaUsedAsEndEntity", "its certificate is an authority's own (CA:TRUE), which no instance may show"),
    ];
    let mut causes = std::iter::successors(error.source(), |&cause| cause.source()).map(ToString::to_string);
    let told = causes.find(|text| text.contains("certificate"))?;
    let plain = KNOWN.iter().find(|(theirs, _)| told.contains(theirs)).map(|(_, plain)| (*plain).to_owned());
    Some(plain.unwrap_or_else(|| format!("its certificate is refused ({told})")))
}

fn unreachable(base: &str, error: &reqwest::Error) -> anyhow::Error {
    if let Some(why) = distrusted(error) {
        return anyhow::anyhow!(
            "the instance at {base} is not trusted: {why}; name the file with the certificate of whoever vouches for it \
             (--ca), and the instance as its certificate does (--url)"
        );
    }
    if error.is_builder() {
        return anyhow::anyhow!(
            "the instance at {base} was not reached: this is no address: write http://HOST:PORT or https://HOST:PORT"
        );
    }
    let (what, to_do) = if error.is_connect() {
        ("nobody answers there", "start it with `roundtrip run`, correct --url, or name its store with --store")
    } else if error.is_timeout() {
        ("it did not answer in time", "look at its log, and whether its process is stopped or starved")
    } else if base.starts_with("http:") {
        ("the call broke off", "make it again, or write https:// if it has a certificate")
    } else {
        ("the call broke off", "make it again")
    };
    NotReached { base: base.to_owned(), what, to_do }.into()
}

/// Where the instance of this configuration listens, if one does.
async fn running(api: &ApiConfig) -> anyhow::Result<Option<String>> {
    let mut at = api.listen;
    if at.port() == 0 {
        // It took any port, and only its log tells which.
        return Ok(None);
    }
    if at.ip().is_unspecified() {
        at.set_ip(if at.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
    }
    let reached = tokio::time::timeout(THERE_WITHIN, tokio::net::TcpStream::connect(at)).await;
    let Ok(Ok(connection)) = reached else { return Ok(None) };
    drop(connection);
    if api.tls.is_some() {
        bail!(
            "an instance listens at {at} under a certificate: say the name that is in it, --url https://NAME:{}, and who vouches for it, if no public authority does, --ca FILE",
            at.port()
        );
    }
    let base = format!("http://{at}");
    let client = web_client(THERE_WITHIN)?;
    let answer = client.get(format!("{base}/health")).send().await;
    let answer = answer.map_err(|error| unreachable(&base, &error))?.text().await.unwrap_or_default();
    if answer != "ok\n" {
        bail!("what listens at {at} is not Roundtrip: correct api.listen, or name the instance with --url");
    }
    Ok(Some(base))
}

/// A token for this command, if the configuration can sign one.
async fn own_token(api: &ApiConfig) -> anyhow::Result<Option<String>> {
    let Some(secret) = api.auth.as_ref().and_then(|auth| auth.secret.as_ref()) else { return Ok(None) };
    let secret = read_secret(secret).await.context("no token could be signed (give one with --token)")?;
    let roles = [Role::Viewer, Role::Submitter, Role::Operator];
    Ok(Some(auth::sign(secret.reveal().as_bytes(), NAME, &roles, TOKEN_LASTS)?))
}

/// Refuses a store that is not there, or that opening would bring to this version: whoever looks or orders changes
/// neither. Those who start and migrate do.
pub(super) async fn must_be_there(url: &str) -> anyhow::Result<()> {
    let looked = tokio::time::timeout(THERE_WITHIN, condition(url)).await;
    let late = |_elapsed| StoreError::Unreachable {
        server: without_password(url),
        reason: format!("no answer within {} s", THERE_WITHIN.as_secs()),
    };
    match looked.map_err(late)?? {
        Condition::Ready => Ok(()),
        Condition::Missing { place } => bail!(
            "there is no store at {place}: correct the URL, or let `roundtrip run` or `roundtrip store migrate` make it"
        ),
        Condition::Older { place, found, known } => bail!(
            "the store at {place} has version {found}, and this program wants {known}: `roundtrip store migrate` \
             brings it there; stop older processes before"
        ),
    }
}

fn not_in_memory(url: &str) -> anyhow::Result<()> {
    ensure!(url != "memory:", "a store in memory is in its instance alone: start it, or name it with --url");
    Ok(())
}

/// Opens a store for looking only.
fn look_at(url: &str, config: Option<&Config>) -> anyhow::Result<Arc<dyn Store>> {
    Ok(look_at_store(url, store_options(config))?)
}

/// Opens a store; one that somebody owns is left alone.
pub(super) fn open_alone(url: &str, config: Option<&Config>) -> anyhow::Result<Arc<dyn Store>> {
    not_in_memory(url)?;
    open_store_at(url, config).map_err(|error| match error.downcast_ref() {
        Some(StoreError::Owned { path, owner }) => anyhow::anyhow!(
            "{path} is in use by process {owner}: speak to that instance (--url http://HOST:PORT, as its log or api.listen says), or stop it"
        ),
        _ => error,
    })
}
