//! Rights after any order of installations, upgrades and rollbacks, of narrowing and widening the namespaces, and of deletions and added
//! rules by hand, by command, also with `--rights=false`, and from Git: the account has exactly the rights of the revision in use, or
//! the Operator says that it has not.

use std::collections::BTreeMap;
use std::sync::Arc;

use operetta::rights;
use serde_json::{Value, json};

use super::revisions::{Shape, Subject, instance};
use super::{shared_plane_with_operators, strict_plane};
use crate::support::barrier::Address;
use crate::support::ext::{CRD, LONG, OPERATOR, REVISION, Scene, condition, find_in};
use crate::support::rights::{SYSTEM, manager, run_operators};
use crate::support::{ControlPlane, eventually, is_long, kubectl_of, operetta};

/// What the Operator says, and whether it is so.
#[derive(Debug, PartialEq, Eq)]
enum Truth {
    /// Ready, with exactly the rights of the revision.
    Good,
    /// Some rights are missing, or there are too many, and it says so.
    Missing,
}

async fn subject(name: String) -> Subject {
    let plane = shared_plane_with_operators().await;
    subject_on(plane, name).await
}

async fn subject_on(plane: &Arc<ControlPlane>, name: String) -> Subject {
    let (revisions, order, plural) = (BTreeMap::new(), Vec::new(), name.clone());
    Subject { name, plural, scene: Scene::on(plane).await, is_limited: false, revisions, order }
}

async fn install(subject: &mut Subject, shape: Shape) -> String {
    let first = subject.version_of(1, shape).await;
    subject.operetta(&["install", subject.folder(&first), "--accept-rights"]).await.ok();
    subject.scene.apply(&instance(&subject.name)).await;
    subject.settles("install").await;
    first
}

impl Subject {
    async fn operator(&self) -> Value {
        find_in(self.scene.plane(), OPERATOR, None, &self.name).await.unwrap_or_default()
    }

    async fn named(&self) -> String {
        self.operator().await["spec"]["revision"].as_str().unwrap().to_owned()
    }

    /// Applies everything of the named revision again.
    async fn repair(&self) {
        let named = self.named().await;
        let args = ["upgrade", self.folder(&named), "--accept-rights", "--force-conflicts"];
        self.operetta(&args).await.ok();
    }

    /// Waits until what the Operator says is true.
    async fn tells_the_truth(&self, what: &str) -> Truth {
        eventually(&format!("{}: {what}: the truth", self.name), LONG, async || {
            let operator = self.operator().await;
            let ready = condition(&operator, "Ready");
            let is_seen = operator["status"]["observedGeneration"] == operator["metadata"]["generation"];
            let revision = operator["spec"]["revision"].as_str().unwrap_or_default();
            if is_seen && ready["status"] == "True" {
                self.drop_second(revision).await;
            }
            let mut wrong = Vec::new();
            for (place, is_home) in [(self.scene.namespace(), true), ("default", false)] {
                let (found, expected) = (self.rules(place).await, self.expected(revision, place, is_home));
                if found != expected {
                    wrong.push(format!("{place}: {:?}", expected.symmetric_difference(&found)));
                }
            }
            wrong.extend(self.gone(revision).await);
            let told = (is_seen, ready["status"] == "True", ready["reason"] == "RightsMissing");
            match (told, wrong.is_empty()) {
                ((true, true, _), true) => Ok(Truth::Good),
                ((true, false, true), false) => Ok(Truth::Missing),
                _ => Err(format!("{ready:#} {wrong:?}")),
            }
        })
        .await
    }

    /// The objects beside the account's rights that are needed and do not exist.
    async fn gone(&self, revision: &str) -> Vec<String> {
        let roles =
            rights::roles_of_manager(&self.name, revision).into_iter().map(|name| ("clusterrole", name));
        let impersonate = format!("operetta:{}:impersonate", self.name);
        let both = ["role", "rolebinding"].map(|kind| (kind, impersonate.clone()));
        let mut gone = Vec::new();
        for (kind, name) in roles.chain(both) {
            let args = ["get", kind, &name, "-n", SYSTEM, "--ignore-not-found", "-o", "name"];
            if kubectl_of(self.scene.plane(), &args, "").await.ok().trim().is_empty() {
                gone.push(format!("{kind} {name}"));
            }
        }
        gone
    }

    /// The roles and bindings of the package, its account and its revisions: each with the arguments that name it.
    async fn objects(&self) -> Vec<[String; 4]> {
        let kinds = "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts";
        let label = format!("operetta.dev/operator={},!operetta.dev/instance-uid", self.name);
        let text =
            kubectl_of(self.scene.plane(), &["get", kinds, "-A", "-l", &label, "-o", "json"], "").await.ok();
        let found: Value = serde_json::from_str(&text).unwrap();
        let object = |object: &Value| {
            let text = |value: &Value| value.as_str().unwrap_or("default").to_owned();
            let meta = &object["metadata"];
            [text(&object["kind"]), text(&meta["name"]), "-n".into(), text(&meta["namespace"])]
        };
        let mut all: Vec<[String; 4]> = found["items"].as_array().unwrap().iter().map(object).collect();
        all.push(["operatorrevision".into(), self.named().await, "-n".into(), "default".into()]);
        all
    }

    async fn delete(&self, object: &[String; 4]) {
        let args: Vec<&str> =
            ["delete", "--ignore-not-found"].into_iter().chain(object.iter().map(String::as_str)).collect();
        kubectl_of(self.scene.plane(), &args, "").await.ok();
    }

    /// Adds a rule to a role of the account, of the named revision. Returns the name of the role.
    async fn add_rule(&self) -> String {
        let role = rights::role_of_revision(&self.name, &self.named().await);
        let is_of_account =
            |[kind, name, ..]: &[String; 4]| kind == "ClusterRole" && rights::Part::of(&role, name).is_some();
        let [_, name, ..] = self.objects().await.into_iter().find(is_of_account).unwrap();
        let rule = json!({"apiGroups": ["extra.example.org"], "resources": ["things"], "verbs": ["get"]});
        let patch = json!([{"op": "add", "path": "/rules/-", "value": rule}]).to_string();
        let args = ["patch", "clusterrole", &name, "--type=json", "-p", &patch];
        kubectl_of(self.scene.plane(), &args, "").await.ok();
        // The authorizer learns of it a moment later.
        eventually("the added right", LONG, async || {
            let mut found = self.rules(self.scene.namespace()).await;
            found.extend(self.rules("default").await);
            let holds = found.iter().any(|(_, resource, _)| resource == "things");
            if holds { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
        name
    }

    /// Names another revision without roles, as a user whom RBAC does not let grant its rights.
    async fn upgrade_without_rights(&mut self, number: u32, shape: Shape) -> String {
        let revision = self.version_of(number, shape).await;
        let args = ["upgrade", self.folder(&revision), "--rights=false", "--force-conflicts"];
        let told = self.operetta(&args).await.fails();
        assert!(told.contains("RightsMissing"), "{told}");
        "upgrade without rights".to_owned()
    }

    async fn name_namespaces(&mut self, is_limited: bool) {
        let names = json!({"names": [self.scene.namespace()]});
        let patch = json!({"spec": {"namespaces": if is_limited { names } else { Value::Null }}}).to_string();
        let args = ["patch", "operator", &self.name, "--type=merge", "-p", &patch];
        kubectl_of(self.scene.plane(), &args, "").await.ok();
        self.is_limited = is_limited;
    }
}

#[tokio::test]
async fn an_operator_that_is_narrowed_by_command_loses_its_rights_elsewhere() {
    let mut subject = subject("narrows".to_owned()).await;
    let first =
        install(&mut subject, Shape { children: 0b101, has_second: false, reads_default: true }).await;
    let here = subject.scene.namespace().to_owned();
    let args = ["upgrade", subject.folder(&first), "--namespaces", &here];
    subject.operetta(&args).await.ok();
    subject.is_limited = true;
    subject.settles("narrowed").await;
    let bindings = ["get", "clusterrolebindings", "-o", "name", "-l", "operetta.dev/operator=narrows"];
    let left = kubectl_of(subject.scene.plane(), &bindings, "").await.ok();
    assert_eq!(left.trim(), "", "no rights in all namespaces");
    // The command that has narrowed it lets the manager bind nothing in all namespaces. Somebody widens it by hand.
    subject.name_namespaces(false).await;
    assert_eq!(subject.tells_the_truth("widened by hand").await, Truth::Missing);
    let message = condition(&subject.operator().await, "Ready")["message"].to_string();
    assert!(message.contains("ClusterRoleBinding operetta:narrows:"), "{message}");
    subject.repair().await;
    subject.settles("widened").await;
}

/// The account has all rights that the revision needs, until those of the one before are taken back.
#[tokio::test]
async fn a_revision_without_roles_is_not_ready_by_those_of_the_one_before() {
    let mut subject = subject("borrows".to_owned()).await;
    let shape = |children| Shape { children, has_second: false, reads_default: true };
    install(&mut subject, shape(0b111)).await;
    // The same rights, then fewer: those to a child that is left are kept for a while.
    for (number, children) in [(2, 0b111), (3, 0b101)] {
        subject.upgrade_without_rights(number, shape(children)).await;
        assert_eq!(subject.tells_the_truth("without roles").await, Truth::Missing);
        subject.repair().await;
        subject.settles("repaired").await;
    }
}

/// Every object that gives a package its rights is deleted by hand, one after another.
#[tokio::test]
async fn objects_deleted_by_hand_are_mended_or_reported() {
    let plane = strict_plane().await;
    let kubeconfig = manager(&plane).await;
    let operetta_process = run_operators(&plane, &kubeconfig).await;
    let address = Address::of(&operetta_process);
    let mut subject = subject_on(&plane, "losts".to_owned()).await;
    // The right to read in `default` is not one that a child needs.
    let first =
        install(&mut subject, Shape { children: 0b110, has_second: false, reads_default: true }).await;
    let all = subject.objects().await;
    assert!(all.len() >= 12, "{all:?}");
    let mut told = BTreeMap::new();
    for object in &all {
        let (what, name) = (&object[0], &object[1]);
        subject.delete(object).await;
        let truth = subject.tells_the_truth(&format!("{what} {name} is deleted")).await;
        if truth == Truth::Missing {
            eventually("/readyz", LONG, async || {
                let (_, text) = address.get("/readyz").await;
                let is_told = text.contains("RightsMissing in the Operators losts")
                    || text.contains("refused to packages");
                if is_told { Ok(()) } else { Err(text) }
            })
            .await;
            let table = operetta(plane.kubeconfig_path(), &["operators"]).await.ok();
            assert!(table.contains("RightsMissing"), "{what} {name}: {table}");
            subject.repair().await;
        }
        subject.settles(&format!("{what} {name} was deleted")).await;
        told.insert(format!("{what} {name}"), truth);
    }
    // Somebody gives the account more than its revision needs.
    let role = subject.add_rule().await;
    assert_eq!(subject.tells_the_truth("a rule was added").await, Truth::Missing);
    let message = condition(&subject.operator().await, "Ready")["message"].to_string();
    let words = format!("other rules than those of the revision are in ClusterRole {role}");
    assert!(message.contains("rights are changed") && message.contains(&words), "{message}");
    subject.repair().await;
    subject.settles("a rule was added").await;
    // What the manager can do by itself, it has done: bindings, and the stored revision. The roles of users are the users' own affair, and
    // the account is a name.
    for (object, truth) in &told {
        let is_mended = (object.contains("RoleBinding") && !object.contains(":impersonate"))
            || [":view", ":edit", ":admin", "ServiceAccount", "operatorrevision"]
                .iter()
                .any(|it| object.contains(it));
        assert_eq!(*truth == Truth::Good, is_mended, "{object}: {told:#?}");
    }
    // The stored revision is there again.
    let again = find_in(&plane, REVISION, None, &first).await;
    assert!(again.is_some());
    // An Operator that is gone leaves no right, once its CRD is gone.
    kubectl_of(&plane, &["delete", "operator", "losts"], "").await.ok();
    kubectl_of(&plane, &["delete", "crd", "losts.revisions.example.org"], "").await.ok();
    eventually("no right is left", LONG, async || {
        assert!(find_in(&plane, CRD, None, "losts.revisions.example.org").await.is_none());
        let left = subject.rules(subject.scene.namespace()).await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

/// A number that depends on others.
fn mixed(seed: u32, number: u32) -> u32 {
    let bits =
        (seed.wrapping_mul(2_654_435_761) ^ number.wrapping_mul(2_246_822_519)).wrapping_mul(3_266_489_917);
    bits >> 8
}

#[tokio::test]
async fn after_any_order_the_rights_are_right_or_said_to_be_missing() {
    let (sequences, operations) = if is_long() { (60, 6) } else { (4, 4) };
    let run = async |index: u32| {
        let letter = |number: u32| char::from(b'a' + u8::try_from(number % 26).unwrap());
        let mut subject = subject(format!("order{}{}s", letter(index / 26), letter(index))).await;
        install(&mut subject, Shape::of(index + 1)).await;
        for number in 0..operations {
            let random = mixed(index, number);
            let what = match random % 10 {
                sort @ 0..5 => {
                    let has_previous = subject.operator().await["status"]["previousRevision"].is_string();
                    let sort = if sort == 2 && !has_previous { 0 } else { sort };
                    subject.operate(sort, 1000 * index + 10 * number).await
                }
                5 => {
                    let is_limited = !subject.is_limited;
                    subject.name_namespaces(is_limited).await;
                    format!("by hand limited: {is_limited}")
                }
                6 => {
                    let (named, here) = (subject.named().await, subject.scene.namespace().to_owned());
                    let folder = subject.folder(&named);
                    let args =
                        ["upgrade", folder, "--namespaces", &here, "--accept-rights", "--force-conflicts"];
                    subject.operetta(&args).await.ok();
                    subject.is_limited = true;
                    "narrowed by command".to_owned()
                }
                7 => format!("a rule is added to {}", subject.add_rule().await),
                8 => {
                    let number = 1000 * index + 10 * number + 300;
                    subject.upgrade_without_rights(number, Shape::of(number)).await
                }
                _ => {
                    let all = subject.objects().await;
                    let object = &all[usize::try_from(random >> 3).unwrap() % all.len()];
                    subject.delete(object).await;
                    format!("deleted {} {}", object[0], object[1])
                }
            };
            let what = format!("{number}: {what}");
            if subject.tells_the_truth(&what).await == Truth::Missing {
                subject.repair().await;
            }
            subject.settles(&what).await;
        }
        subject.operetta(&["uninstall", &subject.name, "--instances", "delete"]).await.ok();
    };
    // A few at a time, as the other tests of this control plane.
    for first in (0..sequences).step_by(6) {
        let some = (first..sequences.min(first + 6)).map(run);
        futures::future::join_all(some).await;
    }
}
