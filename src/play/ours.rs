//! What the manager of tests creates in a cluster beside namespaces, so that it can be removed again.

use std::sync::Arc;

use crate::api::{ApiKind, CallError};
use crate::cluster::{Cluster, Propagation};
use crate::manager::Config;
use crate::package::Package;
use crate::package::store::objects;
use crate::plan::crds;

/// Objects without a namespace that were not there before.
pub(crate) struct Ours(Vec<(ApiKind, String)>);

impl Ours {
    /// What a manager with these packages would create. The CRDs of the packages must not be there yet.
    ///
    /// # Errors
    /// For people: why these packages are not tested here.
    pub(crate) async fn of(cluster: &Cluster, packages: &[Arc<Package>]) -> Result<Self, String> {
        let name =
            |object: &serde_json::Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let crds_of = packages.iter().flat_map(|package| &package.resources);
        let crds_of: Vec<String> = crds_of.map(|resource| resource.crd_name().to_owned()).collect();
        let mut all: Vec<(ApiKind, String)> = Vec::new();
        all.extend(crds_of.iter().map(|name| (ApiKind::crd(), name.clone())));
        let own = [crds::instance_state(), crds::plan_run(), objects::crd()];
        all.extend(own.iter().map(|crd| (ApiKind::crd(), name(crd))));
        let admission = "admissionregistration.k8s.io/v1";
        for (kind, objects) in [
            ("ValidatingAdmissionPolicyBinding", crds::bindings()),
            ("ValidatingAdmissionPolicy", crds::policies()),
        ] {
            let kind = ApiKind::built_in(admission, kind);
            all.extend(objects.iter().map(|object| (kind.clone(), name(object))));
        }
        all.push((ApiKind::built_in("v1", "Namespace"), Config::default().namespace));
        let mut absent = Vec::new();
        for (kind, name) in all {
            let found = cluster.get(&kind, None, &name).await.map_err(|error| error.to_string())?;
            match found {
                None => absent.push((kind, name)),
                Some(_) if crds_of.contains(&name) => {
                    return Err(format!(
                        "the cluster has the CRD {name} already; tests would change it: use another cluster"
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(Self(absent))
    }

    /// Deletes what is there now.
    ///
    /// # Errors
    /// What cannot be deleted.
    pub(crate) async fn remove(&self, cluster: &Cluster) -> Result<(), CallError> {
        for (kind, name) in &self.0 {
            let Some(object) = cluster.get(kind, None, name).await? else { continue };
            let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
            let version = (text("uid"), text("resourceVersion"));
            cluster.delete(kind, None, name, version, Propagation::Background).await?;
        }
        Ok(())
    }
}
