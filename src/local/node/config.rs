//! The configuration files and flags of a real node's components, computed from paths and addresses.

use std::path::Path;

use super::network::{Network, Place};
use crate::components::{Component, flag};

/// The name of the node.
pub(crate) const NODE: &str = "node";

/// The port of kube-apiserver. It can be fixed, because no other process is in the node's network namespace.
pub(crate) const API_PORT: u16 = 6443;

/// Names of files in the folder of the control plane, where the components run.
pub(crate) const CONTAINERD_SOCKET: &str = "containerd.sock";
pub(super) const CONTAINERD_DATA: &str = "containerd";
const CONTAINERD_CONFIG: &str = "containerd.toml";
const KUBELET_CONFIG: &str = "kubelet.yaml";
const COREFILE: &str = "Corefile";
const HOSTS: &str = "registry/_default/hosts.toml";
const CNI_CONFIG: &str = "cni/node.conflist";
/// The file of the CA that signs the certificate with which kube-apiserver calls the kubelet.
pub(crate) const KUBELET_CA: &str = "kubelet-ca.crt";

/// The address of the registry in the node's network namespace.
const REGISTRY: &str = "127.0.0.1:5000";

/// The image of pod sandboxes.
pub(super) const PAUSE: &str = "registry.k8s.io/pause:3.10";

/// The paths of the programs that the configuration names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Programs<'a> {
    /// runc.
    pub(crate) runc: &'a Path,
    /// containerd-shim-runc-v2.
    pub(crate) shim: &'a Path,
    /// The folder of the CNI plugins.
    pub(crate) cni: &'a Path,
}

/// The names and contents of the files below `folder`.
pub(crate) fn files(folder: &Path, place: &Place, programs: Programs) -> [(&'static str, String); 5] {
    [
        (CONTAINERD_CONFIG, containerd(folder, programs)),
        (HOSTS, hosts()),
        (CNI_CONFIG, cni(place.network)),
        (KUBELET_CONFIG, kubelet(folder, place)),
        (COREFILE, corefile(place.network)),
    ]
}

fn containerd(folder: &Path, programs: Programs) -> String {
    let path = |name: &str| folder.join(name).display().to_string();
    let (data, socket, hosts, cni) =
        (path(CONTAINERD_DATA), path(CONTAINERD_SOCKET), path("registry"), path("cni"));
    let Programs { runc, shim, cni: plugins } = programs;
    let (runc, shim, plugins) = (runc.display(), shim.display(), plugins.display());
    format!(
        "version = 3
root = '{data}'
state = '/run/containerd'
disabled_plugins = ['io.containerd.internal.v1.opt', 'io.containerd.nri.v1.nri']

[grpc]
  address = '{socket}'

[plugins.'io.containerd.cri.v1.images']
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{PAUSE}'
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = '{hosts}'

[plugins.'io.containerd.cri.v1.runtime']
  # Some machines may not lower the score of a process.
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{plugins}']
    conf_dir = '{cni}'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    runtime_path = '{shim}'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '{runc}'
      SystemdCgroup = false
"
    )
}

/// Configures containerd to pull every image from the registry of the node.
fn hosts() -> String {
    format!(
        "server = 'http://{REGISTRY}'\n\n[host.'http://{REGISTRY}']\n  capabilities = ['pull', 'resolve']\n"
    )
}

/// The CNI configuration. Pods are routed, not bridged, so that Services need no `br_netfilter`.
fn cni(network: Network) -> String {
    serde_json::json!({
        "cniVersion": "1.0.0",
        "name": "node",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": [[{"subnet": network.pods()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
    .to_string()
}

fn kubelet(folder: &Path, place: &Place) -> String {
    let (folder, dns, cgroup) = (folder.display(), place.network.node(), &place.cgroup);
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: false}}
  x509: {{clientCAFile: {KUBELET_CA}}}
# Only kube-apiserver has a certificate of that CA.
authorization: {{mode: AlwaysAllow}}
cgroupDriver: cgroupfs
cgroupRoot: /{cgroup}
clusterDNS: [{dns}]
clusterDomain: cluster.local
containerRuntimeEndpoint: 'unix://{folder}/{CONTAINERD_SOCKET}'
# The disk and the memory are those of the machine, and not all for this node.
evictionHard: {{memory.available: 50Mi, nodefs.available: '1%', nodefs.inodesFree: '1%', imagefs.available: '1%'}}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
oomScoreAdj: 0
resolvConf: ''
serializeImagePulls: false
registryPullQPS: 0
eventRecordQPS: 0
kubeAPIQPS: 100
kubeAPIBurst: 200
syncFrequency: 10s
volumePluginDir: '{folder}/volume-plugins'
"
    )
}

/// The configuration of `CoreDNS`. Names outside the cluster do not exist. Answers are not cached, because
/// tests restart pods often.
fn corefile(network: Network) -> String {
    let node = network.node();
    format!(
        ".:53 {{
    bind {node}
    errors
    ready {node}:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig coredns.kubeconfig
        ttl 0
        fallthrough in-addr.arpa
    }}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"
    )
}

/// The flags of a component of the node. Empty for the components of the control plane.
pub(crate) fn flags(component: Component, network: Network) -> Vec<String> {
    let kubeconfig = flag("kubeconfig", component.kubeconfig());
    let node = flag("hostname-override", NODE);
    match component {
        Component::Registry => vec!["__guard".into(), "registry".into(), "images".into(), REGISTRY.into()],
        Component::Containerd => vec![flag("config", CONTAINERD_CONFIG)],
        Component::Kubelet => vec![
            kubeconfig,
            node,
            flag("config", KUBELET_CONFIG),
            flag("node-ip", network.node()),
            flag("root-dir", "/var/lib/kubelet"),
        ],
        Component::KubeProxy => vec![
            kubeconfig,
            node,
            flag("proxy-mode", "iptables"),
            flag("cluster-cidr", network.pods()),
            // It would be a setting of the whole machine.
            flag("conntrack-max-per-core", 0),
            flag("oom-score-adj", 0),
            flag("iptables-min-sync-period", "100ms"),
        ],
        Component::CoreDns => vec!["-conf".into(), COREFILE.into()],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place { network: Network::all().next().unwrap(), cgroup: "operetta-7".into() }
    }

    #[test]
    fn configuration_files_contain_paths_and_addresses() {
        let programs = Programs {
            runc: Path::new("/usr/sbin/runc"),
            shim: Path::new("/cache/containerd-shim-runc-v2"),
            cni: Path::new("/cache/cni/bin"),
        };
        let files = files(Path::new("/tmp/operetta-x"), &place(), programs);
        let text = |name: &str| files.iter().find(|(found, _)| *found == name).unwrap().1.as_str();
        for (file, part) in [
            (CONTAINERD_CONFIG, "root = '/tmp/operetta-x/containerd'"),
            (CONTAINERD_CONFIG, "BinaryName = '/usr/sbin/runc'"),
            (CONTAINERD_CONFIG, "config_path = '/tmp/operetta-x/registry'"),
            (HOSTS, "server = 'http://127.0.0.1:5000'"),
            (CNI_CONFIG, r#""subnet":"10.244.1.0/24""#),
            (KUBELET_CONFIG, "cgroupRoot: /operetta-7"),
            (KUBELET_CONFIG, "clusterDNS: [10.245.1.2]"),
            (COREFILE, "bind 10.245.1.2"),
        ] {
            assert!(text(file).contains(part), "{part} in {}", text(file));
        }
    }

    #[test]
    fn only_components_of_the_node_have_flags() {
        let network = place().network;
        assert!(flags(Component::Kubelet, network).contains(&"--node-ip=10.245.1.2".into()));
        assert!(flags(Component::KubeProxy, network).contains(&"--cluster-cidr=10.244.1.0/24".into()));
        assert!(flags(Component::Etcd, network).is_empty());
    }
}
