//! Which roles of which revisions of a package are bound to its account. Each revision brings its roles; the manager binds those
//! of the revisions that are in use and no others, so the account has the rights that are needed and no right is left over,
//! whether a revision came by command or from Git, forward or back. It cannot bind anything else: see `objects.rs`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::objects::{API, GROUP, Owner, account, labels, role_of_revision};
use super::part::Part;
use crate::package::store::objects::{self, REVISION};

/// An annotation of an `Operator`, which names a revision whose roles were applied: its change makes the manager look for them.
pub const ROLES_APPLIED: &str = "operetta.dev/roles-applied";

/// What is in use of a package.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InUse {
    /// The names of its revisions that are active, or that instances or runs use.
    pub revisions: BTreeSet<String>,
    /// Resources (group and plural) that none of these revisions has any more, of children that may be left, and of instances
    /// whose CRD is still there.
    pub left: BTreeSet<(String, String)>,
    /// The namespaces whose instances are served; `None` is all.
    pub namespaces: Option<BTreeSet<String>>,
}

/// The objects that exist.
#[derive(Debug, Default)]
pub struct Found {
    /// The uids of the stored revisions, by name.
    pub revisions: BTreeMap<String, String>,
    /// The `ClusterRole`s of the package.
    pub roles: Vec<Value>,
    /// The bindings of the package, with their `kind`.
    pub bindings: Vec<Value>,
}

/// The changes to make.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// The revisions whose roles are to be bound, which are those in use, and earlier ones whose children are left.
    pub bound: BTreeSet<String>,
    /// Bindings to apply, each with the role that it binds.
    pub apply: Vec<(Value, Value)>,
    /// Bindings to delete.
    pub delete: Vec<Value>,
    /// Roles that the garbage collector would not delete with their revision, and the `ownerReferences` that they lack.
    pub adopt: Vec<(Value, Value)>,
}

/// A role of a revision.
struct Role<'a> {
    object: &'a Value,
    revision: &'a str,
    /// The part; `None` if it is no role of the account.
    part: Option<Part>,
}

impl<'a> Role<'a> {
    fn created(&self) -> Option<&'a str> {
        self.object["metadata"]["creationTimestamp"].as_str()
    }
}

/// The changes by which exactly the roles of what is in use are bound to the account of a package, which is in the manager's
/// namespace.
pub fn changes(package: &str, manager_namespace: &str, in_use: &InUse, found: &Found) -> Changes {
    let roles: Vec<Role<'_>> =
        found.roles.iter().filter_map(|role| of_revision(package, role, found)).collect();
    let mut bound: BTreeSet<String> = in_use.revisions.clone();
    for (group, plural) in &in_use.left {
        let grants = |role: &&Role<'_>| {
            // Children are deleted by the account, and instances are read by the manager.
            let verb = if role.part.is_some() { "delete" } else { "list" };
            allows(role.object, (group, plural, verb))
        };
        if roles.iter().filter(grants).any(|role| bound.contains(role.revision)) {
            continue;
        }
        let newest = roles.iter().filter(grants).max_by_key(|role| (role.created(), role.revision));
        bound.extend(newest.map(|role| role.revision.to_owned()));
    }
    let subjects =
        json!([{"kind": "ServiceAccount", "name": account(package), "namespace": manager_namespace}]);
    let mut wanted = Vec::new();
    for role in roles.iter().filter(|role| bound.contains(role.revision)) {
        let name = role.object["metadata"]["name"].as_str().unwrap_or_default();
        let Some(part) = &role.part else { continue };
        let owners = objects::owners(role.revision, &found.revisions[role.revision]);
        let mut add = |namespace: Option<&str>| {
            let mut labels = labels(package);
            labels[REVISION] = role.revision.into();
            let mut metadata = json!({"name": name, "labels": labels, "ownerReferences": owners});
            if let Some(namespace) = namespace {
                metadata["namespace"] = namespace.into();
            }
            let binding = json!({
                "apiVersion": API,
                "kind": if namespace.is_some() { "RoleBinding" } else { "ClusterRoleBinding" },
                "metadata": metadata,
                "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
                "subjects": subjects,
            });
            wanted.push((binding, role.object.clone()));
        };
        match (part, &in_use.namespaces) {
            (Part::In(namespace), _) => add(Some(namespace)),
            (Part::Home, Some(namespaces)) => namespaces.iter().for_each(|namespace| add(Some(namespace))),
            (Part::Cluster, _) | (Part::Home, None) => add(None),
        }
    }
    let is_same = |one: &Value, other: &Value| {
        one["kind"] == other["kind"]
            && ["name", "namespace"].iter().all(|field| one["metadata"][field] == other["metadata"][field])
    };
    let ours = Owner::Package(package.to_owned());
    let is_ours = |live: &&Value| live["metadata"]["labels"][REVISION].is_string() && Owner::of(live) == ours;
    let there: Vec<&Value> = found.bindings.iter().filter(is_ours).collect();
    let is_wanted = |live: &&&Value| wanted.iter().any(|(binding, _)| is_same(binding, live));
    let delete = there.iter().filter(|live| !is_wanted(live)).map(|live| (*live).clone()).collect();
    let is_there = |binding: &Value| {
        there.iter().any(|live| is_same(binding, live) && live["subjects"] == binding["subjects"])
    };
    let apply = wanted.iter().filter(|(binding, _)| !is_there(binding)).cloned().collect();
    let adopt = roles.iter().filter_map(|role| {
        let uid = &found.revisions[role.revision];
        let there = role.object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        if there.iter().any(|owner| owner["uid"] == uid.as_str()) {
            return None;
        }
        let mut owners = objects::owners(role.revision, uid);
        owners.as_array_mut()?.extend(there);
        Some((role.object.clone(), owners))
    });
    let adopt = adopt.collect();
    bound.retain(|revision| roles.iter().any(|role| role.revision == revision));
    Changes { bound, apply, delete, adopt }
}

/// The role of a stored revision of the package, if the object is one.
fn of_revision<'a>(package: &str, object: &'a Value, found: &Found) -> Option<Role<'a>> {
    if Owner::of(object) != Owner::Package(package.to_owned()) {
        return None;
    }
    let revision = object["metadata"]["labels"][REVISION].as_str()?;
    found.revisions.get(revision)?;
    let (prefix, name) = (role_of_revision(package, revision), object["metadata"]["name"].as_str()?);
    name.strip_prefix(&prefix)?;
    Some(Role { object, revision, part: Part::of(&prefix, name) })
}

/// Whether a role has a rule for a verb on a resource.
fn allows(role: &Value, (group, plural, verb): (&str, &str, &str)) -> bool {
    let has = |rule: &Value, field: &str, word: &str| {
        let words = rule[field].as_array().into_iter().flatten();
        words.into_iter().any(|known| known == word || known == "*")
    };
    let rules = role["rules"].as_array().into_iter().flatten();
    rules.into_iter().any(|rule| {
        has(rule, "apiGroups", group) && has(rule, "resources", plural) && has(rule, "verbs", verb)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "web-aaaaaaaaaa";
    const B: &str = "web-bbbbbbbbbb";

    fn role(revision: &str, suffix: &str, created: &str, resource: &str) -> Value {
        let mut labels = labels("web");
        labels[REVISION] = revision.into();
        json!({
            "metadata": {
                "name": format!("{}{suffix}", role_of_revision("web", revision)), "labels": labels,
                "creationTimestamp": created, "ownerReferences": objects::owners(revision, revision),
            },
            "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get", "delete"]}],
        })
    }

    fn found() -> Found {
        Found {
            revisions: [A, B].map(|name| (name.to_owned(), name.to_owned())).into(),
            roles: vec![
                role(A, "", "2026-01-01", "services"),
                role(A, ":in:sys", "2026-01-01", "secrets"),
                role(A, ":instances", "2026-01-01", "webs"),
                role(B, "", "2026-01-02", "configmaps"),
                role(B, ":cluster", "2026-01-02", "nodes"),
            ],
            bindings: Vec::new(),
        }
    }

    fn in_use(revisions: &[&str]) -> InUse {
        InUse { revisions: revisions.iter().map(|name| (*name).to_owned()).collect(), ..InUse::default() }
    }

    /// The text `kind namespace/name` of each object.
    fn names<'a>(all: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
        let text = |object: &Value| {
            let meta = &object["metadata"];
            let namespace = meta["namespace"].as_str().unwrap_or_default();
            let name = meta["name"].as_str().unwrap().replace("operetta:web:", "");
            format!("{} {namespace}/{name}", object["kind"].as_str().unwrap().replace("Binding", ""))
        };
        all.into_iter().map(text).collect()
    }

    fn applied(changes: &Changes) -> Vec<String> {
        names(changes.apply.iter().map(|(binding, _)| binding))
    }

    #[test]
    fn the_roles_of_the_revisions_in_use_are_bound() {
        let mut found = found();
        let first = changes("web", "sys", &in_use(&[A]), &found);
        assert_eq!(applied(&first), ["ClusterRole /aaaaaaaaaa", "Role sys/aaaaaaaaaa:in:sys"]);
        assert_eq!(first.apply[0].0["subjects"][0]["name"], "operetta-web");
        assert_eq!(first.apply[0].0["metadata"]["ownerReferences"][0]["uid"], A);
        assert!(first.delete.is_empty() && first.adopt.is_empty());
        found.bindings = first.apply.into_iter().map(|(binding, _)| binding).collect();
        assert_eq!(applied(&changes("web", "sys", &in_use(&[A]), &found)), [""; 0]);
        // Both are bound while instances are moved, then the new one alone.
        let both = changes("web", "sys", &in_use(&[A, B]), &found);
        assert_eq!(applied(&both), ["ClusterRole /bbbbbbbbbb", "ClusterRole /bbbbbbbbbb:cluster"]);
        assert!(both.delete.is_empty());
        let then = changes("web", "sys", &in_use(&[B]), &found);
        assert_eq!(names(&then.delete), ["ClusterRole /aaaaaaaaaa", "Role sys/aaaaaaaaaa:in:sys"]);
        // Somebody has given the right to another account.
        found.bindings[0]["subjects"][0]["name"] = "other".into();
        assert_eq!(applied(&changes("web", "sys", &in_use(&[A]), &found)), ["ClusterRole /aaaaaaaaaa"]);
    }

    #[test]
    fn an_earlier_revision_stays_bound_while_children_of_its_kinds_are_left() {
        let mut in_use = in_use(&[B]);
        in_use.left.insert((String::new(), "services".to_owned()));
        let changes_of = |in_use: &InUse, found: &Found| changes("web", "sys", in_use, found);
        assert_eq!(changes_of(&in_use, &found()).bound, BTreeSet::from([A.to_owned(), B.to_owned()]));
        let mut newer = found();
        newer.revisions.insert("web-cccccccccc".into(), "c".into());
        newer.roles.push(role("web-cccccccccc", "", "2026-01-03", "services"));
        let bound = changes_of(&in_use, &newer).bound;
        assert_eq!(
            bound,
            BTreeSet::from([B.to_owned(), "web-cccccccccc".to_owned()]),
            "the newest that has it"
        );
        in_use.left = BTreeSet::from([(String::new(), "configmaps".to_owned())]);
        assert_eq!(changes_of(&in_use, &found()).bound, BTreeSet::from([B.to_owned()]));
    }

    #[test]
    fn an_operator_that_names_namespaces_has_bindings_there() {
        let named = |names: &[&str]| InUse {
            namespaces: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..in_use(&[B])
        };
        let mut found = found();
        let first = changes("web", "sys", &named(&["x", "y"]), &found);
        assert_eq!(
            applied(&first),
            ["Role x/bbbbbbbbbb", "Role y/bbbbbbbbbb", "ClusterRole /bbbbbbbbbb:cluster"]
        );
        found.bindings = first.apply.into_iter().map(|(binding, _)| binding).collect();
        let then = changes("web", "sys", &named(&["y"]), &found);
        assert_eq!((applied(&then), names(&then.delete)), (vec![], vec!["Role x/bbbbbbbbbb".to_owned()]));
    }

    #[test]
    fn roles_and_bindings_of_others_are_left_alone() {
        let mut found = found();
        let mut foreign = role(A, "", "2026-01-01", "secrets");
        foreign["metadata"]["labels"] = labels("other");
        found.roles = vec![foreign.clone()];
        assert_eq!(changes("web", "sys", &in_use(&[A]), &found), Changes::default());
        foreign["kind"] = "ClusterRoleBinding".into();
        found.bindings = vec![foreign];
        assert_eq!(changes("web", "sys", &in_use(&[]), &found).delete, [Value::Null; 0]);
        // A role of a revision that is not stored, and one without an owner.
        let mut unowned = role(B, "", "2026-01-01", "secrets");
        unowned["metadata"]["ownerReferences"] = Value::Null;
        found.roles = vec![role("web-dddddddddd", "", "2026-01-01", "secrets"), unowned];
        let found = changes("web", "sys", &in_use(&["web-dddddddddd"]), &found);
        assert_eq!((found.apply.len(), found.adopt.len(), found.bound.len()), (0, 1, 0));
    }
}
