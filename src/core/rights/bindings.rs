//! Which roles of which revisions of a package are bound to its account. Each revision brings its roles; the manager binds those
//! of the revisions that are in use and no others, so the account has the rights that are needed and no right is left over,
//! whether a revision came by command or from Git, forward or back, and whatever somebody has done to the objects. It cannot bind
//! anything else: see `objects.rs`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::objects::{
    API, GROUP, Owner, account, begins_with, is_changed, labels, role_of_bindings, role_of_revision,
    roles_of_manager,
};
use super::part::Part;
use crate::package::store::objects::REVISION;

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
    /// The name of the active revision.
    pub active: Option<String>,
}

/// The objects that exist.
#[derive(Debug, Default)]
pub struct Found {
    /// The names of the stored revisions.
    pub revisions: BTreeSet<String>,
    /// The `ClusterRole`s of the package.
    pub roles: Vec<Value>,
    /// The bindings of the package, with their `kind`.
    pub bindings: Vec<Value>,
    /// Roles that were created before this time are old. It is written as Kubernetes writes times.
    pub old: String,
}

/// The changes to make, and what cannot be changed.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// The revisions whose roles are to be bound, which are those in use, and earlier ones whose children are left.
    pub bound: BTreeSet<String>,
    /// Bindings of other roles under names that are needed. They are deleted first.
    pub replace: Vec<Value>,
    /// Bindings to apply, each with the role that it binds.
    pub apply: Vec<(Value, Value)>,
    /// Bindings to delete.
    pub delete: Vec<Value>,
    /// Old roles of revisions that are neither stored nor in use.
    pub orphaned: Vec<Value>,
    /// The names of roles that the active revision needs and that do not exist. Only who has the rights in them can create them.
    pub gone: BTreeSet<String>,
    /// The names of roles of revisions in use whose rules are not those with which they were made. Only who has the rights in them can
    /// change them back.
    pub changed: BTreeSet<String>,
}

/// A role of a revision.
struct Role<'a> {
    object: &'a Value,
    revision: &'a str,
    /// The part; `None` if it is no role of the account.
    part: Option<Part>,
}

impl<'a> Role<'a> {
    fn name(&self) -> Option<&'a str> {
        self.object["metadata"]["name"].as_str()
    }

    fn created(&self) -> Option<&'a str> {
        self.object["metadata"]["creationTimestamp"].as_str()
    }
}

/// The changes by which exactly the roles of what is in use are bound to the account of a package, which is in the manager's
/// namespace.
pub fn changes(package: &str, manager_namespace: &str, in_use: &InUse, found: &Found) -> Changes {
    let roles: Vec<Role<'_>> = found.roles.iter().filter_map(|role| of_revision(package, role)).collect();
    let ours = Owner::Package(package.to_owned());
    // Tenants may create bindings with any label in their own namespaces, but none of a role of the package.
    let is_ours = |live: &&Value| {
        let name = live["metadata"]["name"].as_str().unwrap_or_default();
        let is_own_role = live["roleRef"]["kind"] == "ClusterRole" && live["roleRef"]["name"] == name;
        let revision = live["metadata"]["labels"][REVISION].as_str();
        let is_named = revision.is_some_and(|it| Part::of(&role_of_revision(package, it), name).is_some());
        is_own_role && is_named && Owner::of(live) == ours
    };
    let there: Vec<&Value> = found.bindings.iter().filter(is_ours).collect();
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
        // One that is bound still was accepted. A stored one may have been refused.
        let is_bound =
            |role: &Role<'_>| there.iter().any(|live| live["metadata"]["labels"][REVISION] == role.revision);
        let stored = roles.iter().filter(grants).filter(|role| found.revisions.contains(role.revision));
        let best = stored.max_by_key(|role| (is_bound(role), role.created(), role.revision));
        bound.extend(best.map(|role| role.revision.to_owned()));
    }
    let subjects =
        json!([{"kind": "ServiceAccount", "name": account(package), "namespace": manager_namespace}]);
    let mut wanted = Vec::new();
    for role in roles.iter().filter(|role| bound.contains(role.revision)) {
        let name = role.name().unwrap_or_default();
        let Some(part) = &role.part else { continue };
        let mut add = |namespace: Option<&str>| {
            let mut labels = labels(package);
            labels[REVISION] = role.revision.into();
            let mut metadata = json!({"name": name, "labels": labels});
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
    let is_wanted = |live: &&&Value| wanted.iter().any(|(binding, _)| is_same(binding, live));
    let delete = there.iter().filter(|live| !is_wanted(live)).map(|live| (*live).clone()).collect();
    let refers = |live: &Value, binding: &Value| live["roleRef"] == binding["roleRef"];
    let is_there = |binding: &Value| {
        let is_it = |live: &&Value| {
            is_same(binding, live) && refers(live, binding) && live["subjects"] == binding["subjects"]
        };
        there.iter().any(is_it)
    };
    // The role of a binding cannot be changed.
    let is_of_another =
        |live: &&Value| wanted.iter().any(|(binding, _)| is_same(binding, live) && !refers(live, binding));
    let replace = found.bindings.iter().filter(is_of_another).cloned().collect();
    let apply = wanted.iter().filter(|(binding, _)| !is_there(binding)).cloned().collect();
    let is_orphaned = |role: &&Role<'_>| {
        let is_needed = found.revisions.contains(role.revision) || bound.contains(role.revision);
        !is_needed && role.created().is_some_and(|created| created < found.old.as_str())
    };
    let orphaned = roles.iter().filter(is_orphaned).map(|role| role.object.clone()).collect();
    bound.retain(|revision| roles.iter().any(|role| role.revision == revision));
    // As `operetta rbac` prints them.
    let is_of_package = |binding: &Value| {
        let mut subjects = binding["subjects"].as_array().into_iter().flatten();
        binding["metadata"]["labels"][REVISION].is_null()
            && Owner::of(binding) == ours
            && subjects.any(|subject| subject["name"] == account(package))
    };
    let borrows = !bound.is_empty() && !found.bindings.iter().any(is_of_package);
    let gone =
        in_use.active.as_ref().map(|active| gone(package, active, &roles, borrows)).unwrap_or_default();
    let name = |role: &Role<'_>| role.name().map(str::to_owned);
    let is_in_use = |role: &&Role<'_>| in_use.revisions.contains(role.revision);
    let changed =
        roles.iter().filter(is_in_use).filter(|role| is_changed(role.object)).filter_map(name).collect();
    Changes { bound, replace, apply, delete, orphaned, gone, changed }
}

/// Which roles of the active revision do not exist. One that has none at all has its rights from elsewhere, unless it borrows those of
/// other revisions: a review of the account's rights would count them, and they are taken back when nothing uses their revisions.
fn gone(package: &str, revision: &str, roles: &[Role<'_>], borrows: bool) -> BTreeSet<String> {
    let there: BTreeSet<&str> =
        roles.iter().filter(|role| role.revision == revision).filter_map(Role::name).collect();
    if there.is_empty() && !borrows {
        return BTreeSet::new();
    }
    let mut needed = roles_of_manager(package, revision);
    // The one by which the roles are deleted names them all.
    let listing = roles.iter().find(|role| role.name() == Some(&role_of_bindings(package, revision)));
    let rules = listing.into_iter().flat_map(|role| role.object["rules"].as_array().into_iter().flatten());
    let named = rules.filter(|rule| rule["resources"][0] == "clusterroles");
    let named = named.flat_map(|rule| rule["resourceNames"].as_array().into_iter().flatten());
    needed.extend(named.filter_map(Value::as_str).map(str::to_owned));
    needed.retain(|name| !there.contains(name.as_str()));
    needed
}

/// The role of a revision of the package, if the object is one.
fn of_revision<'a>(package: &str, object: &'a Value) -> Option<Role<'a>> {
    if Owner::of(object) != Owner::Package(package.to_owned()) {
        return None;
    }
    let revision = object["metadata"]["labels"][REVISION].as_str()?;
    let (prefix, name) = (role_of_revision(package, revision), object["metadata"]["name"].as_str()?);
    begins_with(&prefix, name).then(|| Role { object, revision, part: Part::of(&prefix, name) })
}

/// Whether a role has a rule for a verb on a resource by name. One with a wildcard would grant more than that.
fn allows(role: &Value, (group, plural, verb): (&str, &str, &str)) -> bool {
    let has = |rule: &Value, field: &str, word: &str| {
        let words = rule[field].as_array().into_iter().flatten();
        words.into_iter().any(|known| known == word)
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
                "creationTimestamp": created,
            },
            "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get", "delete"]}],
        })
    }

    fn found() -> Found {
        Found {
            revisions: [A, B].map(str::to_owned).into(),
            roles: vec![
                role(A, "", "2026-01-01", "services"),
                role(A, ":in:sys", "2026-01-01", "secrets"),
                role(A, ":instances", "2026-01-01", "webs"),
                role(B, "", "2026-01-02", "configmaps"),
                role(B, ":cluster", "2026-01-02", "nodes"),
            ],
            bindings: Vec::new(),
            old: "2026-01-09".to_owned(),
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
        assert!(first.delete.is_empty() && first.orphaned.is_empty() && first.gone.is_empty());
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
        let mended = changes("web", "sys", &in_use(&[A]), &found);
        assert_eq!((applied(&mended), mended.replace.len()), (vec!["ClusterRole /aaaaaaaaaa".to_owned()], 0));
        // Somebody has made it again with another role.
        found.bindings[0]["roleRef"]["name"] = "cluster-admin".into();
        let mended = changes("web", "sys", &in_use(&[A]), &found);
        assert_eq!(names(&mended.replace), ["ClusterRole /aaaaaaaaaa"]);
        assert_eq!(applied(&mended), ["ClusterRole /aaaaaaaaaa"]);
        assert!(mended.delete.is_empty());
    }

    #[test]
    fn a_deleted_revision_keeps_its_rights_while_it_is_in_use_and_deleted_roles_are_named() {
        // A revision in use whose object is gone: its roles stay bound, and the manager stores it again.
        let mut found = found();
        found.revisions.remove(A);
        let first = changes("web", "sys", &in_use(&[A]), &found);
        assert_eq!(first.apply.len(), 2);
        assert!(first.orphaned.is_empty());
        // One that is not in use: its roles go, but those that were applied a moment ago may come before their revision.
        let orphaned = |found: &Found| {
            let roles = changes("web", "sys", &in_use(&[B]), found).orphaned;
            roles.iter().map(|role| role["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let of_a = [
            "operetta:web:aaaaaaaaaa",
            "operetta:web:aaaaaaaaaa:in:sys",
            "operetta:web:aaaaaaaaaa:instances",
        ];
        assert_eq!(orphaned(&found), of_a);
        found.old = "2026-01-01".into();
        assert_eq!(orphaned(&found), [""; 0]);
        // The active revision lacks a role that no review of the account's rights misses.
        let gone = |revisions: &[&str], found: &Found| -> Vec<String> {
            let in_use = InUse { active: Some(revisions[0].to_owned()), ..in_use(revisions) };
            let gone = changes("web", "sys", &in_use, found).gone;
            gone.into_iter().map(|name| name.replace("operetta:web:", "")).collect()
        };
        assert_eq!(gone(&[A], &found), ["aaaaaaaaaa:bindings"]);
        // The role `:bindings` names the others.
        let mut listing = role(A, ":bindings", "2026-01-01", "clusterroles");
        listing["rules"][0]["resourceNames"] = ["", ":in:sys", ":instances", ":cluster"]
            .map(|suffix| format!("operetta:web:aaaaaaaaaa{suffix}"))
            .into();
        found.roles.push(listing);
        assert_eq!(gone(&[A], &found), ["aaaaaaaaaa:cluster"]);
        // One without roles has its rights from elsewhere, but not from another revision.
        let other = "web-cccccccccc";
        assert_eq!(gone(&[other], &found), [""; 0]);
        assert_eq!(gone(&[other, A], &found), ["cccccccccc:bindings", "cccccccccc:instances"]);
        let mut of_package =
            json!({"metadata": {"labels": labels("web")}, "subjects": [{"name": "operetta"}]});
        found.bindings.push(of_package.clone());
        assert_eq!(gone(&[other, A], &found).len(), 2, "the manager may act as the account");
        of_package["subjects"][0]["name"] = "operetta-web".into();
        found.bindings.push(of_package);
        assert_eq!(gone(&[other, A], &found), [""; 0], "what `operetta rbac` prints is applied");
    }

    #[test]
    fn roles_with_other_rules_than_those_of_their_revision_are_named() {
        let mut found = found();
        // What is stored by a build must be what the next one computes.
        for (role, digest) in [(0, "adc5fd0b046b51d6"), (2, "33b9f5155841c28a"), (3, "246bd76ef2c608cd")] {
            found.roles[role]["metadata"]["annotations"]["operetta.dev/rules"] = digest.into();
        }
        let changed = |found: &Found| changes("web", "sys", &in_use(&[A]), found).changed;
        // The API server leaves out what is empty.
        found.roles[0]["rules"][0]["resourceNames"] = json!([]);
        assert!(changed(&found).is_empty());
        found.roles[0]["rules"][0]["verbs"] = json!(["*"]);
        found.roles[2]["rules"] = Value::Null;
        // Revision B is not in use, so its role gives nobody anything.
        found.roles[3]["rules"] = Value::Null;
        let names = ["operetta:web:aaaaaaaaaa", "operetta:web:aaaaaaaaaa:instances"].map(str::to_owned);
        assert_eq!(changed(&found), names.into());
        // Roles of earlier builds have no digest, as this one.
        found.roles[0]["metadata"]["annotations"] = Value::Null;
        assert_eq!(changed(&found).len(), 1);
    }

    #[test]
    fn an_earlier_revision_stays_bound_while_children_of_its_kinds_are_left() {
        let mut in_use = in_use(&[B]);
        in_use.left.insert((String::new(), "services".to_owned()));
        let changes_of = |in_use: &InUse, found: &Found| changes("web", "sys", in_use, found);
        assert_eq!(changes_of(&in_use, &found()).bound, BTreeSet::from([A.to_owned(), B.to_owned()]));
        let mut newer = found();
        newer.revisions.insert("web-cccccccccc".into());
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
        let none = Changes::default();
        assert_eq!(changes("web", "sys", &in_use(&[A]), &found), none);
        foreign["kind"] = "ClusterRoleBinding".into();
        found.bindings = vec![foreign];
        assert_eq!(changes("web", "sys", &in_use(&[]), &found).delete, [Value::Null; 0]);
        // A tenant has made one with our labels.
        let mut labels = labels("web");
        labels[REVISION] = A.into();
        for name in ["mine", "operetta:web:aaaaaaaaaa"] {
            let meta = json!({"name": name, "namespace": "theirs", "labels": labels});
            let role = json!({"apiGroup": GROUP, "kind": "Role", "name": name});
            found.bindings =
                vec![json!({"kind": "RoleBinding", "metadata": meta, "roleRef": role, "subjects": []})];
            assert_eq!(changes("web", "sys", &in_use(&[]), &found).delete, [Value::Null; 0]);
        }
        // The name of the role begins with that of the revision by chance.
        found.roles = vec![role(A, "x", "2026-01-01", "secrets")];
        assert_eq!(changes("web", "sys", &in_use(&[A]), &found), none);
    }
}
