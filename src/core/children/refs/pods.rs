//! Finds the pod of a child: of the instance itself, or of another instance of the package.

use std::sync::Arc;

use serde_json::Value;

use crate::api::Gvk;
use crate::children::model::{
    Context, FieldProjection, Observed, Problem, Referred, ResourceSelector, Select,
};
use crate::children::names;
use crate::facts::controller_uid;
use crate::plan::{Pod, PodQuery};
use crate::readiness::Readiness;
use crate::selector::Selector;

/// What is known of the objects that a selector names.
type LookUp<'a> = &'a mut dyn FnMut(ResourceSelector) -> Result<Vec<Arc<Referred>>, Problem>;

/// The pod of a child among its live objects: a ready one; of a member that is named by its key also one that is not.
pub(in crate::children) fn find_pod(
    ctx: &Context<'_>,
    wanted: &PodQuery<'_>,
    look_up: LookUp<'_>,
) -> Result<Pod, Problem> {
    let key = wanted.key.map(names::key_text);
    let mut live = match wanted.of {
        None => of_instance(ctx, wanted.child, key.as_deref()),
        Some(of) => of_sibling(ctx, of, (wanted.child, key.as_deref()))?,
    };
    live.sort_by(|a, b| a.object.cmp(&b.object));
    for object in &live {
        if object.object.gvk.is("v1", "Pod") {
            if matches!(object.readiness, Readiness::Ready) || key.is_some() {
                let namespace = object.object.namespace.as_deref().unwrap_or_default().to_owned();
                let (name, uid) = (object.object.name.to_string(), object.uid.to_string());
                return Ok(Pod { namespace, name, uid });
            }
        } else if let Some(pod) = pod_of(object, wanted.ordinal, look_up)? {
            return Ok(pod);
        }
    }
    let item = names::item_name(wanted.child, key.as_deref());
    let what = wanted.of.map_or_else(|| item.clone(), |(id, _)| format!("{item} of refs.{id}"));
    let state = if live.is_empty() { "does not exist" } else { "has no ready pod" };
    Err(Problem::waiting("DependencyNotReady", format!("{what} {state}")))
}

fn of_instance<'a>(ctx: &Context<'a>, child: &str, key: Option<&str>) -> Vec<&'a Arc<Observed>> {
    let is_wanted = |object: &&Arc<Observed>| {
        *object.child == *child
            && object.is_made_by_us()
            && !object.terminating
            && (key.is_none() || object.key.as_deref() == key)
    };
    ctx.snapshot.observed.iter().filter(is_wanted).collect()
}

/// The live objects of a child of another instance of the package. Both instances are in one namespace.
fn of_sibling<'a>(
    ctx: &Context<'a>,
    (id, uid): (&str, &str),
    (child, key): (&str, Option<&str>),
) -> Result<Vec<&'a Arc<Observed>>, Problem> {
    let Some(siblings) = &ctx.snapshot.siblings else {
        return Err(Problem::waiting("ObservationFailed", "a preview makes no observations".to_owned()));
    };
    let known = siblings.iter().find(|sibling| *sibling.uid == *uid);
    let Some(sibling) = known.filter(|sibling| sibling.places.is_some()) else {
        let message = format!("the children of refs.{id} are not known yet");
        return Err(Problem::waiting("DependencyNotReady", message));
    };
    if sibling.namespace.as_deref() != ctx.origin.namespace() {
        let message = format!("refs.{id} is in another namespace, where no command of this instance is run");
        return Err(Problem::invalid(&message));
    }
    let places = sibling.places_of(child, key);
    Ok(places.filter(|observed| sibling.is_parent_of(observed, &ctx.snapshot.owner)).collect())
}

/// A ready pod of a workload; with an ordinal the pod of that number. `look_up`: what is known of the objects that a
/// selector names.
///
/// Labels prove nothing: every editor of the pod can write them. So a pod must name the workload, or a `ReplicaSet` of it, as its
/// controller.
pub(in crate::children) fn pod_of(
    workload: &Observed,
    ordinal: Option<u64>,
    look_up: LookUp<'_>,
) -> Result<Option<Pod>, Problem> {
    let live: Value =
        workload.live.as_deref().and_then(|live| serde_json::from_str(live).ok()).unwrap_or_default();
    let selector = &live["spec"]["selector"];
    if selector["matchLabels"].is_null() && selector["matchExpressions"].is_null() {
        return Err(Problem::invalid(&format!("{} has no pods to run a command in", workload.object)));
    }
    let selector = Selector::parse(selector).map_err(|error| Problem::invalid(&error))?;
    let want = |gvk: Gvk, content: bool| ResourceSelector {
        gvk,
        namespace: workload.object.namespace.as_deref().map(Box::from),
        select: Select::Labels(selector.clone()),
        keep: FieldProjection { paths: [vec!["metadata".to_owned()]].into(), content },
    };
    let mut owners: Vec<String> = vec![workload.uid.to_string()];
    if &*workload.object.gvk.kind == "Deployment" {
        let sets = look_up(want(Gvk::new("apps/v1", "ReplicaSet"), false))?;
        let own = sets.iter().filter(|set| is_controlled(set, &owners)).filter_map(|set| uid(set));
        owners = own.collect();
    }
    let pods = look_up(want(Gvk::new("v1", "Pod"), true))?;
    let numbered = ordinal.map(|ordinal| format!("{}-{ordinal}", workload.object.name));
    // The pods of a StatefulSet have names of its own, which no other pod can have beside them.
    let is_numbered = |name: &str| {
        let number = name.strip_prefix(&*workload.object.name).and_then(|rest| rest.strip_prefix('-'));
        number.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    let has_numbers = &*workload.object.gvk.kind == "StatefulSet";
    let is_wanted = |pod: &&Arc<Referred>| match &numbered {
        Some(name) => *pod.name == **name,
        None => pod.ready && (!has_numbers || is_numbered(&pod.name)),
    };
    let mut pods = pods.iter().filter(|pod| is_controlled(pod, &owners)).filter(is_wanted);
    Ok(pods.next().and_then(|pod| {
        let namespace = pod.namespace.as_deref().unwrap_or_default().to_owned();
        Some(Pod { namespace, name: pod.name.to_string(), uid: uid(pod)? })
    }))
}

fn uid(object: &Referred) -> Option<String> {
    object.value["metadata"]["uid"].as_str().map(str::to_owned)
}

fn is_controlled(object: &Referred, owners: &[String]) -> bool {
    controller_uid(&object.value).is_some_and(|controller| owners.iter().any(|uid| uid == controller))
}
