//! The kinds that Kubernetes itself brings, and what is known of each without asking a server. A test
//! compares the table with the schemas of a real API server (`lang/schema/kubernetes.rs`).

/// A kind of Kubernetes, whatever its version.
#[derive(Debug)]
pub struct BuiltIn {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
    /// The rule for the names of its objects.
    pub names: NameRule,
    /// The path to the pod or pod template in an object of a kind that creates pods.
    pub pod: Option<&'static [&'static str]>,
    /// Whether a deletion loses data that cannot be rendered again.
    pub holds_data: bool,
    /// Whether readiness depends on more than metadata. If not, an object is ready as soon as it exists.
    pub needs_status: bool,
}

/// The rule for the names of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// Anything that can be a segment of a path.
    PathSegment,
    /// A DNS-1123 subdomain, as most kinds have it.
    Subdomain,
    /// A DNS-1123 label, as namespaces have it.
    Label,
}

use NameRule::{Label, PathSegment, Subdomain};

impl BuiltIn {
    /// Finds the built-in kind of a group.
    pub fn find(group: &str, kind: &str) -> Option<&'static Self> {
        TABLE.iter().find(|known| known.kind == kind && known.group == group)
    }

    /// Whether the kinds of a group are Kubernetes' own: only a new release of the server changes their fields. Groups of
    /// CRDs may end in `k8s.io`, too, such as `autoscaling.k8s.io`; they have a dot.
    pub fn has_group(group: &str) -> bool {
        !group.contains('.') || TABLE.iter().any(|known| known.group == group)
    }

    /// All built-in kinds, by group.
    pub fn all() -> &'static [Self] {
        &TABLE
    }

    const fn new(group: &'static str, kind: &'static str, namespaced: bool, names: NameRule) -> Self {
        Self { group, kind, namespaced, names, pod: None, holds_data: false, needs_status: true }
    }

    const fn pods(self, at: &'static [&'static str]) -> Self {
        Self { pod: Some(at), ..self }
    }

    const fn holds_data(self) -> Self {
        Self { holds_data: true, ..self }
    }

    const fn ready_at_once(self) -> Self {
        Self { needs_status: false, ..self }
    }
}

const fn namespaced(group: &'static str, kind: &'static str, names: NameRule) -> BuiltIn {
    BuiltIn::new(group, kind, true, names)
}

const fn cluster(group: &'static str, kind: &'static str, names: NameRule) -> BuiltIn {
    BuiltIn::new(group, kind, false, names)
}

const CORE: &str = "";
const ADMISSION: &str = "admissionregistration.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";
const NETWORKING: &str = "networking.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const RESOURCE: &str = "resource.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const TEMPLATE: &[&str] = &["spec", "template"];

static TABLE: [BuiltIn; 62] = [
    namespaced(CORE, "ConfigMap", Subdomain).ready_at_once(),
    namespaced(CORE, "Endpoints", Subdomain).ready_at_once(),
    namespaced(CORE, "Event", PathSegment).ready_at_once(),
    namespaced(CORE, "LimitRange", Subdomain).ready_at_once(),
    cluster(CORE, "Namespace", Label).holds_data().ready_at_once(),
    cluster(CORE, "Node", Subdomain),
    cluster(CORE, "PersistentVolume", Subdomain).holds_data(),
    namespaced(CORE, "PersistentVolumeClaim", Subdomain).holds_data(),
    namespaced(CORE, "Pod", Subdomain).pods(&[]),
    namespaced(CORE, "PodTemplate", Subdomain).ready_at_once(),
    namespaced(CORE, "ReplicationController", Subdomain).pods(TEMPLATE),
    namespaced(CORE, "ResourceQuota", Subdomain).ready_at_once(),
    namespaced(CORE, "Secret", Subdomain).ready_at_once(),
    // Whether the server asks for a letter first (RFC 1035) depends on its version.
    namespaced(CORE, "Service", Label),
    namespaced(CORE, "ServiceAccount", Subdomain).ready_at_once(),
    cluster(ADMISSION, "MutatingAdmissionPolicy", PathSegment).ready_at_once(),
    cluster(ADMISSION, "MutatingAdmissionPolicyBinding", PathSegment).ready_at_once(),
    cluster(ADMISSION, "MutatingWebhookConfiguration", PathSegment).ready_at_once(),
    // It has a status: a controller type-checks it and reports the observed generation.
    cluster(ADMISSION, "ValidatingAdmissionPolicy", PathSegment),
    cluster(ADMISSION, "ValidatingAdmissionPolicyBinding", PathSegment).ready_at_once(),
    cluster(ADMISSION, "ValidatingWebhookConfiguration", PathSegment).ready_at_once(),
    cluster("apiextensions.k8s.io", "CustomResourceDefinition", Subdomain).holds_data(),
    cluster("apiregistration.k8s.io", "APIService", PathSegment),
    namespaced("apps", "ControllerRevision", Subdomain).ready_at_once(),
    namespaced("apps", "DaemonSet", Subdomain).pods(TEMPLATE),
    namespaced("apps", "Deployment", Subdomain).pods(TEMPLATE),
    namespaced("apps", "ReplicaSet", Subdomain).pods(TEMPLATE),
    namespaced("apps", "StatefulSet", Subdomain).pods(TEMPLATE),
    namespaced("autoscaling", "HorizontalPodAutoscaler", Subdomain),
    namespaced("batch", "CronJob", Subdomain)
        .pods(&["spec", "jobTemplate", "spec", "template"])
        .ready_at_once(),
    namespaced("batch", "Job", Subdomain).pods(TEMPLATE),
    cluster("certificates.k8s.io", "CertificateSigningRequest", PathSegment),
    cluster("certificates.k8s.io", "ClusterTrustBundle", PathSegment),
    namespaced("coordination.k8s.io", "Lease", Subdomain).ready_at_once(),
    namespaced("discovery.k8s.io", "EndpointSlice", Subdomain).ready_at_once(),
    namespaced("events.k8s.io", "Event", PathSegment),
    cluster(FLOW, "FlowSchema", PathSegment),
    cluster(FLOW, "PriorityLevelConfiguration", PathSegment),
    cluster(NETWORKING, "IPAddress", PathSegment),
    namespaced(NETWORKING, "Ingress", Subdomain).ready_at_once(),
    cluster(NETWORKING, "IngressClass", Subdomain).ready_at_once(),
    namespaced(NETWORKING, "NetworkPolicy", Subdomain).ready_at_once(),
    cluster(NETWORKING, "ServiceCIDR", PathSegment),
    cluster("node.k8s.io", "RuntimeClass", PathSegment).ready_at_once(),
    namespaced("policy", "PodDisruptionBudget", PathSegment),
    cluster(RBAC, "ClusterRole", PathSegment).ready_at_once(),
    cluster(RBAC, "ClusterRoleBinding", PathSegment).ready_at_once(),
    namespaced(RBAC, "Role", PathSegment).ready_at_once(),
    namespaced(RBAC, "RoleBinding", PathSegment).ready_at_once(),
    cluster(RESOURCE, "DeviceClass", PathSegment),
    cluster(RESOURCE, "DeviceTaintRule", PathSegment),
    namespaced(RESOURCE, "ResourceClaim", PathSegment),
    namespaced(RESOURCE, "ResourceClaimTemplate", PathSegment),
    cluster(RESOURCE, "ResourceSlice", PathSegment),
    cluster("scheduling.k8s.io", "PriorityClass", Subdomain).ready_at_once(),
    cluster(STORAGE, "CSIDriver", PathSegment).ready_at_once(),
    cluster(STORAGE, "CSINode", PathSegment),
    namespaced(STORAGE, "CSIStorageCapacity", PathSegment),
    cluster(STORAGE, "StorageClass", Subdomain).ready_at_once(),
    cluster(STORAGE, "VolumeAttachment", PathSegment),
    cluster(STORAGE, "VolumeAttributesClass", PathSegment).ready_at_once(),
    cluster("storagemigration.k8s.io", "StorageVersionMigration", PathSegment),
];
