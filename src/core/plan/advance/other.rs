//! Steps that run a plan of another instance.

use serde_json::{Value, json};

use super::super::action::{RunAction, RunObject};
use super::super::eval::NoValue;
use super::super::inputs::OtherRun;
use super::super::render;
use super::super::run::Phase;
use super::super::step_state::AttemptObject;
use super::attempts::Attempt;
use super::jobs::name_taken;
use super::step::Acted;
use super::{Advancer, At, Failure};
use crate::package::plan::{Call, RECORDED, Step};

impl Advancer<'_> {
    pub(super) fn poll_run(
        &mut self,
        step: &Step,
        call: &Call,
        path: &str,
        at: &At<'_>,
        expired: bool,
    ) -> Attempt {
        let AttemptObject { name, uid } = self.attempt_object(path);
        let Some(of) = &call.of else { return Attempt::Void };
        let scope = self.scope(step, path, at);
        let of = match render::other(self.inputs.engine, of, &scope) {
            Ok(of) => of,
            Err(NoValue::Unknown(why)) => {
                self.wait_for(step, path, at, "Unknown", &why);
                return Attempt::Open;
            }
            Err(NoValue::Wrong(why)) => return Attempt::Failed(Failure::new(path, "ExpressionFailed", why)),
        };
        let gone = || {
            let message = format!("PlanRun {name} was deleted before it ended");
            Attempt::Failed(Failure::retryable(path, "RunGone", message))
        };
        match self.inputs.cluster.run(&of, &name) {
            OtherRun::Unknown(why) => {
                self.wait_for(step, path, at, "Unknown", &format!("PlanRun {name}: {why}"));
                Attempt::Open
            }
            OtherRun::Absent | OtherRun::Foreign if uid.is_some() => gone(),
            OtherRun::Absent | OtherRun::Foreign if self.settle || expired => Attempt::Void,
            OtherRun::Foreign => Attempt::Failed(name_taken(path, "PlanRun", &name)),
            OtherRun::Absent => {
                let params = match &call.params {
                    None => Ok(Value::Null),
                    Some(tree) => tree.eval(self.inputs.engine, &scope).map(Option::unwrap_or_default),
                };
                match params.map_err(NoValue::from) {
                    Ok(params) => {
                        if !self.inputs.paused {
                            let body = self.inputs.instance.called_run(&name, &of, &call.plan, params);
                            self.progress.effects.push(RunAction::Create(RunObject::PlanRun, Box::new(body)));
                        }
                        self.wait_for(
                            step,
                            path,
                            at,
                            "CreatingRun",
                            &format!("PlanRun {name} is being created"),
                        );
                        Attempt::Open
                    }
                    Err(NoValue::Unknown(why)) => {
                        self.wait_for(step, path, at, "Unknown", &why);
                        Attempt::Open
                    }
                    Err(NoValue::Wrong(why)) => Attempt::Failed(Failure::new(path, "ExpressionFailed", why)),
                }
            }
            OtherRun::Found { object, .. } if uid.as_ref().is_some_and(|uid| *uid != object.uid) => gone(),
            OtherRun::Found { object, phase, message, recorded } => {
                self.record_uid(path, &object.uid);
                match phase {
                    Phase::Succeeded => {
                        Attempt::Ended(Acted::Done(vec![(RECORDED, Value::Object(recorded))]))
                    }
                    // This run is cancelled, and has cancelled that one: no failure.
                    Phase::Cancelled if self.cancel => Attempt::Void,
                    Phase::Failed | Phase::Cancelled | Phase::Superseded => {
                        let message = format!("PlanRun {name} is {phase:?}: {message}");
                        Attempt::Failed(Failure::retryable(path, "RunFailed", message))
                    }
                    Phase::Pending | Phase::Running | Phase::Interrupted if self.cancel || expired => {
                        let patch = json!({"spec": {"cancel": true}});
                        self.progress.effects.push(RunAction::Change(
                            RunObject::PlanRun,
                            object,
                            Box::new(patch),
                        ));
                        self.progress.in_flight = true;
                        self.wait_for(
                            step,
                            path,
                            at,
                            "CancellingRun",
                            &format!("PlanRun {name} is being cancelled"),
                        );
                        Attempt::Open
                    }
                    Phase::Pending | Phase::Running | Phase::Interrupted => {
                        let detail = if message.is_empty() { message } else { format!(": {message}") };
                        let message =
                            format!("PlanRun {name} of {} {} has not ended{detail}", of.kind, of.name);
                        self.wait_for(step, path, at, "RunActive", &message);
                        Attempt::Open
                    }
                }
            }
        }
    }
}
