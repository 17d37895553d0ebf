//! Redis servers of a run's own, on ports and in folders of their own.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to start.
const START_MAX: Duration = Duration::from_secs(60);
/// How far a node's port for the others is from its own.
const BUS: u16 = 10_000;
/// Every write is on disk before it is acknowledged.
pub(crate) const SYNCED: &str = "--appendfsync always";

/// One server, started again whenever it dies.
pub(crate) struct Server {
    folder: PathBuf,
    port: u16,
    /// Ends the server and removes its folder when the run ends, however it ends: its input
    /// closes then.
    _keeper: Child,
}

impl Server {
    pub(crate) fn start(settings: &str) -> Server {
        let server = Server::begin(settings);
        server.wait_until_ready(None);
        server
    }

    fn begin(settings: &str) -> Server {
        let folder = tempfile::Builder::new().prefix("roundtrip-redis").tempdir().unwrap().keep();
        let port = free_port();
        let keep = format!(
            "cd {folder}; (while [ ! -e stop ]; do redis-server --bind 127.0.0.1 --port {port} --dir {folder} --save '' \
             --appendonly yes --daemonize no --pidfile {folder}/pid {settings} >> log 2>&1; done) & \
             cat > /dev/null; touch stop; kill -KILL $(cat pid); wait; rm -rf {folder}",
            folder = folder.display(),
        );
        let mut keeper = Command::new("sh");
        keeper.arg("-c").arg(keep).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Server { folder, port, _keeper: keeper.spawn().unwrap() }
    }

    /// Waits for the server that comes after the one with this process number.
    pub(crate) fn wait_until_ready(&self, before: Option<String>) {
        let started = Instant::now();
        while self.ready().is_none_or(|number| Some(number) == before) {
            assert!(started.elapsed() < START_MAX, "the server does not start: see {}/log", self.folder.display());
            std::thread::yield_now();
        }
    }

    /// The process number of a server that answers.
    fn ready(&self) -> Option<String> {
        let info = self.said(&["INFO", "server"]);
        info.lines().find_map(|line| line.strip_prefix("process_id:")).map(|number| number.trim().to_owned())
    }

    /// Ends the server as a power cut would; the next is on its way.
    pub(crate) fn kill(&self) -> Option<String> {
        let number = self.ready()?;
        let status = Command::new("kill").arg("-KILL").arg(&number).status().unwrap();
        assert!(status.success(), "{status}");
        Some(number)
    }

    /// What the server answers to a command.
    pub(crate) fn said(&self, command: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-h", "127.0.0.1", "-p", &port]).args(command).output();
        let output = output.unwrap_or_else(|error| panic!("no redis-cli ({error}): run scripts/install-tools"));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("redis://{}?name={name}", self.address())
    }
}

/// Three nodes that share all slots.
pub(crate) struct Cluster(Vec<Server>);

impl Cluster {
    pub(crate) fn start() -> Cluster {
        let settings =
            format!("{SYNCED} --cluster-enabled yes --cluster-config-file nodes.conf --cluster-node-timeout 2000");
        let nodes: Vec<Server> = (0..3).map(|_| Server::begin(&settings)).collect();
        nodes.iter().for_each(|node| node.wait_until_ready(None));
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(nodes.iter().map(Server::address));
        let status = create.args(["--cluster-replicas", "0", "--cluster-yes"]).stdout(Stdio::null()).status().unwrap();
        assert!(status.success(), "{create:?}: {status}");
        let started = Instant::now();
        while nodes.iter().any(|node| !node.said(&["CLUSTER", "INFO"]).contains("cluster_state:ok")) {
            assert!(started.elapsed() < START_MAX, "the nodes do not find each other");
        }
        Cluster(nodes)
    }

    pub(crate) fn url(&self, name: &str) -> String {
        let nodes: Vec<String> = self.0.iter().map(Server::address).collect();
        format!("redis-cluster://{}?name={name}", nodes.join(","))
    }

    /// Moves the slot that has a key to the node after the one that has it, as a person does.
    pub(crate) fn move_on(&self, key: &str) {
        let slot = self.0[0].said(&["CLUSTER", "KEYSLOT", key]);
        let has = |node: &Server| !node.said(&["EXISTS", key]).starts_with("MOVED");
        let at = self.0.iter().position(has).unwrap_or_else(|| panic!("nobody has slot {slot}"));
        let (from, to) = (&self.0[at], &self.0[(at + 1) % self.0.len()]);
        let (from_id, to_id) = (from.said(&["CLUSTER", "MYID"]), to.said(&["CLUSTER", "MYID"]));
        to.must(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        from.must(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
        // One by one, so that calls meet a slot that is on two nodes.
        for key in from.said(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]).lines() {
            from.must(&["MIGRATE", "127.0.0.1", &to.port.to_string(), key, "0", "5000"]);
        }
        for node in [to, from].into_iter().chain(&self.0) {
            node.must(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
        }
    }
}

impl Server {
    fn must(&self, command: &[&str]) {
        let said = self.said(command);
        assert_eq!(said, "OK", "{command:?}");
    }
}

/// A port that nobody has, with one for other nodes beside it.
fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let bus = port.checked_add(BUS);
        if bus.is_some_and(|bus| TcpListener::bind(("127.0.0.1", bus)).is_ok()) {
            return port;
        }
    }
}
