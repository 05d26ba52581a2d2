//! Which URLs and addresses may be called. Pure: names are resolved elsewhere.
//!
//! A call acts with the manager's place in the network. So what only the manager can reach is refused: its own machine,
//! the metadata services of clouds, the API server. The option `--allow-call-to` lifts this for some targets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use http::Uri;

/// A target of calls that the person who runs the manager allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedTarget {
    /// Addresses: the first, and the number of leading bits that count.
    Network(IpAddr, u8),
    /// A host name, whatever it resolves to.
    Host(String),
}

impl FromStr for AllowedTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        if let Ok(ip) = address.trim_matches(['[', ']']).parse::<IpAddr>() {
            let all = if ip.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Some(all), |bits| bits.parse().ok().filter(|bits| *bits <= all));
            let bits = bits.ok_or_else(|| format!("the prefix length is a number up to {all}"))?;
            return Ok(Self::Network(ip, bits));
        }
        if bits.is_some() || !is_host_name(text) {
            return Err("neither a network such as 127.0.0.0/8, nor an address, nor a host name".into());
        }
        Ok(Self::Host(text.trim_end_matches('.').to_ascii_lowercase()))
    }
}

impl AllowedTarget {
    /// Whether a host is allowed as it is written, without resolving its name.
    pub(super) fn names(&self, host: &str) -> bool {
        let ip = if host == "localhost" { Ok(Ipv4Addr::LOCALHOST.into()) } else { host.parse() };
        match self {
            Self::Host(name) => name == host,
            Self::Network(..) => ip.is_ok_and(|ip| self.covers(host, ip)),
        }
    }

    fn covers(&self, host: &str, ip: IpAddr) -> bool {
        match self {
            Self::Host(name) => name == host,
            Self::Network(network, bits) => match (network, canonical(ip)) {
                (IpAddr::V4(network), IpAddr::V4(ip)) => {
                    same_prefix(u128::from(network.to_bits()), u128::from(ip.to_bits()), 32 - bits)
                }
                (IpAddr::V6(network), IpAddr::V6(ip)) => {
                    same_prefix(network.to_bits(), ip.to_bits(), 128 - bits)
                }
                _ => false,
            },
        }
    }
}

fn same_prefix(a: u128, b: u128, ignored: u8) -> bool {
    (a ^ b).checked_shr(u32::from(ignored)).unwrap_or(0) == 0
}

/// A URL that may be called, as far as its text shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) is_tls: bool,
    /// In lower case, without brackets and without a dot at its end.
    pub(super) host: String,
    pub(super) port: u16,
    /// The value of the header `Host`.
    pub(super) authority: String,
    /// Path and query.
    pub(super) path: String,
}

/// Host and port: the path may say more than a condition should show.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, .. } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl Target {
    /// Reads a URL. `hosts` lists the hosts that may be called; an empty list allows all.
    pub(super) fn parse(url: &str, hosts: &[String]) -> Result<Self, String> {
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the URL contains characters that must be percent-encoded".into());
        }
        let uri: Uri = url.parse().map_err(|error| format!("the URL cannot be read: {error}"))?;
        let (is_tls, port) = match uri.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            Some(other) => {
                return Err(format!("the URL begins with {other}: only http and https are supported"));
            }
            None => return Err("the URL does not begin with http:// or https://".into()),
        };
        let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        if authority.contains('@') {
            return Err("the URL contains a user: write `auth` instead".into());
        }
        let host = uri.host().unwrap_or_default();
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) if address.parse::<Ipv6Addr>().is_ok() => address,
            None if is_host_name(host) => host,
            _ => return Err("the host of the URL is neither a host name nor an address".into()),
        };
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let port = match authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((_, port)) => {
                port.parse().ok().filter(|port| *port > 0).ok_or("the port of the URL is none")?
            }
            None => port,
        };
        if !hosts.is_empty() && !hosts.iter().any(|pattern| matches(pattern, &host)) {
            return Err(format!("the host {host} is not one of `hosts`: {}", hosts.join(", ")));
        }
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        if uri.path().split('/').any(is_dots) {
            return Err("a segment of the URL's path is `.` or `..`".into());
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { is_tls, host, port, authority: authority.to_owned(), path })
    }

    /// Where a redirect leads.
    pub(super) fn redirected(&self, location: &str, hosts: &[String]) -> Result<Self, String> {
        let scheme = if self.is_tls { "https" } else { "http" };
        let url = if location.contains("://") {
            location.to_owned()
        } else if let Some(rest) = location.strip_prefix("//") {
            format!("{scheme}://{rest}")
        } else if location.starts_with('/') {
            format!("{scheme}://{}{location}", self.authority)
        } else {
            let path = self.path.split('?').next().unwrap_or("/");
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{}{folder}/{location}", self.authority)
        };
        let url = url.split('#').next().unwrap_or_default();
        let target = Self::parse(url, hosts)?;
        if hosts.is_empty() && target.host != self.host {
            return Err(format!("the host {} is another one; list it in `hosts`", target.host));
        }
        if self.is_tls && !target.is_tls {
            return Err("it leads from https to http".into());
        }
        Ok(target)
    }

    /// Whether both are the same server: what was meant for one may be shown to the other.
    pub(super) fn is_same_origin(&self, other: &Self) -> bool {
        (self.is_tls, &self.host, self.port) == (other.is_tls, &other.host, other.port)
    }
}

fn is_dots(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    plain == "." || plain == ".."
}

fn is_host_name(host: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    host.len() <= 253 && host.split('.').all(is_label)
}

/// Whether a host is meant by a pattern: itself, or `*.` and the rest after its first label, as in certificates.
fn matches(pattern: &str, host: &str) -> bool {
    let pattern = pattern.trim_end_matches('.').to_ascii_lowercase();
    match pattern.strip_prefix("*.") {
        Some(domain) => host.split_once('.').is_some_and(|(_, rest)| rest == domain),
        None => pattern == host,
    }
}

/// Which addresses are refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct AddressRules<'a> {
    pub(super) allowed: &'a [AllowedTarget],
    /// The addresses of the API server.
    pub(super) servers: &'a [IpAddr],
}

impl AddressRules<'_> {
    /// Checks an address that a host has.
    pub(super) fn check(&self, host: &str, ip: IpAddr) -> Result<(), String> {
        let Some(kind) = self.forbidden(ip) else { return Ok(()) };
        if self.allowed.iter().any(|target| target.covers(host, ip)) {
            return Ok(());
        }
        let of = if host.parse() == Ok(ip) { String::new() } else { format!("{host} has the address ") };
        Err(format!(
            "{of}{ip}, {kind}: not called unless the manager runs with --allow-call-to {}",
            canonical(ip)
        ))
    }

    fn forbidden(&self, ip: IpAddr) -> Option<&'static str> {
        let ip = canonical(ip);
        if self.servers.iter().any(|server| canonical(*server) == ip) {
            return Some("an address of the API server");
        }
        let reached = match ip {
            IpAddr::V4(v4) => vec![v4],
            IpAddr::V6(v6) => match forbidden_v6(v6) {
                None => embedded(v6),
                kind => return kind,
            },
        };
        reached.into_iter().find_map(|v4| {
            let is_server = self.servers.iter().any(|server| canonical(*server) == IpAddr::V4(v4));
            if is_server { Some("an address of the API server") } else { forbidden_v4(v4) }
        })
    }
}

/// An IPv4 address that is written as an IPv6 address is that IPv4 address.
fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// The IPv4 addresses that a translating or tunnelling network may reach by this address. With NAT64, the
/// network's operator chooses where in the address the IPv4 address is, so each place counts.
fn embedded(ip: Ipv6Addr) -> Vec<Ipv4Addr> {
    let bits = ip.to_bits();
    // The 32 bits that end that many bits before the end of the address.
    let at = |low: u32| Ipv4Addr::from_bits(u32::try_from((bits >> low) & 0xffff_ffff).unwrap_or_default());
    let last = at(0);
    let mut found = Vec::new();
    match ip.segments() {
        // Compatible (RFC 4291), translated (RFC 2765), and NAT64 with its well-known prefix (RFC 6052).
        [0, 0, 0, 0, 0 | 0xffff, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => found.push(last),
        // NAT64 with a prefix of a network's own (RFC 8215), or with one that is made of the well-known one.
        [0x64, 0xff9b, ..] => {
            // Zeros belong to the prefix or to what follows the IPv4 address.
            found.extend(nat64(bits).into_iter().chain([last]).filter(|v4| v4.octets()[0] != 0));
        }
        // 6to4 (RFC 3056).
        [0x2002, ..] => found.push(at(80)),
        // Teredo (RFC 4380): the server, and the client with each bit inverted.
        [0x2001, 0, ..] => found.extend([at(64), Ipv4Addr::from_bits(!last.to_bits())]),
        _ => {}
    }
    // ISATAP (RFC 5214), in any network.
    if let [_, _, _, _, 0 | 0x200, 0x5efe, ..] = ip.segments() {
        found.push(last);
    }
    found
}

/// The IPv4 addresses in an address, after a prefix of 32, 40, 48, 56 and 64 bits (RFC 6052, section 2.2). The eight bits
/// from the 64th on are no part of them.
fn nat64(address: u128) -> [Ipv4Addr; 5] {
    let high = address >> 64;
    let low = address & (u128::MAX >> 72);
    let without_gap = (high << 56) | low;
    [32, 40, 48, 56, 64].map(|prefix: u32| {
        Ipv4Addr::from_bits(u32::try_from((without_gap >> (88 - prefix)) & 0xffff_ffff).unwrap_or_default())
    })
}

const METADATA: &str = "the metadata service of a cloud";

fn forbidden_v4(ip: Ipv4Addr) -> Option<&'static str> {
    match ip.octets() {
        [127, ..] => Some("a loopback address"),
        [169, 254, ..] => Some("a link-local address"),
        [0, ..] => Some("no address of a host"),
        [255, 255, 255, 255] => Some("the broadcast address"),
        [224..=239, ..] => Some("a multicast address"),
        // The metadata services of Alibaba and Azure are outside the link-local network.
        [100, 100, 100, 200] | [168, 63, 129, 16] => Some(METADATA),
        _ => None,
    }
}

fn forbidden_v6(ip: Ipv6Addr) -> Option<&'static str> {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("a loopback address"),
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("no address of a host"),
        [first, ..] if first & 0xffc0 == 0xfe80 => Some("a link-local address"),
        [first, ..] if first & 0xff00 == 0xff00 => Some("a multicast address"),
        // The metadata services of Amazon and Google.
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] => Some(METADATA),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ip: &str, allowed: &[&str]) -> Result<(), String> {
        let allowed: Vec<AllowedTarget> = allowed.iter().map(|target| target.parse().unwrap()).collect();
        let servers = ["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let rules = AddressRules { allowed: &allowed, servers: &servers };
        rules.check("api.example.com", ip.parse().unwrap())
    }

    #[test]
    fn addresses_that_only_the_manager_reaches_are_refused() {
        for (ip, kind) in [
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::127.0.0.1", "loopback"),
            ("64:ff9b::7f00:1", "loopback"),
            ("2002:7f00:1::", "loopback"),
            ("169.254.169.254", "link-local"),
            ("::ffff:169.254.169.254", "link-local"),
            ("64:ff9b::a9fe:a9fe", "link-local"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("0.0.0.0", "no address"),
            ("0.1.2.3", "no address"),
            ("::", "no address"),
            ("::ffff:0.0.0.0", "no address"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("::ffff:224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("255.255.255.255", "broadcast"),
            ("10.96.0.1", "API server"),
            ("::ffff:10.96.0.1", "API server"),
            ("64:ff9b::a60:1", "API server"),
            // The IPv4 address begins after a prefix of 32, 40, 48, 56, 64 and 96 bits.
            ("64:ff9b:7f00:1::", "loopback"),
            ("64:ff9b:17f:0:1::", "loopback"),
            ("64:ff9b:1:a9fe:a9:fe00::", "link-local"),
            ("64:ff9b:1:a9fe:ffa9:feff:ffff:ffff", "link-local"),
            ("64:ff9b:1:a9:fe:a9fe::", "link-local"),
            ("64:ff9b:1:0:a9:fea9:fe00:0", "link-local"),
            ("64:ff9b:1::a9fe:a9fe", "link-local"),
            ("64:ff9b:1:abcd:1f:1234:a9fe:a9fe", "link-local"),
            ("64:ff9b:1:a60:0:100::", "API server"),
            ("::ffff:0:7f00:1", "loopback"),
            ("2001:db8::5efe:127.0.0.1", "loopback"),
            ("2001:db8::200:5efe:169.254.169.254", "link-local"),
            ("fd12:3456::5efe:10.96.0.1", "API server"),
            ("2001:0:4136:e378:8000:63bf:5601:5601", "link-local"),
            ("2001:0:7f00:1:8000:63bf:f7f7:f7f7", "loopback"),
            ("2001:0:4136:e378:8000:63bf:f59f:fffe", "API server"),
            ("fd00::1", "API server"),
            ("fd00:ec2::254", "metadata"),
            ("100.100.100.200", "metadata"),
        ] {
            let error = check(ip, &[]).unwrap_err();
            assert!(error.contains(kind) && error.contains("--allow-call-to"), "{ip}: {error}");
        }
        for ip in [
            "10.0.0.1",
            "192.168.1.1",
            "172.16.0.1",
            "8.8.8.8",
            "2001:db8::1",
            "fd00::2",
            "fec0::1",
            "64:ff9b::808:808",
            "64:ff9b:1::808:808",
            "64:ff9b:1:808:8:800::1",
            "2002:808:808::1",
            "2001:0:4136:e378:8000:63bf:f7f7:f7f7",
            "2001:db8::5efe:8.8.8.8",
            "2001:db8::5eff:127.0.0.1",
        ] {
            assert_eq!(check(ip, &[]), Ok(()), "{ip}");
        }
    }

    #[test]
    fn targets_of_allow_call_to_are_allowed() {
        for (ip, allowed) in [
            ("127.0.0.1", "127.0.0.0/8"),
            ("::ffff:127.0.0.1", "127.0.0.1"),
            ("10.96.0.1", "0.0.0.0/0"),
            ("::1", "::1/128"),
            ("::1", "::/0"),
            ("127.9.9.9", "API.example.com."),
        ] {
            assert_eq!(check(ip, &[allowed]), Ok(()), "{ip} {allowed}");
        }
        for (ip, allowed) in [
            ("127.0.0.1", "126.0.0.0/8"),
            ("127.0.0.2", "127.0.0.1"),
            ("::1", "0.0.0.0/0"),
            ("127.0.0.1", "example.com"),
        ] {
            assert!(check(ip, &[allowed]).is_err(), "{ip} {allowed}");
        }
        for wrong in ["", "127.0.0.0/33", "::/129", "a b", "http://a", "a/8", "127.0.0.1:80"] {
            assert!(wrong.parse::<AllowedTarget>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn urls_are_parsed_and_wrong_ones_are_refused() {
        let parse = |url: &str| Target::parse(url, &[]);
        let target = parse("https://API.example.com./a%20b?c=d").unwrap();
        assert_eq!((target.host.as_str(), target.port, target.is_tls), ("api.example.com", 443, true));
        assert_eq!((target.authority.as_str(), target.path.as_str()), ("API.example.com.", "/a%20b?c=d"));
        let target = parse("http://[::1]:8080?x").unwrap();
        assert_eq!((target.host.as_str(), target.port, target.path.as_str()), ("::1", 8080, "/?x"));
        assert_eq!(target.to_string(), "[::1]:8080");
        for (url, words) in [
            ("ftp://a/", "only http and https"),
            ("file:///etc/passwd", ""),
            ("a/b", ""),
            ("/a", "http://"),
            ("http://user:password@a/", "a user"),
            ("http://a@169.254.169.254/", "a user"),
            ("http://a/ b", "percent-encoded"),
            ("http://a/\u{e9}", "percent-encoded"),
            ("http://a/x\r\nHost: b", "percent-encoded"),
            ("http://a:0/", "port"),
            ("http://a:99999/", ""),
            ("http:///a", ""),
            ("http://a..b/", "host"),
            ("http://%31/", ""),
            ("http://[fe80::1%25eth0]/", ""),
            ("http://a/b/../c", "`..`"),
            ("http://a/b/%2E%2e/c", "`..`"),
            ("http://a/.", "`.`"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(error.contains(words) && !error.contains("password"), "{url}: {error}");
        }
    }

    #[test]
    fn a_host_pattern_matches_a_host_or_one_label() {
        let hosts = ["*.example.com".to_owned(), "api.other.org".to_owned()];
        let is_allowed = |url: &str| Target::parse(url, &hosts).is_ok();
        assert!(is_allowed("http://a.example.com") && is_allowed("http://API.Other.org.:80/x"));
        for url in [
            "http://example.com",
            "http://a.b.example.com",
            "http://aexample.com",
            "http://a.example.com.evil",
        ] {
            assert!(!is_allowed(url), "{url}");
        }
    }

    #[test]
    fn redirects_stay_with_the_host_and_its_scheme() {
        let first = Target::parse("https://a.example.com/x/y?z", &[]).unwrap();
        let to = |location: &str| first.redirected(location, &[]).map(|target| target.path);
        assert_eq!(to("/b"), Ok("/b".into()));
        assert_eq!(to("b?c#d"), Ok("/x/b?c".into()));
        assert_eq!(to("//a.example.com/b"), Ok("/b".into()));
        assert!(to("http://a.example.com/").unwrap_err().contains("https to http"));
        assert!(to("https://b.example.com/").unwrap_err().contains("another one"));
        assert!(to("https://x@a.example.com/").is_err() && to("../b").is_err());
        let hosts = ["*.example.com".to_owned()];
        assert!(first.redirected("https://b.example.com/", &hosts).is_ok());
        assert!(first.redirected("https://b.example.org/", &hosts).is_err());
    }
}
