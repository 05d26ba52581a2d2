//! What plans need on the API server: the CRDs of PlanRuns and of stored revisions, and the policy that decides who may run
//! and approve plans.

use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tracing::info;

use crate::api::{ApiKind, CallError};
use crate::children::names::REGISTRAR;
use crate::cluster::Cluster;
use crate::package::store::objects;
use crate::plan::crds;

/// Whether this process has installed it.
#[derive(Default)]
pub(super) struct PlanApi(OnceCell<()>);

impl PlanApi {
    /// Installs it, once a process.
    ///
    /// # Errors
    /// The API server refuses a part of it, or cannot be reached.
    pub(super) async fn install(&self, cluster: &Cluster) -> Result<(), CallError> {
        self.0.get_or_try_init(|| install(cluster)).await.copied()
    }
}

async fn install(cluster: &Cluster) -> Result<(), CallError> {
    let review = ApiKind::built_in("authentication.k8s.io/v1", "SelfSubjectReview");
    let body = json!({"apiVersion": review.api_version(), "kind": review.kind});
    let me: Value = cluster.review(&review, &body).await?;
    let user = me["status"]["userInfo"]["username"].as_str().unwrap_or_default();
    let policy = ApiKind {
        namespaced: false,
        ..ApiKind::built_in("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy")
    };
    let binding = ApiKind {
        kind: "ValidatingAdmissionPolicyBinding".into(),
        plural: "validatingadmissionpolicybindings".into(),
        ..policy.clone()
    };
    let all = [
        (ApiKind::crd(), crds::plan_run()),
        (ApiKind::crd(), objects::crd()),
        (policy.clone(), crds::policy()),
    ];
    install_objects(cluster, &all).await?;
    exempt(cluster, &policy, user).await?;
    // Last, so the policy is not in force without the exemption.
    install_objects(cluster, &[(binding, crds::binding())]).await
}

/// Adds this manager to those whose writes the policy does not check.
async fn exempt(cluster: &Cluster, kind: &ApiKind, user: &str) -> Result<(), CallError> {
    let live = cluster.get(kind, None, crds::POLICY).await?;
    if !live.is_some_and(|live| crds::is_exempt(&live, user)) {
        cluster.apply(kind, &crds::exemption(user), &crds::exemption_owner(user), true).await?;
        info!(%user, "the policy of PlanRuns exempts this manager");
    }
    Ok(())
}

/// Applies those of these cluster-scoped objects that differ.
///
/// # Errors
/// The API server refuses one of them, or cannot be reached.
pub(super) async fn install_objects(
    cluster: &Cluster,
    objects: &[(ApiKind, Value)],
) -> Result<(), CallError> {
    for (kind, object) in objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let live = cluster.get(kind, None, name).await?;
        if !live.is_some_and(|live| has_all_of(&live, object)) {
            cluster.apply(kind, object, REGISTRAR, true).await?;
            info!(kind = %kind.kind, %name, "a part of the API of Operetta is installed");
        }
    }
    Ok(())
}

/// Whether an apply of `wanted` would change nothing: the API server adds fields to what is applied, and no items.
fn has_all_of(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(name, wanted)| has_all_of(live.get(name).unwrap_or(&Value::Null), wanted))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live.iter().zip(wanted).all(|(live, wanted)| has_all_of(live, wanted))
        }
        _ => live == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_or_changed_is_applied() {
        let wanted = json!({"spec": {"a": [{"b": 1}], "c": {}}});
        for (live, has_all) in [
            (json!({"spec": {"a": [{"b": 1, "default": true}], "c": {}}, "status": {}}), true),
            (json!({"spec": {"a": [{"b": 1}, {"b": 2}], "c": {}}}), false),
            (json!({"spec": {"a": [{"b": 2}], "c": {}}}), false),
            (json!({"spec": {"a": [{"b": 1}]}}), false),
        ] {
            assert_eq!(has_all_of(&live, &wanted), has_all, "{live}");
        }
    }
}
