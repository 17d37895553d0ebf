//! Which addresses may be called.
//!
//! An address is looked at when a connection is made, after its name was resolved: a name that
//! is harmless today and points inside tomorrow is refused then. Only addresses of the public
//! internet are called, and those that the configuration names.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

/// An address, or a network, that calls must not go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Internal {
    host: String,
    address: IpAddr,
    kind: &'static str,
}

impl fmt::Display for Internal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Internal { host, address, kind } = self;
        if *host != address.to_string() {
            write!(f, "{host} is ")?;
        }
        write!(f, "{address}, {kind}: name it in `internal` if it is meant")
    }
}

impl std::error::Error for Internal {}

/// Which internal addresses may be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed(Vec<IpNet>);

impl Allowed {
    /// Those in these networks, each an address or a network such as `10.1.0.0/16`.
    pub fn read(texts: &[String]) -> Result<Allowed, String> {
        let read = |text: &String| {
            let one = text.parse::<IpAddr>().map(IpNet::from);
            one.or_else(|_| text.parse::<IpNet>())
                .map_err(|_| format!("{text:?} is no address and no network: write 127.0.0.1 or 10.1.0.0/16"))
        };
        texts.iter().map(read).collect::<Result<_, _>>().map(Allowed)
    }

    /// The addresses of a name that may be called; if none may, why not.
    pub fn of(&self, host: &str, found: impl IntoIterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, Internal> {
        let (mut may, mut refused) = (Vec::new(), None);
        for address in found {
            let ip = plain(address.ip());
            match kind_of(ip) {
                Some(kind) if !self.0.iter().any(|network| network.contains(&ip)) => {
                    refused = Some(Internal { host: host.to_owned(), address: ip, kind });
                }
                _ => may.push(address),
            }
        }
        match refused {
            Some(refused) if may.is_empty() => Err(refused),
            _ => Ok(may),
        }
    }
}

/// An IPv4 address that is written as one of IPv6 is judged as what it is.
fn plain(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// What kind of internal address it is, if it is one.
fn kind_of(ip: IpAddr) -> Option<&'static str> {
    match ip {
        IpAddr::V4(v4) => kind_of_v4(v4),
        IpAddr::V6(v6) => kind_of_v6(v6),
    }
}

fn kind_of_v4(ip: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = ip.octets();
    match (a, b, c) {
        (127, ..) => Some("this machine"),
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => Some("a private network"),
        (169, 254, _) => Some("the local link, where clouds have their metadata"),
        (100, 64..=127, _) => Some("a carrier's shared network"),
        (0, ..) => Some("this network"),
        (192, 0, 0) => Some("reserved for protocols"),
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => Some("reserved for documents"),
        (192, 88, 99) => Some("a relay of old"),
        (198, 18..=19, _) => Some("reserved for benchmarks"),
        (224..=239, ..) => Some("a multicast group"),
        (240.., ..) => Some("reserved"),
        _ => None,
    }
}

fn kind_of_v6(ip: Ipv6Addr) -> Option<&'static str> {
    let [a, b, c, ..] = ip.segments();
    // What carries an IPv4 address inside is judged by it.
    let carried = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        kind_of_v4(Ipv4Addr::new(a, b, c, d))
    };
    let [.., y, z] = ip.segments();
    match (a, b) {
        _ if ip.is_loopback() => Some("this machine"),
        _ if ip.is_unspecified() => Some("this network"),
        (0xfe80..=0xfebf, _) => Some("the local link"),
        (0xfc00..=0xfdff, _) => Some("a private network"),
        (0xfec0..=0xfeff, _) => Some("a site's own network"),
        (0xff00..=0xffff, _) => Some("a multicast group"),
        (0x0064, 0xff9b) if c == 1 => Some("a network's own translation"),
        (0x0064, 0xff9b) | (0, 0) => carried(y, z),
        (0x2002, high) => carried(high, c),
        (0x2001, 0) => Some("a tunnel"),
        (0x2001, 0x0db8) => Some("reserved for documents"),
        (0x0100, 0) => Some("a hole where packets vanish"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn at(ip: &str) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), 443)
    }

    #[test]
    fn internal_addresses_are_known_however_they_are_written() {
        let internal = [
            "127.0.0.1",
            "127.255.0.9",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "192.0.0.8",
            "192.0.2.1",
            "198.51.100.1",
            "203.0.113.1",
            "198.18.0.1",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "fc00::1",
            "fec0::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2001:db8::1",
            "2001::1",
            "100::1",
            "::127.0.0.1",
        ];
        for ip in internal {
            assert!(Allowed::default().of("h", [at(ip)]).is_err(), "{ip}");
        }
        let public = [
            "1.1.1.1",
            "8.8.8.8",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "169.253.0.1",
            "192.0.1.1",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::8.8.8.8",
            "::ffff:8.8.8.8",
            "2002:808:808::1",
        ];
        for ip in public {
            assert_eq!(Allowed::default().of("h", [at(ip)]).unwrap(), [at(ip)], "{ip}");
        }
    }

    #[test]
    fn what_is_named_may_be_called_and_nothing_beside_it() {
        let allowed = Allowed::read(&["127.0.0.1".into(), "10.1.0.0/16".into(), "fd00::/8".into()]).unwrap();
        for (ip, may) in [
            ("127.0.0.1", true),
            ("127.0.0.2", false),
            ("10.1.2.3", true),
            ("10.2.0.1", false),
            ("fd12::1", true),
            ("fe80::1", false),
            ("::ffff:10.1.2.3", true),
        ] {
            assert_eq!(allowed.of("h", [at(ip)]).is_ok(), may, "{ip}");
        }
        assert!(Allowed::read(&["localhost".into()]).unwrap_err().contains("no address and no network"));
    }

    #[test]
    fn of_several_addresses_those_that_may_be_called_are() {
        let mixed = [at("10.0.0.1"), at("8.8.8.8")];
        assert_eq!(Allowed::default().of("h", mixed).unwrap(), [at("8.8.8.8")]);
        let told = Allowed::default().of("tool.example", [at("169.254.169.254")]).unwrap_err().to_string();
        let expected = "tool.example is 169.254.169.254, the local link, where clouds have their metadata: \
                        name it in `internal` if it is meant";
        assert_eq!(told, expected);
        let told = Allowed::default().of("10.0.0.1", [at("10.0.0.1")]).unwrap_err().to_string();
        assert_eq!(told, "10.0.0.1, a private network: name it in `internal` if it is meant");
        assert_eq!(Allowed::default().of("nobody", []).unwrap(), []);
    }
}
