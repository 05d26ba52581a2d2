//! Kinds of objects that tests read and write.

/// A kind, as URL paths name it.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    api: &'static str,
    /// The plural with the group, as kubectl expects it.
    pub plural: &'static str,
}

/// A kind by its `apiVersion` and plural.
pub const fn kind(api: &'static str, plural: &'static str) -> Kind {
    Kind { api, plural }
}

pub const POD: Kind = kind("v1", "pods");
pub const CONFIG_MAP: Kind = kind("v1", "configmaps");
pub const SECRET: Kind = kind("v1", "secrets");
pub const SERVICE: Kind = kind("v1", "services");
pub const SERVICE_ACCOUNT: Kind = kind("v1", "serviceaccounts");
pub const VOLUME_CLAIM: Kind = kind("v1", "persistentvolumeclaims");
pub const EVENT: Kind = kind("v1", "events");
pub const ROLE: Kind = kind("rbac.authorization.k8s.io/v1", "roles");
pub const JOB: Kind = kind("batch/v1", "jobs");
pub const DEPLOYMENT: Kind = kind("apps/v1", "deployments");
pub const INGRESS: Kind = kind("networking.k8s.io/v1", "ingresses");
pub const NETWORK_POLICY: Kind = kind("networking.k8s.io/v1", "networkpolicies");
pub const STATEFUL_SET: Kind = kind("apps/v1", "statefulsets");
pub const DAEMON_SET: Kind = kind("apps/v1", "daemonsets");
pub const CRON_JOB: Kind = kind("batch/v1", "cronjobs");
pub const ROLE_BINDING: Kind = kind("rbac.authorization.k8s.io/v1", "rolebindings");
pub const CLUSTER_ROLE: Kind = kind("rbac.authorization.k8s.io/v1", "clusterroles");
pub const QUOTA: Kind = kind("v1", "resourcequotas");
pub const AUTOSCALER: Kind = kind("autoscaling/v2", "horizontalpodautoscalers");
pub const DISRUPTION_BUDGET: Kind = kind("policy/v1", "poddisruptionbudgets");
pub const CRD: Kind = kind("apiextensions.k8s.io/v1", "customresourcedefinitions");
pub const OPERATOR: Kind = kind("operetta.dev/v1alpha1", "operators");
pub const REVISION: Kind = kind("operetta.dev/v1alpha1", "operatorrevisions");
pub const ETCD: Kind = kind("etcd.database.coreos.com/v1beta2", "etcdclusters");
pub const WEB_APP: Kind = kind("apps.operetta.dev/v1alpha1", "webapps");
pub const ECHO: Kind = kind("fixtures.operetta.dev/v1", "echoes");
pub const LIGHT: Kind = kind("fixtures.operetta.dev/v1", "lights");
pub const READER: Kind = kind("fixtures.operetta.dev/v1", "readers");
pub const LOOP: Kind = kind("fixtures.operetta.dev/v1", "loops");
pub const OUTER: Kind = kind("fixtures.operetta.dev/v1", "outers");
pub const LATECOMER: Kind = kind("fixtures.operetta.dev/v1", "latecomers");
pub const CHAIN: Kind = kind("fixtures.operetta.dev/v1", "chains");
pub const TRIAL: Kind = kind("fixtures.operetta.dev/v1", "trials");
pub const PLACE: Kind = kind("fixtures.operetta.dev/v1", "places");
pub const REALM: Kind = kind("fixtures.operetta.dev/v1", "realms");
pub const BROKEN_RENDER: Kind = kind("fixtures.operetta.dev/v1", "brokenrenders");
pub const WAY: Kind = kind("fixtures.operetta.dev/v1", "ways");
pub const CLAIM: Kind = kind("fixtures.operetta.dev/v1", "claims");
pub const NAMESPACE: Kind = kind("v1", "namespaces");
pub const MIX: Kind = kind("fixtures.operetta.dev/v1", "mixes");
pub const SHELF: Kind = kind("fixtures.operetta.dev/v1", "shelves");
pub const GAUGE: Kind = kind("fixtures.operetta.dev/v1", "gauges");
pub const SITE: Kind = kind("examples.operetta.dev/v1", "sites");
pub const STONE: Kind = kind("fixtures.operetta.dev/v1", "stones");
pub const NEIGHBOUR: Kind = kind("fixtures.operetta.dev/v1", "neighbours");
pub const TANK: Kind = kind("fixtures.operetta.dev/v1", "tanks");
pub const BLOCK: Kind = kind("fixtures.operetta.dev/v1", "blocks");
pub const ROCK: Kind = kind("fixtures.operetta.dev/v1", "rocks");
pub const GATE: Kind = kind("fixtures.operetta.dev/v1", "gates");
pub const FIGURE: Kind = kind("fixtures.operetta.dev/v1", "figures");
pub const FENCE: Kind = kind("fixtures.operetta.dev/v1", "fences");
pub const ERRAND: Kind = kind("fixtures.operetta.dev/v1", "errands");
pub const ALARM: Kind = kind("fixtures.operetta.dev/v1", "alarms");
pub const VOYAGE: Kind = kind("fixtures.operetta.dev/v1", "voyages");
pub const WATCHER: Kind = kind("fixtures.operetta.dev/v1", "watchers");
pub const GREETING: Kind = kind("examples.operetta.dev/v1", "greetings");
pub const REPLICA_SET: Kind = kind("apps/v1", "replicasets");
pub const DESK: Kind = kind("fixtures.operetta.dev/v1", "desks");
pub const PROCEDURE: Kind = kind("fixtures.operetta.dev/v1", "procedures");

impl Kind {
    /// A kind that a test creates at run time. Its strings are leaked; there are few.
    pub fn of(api: String, plural: String) -> Self {
        Self { api: api.leak(), plural: plural.leak() }
    }

    /// The path of an object; with an empty name the path of all objects of the kind, ending in a slash.
    pub fn path(self, namespace: Option<&str>, name: &str) -> String {
        let root = if self.api.contains('/') { "apis" } else { "api" };
        let place = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
        format!("/{root}/{}/{place}{}/{name}", self.api, self.plural)
    }

    /// The kind in the form that kube's APIs take.
    pub fn resource(self) -> kube::api::ApiResource {
        let (group, version) = self.api.split_once('/').unwrap_or(("", self.api));
        kube::api::ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: self.api.into(),
            // kube uses it only to build paths.
            kind: self.plural.into(),
            plural: self.plural.into(),
        }
    }

    /// The plural with the group, as kubectl expects it.
    pub fn resource_name(self) -> String {
        if self.group().is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group())
        }
    }

    /// The API group; empty for the core group.
    pub fn group(self) -> &'static str {
        self.api.split_once('/').map_or("", |(group, _)| group)
    }

    /// `group/version`.
    pub fn api_version(self) -> &'static str {
        self.api
    }
}
