//! A Redis server, and a cluster of three.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::{new_folder, run, wait_until};

/// How far a node's port for the others is from its own.
const BUS: u16 = 10_000;
/// How many nodes share the slots.
const NODES: usize = 3;
/// How many keys are looked for in a slot that moves; a store has fewer.
const KEYS_MAX: &str = "1000";

/// A Redis server on a port of its own.
#[derive(Debug)]
pub struct RedisServer {
    folder: PathBuf,
    port: u16,
    /// Its input closes when the process that started it ends, however it ends.
    _keeper: Child,
}

impl RedisServer {
    /// What makes every write durable before it is acknowledged.
    pub const SYNCED: &str = "--appendfsync always";

    /// What leaves it to the system when writes reach the disk: enough for whoever kills the server and not the
    /// machine, and faster.
    pub const UNSYNCED: &str = "--appendfsync no";

    /// Starts one with an append-only file and these arguments; waits until it answers.
    pub fn start(settings: &str) -> io::Result<RedisServer> {
        let server = RedisServer::begin(settings)?;
        server.wait_until_ready(None)?;
        Ok(server)
    }

    fn begin(settings: &str) -> io::Result<RedisServer> {
        let (folder, port) = (new_folder("redis")?, free_port()?);
        let place = folder.display();
        let keep = format!(
            "cd {place}; (while [ ! -e stop ]; do redis-server --bind 127.0.0.1 --port {port} --dir {place} --save '' \
             --appendonly yes --daemonize no --pidfile {place}/pid {settings} >> log 2>&1; done) & \
             cat > /dev/null; touch stop; kill -KILL $(cat pid); wait; rm -rf {place}",
        );
        let mut keeper = Command::new("sh");
        keeper.arg("-c").arg(keep).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(RedisServer { _keeper: keeper.spawn()?, folder, port })
    }

    /// Waits until it answers; after a kill, until the one that comes next does.
    pub fn wait_until_ready(&self, killed: Option<u32>) -> io::Result<()> {
        let other = || self.process_id().filter(|number| Some(*number) != killed);
        wait_until(&self.folder.join("log"), other).map(drop)
    }

    /// The process that answers, if one does.
    fn process_id(&self) -> Option<u32> {
        let info = self.said(&["INFO", "server"]).ok()?;
        info.lines().find_map(|line| line.strip_prefix("process_id:"))?.trim().parse().ok()
    }

    /// Ends it as a power cut would, and answers which process it was; the next is on its way.
    /// Nothing is killed that is not up.
    pub fn kill(&self) -> io::Result<Option<u32>> {
        let Some(number) = self.process_id() else { return Ok(None) };
        run(Command::new("kill").arg("-KILL").arg(number.to_string()))?;
        Ok(Some(number))
    }

    /// What it answers to a command.
    pub fn said(&self, command: &[&str]) -> io::Result<String> {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-h", "127.0.0.1", "-p", &port]).args(command).output();
        let output = output.map_err(|error| io::Error::other(format!("redis-cli: {error}: run make tools")))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// How often it was called to do this.
    pub fn calls(&self, command: &str) -> io::Result<u64> {
        self.count("commandstats", &format!("cmdstat_{command}:calls="))
    }

    /// How often it gave this error.
    pub fn refusals(&self, error: &str) -> io::Result<u64> {
        self.count("errorstats", &format!("errorstat_{error}:count="))
    }

    /// What it has counted, on the line that begins like this; nothing, if there is none.
    fn count(&self, section: &str, line: &str) -> io::Result<u64> {
        let info = self.said(&["INFO", section])?;
        let counted = info.lines().find_map(|said| said.strip_prefix(line));
        let digits = counted.map_or("0", |counted| counted.split(',').next().unwrap_or(counted).trim());
        digits.parse().map_err(|_| io::Error::other(format!("{line} is no number: {digits}")))
    }

    fn must(&self, command: &[&str]) -> io::Result<()> {
        let said = self.said(command)?;
        if said == "OK" { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {said}"))) }
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A store on it, of this name.
    pub fn url(&self, name: &str) -> String {
        format!("redis://{}?name={name}", self.address())
    }
}

/// Three nodes that share all slots.
#[derive(Debug)]
pub struct RedisCluster(Vec<RedisServer>);

impl RedisCluster {
    /// Starts the nodes, and waits until they have found each other.
    pub fn start() -> io::Result<RedisCluster> {
        RedisCluster::start_with(RedisServer::SYNCED)
    }

    /// The same with these arguments.
    pub fn start_with(settings: &str) -> io::Result<RedisCluster> {
        let settings =
            format!("{settings} --cluster-enabled yes --cluster-config-file nodes.conf --cluster-node-timeout 2000");
        let nodes = (0..NODES).map(|_| RedisServer::begin(&settings)).collect::<io::Result<Vec<_>>>()?;
        nodes.iter().try_for_each(|node| node.wait_until_ready(None))?;
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(nodes.iter().map(RedisServer::address));
        run(create.args(["--cluster-replicas", "0", "--cluster-yes"]).stdout(Stdio::null()))?;
        let cluster = RedisCluster(nodes);
        cluster.wait_until_ready()?;
        Ok(cluster)
    }

    /// Waits until every node has found the others, and all slots are served.
    pub fn wait_until_ready(&self) -> io::Result<()> {
        for node in &self.0 {
            let joined = || node.said(&["CLUSTER", "INFO"]).is_ok_and(|info| info.contains("cluster_state:ok"));
            wait_until(&node.folder.join("log"), || joined().then_some(()))?;
        }
        Ok(())
    }

    /// A store on it, of this name.
    pub fn url(&self, name: &str) -> String {
        let nodes: Vec<String> = self.0.iter().map(RedisServer::address).collect();
        format!("redis-cluster://{}?name={name}", nodes.join(","))
    }

    /// Ends all nodes as a power cut would; the next are on their way.
    pub fn kill(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|node| node.kill().map(drop))
    }

    /// Moves the slot that has a key to the node after the one that has it, as a person does.
    pub fn move_on(&self, key: &str) -> io::Result<()> {
        let moving = self.begin_move(key)?;
        moving.carry_all()?;
        moving.end()
    }

    /// Begins to do so: from then on the slot is on two nodes.
    pub fn begin_move(&self, key: &str) -> io::Result<MovingSlot<'_>> {
        let slot = self.0[0].said(&["CLUSTER", "KEYSLOT", key])?;
        let has = |node: &RedisServer| node.said(&["EXISTS", key]).is_ok_and(|said| !said.starts_with("MOVED"));
        let at = self.0.iter().position(has).ok_or_else(|| io::Error::other(format!("nobody has slot {slot}")))?;
        let (from, to) = (&self.0[at], &self.0[(at + 1) % self.0.len()]);
        to.must(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from.said(&["CLUSTER", "MYID"])?])?;
        from.must(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to.said(&["CLUSTER", "MYID"])?])?;
        Ok(MovingSlot { cluster: self, slot, from, to })
    }
}

/// A slot that is on two nodes.
#[derive(Debug)]
pub struct MovingSlot<'a> {
    cluster: &'a RedisCluster,
    slot: String,
    /// The node that has the slot, and those of its keys that were not carried.
    pub from: &'a RedisServer,
    /// The node that gets it.
    pub to: &'a RedisServer,
}

impl MovingSlot<'_> {
    /// Moves one key.
    pub fn carry(&self, key: &str) -> io::Result<()> {
        self.from.must(&["MIGRATE", "127.0.0.1", &self.to.port.to_string(), key, "0", "5000"])
    }

    /// Moves all keys that are left, one by one.
    pub fn carry_all(&self) -> io::Result<()> {
        let left = self.from.said(&["CLUSTER", "GETKEYSINSLOT", &self.slot, KEYS_MAX])?;
        left.lines().try_for_each(|key| self.carry(key))
    }

    /// Tells all nodes where the slot is now.
    pub fn end(self) -> io::Result<()> {
        let new = self.to.said(&["CLUSTER", "MYID"])?;
        let nodes = [self.to, self.from].into_iter().chain(&self.cluster.0);
        nodes.into_iter().try_for_each(|node| node.must(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &new]))
    }
}

/// A port that nobody has, with one for other nodes beside it.
fn free_port() -> io::Result<u16> {
    loop {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let bus = port.checked_add(BUS);
        if bus.is_some_and(|bus| TcpListener::bind(("127.0.0.1", bus)).is_ok()) {
            return Ok(port);
        }
    }
}
