//! The components of a control plane and the flags they are started with.

use std::fmt;

use super::binaries::Tool;
use super::volumes::ETCD_DATA;

/// A process of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The store.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler; only with nodes.
    Scheduler,
    /// The fake nodes; only with nodes.
    Kwok,
}

impl Component {
    /// All of them, in the order in which they are started.
    pub const ALL: [Self; 5] =
        [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kwok];

    /// Its binary.
    pub(super) const fn tool(self) -> Tool {
        match self {
            Self::Etcd => Tool::Etcd,
            Self::ApiServer => Tool::KubeApiserver,
            Self::ControllerManager => Tool::KubeControllerManager,
            Self::Scheduler => Tool::KubeScheduler,
            Self::Kwok => Tool::Kwok,
        }
    }

    /// The name people know it by, also that of its binary.
    pub const fn name(self) -> &'static str {
        self.tool().name()
    }

    /// The user as which it speaks to the API server.
    pub(super) const fn user(self) -> &'static str {
        match self {
            Self::Etcd | Self::ApiServer => "system:apiserver",
            Self::ControllerManager => "system:kube-controller-manager",
            Self::Scheduler => "system:kube-scheduler",
            Self::Kwok => "kwok",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where etcd listens: a socket in the folder, which nobody else can enter. Relative to the folder, in
/// which all components run, for socket paths must be short; and without a port to lose a race for.
/// etcd wants something like a port in the name.
pub(super) const ETCD: &str = "unix://etcd.sock:0";
const ETCD_PEER: &str = "unix://peer.sock:0";

/// Names of files below the folder. Flags give them as they are, for all components run in the folder:
/// whatever characters its path has, no flag can misread them.
pub(super) const ETCD_SOCKET: &str = "etcd.sock:0";
/// kube-apiserver's own certificate, with that of the authority it was signed by.
pub(super) const CERTIFICATE: &str = "certs/apiserver.crt";
/// The key of it, which signs the tokens of service accounts too: one less to make and keep.
const KEY: &str = "certs/apiserver.key";
pub(super) const TOKENS: &str = "tokens.csv";
pub(super) const AUDIT_POLICY: &str = "audit-policy.yaml";
pub(super) const AUDIT_LOG: &str = "audit.log";
pub(super) const STAGES: &str = "stages.yaml";
/// The user's kubeconfig.
pub(super) const KUBECONFIG: &str = "kubeconfig";

impl Component {
    /// The file with its kubeconfig.
    pub(super) fn kubeconfig(self) -> String {
        format!("{self}.kubeconfig")
    }

    /// The file with what it has said.
    pub(super) fn log(self) -> String {
        format!("{self}.log")
    }

    /// Its flags. `extra` are the user's for kube-apiserver.
    pub(super) fn flags(self, port: u16, extra: &[String]) -> Vec<String> {
        fn flag(name: &str, value: impl fmt::Display) -> String {
            format!("--{name}={value}")
        }
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
                    flag("bind-address", "127.0.0.1"),
                    flag("advertise-address", "127.0.0.1"),
                    // Endpoints may not be of the loopback network, and there is but this server.
                    flag("endpoint-reconciler-type", "none"),
                    flag("secure-port", port),
                    flag("cert-dir", "certs"),
                    flag("service-account-key-file", CERTIFICATE),
                    flag("service-account-signing-key-file", KEY),
                    flag("service-account-issuer", "https://kubernetes.default.svc"),
                    flag("service-cluster-ip-range", "10.96.0.0/16"),
                    flag("allow-privileged", true),
                    flag("authorization-mode", "RBAC"),
                    flag("token-auth-file", TOKENS),
                    flag("audit-policy-file", AUDIT_POLICY),
                    flag("audit-log-path", AUDIT_LOG),
                    // Written before the request ends, and into one file for ever.
                    flag("audit-log-mode", "blocking"),
                    flag("audit-log-maxsize", 0),
                ];
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
                // By default 20 requests a second: large clusters share a server, this one does not.
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
            Self::Kwok => vec![
                kubeconfig,
                flag("manage-all-nodes", true),
                flag("node-ip", "127.0.0.1"),
                flag("cidr", "10.244.0.0/16"),
                // The heartbeat that keeps nodes Ready.
                flag("node-lease-duration-seconds", 40),
                flag("config", STAGES),
            ],
        }
    }
}

/// What a component's log says about why it has ended, where that is recognized.
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

/// Whether the port was taken.
pub(super) fn address_in_use(log: &str) -> bool {
    log.contains("address already in use")
}

/// The flag in `invalid argument "x" for "--secure-port" flag: ...`.
fn invalid_flag(log: &str) -> Option<&str> {
    let rest = log.split_once("invalid argument ")?.1.split_once(" for \"")?.1;
    rest.split_once('"').map(|(flag, _)| flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_understood() {
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
    fn names_are_those_of_the_binaries() {
        let names: Vec<_> = Component::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"]);
    }
}
