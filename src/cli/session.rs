//! A connection with the namespace of a command.

use serde_json::Value;

use super::catalog::{Catalog, PackageKind, check_names, in_namespace};
use super::command::Failure;
use super::connect::{self, ClusterOptions, Server};
use super::out::printable;

/// Which cluster, and which namespace of it.
#[derive(Debug, clap::Args)]
pub(super) struct Common {
    /// The namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    #[command(flatten)]
    place: ClusterOptions,
}

/// A connection with the namespace of the command.
pub(super) struct Session {
    pub server: Server,
    /// The namespace that is given.
    pub given: Option<String>,
}

impl Session {
    pub(super) async fn open(common: &Common) -> Result<Self, Failure> {
        check_names(common.namespace.as_deref(), None).map_err(Failure::usage)?;
        Ok(Self { server: connect::connect_in(&common.place).await?, given: common.namespace.clone() })
    }

    pub(super) fn namespace(&self) -> &str {
        self.given.as_deref().unwrap_or(self.server.current_namespace())
    }

    pub(super) async fn catalog(&self) -> Result<Catalog, Failure> {
        Ok(Catalog::read(&self.server.cluster).await?)
    }

    /// Reads an instance, which must exist. `namespace` does not matter for a cluster-scoped one.
    pub(super) async fn read(
        &self,
        kind: &PackageKind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Value, String> {
        let api = &kind.served.kind;
        let found = self.server.cluster.get(api, namespace, name).await.map_err(|error| {
            let (of, words) = (kind.full_name(), printable(&error.to_string()));
            let (name, place) = (printable(name), in_namespace(namespace.filter(|_| api.namespaced)));
            match error.code {
                403 => format!("this user may not get {of} {name}{place}: {words}"),
                _ => format!("{of} {name} cannot be read: {words}"),
            }
        })?;
        found.ok_or_else(|| kind.has_none(namespace, name))
    }
}
