//! Accounts of managers that may do less than an admin.

use std::path::PathBuf;

use crate::support::{ControlPlane, kubectl_of, rights};

/// An account with rights to everything that the packages of tests need except Secrets: `NAME` is its name,
/// `CORE` the resources of the core group that it may write. A test binds the role `secrets` where the
/// account may read Secrets.
const RIGHTS: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: NAME, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NAME}
rules:
  - apiGroups: [fixtures.operetta.dev, operetta.dev, apiextensions.k8s.io, apiregistration.k8s.io, admissionregistration.k8s.io, coordination.k8s.io, events.k8s.io]
    resources: ['*']
    verbs: ['*']
  - {apiGroups: [''], resources: [CORE], verbs: ['*']}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: secrets}
rules: [{apiGroups: [''], resources: [secrets], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAME}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAME}
subjects: [{kind: ServiceAccount, name: NAME, namespace: kube-system}]
";

/// Creates an account with [`RIGHTS`] for a manager. Returns when they count.
pub async fn make_account(plane: &ControlPlane, name: &str, core: &str) {
    let rights = RIGHTS.replace("NAME", name).replace("CORE", core);
    kubectl_of(plane, &["apply", "-f", "-"], &rights).await.ok();
    let user = operetta::rights::user("kube-system", name);
    rights::decides(plane, &user, "", ("list", "operetta.dev", "planruns"), true).await;
}

/// Does the same as [`make_account`]. Returns the account's kubeconfig.
pub async fn account(plane: &ControlPlane, name: &str, core: &str) -> PathBuf {
    make_account(plane, name, core).await;
    rights::kubeconfig(plane, "kube-system", name).await
}
