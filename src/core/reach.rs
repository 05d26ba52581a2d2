//! How far the objects of a package may reach: into which namespaces they are written, with which accounts their pods run, and what
//! these may do on nodes. What the person who installs the package has not seen, or has not opened by name, is refused.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::api::{BuiltIn, Gvk};
use crate::package::powers::{self, Powers};

/// The namespace of the control plane.
const KUBE_SYSTEM: &str = "kube-system";
/// The manager's account, and the beginning of the names of the accounts of packages.
const ACCOUNT: &str = "operetta";

/// Annotation of a Secret: the account of which it gets a token.
const TOKEN_OF: &str = "kubernetes.io/service-account.name";

static NOTHING: BTreeSet<String> = BTreeSet::new();

/// The namespaces that are closed to packages unless they are opened by name: who may write there controls the cluster, or the
/// manager.
pub fn closed(manager_namespace: &str) -> [&str; 2] {
    [KUBE_SYSTEM, manager_namespace]
}

/// How far the objects of one instance may reach.
#[derive(Debug, Clone, Copy)]
pub struct Reach<'a> {
    /// The manager's namespace, where the accounts are.
    pub manager: &'a str,
    /// The namespaces into which nothing is written, but for instances there.
    pub closed: &'a BTreeSet<String>,
    /// The namespace of the instance, if it has one.
    pub home: Option<&'a str>,
    /// The powers of pods that the files of the package show.
    pub powers: &'a Powers,
}

/// What is about to be written.
#[derive(Debug, Clone, Copy)]
pub struct Planned<'a> {
    /// The file of the package that it is from.
    pub file: &'a str,
    /// Its kind.
    pub gvk: &'a Gvk,
    /// Its name.
    pub name: &'a str,
    /// Its namespace, if its kind has one.
    pub namespace: Option<&'a str>,
    /// The object, or a part of it.
    pub body: &'a Value,
}

impl<'a> Reach<'a> {
    /// The reach of a package for which no namespace is closed.
    pub fn open(powers: &'a Powers) -> Self {
        Self { manager: "", closed: &NOTHING, home: None, powers }
    }

    /// Why an object, or a part of it, must not be written.
    pub fn refuses(&self, planned: &Planned<'_>) -> Option<String> {
        let Planned { file, gvk, name, namespace, body } = *planned;
        let namespaced = BuiltIn::find(gvk.group(), &gvk.kind).is_none_or(|known| known.namespaced);
        let namespace = namespace.filter(|_| namespaced);
        let itself = Some(name).filter(|_| gvk.is("v1", "Namespace"));
        let closed = |it: &&str| self.closed.contains(*it) && self.home != Some(*it);
        if let Some(namespace) = namespace.or(itself).filter(closed) {
            let whom = if namespace == KUBE_SYSTEM { "the cluster" } else { "the manager" };
            return Some(format!(
                "the namespace {namespace} is closed to packages, because who may write there controls {whom}: a person who installs the \
                 package can open it with `--system-namespaces {namespace}`, or spec.systemNamespaces of the Operator"
            ));
        }
        let shown = self.powers.of(file);
        let hidden: Vec<String> =
            powers::of_object(gvk, body).difference(shown).map(ToString::to_string).collect();
        if !hidden.is_empty() {
            return Some(format!(
                "it sets {}, and {file} does not show that to those who install the package: write the field there, \
                 with an expression as its value if an instance chooses it",
                hidden.join(", ")
            ));
        }
        if namespace != Some(self.manager) {
            return None;
        }
        let is_ours = |account: &&str| {
            account.strip_prefix(ACCOUNT).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let pod = powers::pod_of(gvk, body);
        let of_pod = pod.into_iter().flat_map(|pod| [&pod["serviceAccountName"], &pod["serviceAccount"]]);
        let of_token = gvk.is("v1", "Secret").then(|| &body["metadata"]["annotations"][TOKEN_OF]);
        let account = of_pod.chain(of_token).filter_map(Value::as_str).find(is_ours)?;
        Some(format!(
            "it would act as {account}, an account of the manager or of a package, which nothing in a package may"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn closed_namespaces_and_powers_that_no_file_shows_are_refused() {
        let closed: BTreeSet<String> = closed("managers").map(str::to_owned).into();
        let powers = Powers::default();
        let refused = |home: Option<&str>, api: &str, kind: &str, namespace: &str, body: Value| {
            let (gvk, namespace) = (Gvk::new(api, kind), Some(namespace).filter(|it| !it.is_empty()));
            let name = body["metadata"]["name"].as_str().unwrap_or("x");
            let planned = Planned { file: "templates/a.yaml", gvk: &gvk, name, namespace, body: &body };
            let reach = Reach { manager: "managers", closed: &closed, home, powers: &powers };
            reach.refuses(&planned).unwrap_or_default()
        };
        let pod =
            |home, namespace: &str, spec: Value| refused(home, "v1", "Pod", namespace, json!({"spec": spec}));
        assert_eq!(pod(Some("a"), "a", json!({"volumes": [{"emptyDir": {}}]})), "");
        assert_eq!(pod(Some("kube-system"), "kube-system", json!({})), "", "an instance there");
        assert_eq!(
            refused(Some("a"), "v1", "Node", "kube-system", json!({})),
            "",
            "a kind without namespaces"
        );
        for (namespace, spec, words) in [
            ("kube-system", json!({}), "controls the cluster"),
            ("managers", json!({}), "--system-namespaces managers"),
            (
                "a",
                json!({"hostPID": true}),
                "it sets hostNetwork, hostPID or hostIPC, and templates/a.yaml does not show",
            ),
        ] {
            for home in [None, Some("b")] {
                assert!(pod(home, namespace, spec.clone()).contains(words), "{words}");
            }
        }
        let here = Some("managers");
        for (field, name, is_ours) in [
            ("serviceAccountName", "operetta", true),
            ("serviceAccount", "operetta-web", true),
            ("serviceAccountName", "operettas", false),
            ("serviceAccountName", "default", false),
        ] {
            let told = pod(here, "managers", json!({field: name}));
            assert_eq!(told.contains("would act as operetta"), is_ours, "{name}: {told}");
        }
        let unnamed = json!({"serviceAccountName": "", "serviceAccount": "operetta"});
        assert!(pod(here, "managers", unnamed).contains("would act as operetta"));
        assert_eq!(pod(Some("a"), "a", json!({"serviceAccountName": "operetta"})), "", "another account");
        let token = json!({"metadata": {"annotations": {TOKEN_OF: "operetta"}}});
        assert!(refused(here, "v1", "Secret", "managers", token).contains("would act as operetta"));
        let itself = json!({"metadata": {"name": "kube-system"}});
        assert!(refused(Some("a"), "v1", "Namespace", "", itself).contains("is closed"));
        let planned = Planned {
            file: "",
            gvk: &Gvk::new("v1", "Pod"),
            name: "x",
            namespace: Some("kube-system"),
            body: &json!({}),
        };
        assert_eq!(Reach::open(&powers).refuses(&planned), None);
    }
}
