//! One case on an object of its own: makes the edit and judges the object.

use std::collections::BTreeMap;
use std::process::Stdio;

use http::Request;
use serde_json::{Value, json};

use super::cases::How::{
    As, ClientApply, Editor, Kubectl, Patch, Refused, Replace, ServerApply, ServerReplace,
};
use super::cases::{CHILDREN, Case, cases};
use crate::support::ext::{CLUSTER_ROLE, Kind, SHELF, Scene, difference, file, fixture, read, uid_of};

/// A case with its object: the nth case for a kind uses the child of the nth instance.
pub(crate) struct Trial {
    pub(crate) case: Case,
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    cases()
        .into_iter()
        .map(|case| {
            let number = used.entry(case.child).and_modify(|n| *n += 1).or_insert(0);
            let name = format!("{}s-{number}", if case.child == "clusterrole" { "edits-" } else { "" });
            let kind = CHILDREN.iter().find(|(child, _)| *child == case.child).unwrap().1;
            Trial { case, kind, name }
        })
        .collect()
}

/// The instances, each with the children that are needed for its cases.
pub(crate) fn shelves(trials: &[Trial]) -> Vec<Value> {
    let mut wanted: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for trial in trials {
        wanted.entry(trial.name.trim_start_matches("edits-")).or_default().push(trial.case.child);
    }
    wanted.into_iter().map(|(name, children)| shelf(name, json!({"children": children}))).collect()
}

pub(crate) fn shelf(name: &str, spec: Value) -> Value {
    json!({"apiVersion": SHELF.api_version(), "kind": "Shelf", "metadata": {"name": name}, "spec": spec})
}

/// All objects of the kinds under test, by kind and name.
pub(crate) type Snapshot = BTreeMap<(&'static str, String), Value>;

pub(crate) async fn snapshot(scene: &Scene) -> Snapshot {
    let mut all = Snapshot::new();
    for (_, kind) in CHILDREN {
        let objects = if kind.plural == CLUSTER_ROLE.plural {
            let mut list = read(&scene.client(), kind.path(None, "").trim_end_matches('/')).await.unwrap();
            serde_json::from_value(list["items"].take()).unwrap()
        } else {
            scene.list(kind).await
        };
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            all.insert((kind.plural, name), object);
        }
    }
    all
}

/// The object without fields that change by themselves.
pub(crate) fn essence(object: &Value, in_order: bool, same: bool) -> Value {
    let mut object: Value =
        serde_json::from_str(&object.to_string().replace(uid_of(object), "<uid>")).unwrap();
    object.as_object_mut().unwrap().remove("status");
    let meta = object["metadata"].as_object_mut().unwrap();
    for field in ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"] {
        meta.remove(field);
    }
    if let Some(annotations) = meta.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| {
            !key.starts_with("deployment.kubernetes.io/")
                && !key.starts_with("deprecated.daemonset")
                && !key.starts_with("kubectl.kubernetes.io/last")
        });
    }
    if let Some(annotations) = object["spec"]["template"]["metadata"]["annotations"].as_object_mut()
        && let Some(time) = annotations.get_mut("kubectl.kubernetes.io/restartedAt")
    {
        *time = "then".into();
    }
    // The server's allocations for a Service are kept as long as it exists, and node ports as long as their
    // port does.
    if let Some(ports) = object["spec"]["ports"].as_array_mut() {
        for port in ports {
            port.as_object_mut().unwrap().remove("nodePort");
        }
    }
    if !same && let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    if !in_order {
        sort_lists(&mut object);
    }
    prune_nulls(&mut object);
    object
}

/// Sorts all lists whose items are maps.
pub(crate) fn sort_lists(value: &mut Value) {
    match value {
        Value::Array(items) => {
            items.iter_mut().for_each(sort_lists);
            if items.iter().all(Value::is_object) {
                items.sort_by_key(ToString::to_string);
            }
        }
        Value::Object(map) => map.values_mut().for_each(sort_lists),
        _ => {}
    }
}

/// Removes the nulls that reading a missing field has inserted.
pub(crate) fn prune_nulls(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(prune_nulls);
        }
        _ => {}
    }
}

pub(crate) fn merge_into(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        merge_into(&mut target[key], value);
    }
}

impl Trial {
    pub(crate) fn key(&self) -> (&'static str, String) {
        (self.kind.plural, self.name.clone())
    }

    /// Describes what is wrong with the object now.
    pub(crate) fn judge(&self, before: &Snapshot, now: &Snapshot) -> Option<String> {
        let before = &before[&self.key()];
        let Some(found) = now.get(&self.key()) else { return Some("it is not there".to_owned()) };
        if !found["metadata"]["deletionTimestamp"].is_null() {
            return Some("it is being deleted".to_owned());
        }
        let mut expected = before.clone();
        merge_into(&mut expected, &self.case.stays);
        (self.case.change)(&mut expected);
        let same = uid_of(before) == uid_of(found);
        let expected = essence(&expected, self.case.in_order, same);
        let found = essence(found, self.case.in_order, same);
        (expected != found).then(|| difference(&expected, &found, ""))
    }

    pub(crate) async fn inflict(&self, scene: &Scene) -> Result<(), String> {
        let name = self.name.as_str();
        let group = self.kind.api_version().split_once('/').map(|(group, _)| format!(".{group}"));
        let resource = format!("{}{}", self.kind.plural, group.unwrap_or_default());
        let applied = |body: &Value| {
            let mut body = body.clone();
            body["apiVersion"] = self.kind.api_version().into();
            body["kind"] = self.kind_name().into();
            body["metadata"]["name"] = name.into();
            body.to_string()
        };
        match &self.case.how {
            Kubectl(args) => {
                let args: Vec<String> = args.iter().map(|arg| arg.replace("NAME", name)).collect();
                scene.kubectl_input(&args.iter().map(String::as_str).collect::<Vec<_>>(), "").await?;
            }
            Patch(how, patch) => {
                let (how, patch) = (format!("--type={how}"), patch.to_string());
                let told = scene.kubectl_input(&["patch", &resource, name, &how, "-p", &patch], "").await?;
                if told.contains("no change") {
                    return Err(told);
                }
            }
            Editor(script) => edit(scene, &resource, name, script).await?,
            Replace(change) => self.write(scene, &["replace"], *change).await?,
            ClientApply(change) => self.write(scene, &["apply"], *change).await?,
            ServerReplace(change) => {
                let args = ["apply", "--server-side", "--field-manager=operetta/edits", "--force-conflicts"];
                self.write(scene, &args, *change).await?;
            }
            ServerApply(more, body) => {
                let mut args = vec!["apply", "--server-side", "-f", "-"];
                args.extend(*more);
                scene.kubectl_input(&args, &applied(body)).await?;
            }
            Refused(body) => {
                let args = ["apply", "--server-side", "-f", "-"];
                let Err(error) = scene.kubectl_input(&args, &applied(body)).await else {
                    return Err("it is not refused".to_owned());
                };
                if !error.contains("conflict with \"operetta/edits\"") {
                    return Err(error);
                }
            }
            As(manager, subresource, patch) => {
                let path = self.path(scene);
                let request = Request::patch(format!("{path}{subresource}?fieldManager={manager}"))
                    .header("content-type", "application/merge-patch+json")
                    .body(patch.to_string().into_bytes())
                    .unwrap();
                scene.client().request::<Value>(request).await.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    pub(crate) fn path(&self, scene: &Scene) -> String {
        let namespace = (self.case.child != "clusterrole").then(|| scene.namespace());
        self.kind.path(namespace, &self.name)
    }

    /// The kind's name, as the template has it.
    pub(crate) fn kind_name(&self) -> String {
        let template = file(&format!("{}/templates/{}.yaml", fixture("edits"), self.case.child));
        let line = template.lines().find_map(|line| line.strip_prefix("kind: "));
        line.unwrap().to_owned()
    }

    /// Runs `kubectl replace` or `kubectl apply` of the object with a change; repeats it after a conflict.
    pub(crate) async fn write(
        &self,
        scene: &Scene,
        verb: &[&str],
        change: fn(&mut Value),
    ) -> Result<(), String> {
        let mut args = verb.to_vec();
        args.extend(["-f", "-"]);
        let mut attempts = 0;
        loop {
            let mut object = read(&scene.client(), &self.path(scene)).await.ok_or("it is not there")?;
            object.as_object_mut().unwrap().remove("status");
            let meta = object["metadata"].as_object_mut().unwrap();
            meta.remove("managedFields");
            if verb.len() > 1 {
                meta.remove("resourceVersion");
                meta.remove("creationTimestamp");
            }
            change(&mut object);
            match scene.kubectl_input(&args, &object.to_string()).await {
                Ok(_) => return Ok(()),
                Err(error) if error.contains("Conflict") && attempts < 9 => attempts += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Runs `kubectl edit` with a `sed` script as the editor.
pub(crate) async fn edit(scene: &Scene, resource: &str, name: &str, script: &str) -> Result<(), String> {
    let plane = scene.plane();
    let output = tokio::process::Command::new(plane.kubectl().await)
        .arg("--kubeconfig")
        .arg(plane.kubeconfig_path())
        .args(["-n", scene.namespace(), "edit", resource, name])
        .env("KUBECACHEDIR", plane.folder().join("kubectl-cache"))
        .env("KUBE_EDITOR", format!("sed -i -e '{script}'"))
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && told.contains("edited") {
        return Ok(());
    }
    Err(format!("edit {script}: {told}{}", String::from_utf8_lossy(&output.stderr)))
}
