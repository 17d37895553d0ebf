//! A gRPC service as anybody could write it: squares at once, or submitted and fetched later.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Job {
    #[prost(string, tag = "1")]
    pub(crate) request_id: String,
    #[prost(uint64, tag = "2")]
    pub(crate) n: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Taken {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Query {
    #[prost(string, tag = "1")]
    pub(crate) request_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Answer {
    #[prost(uint64, tag = "1")]
    pub(crate) square: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) proof: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Fetched {
    #[prost(message, optional, tag = "1")]
    pub(crate) result: Option<Answer>,
}

/// What happened at the service.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// What was submitted, and how often it was asked for.
    pub(crate) jobs: BTreeMap<String, (u64, u32)>,
    /// How often something was submitted.
    pub(crate) submissions: u32,
    /// Whether nothing gets ready.
    pub(crate) busy: bool,
    /// The metadata of each call.
    pub(crate) calls: Vec<tonic::metadata::MetadataMap>,
}

/// How often an answer is fetched before it is ready.
const NOT_READY: u32 = 2;

/// A service.
#[derive(Clone, Default)]
pub(crate) struct Squares {
    pub(crate) book: Arc<Mutex<Book>>,
}

impl Squares {
    fn square(&self, job: &Job) -> Result<Answer, Status> {
        match job.n {
            0 => Err(Status::invalid_argument("nothing to square")),
            1 => Err(Status::already_exists("one is its own square")),
            n => Ok(Answer { square: n * n, proof: vec![1, 2, 3] }),
        }
    }

    fn submit(&self, job: &Job) -> Result<Taken, Status> {
        let mut book = self.book.lock().unwrap();
        book.submissions += 1;
        if book.jobs.contains_key(&job.request_id) {
            return Err(Status::already_exists("it was submitted before"));
        }
        book.jobs.insert(job.request_id.clone(), (job.n, 0));
        Ok(Taken {})
    }

    fn fetch(&self, query: &Query) -> Result<Fetched, Status> {
        let mut book = self.book.lock().unwrap();
        let busy = book.busy;
        let (n, asked) =
            book.jobs.get_mut(&query.request_id).ok_or_else(|| Status::not_found("nobody submitted it"))?;
        *asked += 1;
        match *asked {
            // It says so in both of its ways.
            asked if busy && asked % 2 == 0 => Ok(Fetched { result: None }),
            1 => Err(Status::unavailable("not ready")),
            _ if busy => Err(Status::unavailable("not ready")),
            NOT_READY => Ok(Fetched { result: None }),
            _ => Ok(Fetched { result: Some(Answer { square: *n * *n, proof: Vec::new() }) }),
        }
    }

    /// Serves on an address of this machine until told to stop, or dropped.
    pub(crate) fn serve(&self, address: &str, tls: Option<ServerTlsConfig>) -> Serving {
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(&descriptors().leak()[..])
            .build_v1()
            .unwrap();
        let mut server = Server::builder();
        if let Some(tls) = tls {
            server = server.tls_config(tls).unwrap();
        }
        let router = server.add_service(self.clone()).add_service(reflection);
        let (stop, stopped) = oneshot::channel::<()>();
        // A runtime of its own, so that its connections end with it.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let incoming = TcpIncoming::from(TcpListener::from_std(listener).unwrap());
                tokio::select! {
                    served = router.serve_with_incoming(incoming) => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Serving { address, stop: Some(stop), thread: Some(thread) }
    }
}

/// A service that runs.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// What describes the service, as `protoc` would write it.
pub(crate) fn descriptors() -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../roundtrip-tools/tests/it");
    protox::compile(["squares.proto"], [folder]).unwrap().encode_to_vec()
}

/// A method that is a function.
struct Method<F>(F);

impl<F, Q, A> UnaryService<Q> for Method<F>
where
    F: Fn(&Q) -> Result<A, Status>,
{
    type Response = A;
    type Future = std::future::Ready<Result<Response<A>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        std::future::ready((self.0)(request.get_ref()).map(Response::new))
    }
}

impl NamedService for Squares {
    const NAME: &'static str = "test.v1.Squares";
}

impl Service<http::Request<Body>> for Squares {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        let metadata = tonic::metadata::MetadataMap::from_headers(request.headers().clone());
        service.book.lock().unwrap().calls.push(metadata);
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/test.v1.Squares/Square" => {
                    Grpc::new(ProstCodec::<Answer, Job>::default())
                        .unary(Method(|job: &Job| service.square(job)), request)
                        .await
                }
                "/test.v1.Squares/Submit" => {
                    Grpc::new(ProstCodec::<Taken, Job>::default())
                        .unary(Method(|job: &Job| service.submit(job)), request)
                        .await
                }
                "/test.v1.Squares/Fetch" => {
                    Grpc::new(ProstCodec::<Fetched, Query>::default())
                        .unary(Method(|query: &Query| service.fetch(query)), request)
                        .await
                }
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}
