//! The components of a control plane, and their flags.

use std::fmt;

use super::node::config;
use super::node::network::Network;
use super::tools::Tool;
use super::volumes::ETCD_DATA;

/// The files of the certificate and the key with which kube-apiserver calls the kubelet.
pub(crate) const KUBELET_CLIENT: [&str; 2] = ["kubelet-client.crt", "kubelet-client.key"];

/// A process of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// etcd, the store.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler; only with nodes.
    Scheduler,
    /// kwok, the fake nodes; only with fake nodes.
    Kwok,
    /// The image registry; only with a real node.
    Registry,
    /// containerd; only with a real node.
    Containerd,
    /// kubelet; only with a real node.
    Kubelet,
    /// kube-proxy; only with a real node.
    KubeProxy,
    /// `CoreDNS`; only with a real node.
    CoreDns,
}

impl Component {
    /// All components, in the order in which they are started.
    pub const ALL: &[Self] = &[
        Self::Etcd,
        Self::ApiServer,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kwok,
        Self::Registry,
        Self::Containerd,
        Self::Kubelet,
        Self::KubeProxy,
        Self::CoreDns,
    ];

    /// The components of a control plane with a real node, or with a number of fake ones.
    pub(super) fn of(with_node: bool, fake_nodes: usize) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |component| match component {
            Self::Etcd | Self::ApiServer | Self::ControllerManager => true,
            Self::Scheduler => with_node || fake_nodes > 0,
            Self::Kwok => !with_node && fake_nodes > 0,
            _ => with_node,
        })
    }

    /// The binary; `None` means this executable.
    pub(super) const fn tool(self) -> Option<Tool> {
        Some(match self {
            Self::Etcd => Tool::Etcd,
            Self::ApiServer => Tool::KubeApiserver,
            Self::ControllerManager => Tool::KubeControllerManager,
            Self::Scheduler => Tool::KubeScheduler,
            Self::Kwok => Tool::Kwok,
            Self::Containerd => Tool::Containerd,
            Self::Kubelet => Tool::Kubelet,
            Self::KubeProxy => Tool::KubeProxy,
            Self::CoreDns => Tool::CoreDns,
            Self::Registry => return None,
        })
    }

    /// The usual name of the component, which is also the name of its binary.
    pub const fn name(self) -> &'static str {
        match self.tool() {
            Some(tool) => tool.name(),
            None => "registry",
        }
    }

    /// The user as which it authenticates at the API server.
    pub(super) const fn user(self) -> &'static str {
        match self {
            Self::Etcd | Self::ApiServer => "system:apiserver",
            Self::ControllerManager => "system:kube-controller-manager",
            Self::Scheduler => "system:kube-scheduler",
            Self::KubeProxy => "system:kube-proxy",
            other => other.name(),
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The address of etcd: a socket in the folder, which only the owner can access. It needs no free port. The
/// path is relative to the folder in which all components run, because the paths of sockets must be short.
/// etcd requires a port in the name.
pub(super) const ETCD: &str = "unix://etcd.sock:0";
const ETCD_PEER: &str = "unix://peer.sock:0";

/// File names below the folder, as used in flags. All components run in the folder, so special characters in its path
/// cannot break a flag.
pub(super) const ETCD_SOCKET: &str = "etcd.sock:0";
/// The certificate of kube-apiserver, including that of its CA.
pub(super) const CERTIFICATE: &str = "certs/apiserver.crt";
/// The key of the certificate, which also signs the tokens of service accounts.
const KEY: &str = "certs/apiserver.key";
pub(super) const TOKENS: &str = "tokens.csv";
pub(super) const AUDIT_POLICY: &str = "audit-policy.yaml";
pub(super) const AUDIT_LOG: &str = "audit.log";
pub(super) const STAGES: &str = "stages.yaml";
/// The kubeconfig of the user.
pub(super) const KUBECONFIG: &str = "kubeconfig";

impl Component {
    /// The file name of its kubeconfig.
    pub(super) fn kubeconfig(self) -> String {
        format!("{self}.kubeconfig")
    }

    /// The file name of its log.
    pub(super) fn log(self) -> String {
        format!("{self}.log")
    }

    /// The flags of a component. `kubelet` is the port on which kwok acts as the kubelet, if it does. `node`
    /// is the network of a real node. `extra` are additional flags of the user for kube-apiserver.
    pub(super) fn flags(
        self,
        port: u16,
        kubelet: Option<u16>,
        node: Option<Network>,
        extra: &[String],
    ) -> Vec<String> {
        let kubeconfig = flag("kubeconfig", self.kubeconfig());
        match self {
            Self::Etcd => vec![
                flag("data-dir", ETCD_DATA),
                flag("unsafe-no-fsync", true),
                flag("listen-client-urls", ETCD),
                flag("advertise-client-urls", ETCD),
                flag("listen-peer-urls", ETCD_PEER),
                flag("initial-advertise-peer-urls", ETCD_PEER),
                flag("initial-cluster", format_args!("default={ETCD_PEER}")),
            ],
            Self::ApiServer => {
                let mut flags = vec![
                    flag("etcd-servers", ETCD),
                    flag("secure-port", port),
                    flag("cert-dir", "certs"),
                    flag("service-account-key-file", CERTIFICATE),
                    flag("service-account-signing-key-file", KEY),
                    flag("service-account-issuer", "https://kubernetes.default.svc"),
                    flag("allow-privileged", true),
                    flag("authorization-mode", "RBAC"),
                    flag("token-auth-file", TOKENS),
                    flag("audit-policy-file", AUDIT_POLICY),
                    flag("audit-log-path", AUDIT_LOG),
                    // Entries are written before the request ends, and always to the same file.
                    flag("audit-log-mode", "blocking"),
                    flag("audit-log-maxsize", 0),
                ];
                match node {
                    Some(network) => flags.extend([
                        flag("bind-address", network.node()),
                        flag("advertise-address", network.node()),
                        flag("service-cluster-ip-range", network.services()),
                        flag("kubelet-client-certificate", KUBELET_CLIENT[0]),
                        flag("kubelet-client-key", KUBELET_CLIENT[1]),
                    ]),
                    None => flags.extend([
                        flag("bind-address", "127.0.0.1"),
                        flag("advertise-address", "127.0.0.1"),
                        // The address would be in the loopback network, which Endpoints must not contain.
                        // There is only this server anyway.
                        flag("endpoint-reconciler-type", "none"),
                        flag("service-cluster-ip-range", "10.96.0.0/16"),
                    ]),
                }
                if node.is_some() || kubelet.is_some() {
                    // The names of the nodes cannot be resolved.
                    flags.push(flag("kubelet-preferred-address-types", "InternalIP"));
                }
                flags.extend_from_slice(extra);
                flags
            }
            Self::ControllerManager => vec![
                kubeconfig,
                flag("leader-elect", false),
                flag("secure-port", 0),
                flag("service-account-private-key-file", KEY),
                flag("root-ca-file", CERTIFICATE),
                flag("use-service-account-credentials", false),
                flag("enable-hostpath-provisioner", true),
                // The default of 20 requests a second is meant for shared API servers, and this one is not
                // shared.
                flag("kube-api-qps", 1000),
                flag("kube-api-burst", 2000),
            ],
            Self::Scheduler => vec![
                kubeconfig,
                flag("leader-elect", false),
                flag("secure-port", 0),
                flag("kube-api-qps", 1000),
                flag("kube-api-burst", 2000),
            ],
            Self::Kwok => {
                let mut flags = vec![
                    kubeconfig,
                    flag("manage-all-nodes", true),
                    flag("node-ip", "127.0.0.1"),
                    flag("cidr", "10.244.0.0/16"),
                    // Sets the interval of the heartbeats that keep nodes Ready.
                    flag("node-lease-duration-seconds", 40),
                    flag("config", STAGES),
                ];
                if let Some(kubelet) = kubelet {
                    flags.extend([
                        flag("node-port", kubelet),
                        flag("server-address", format_args!("127.0.0.1:{kubelet}")),
                        flag("tls-cert-file", CERTIFICATE),
                        flag("tls-private-key-file", KEY),
                    ]);
                }
                flags
            }
            _ => node.map(|network| config::flags(self, network)).unwrap_or_default(),
        }
    }
}

/// Writes a flag with its value.
pub(super) fn flag(name: &str, value: impl fmt::Display) -> String {
    format!("--{name}={value}")
}

/// The cause of the end of a component, if the last lines of its log show a known one.
pub(super) fn hint(component: Component, log: &str) -> Option<String> {
    let after = |text: &str| {
        let rest = log.split_once(text)?.1;
        Some(rest.split(['"', '\n']).next().unwrap_or(rest).trim().to_owned())
    };
    if address_in_use(log) {
        return Some(match after("listen tcp ") {
            Some(address) => format!("it cannot listen on {address}"),
            None => "its address is already in use".into(),
        });
    }
    if let Some(name) = after("unknown flag: ") {
        return Some(format!("{component} does not know the flag {name}"));
    }
    if let Some(flag) = invalid_flag(log) {
        return Some(format!("the value of its flag {flag} is invalid"));
    }
    if log.contains("no space left on device") {
        return Some("the disk is full".into());
    }
    if log.contains("too many open files") {
        return Some("too many files are open: raise the limit with `ulimit -n`".into());
    }
    None
}

/// Whether the log says that the port is in use.
pub(super) fn address_in_use(log: &str) -> bool {
    log.contains("address already in use")
}

/// The name of the flag in `invalid argument "x" for "--secure-port" flag: ...`.
fn invalid_flag(log: &str) -> Option<&str> {
    let rest = log.split_once("invalid argument ")?.1.split_once(" for \"")?.1;
    rest.split_once('"').map(|(flag, _)| flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_causes_are_found_in_logs() {
        let cases = [
            (
                r#"E run.go:72] "command failed" err="failed to create listener: failed to listen on 127.0.0.1:16443: listen tcp 127.0.0.1:16443: bind: address already in use""#,
                Some("it cannot listen on 127.0.0.1:16443: bind: address already in use"),
            ),
            ("Error: unknown flag: --no-such\n", Some("kube-apiserver does not know the flag --no-such")),
            (
                r#"Error: invalid argument "x" for "--secure-port" flag: strconv.ParseInt: parsing "x""#,
                Some("the value of its flag --secure-port is invalid"),
            ),
            ("write: no space left on device", Some("the disk is full")),
            ("panic: something else", None),
        ];
        for (log, expected) in cases {
            assert_eq!(hint(Component::ApiServer, log).as_deref(), expected, "{log}");
        }
    }

    #[test]
    fn components_are_named_like_their_binaries() {
        let names =
            |with_node, nodes| -> Vec<_> { Component::of(with_node, nodes).map(Component::name).collect() };
        let without = ["etcd", "kube-apiserver", "kube-controller-manager"];
        assert_eq!(names(false, 0), without);
        assert_eq!(names(false, 2), [&without[..], &["kube-scheduler", "kwok"]].concat());
        let node = ["kube-scheduler", "registry", "containerd", "kubelet", "kube-proxy", "coredns"];
        assert_eq!(names(true, 1), [&without[..], &node[..]].concat());
    }
}
