//! What the pods of a package may do on nodes, and who decides it: as the templates show it to those who install the package,
//! and as a rendered object has it. A power that no template shows is refused when an object is rendered, so nobody agrees to less
//! than what is run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::template_scan::Outline;
use crate::api::{BuiltIn, Gvk};
use crate::diag::Source;
use crate::facts::BASELINE_CAPABILITIES;
use crate::yaml::{Node, NodeValue};

/// Fields of pods, each with its power.
const FIELDS: [(&str, Power); 6] = [
    ("hostPath", Power::HostPath),
    ("hostNetwork", Power::HostNamespaces),
    ("hostPID", Power::HostNamespaces),
    ("hostIPC", Power::HostNamespaces),
    ("privileged", Power::Privileged),
    ("hostProcess", Power::Privileged),
];

/// Something that pods may do beside what is in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Power {
    /// They mount folders of nodes.
    HostPath,
    /// They share network, processes or memory with their node.
    HostNamespaces,
    /// They have privileged containers.
    Privileged,
    /// Their containers have capabilities beyond the level `baseline` of the Pod Security Standards.
    Capabilities,
    /// They run with an account that an instance chooses.
    ServiceAccount,
}

impl Power {
    /// What a package does with it, without a subject.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::HostPath => "mounts folders of nodes (hostPath)",
            Self::HostNamespaces => {
                "shares network, processes or memory with nodes (hostNetwork, hostPID, hostIPC)"
            }
            Self::Privileged => "runs privileged containers",
            Self::Capabilities => "runs containers with capabilities that the level baseline does not allow",
            Self::ServiceAccount => "runs pods with a ServiceAccount that an instance chooses",
        }
    }
}

impl fmt::Display for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostPath => "hostPath",
            Self::HostNamespaces => "hostNetwork, hostPID or hostIPC",
            Self::Privileged => "privileged",
            Self::Capabilities => "capabilities.add",
            Self::ServiceAccount => "serviceAccountName",
        })
    }
}

/// The powers that a package shows, by the path of the file that shows them.
#[derive(Debug, Clone, Default)]
pub struct Powers(BTreeMap<String, BTreeSet<Power>>);

static NONE: BTreeSet<Power> = BTreeSet::new();

impl Powers {
    /// All powers that the package shows.
    pub fn all(&self) -> BTreeSet<Power> {
        self.0.values().flatten().copied().collect()
    }

    /// The powers of what a file renders: its own, and those of all partials.
    pub fn of(&self, file: &str) -> &BTreeSet<Power> {
        self.0.get(file).unwrap_or(&NONE)
    }

    /// Reads the powers of files, each with its outline. `children`: the templates of children. What another file shows may be in what
    /// each of them renders.
    pub(super) fn read<'a>(
        files: impl IntoIterator<Item = (&'a str, &'a Arc<Source>, Option<&'a Outline>)>,
        children: &BTreeSet<String>,
    ) -> Self {
        let (mut found, mut partials) = (BTreeMap::<_, BTreeSet<Power>>::new(), BTreeSet::new());
        for (path, source, outline) in files {
            let mut powers = BTreeSet::new();
            match outline {
                Some(outline) => Scan { outline, found: &mut powers }.node(outline.node()),
                // A text with branches that is no YAML without them: each of the words counts.
                None => powers.extend(words(&source.text)),
            }
            if !children.contains(path) {
                partials.extend(powers.iter().copied());
            }
            found.insert(path.to_owned(), powers);
        }
        for powers in found.values_mut() {
            powers.extend(partials.iter().copied());
        }
        Self(found)
    }

    /// Adds a power of what a file renders.
    pub(super) fn add(&mut self, file: &str, power: Power) {
        self.0.entry(file.to_owned()).or_default().insert(power);
    }

    #[cfg(test)]
    fn of_text(text: &str) -> Vec<Power> {
        let source = Source::new("a", text);
        let outline = Outline::of(&source);
        let files = [("a", &source, outline.as_ref())];
        Self::read(files, &BTreeSet::new()).of("a").iter().copied().collect()
    }
}

/// The powers whose words are in a text.
fn words(text: &str) -> impl Iterator<Item = Power> {
    let all = FIELDS.into_iter().chain([("capabilities", Power::Capabilities)]);
    all.filter(move |(word, _)| text.contains(word)).map(|(_, power)| power)
}

struct Scan<'a> {
    outline: &'a Outline,
    found: &'a mut BTreeSet<Power>,
}

impl Scan<'_> {
    fn node(&mut self, node: &Node) {
        match &node.value {
            NodeValue::Map(entries) => entries.iter().for_each(|(key, value)| self.entry(key, value)),
            NodeValue::Seq(items) => items.iter().for_each(|item| self.node(item)),
            // An expression may yield a list or a map.
            NodeValue::String(_) => {
                let text = self.outline.text(node);
                if text.contains(['{', '[']) {
                    self.found.extend(words(text));
                }
            }
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) => {}
        }
    }

    fn entry(&mut self, key: &Node, value: &Node) {
        let name = key.as_str().unwrap_or_default();
        let is_off =
            matches!(value.value, NodeValue::Bool(false) | NodeValue::Null) && !self.is_computed(value);
        let power = FIELDS.iter().find(|(field, _)| *field == name);
        self.found.extend(power.filter(|_| !is_off).map(|(_, power)| *power));
        if name == "capabilities" && self.adds(value) {
            self.found.insert(Power::Capabilities);
        }
        self.node(key);
        self.node(value);
    }

    fn is_computed(&self, node: &Node) -> bool {
        self.outline.text(node).contains("{{")
    }

    /// Whether capabilities are added that are not in the baseline, or may be.
    fn adds(&self, capabilities: &Node) -> bool {
        let Some(add) = capabilities.get("add") else { return self.is_computed(capabilities) };
        match &add.value {
            NodeValue::Seq(items) => items.iter().any(|item| {
                self.is_computed(item)
                    || !item.as_str().is_some_and(|name| BASELINE_CAPABILITIES.contains(&name))
            }),
            _ => self.is_computed(add),
        }
    }
}

/// The powers of an object, or of a part of one. Who has chosen its account is not in it.
pub fn of_object(gvk: &Gvk, object: &Value) -> BTreeSet<Power> {
    let mut found = BTreeSet::new();
    if gvk.is("v1", "PersistentVolume") && !object["spec"]["hostPath"].is_null() {
        found.insert(Power::HostPath);
    }
    let Some(pod) = pod_of(gvk, object) else { return found };
    let items = |field: &str| pod[field].as_array().into_iter().flatten();
    if items("volumes").any(|volume| !volume["hostPath"].is_null()) {
        found.insert(Power::HostPath);
    }
    if ["hostNetwork", "hostPID", "hostIPC"].iter().any(|field| pod[*field] == true) {
        found.insert(Power::HostNamespaces);
    }
    let is_host_process = |part: &Value| part["securityContext"]["windowsOptions"]["hostProcess"] == true;
    if is_host_process(pod) {
        found.insert(Power::Privileged);
    }
    let containers = ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(items);
    for container in containers {
        let context = &container["securityContext"];
        if context["privileged"] == true || is_host_process(container) {
            found.insert(Power::Privileged);
        }
        let mut added = context["capabilities"]["add"].as_array().into_iter().flatten();
        if !added.all(|name| name.as_str().is_some_and(|name| BASELINE_CAPABILITIES.contains(&name))) {
            found.insert(Power::Capabilities);
        }
    }
    found
}

/// The `spec` of the pods of an object of Kubernetes; `None` if it has none.
pub fn pod_of<'a>(gvk: &Gvk, object: &'a Value) -> Option<&'a Value> {
    Some(&template_of(gvk)?.iter().fold(object, |part, field| &part[*field])["spec"])
}

/// Where the template of the pods is in objects of a kind of Kubernetes; `None` if they have none.
pub(super) fn template_of(gvk: &Gvk) -> Option<&'static [&'static str]> {
    if gvk.is("v1", "PodTemplate") {
        return Some(&["template"]);
    }
    BuiltIn::find(gvk.group(), &gvk.kind)?.pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn templates_show_what_their_pods_may_do() {
        let pod = |spec: &str| Powers::of_text(&format!("apiVersion: v1\nkind: Pod\nspec: {spec}\n"));
        for (spec, expected) in [
            ("{volumes: [{name: a, emptyDir: {}}]}", vec![]),
            ("{volumes: [{name: a, hostPath: {path: /}}]}", vec![Power::HostPath]),
            ("{volumes: \"{{ [{'name': 'a', 'hostPath': {'path': '/'}}] }}\"}", vec![Power::HostPath]),
            ("{hostPID: true, hostIPC: false}", vec![Power::HostNamespaces]),
            ("{hostNetwork: false}", vec![]),
            ("{hostNetwork: \"{{ spec.host }}\"}", vec![Power::HostNamespaces]),
            ("{containers: [{securityContext: {privileged: true}}]}", vec![Power::Privileged]),
            ("{containers: [{securityContext: {privileged: false}}]}", vec![]),
            ("{containers: [{securityContext: {capabilities: {drop: [ALL], add: [CHOWN]}}}]}", vec![]),
            (
                "{containers: [{securityContext: {capabilities: {add: [SYS_ADMIN]}}}]}",
                vec![Power::Capabilities],
            ),
            (
                "{containers: [{securityContext: {capabilities: {add: \"{{ spec.c }}\"}}}]}",
                vec![Power::Capabilities],
            ),
        ] {
            assert_eq!(pod(spec), expected, "{spec}");
        }
        let branches =
            "spec:\n{% if spec.a %}\n  - hostNetwork: true\n{% else %}\n  a: {b: c}\n{% endif %}\n";
        assert_eq!(Powers::of_text(branches), [Power::HostNamespaces], "no YAML without its expressions");
    }

    #[test]
    fn objects_have_what_is_in_their_pods() {
        let deployment = Gvk::new("apps/v1", "Deployment");
        let found = |spec: Value| of_object(&deployment, &json!({"spec": {"template": {"spec": spec}}}));
        assert!(
            found(json!({"containers": [{"securityContext": {"capabilities": {"add": ["KILL"]}}}]}))
                .is_empty()
        );
        for (spec, power) in [
            (json!({"volumes": [{"hostPath": {"path": "/"}}]}), Power::HostPath),
            (json!({"hostPID": true}), Power::HostNamespaces),
            (json!({"initContainers": [{"securityContext": {"privileged": true}}]}), Power::Privileged),
            (json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}), Power::Privileged),
            (
                json!({"containers": [{"securityContext": {"capabilities": {"add": ["NET_RAW"]}}}]}),
                Power::Capabilities,
            ),
        ] {
            assert_eq!(found(spec.clone()), BTreeSet::from([power]), "{spec}");
        }
        let volume = json!({"spec": {"hostPath": {"path": "/"}}});
        assert_eq!(
            of_object(&Gvk::new("v1", "PersistentVolume"), &volume),
            BTreeSet::from([Power::HostPath])
        );
        assert!(of_object(&Gvk::new("v1", "ConfigMap"), &volume).is_empty());
        let cron = json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": {"hostIPC": true}}}}}});
        assert_eq!(of_object(&Gvk::new("batch/v1", "CronJob"), &cron).len(), 1);
    }
}
