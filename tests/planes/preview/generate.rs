//! Packages and changes of them, generated from a seed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use fastrand::Rng;
use serde_json::{Value, json};

use crate::support::crd;

pub(super) const GROUP: &str = "preview.example.org";

/// The kind of object that a template renders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    ConfigMap,
    Secret,
    Service,
    ServiceAccount,
    RoleBinding,
    Deployment,
}

const SORTS: [Sort; 6] =
    [Sort::ConfigMap, Sort::Secret, Sort::Service, Sort::ServiceAccount, Sort::RoleBinding, Sort::Deployment];

#[derive(Debug, Clone)]
pub(super) struct Child {
    id: String,
    sort: Sort,
    /// The suffix of the object's name.
    suffix: String,
    /// A number that the object shows in one of its fields.
    value: u32,
    /// Whether the data of a `ConfigMap` is immutable.
    is_frozen: bool,
    policy: Option<&'static str>,
    recreates: bool,
    when: Option<&'static str>,
    after: Option<String>,
    /// The expression with the number of members, if there are members.
    members: Option<String>,
    renamed_from: Option<String>,
    /// The field of the spec that the object shows.
    shows: Option<&'static str>,
    is_generated: bool,
}

/// A generated package.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) number: usize,
    version: u32,
    children: Vec<Child>,
    fields: BTreeMap<&'static str, &'static str>,
    has_plans: bool,
    scope: &'static str,
    /// The names of the CRD's versions; the last is stored.
    versions: Vec<&'static str>,
}

/// A change that a case makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutation {
    Nothing,
    Value,
    Add,
    Collide,
    Remove,
    RemoveRetained,
    RemoveAsked,
    RenameId,
    RenameWithFormer,
    RenameObject,
    Frozen,
    Recreated,
    Default,
    Narrow,
    When,
    Members,
    Policy,
    Generate,
    Scope,
    Version,
}

const MUTATIONS: [Mutation; 20] = [
    Mutation::Nothing,
    Mutation::Value,
    Mutation::Add,
    Mutation::Collide,
    Mutation::Remove,
    Mutation::RemoveRetained,
    Mutation::RemoveAsked,
    Mutation::RenameId,
    Mutation::RenameWithFormer,
    Mutation::RenameObject,
    Mutation::Frozen,
    Mutation::Recreated,
    Mutation::Default,
    Mutation::Narrow,
    Mutation::When,
    Mutation::Members,
    Mutation::Policy,
    Mutation::Generate,
    Mutation::Scope,
    Mutation::Version,
];

/// A package and its next version.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) old: Model,
    pub(super) new: Model,
    pub(super) mutations: Vec<Mutation>,
    /// The suffixes of the names of objects that others have created before.
    pub(super) others: Vec<String>,
}

impl Case {
    /// The case with this number.
    pub(super) fn new(number: usize) -> Self {
        let mut rng = Rng::with_seed(0x0e7a_0000 + number as u64);
        let mut old = Model::new(number, &mut rng);
        let mut mutations = vec![MUTATIONS[number % MUTATIONS.len()]];
        if !is_alone(mutations[0]) {
            for _ in 0..rng.usize(0..3) {
                let more = MUTATIONS[rng.usize(..MUTATIONS.len())];
                if !is_alone(more) && !mutations.contains(&more) {
                    mutations.push(more);
                }
            }
        }
        for mutation in &mutations {
            old.prepare(*mutation, &mut rng);
        }
        let (mut new, mut others) = (old.clone(), Vec::new());
        new.version += 1;
        for mutation in &mutations {
            others.extend(new.mutate(*mutation, &mut rng));
        }
        Self { old, new, mutations, others }
    }
}

/// Whether a mutation is tested alone: it makes the whole package refused, or changes nothing, so others
/// would not show.
fn is_alone(mutation: Mutation) -> bool {
    matches!(mutation, Mutation::Nothing | Mutation::Narrow | Mutation::Scope | Mutation::Version)
}

impl Model {
    fn new(number: usize, rng: &mut Rng) -> Self {
        let mut model = Self {
            number,
            version: 1,
            children: Vec::new(),
            fields: BTreeMap::from([("size", "{type: integer, default: 1}")]),
            has_plans: number.is_multiple_of(4),
            scope: "Namespaced",
            versions: vec!["v1"],
        };
        model.add(Sort::ConfigMap);
        for _ in 0..rng.usize(2..5) {
            let sort = SORTS[rng.usize(..SORTS.len())];
            let child = model.add(sort);
            if sort == Sort::ConfigMap && rng.u8(0..3) == 0 {
                child.members = Some("spec.size".to_owned());
            }
            if rng.u8(0..4) == 0 {
                child.when = Some("spec.size > 1");
            }
        }
        model
    }

    fn add(&mut self, sort: Sort) -> &mut Child {
        let count = self.children.len();
        let id = format!("c{count}");
        // Every second child depends on the first one.
        let after = (count > 0 && count.is_multiple_of(2)).then(|| "c0".to_owned());
        self.children.push(Child {
            suffix: id.clone(),
            id,
            sort,
            value: 1,
            is_frozen: false,
            policy: None,
            recreates: false,
            when: None,
            after,
            members: None,
            renamed_from: None,
            shows: None,
            is_generated: false,
        });
        self.children.last_mut().unwrap()
    }

    /// The index of the child that a mutation changes: its own, at the end.
    fn own(&self, mutation: Mutation) -> usize {
        let id = format!("own{}", mutation as usize);
        self.children.iter().position(|child| child.suffix == id).unwrap()
    }

    fn add_own(&mut self, mutation: Mutation, sort: Sort) -> &mut Child {
        let id = format!("own{}", mutation as usize);
        let child = self.add(sort);
        child.suffix.clone_from(&id);
        child.id = id;
        child.after = None;
        child
    }

    /// Adds to the package what a mutation changes.
    fn prepare(&mut self, mutation: Mutation, rng: &mut Rng) {
        let any = SORTS[rng.usize(..SORTS.len())];
        match mutation {
            Mutation::Remove
            | Mutation::RenameId
            | Mutation::RenameWithFormer
            | Mutation::RenameObject
            | Mutation::Policy => {
                self.add_own(mutation, any);
            }
            Mutation::RemoveRetained => self.add_own(mutation, any).policy = Some("Retain"),
            Mutation::RemoveAsked => self.add_own(mutation, any).policy = Some("Ask"),
            Mutation::Frozen => self.add_own(mutation, Sort::ConfigMap).is_frozen = true,
            Mutation::Recreated => {
                let sort = if rng.bool() { Sort::RoleBinding } else { Sort::ConfigMap };
                let child = self.add_own(mutation, sort);
                child.is_frozen = sort == Sort::ConfigMap;
                child.recreates = true;
            }
            Mutation::When => self.add_own(mutation, any).when = Some("spec.size > 1"),
            Mutation::Members => {
                self.add_own(mutation, Sort::ConfigMap).members = Some("spec.size".to_owned());
            }
            Mutation::Generate => {
                self.add_own(mutation, Sort::Secret);
            }
            Mutation::Default => {
                self.add_own(mutation, Sort::ConfigMap);
            }
            _ => {}
        }
    }

    /// Changes the package. Returns the suffixes of the names of objects that others have created.
    fn mutate(&mut self, mutation: Mutation, rng: &mut Rng) -> Vec<String> {
        let any = SORTS[rng.usize(..SORTS.len())];
        match mutation {
            Mutation::Nothing => {}
            Mutation::Value => {
                let changeable = |child: &&mut Child| child.sort != Sort::RoleBinding && !child.is_frozen;
                let mut children: Vec<_> = self.children.iter_mut().filter(changeable).collect();
                let count = children.len();
                children[rng.usize(..count)].value += 1;
                children[0].value += 1;
            }
            Mutation::Add => {
                self.add_own(mutation, any);
            }
            Mutation::Collide => {
                self.add_own(mutation, Sort::ConfigMap);
                return vec![format!("own{}", mutation as usize)];
            }
            Mutation::Remove | Mutation::RemoveRetained | Mutation::RemoveAsked => {
                let index = self.own(mutation);
                self.children.remove(index);
            }
            Mutation::RenameId | Mutation::RenameWithFormer => {
                let index = self.own(mutation);
                let child = &mut self.children[index];
                let former = std::mem::replace(&mut child.id, format!("new-{}", child.suffix));
                child.renamed_from = (mutation == Mutation::RenameWithFormer).then_some(former);
            }
            Mutation::RenameObject => {
                let index = self.own(mutation);
                self.children[index].suffix.push_str("-new");
            }
            Mutation::Frozen | Mutation::Recreated => {
                let index = self.own(mutation);
                self.children[index].value += 1;
            }
            Mutation::Default => {
                self.fields.insert("colour", "{type: string, default: red}");
                let index = self.own(mutation);
                self.children[index].shows = Some("colour");
            }
            Mutation::Narrow => {
                self.fields.insert("size", "{type: integer, default: 1, maximum: 2}");
            }
            Mutation::When => {
                let index = self.own(mutation);
                self.children[index].when = Some("spec.size < 2");
            }
            Mutation::Members => {
                let index = self.own(mutation);
                let more = if rng.bool() { "spec.size + 1" } else { "spec.size - 1" };
                self.children[index].members = Some(more.to_owned());
            }
            Mutation::Policy => {
                let index = self.own(mutation);
                self.children[index].policy = Some("Retain");
            }
            Mutation::Generate => {
                let index = self.own(mutation);
                self.children[index].is_generated = true;
            }
            Mutation::Scope => self.scope = "Cluster",
            Mutation::Version => self.versions = vec!["v2"],
        }
        Vec::new()
    }

    pub(super) fn name(&self) -> String {
        format!("preview-{}", self.number)
    }

    pub(super) fn plural(&self) -> String {
        format!("pv{}s", self.number)
    }

    pub(super) fn kind(&self) -> String {
        format!("Pv{}", self.number)
    }

    /// The names of its instances with their specs.
    pub(super) fn instances(&self) -> [(String, Value); 2] {
        let name = |letter: char| format!("x{}{letter}", self.number);
        [(name('a'), json!({"size": 1})), (name('b'), json!({"size": 3}))]
    }

    pub(super) fn has_plans(&self) -> bool {
        self.has_plans
    }

    /// Writes the package. Returns the folder.
    pub(super) fn write(&self, root: &Path) -> String {
        let folder = root.join(format!("{}-{}", self.name(), self.version));
        std::fs::create_dir_all(folder.join("crds")).unwrap();
        std::fs::create_dir_all(folder.join("templates")).unwrap();
        std::fs::write(folder.join("crds/crd.yaml"), self.crd()).unwrap();
        let mut manifest = format!(
            "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {{name: {}}}
spec:
  version: 0.{}.0
  resources:
    - crd: crds/crd.yaml
      children:
",
            self.name(),
            self.version
        );
        for child in &self.children {
            let file = format!("templates/{}.yaml", child.id);
            std::fs::write(folder.join(&file), child.template(self.scope == "Cluster")).unwrap();
            let _ = write!(manifest, "        - id: {}\n          template: {file}\n", child.id);
            let mut line = |key: &str, value: Option<String>| {
                if let Some(value) = value {
                    let _ = writeln!(manifest, "          {key}: {value}");
                }
            };
            let members =
                child.members.as_ref().map(|count| format!("{{in: \"range({count})\", as: i, key: i}}"));
            line("forEach", members);
            line("when", child.when.map(str::to_owned));
            line("deletionPolicy", child.policy.map(str::to_owned));
            line("onImmutableChange", child.recreates.then(|| "Recreate".to_owned()));
            line("renamedFrom", child.renamed_from.as_ref().map(|id| format!("[{id}]")));
            line("onLoss", child.is_generated.then(|| "Recreate".to_owned()));
            line("dependsOn", child.after.as_ref().map(|id| format!("[{id}]")));
        }
        if self.has_plans {
            manifest.push_str(
                "      plans:
        deploy: {steps: [{name: first, apply: [c0]}]}
        upgrade: {steps: [{name: first, apply: [c0]}, {name: checked, wait: {until: children.c0 is defined}}]}
",
            );
        }
        std::fs::write(folder.join("operator.yaml"), manifest).unwrap();
        folder.to_str().unwrap().to_owned()
    }

    fn crd(&self) -> String {
        let fields: Vec<String> =
            self.fields.iter().map(|(name, schema)| format!("{name}: {schema}")).collect();
        let schema = format!(
            "schema: {{openAPIV3Schema: {{type: object, properties: {{spec: {{type: object, properties: {{{}}}}}}}}}}}",
            fields.join(", ")
        );
        let text = crd::crd(GROUP, &self.plural(), &self.kind(), &schema);
        let text = text.replace("scope: Namespaced", &format!("scope: {}", self.scope));
        let stored = self.versions.last().unwrap();
        let (head, version) = text.split_once("    - name: v1\n").unwrap();
        self.versions.iter().fold(head.to_owned(), |mut text, name| {
            let storage = format!("storage: {}", name == stored);
            let _ = write!(text, "    - name: {name}\n{}", version.replace("storage: true", &storage));
            text
        })
    }
}

impl Child {
    fn template(&self, is_cluster_scoped: bool) -> String {
        let Self { sort, suffix, value, .. } = self;
        let name = match self.members {
            Some(_) => format!("{{{{ name }}}}-{suffix}-{{{{ i }}}}"),
            None => format!("{{{{ name }}}}-{suffix}"),
        };
        let place = if is_cluster_scoped { ", namespace: default" } else { "" };
        let metadata = format!("metadata: {{name: \"{name}\"{place}}}\n");
        let here = if is_cluster_scoped { "default" } else { "{{ namespace }}" };
        let shown =
            self.shows.map(|field| format!(", shown: \"{{{{ spec.{field} }}}}\"")).unwrap_or_default();
        match sort {
            Sort::ConfigMap => {
                let frozen = if self.is_frozen { "immutable: true\n" } else { "" };
                format!(
                    "apiVersion: v1\nkind: ConfigMap\n{metadata}data: {{value: \"hunter{value}\", size: \"{{{{ spec.size }}}}\"{shown}}}\n{frozen}"
                )
            }
            Sort::Secret => {
                let generated = if self.is_generated { "\n  made: {{ password(16) }}" } else { "" };
                format!(
                    "apiVersion: v1\nkind: Secret\n{metadata}stringData:\n  value: \"hunter{value}\"{generated}\n"
                )
            }
            Sort::Service => format!(
                "apiVersion: v1\nkind: Service\n{metadata}spec: {{selector: {{app: \"{{{{ name }}}}\"}}, ports: [{{name: a, port: {}}}]}}\n",
                8000 + value
            ),
            Sort::ServiceAccount => {
                format!(
                    "apiVersion: v1\nkind: ServiceAccount\n{metadata}automountServiceAccountToken: {}\n",
                    value % 2 == 0
                )
            }
            Sort::RoleBinding => {
                let role = if value % 2 == 0 { "edit" } else { "view" };
                format!(
                    "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\n{metadata}roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {role}}}\nsubjects: [{{kind: ServiceAccount, name: default, namespace: \"{here}\"}}]\n"
                )
            }
            Sort::Deployment => format!(
                "apiVersion: apps/v1\nkind: Deployment\n{metadata}spec:\n  replicas: 0\n  selector: {{matchLabels: {{app: \"{{{{ name }}}}-{suffix}\"}}}}\n  template:\n    metadata: {{labels: {{app: \"{{{{ name }}}}-{suffix}\"}}}}\n    spec: {{containers: [{{name: web, image: \"registry.example.com/web:{value}\"}}]}}\n"
            ),
        }
    }
}
