//! Workloads in virtual time.

mod admission;
mod jobs;
mod pods;
mod quotas;
mod real;
mod sets;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{Api, Body, Call, CallResponse, Course, Exec, ExecResult, Objects, Programs, Request, User};

/// An API, and the time of its world.
struct Cluster {
    api: Api,
    now: Timestamp,
}

/// Programs whose courses are given by the beginning of the pod's name; the longest one counts.
#[derive(Debug, Default)]
struct Script(BTreeMap<&'static str, Course>);

impl Programs for Script {
    fn copy(&self) -> Box<dyn Programs> {
        Box::new(Self(self.0.clone()))
    }

    fn start(&mut self, pod: &Value, _: &dyn Objects, _: Timestamp) -> Course {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let course = self.0.iter().rev().find(|(prefix, _)| name.starts_with(**prefix));
        course.map_or_else(|| ready_after(1), |(_, course)| course.clone())
    }

    fn stop(&mut self, _: &Value, _: &dyn Objects, _: Timestamp) {}

    fn exec(&mut self, exec: &Exec<'_>, objects: &dyn Objects) -> ExecResult {
        let pods = objects.objects("v1", "Pod", "").len();
        ExecResult {
            stdout: format!("{} in {} of {pods}", exec.command.join(" "), exec.container),
            ..ExecResult::default()
        }
    }

    fn log(&mut self, _: &Value, container: &str, _: &dyn Objects) -> String {
        format!("first\nlast of {container}\n")
    }

    fn call(&mut self, call: &Call<'_>, _: &dyn Objects) -> Result<CallResponse, String> {
        Ok(CallResponse { status: 200, body: call.url.into(), ..CallResponse::default() })
    }
}

fn ready_after(seconds: u64) -> Course {
    Course { ready_after: Some(Duration::from_secs(seconds)), ..Course::default() }
}

fn ends_after(seconds: u64, exit_code: i32) -> Course {
    Course { ends_after: Some(Duration::from_secs(seconds)), exit_code, ..Course::default() }
}

impl Cluster {
    fn new() -> Self {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut cluster = Self { api: Api::new(now), now };
        cluster.settle();
        cluster
    }

    fn with(courses: &[(&'static str, Course)]) -> Self {
        let mut cluster = Self::new();
        let now = cluster.now;
        cluster.api.set_programs(Box::new(Script(courses.iter().cloned().collect())), now);
        cluster
    }

    /// Lets the controllers work until nothing changes.
    fn settle(&mut self) {
        for _ in 0..1000 {
            if !self.api.tick(self.now) {
                return;
            }
        }
        panic!("the controllers do not come to rest");
    }

    /// Lets time pass, with all that happens in it.
    fn pass(&mut self, seconds: i64) {
        let end = self.now + SignedDuration::from_secs(seconds);
        self.settle();
        while let Some(due) = self.api.next_due().filter(|due| *due <= end) {
            assert!(due > self.now, "time does not go on");
            self.now = due;
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    fn send(&mut self, method: &str, uri: &str, body: &Value) -> (u16, Value) {
        let user = User::default();
        let text = body.to_string();
        let content_type =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request {
            method,
            uri,
            content_type,
            accept: "application/json",
            user_agent: "tester",
            user: &user,
            body: text.as_bytes(),
        };
        let response = self.api.handle(&request, self.now);
        let Body::Text(text) = response.body else { panic!("a watch") };
        (response.code, serde_json::from_str(&text).unwrap_or_else(|_| text.to_string().into()))
    }

    fn create(&mut self, uri: &str, body: &Value) -> Value {
        let (code, answer) = self.send("POST", uri, body);
        assert_eq!(code, 201, "{answer:#}");
        answer
    }

    fn patch(&mut self, uri: &str, body: &Value) {
        let (code, answer) = self.send("PATCH", uri, body);
        assert_eq!(code, 200, "{answer:#}");
    }

    fn get(&mut self, uri: &str) -> Value {
        self.send("GET", uri, &Value::Null).1
    }

    fn items(&mut self, uri: &str) -> Vec<Value> {
        self.get(uri)["items"].as_array().unwrap().clone()
    }

    /// The names of the objects of a list.
    fn names(&mut self, uri: &str) -> Vec<String> {
        self.items(uri).iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

/// The template of a pod.
fn template(name: &str, image: &str) -> Value {
    json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": image}]}})
}

fn deployment(name: &str, replicas: i64) -> Value {
    json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}},
        "template": template(name, "image:1")}})
}

fn stateful_set(name: &str, replicas: i64) -> Value {
    json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "serviceName": name,
        "selector": {"matchLabels": {"app": name}}, "template": template(name, "image:1")}})
}

/// Reason and status of the conditions of an object, by type.
fn conditions(object: &Value) -> BTreeMap<String, String> {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    conditions
        .iter()
        .map(|known| (text(&known["type"]), format!("{} {}", text(&known["status"]), text(&known["reason"]))))
        .collect()
}

#[test]
fn a_thousand_deployments_become_ready_and_then_nothing_happens() {
    let mut cluster = Cluster::new();
    for number in 0..1000 {
        cluster.create(DEPLOYMENTS, &deployment(&format!("d{number}"), 1));
    }
    cluster.pass(5);
    let ready = cluster.items(DEPLOYMENTS).iter().filter(|one| one["status"]["readyReplicas"] == 1).count();
    assert_eq!(ready, 1000);
    assert_eq!(cluster.api.next_due(), None);
    assert!(!cluster.api.tick(cluster.now));
}

#[test]
fn the_same_requests_lead_to_the_same_objects() {
    let run = || {
        let mut cluster = Cluster::with(&[("job", ends_after(2, 1))]);
        cluster.create(DEPLOYMENTS, &deployment("web", 3));
        cluster.create(SETS, &stateful_set("db", 2));
        let job = json!({"metadata": {"name": "job"}, "spec": {"backoffLimit": 1, "template": {"spec":
            {"restartPolicy": "Never", "containers": [{"name": "main", "image": "image:1"}]}}}});
        cluster.create(JOBS, &job);
        cluster.pass(60);
        cluster
            .api
            .state
            .store
            .all()
            .map(|(resource, key, object)| format!("{resource} {key} {}", object.json))
            .collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn statuses_belong_to_the_controllers() {
    let mut cluster = Cluster::new();
    cluster.create(DEPLOYMENTS, &deployment("web", 1));
    cluster.pass(5);
    let managers = |object: &Value| {
        let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        entries.iter().map(|entry| (text(&entry["manager"]), text(&entry["subresource"]))).collect::<Vec<_>>()
    };
    let own = |name: &str, sub: &str| (name.to_owned(), sub.to_owned());
    let web = cluster.get(&format!("{DEPLOYMENTS}/web"));
    assert_eq!(managers(&web), [own("tester", ""), own("kube-controller-manager", "status")]);
    let pods = cluster.items(PODS);
    assert_eq!(managers(&pods[0]), [own("kube-controller-manager", ""), own("kubelet", "status")]);
}
