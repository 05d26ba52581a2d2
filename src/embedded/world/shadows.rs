//! Finds rules that never answer, because an earlier rule answers in their place.

use operetta_lang::diag::Diagnostic;
use operetta_package::decode::At;

use super::rules::{BalancerRule, ExecRule, HttpRule, LogRule, PodRule, Rules, When};

/// How many rules of a list are compared with those after them.
const MOST_EARLIER: usize = 200;

/// A rule among others that are tried in order.
trait Rule {
    fn written(&self) -> &At<()>;
    fn when(&self) -> &When;

    /// Whether its pattern fits all that the pattern of another one fits.
    fn covers(&self, _: &Self) -> bool {
        true
    }

    /// Whether the conditions of both see the same variables.
    fn has_same_names(&self, _: &Self) -> bool {
        true
    }
}

/// Warnings about the rules of a file that never answer.
pub(super) fn shadowed(rules: &Rules) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    among(&rules.pods, &mut found);
    among(&rules.exec, &mut found);
    among(&rules.http, &mut found);
    among(&rules.logs, &mut found);
    among(&rules.balancers, &mut found);
    found
}

fn among<R: Rule>(rules: &[R], found: &mut Vec<Diagnostic>) {
    for (index, rule) in rules.iter().enumerate() {
        let mut before = rules[..index].iter().take(MOST_EARLIER);
        let Some(earlier) = before.find(|earlier| answers_instead(*earlier, rule)) else {
            continue;
        };
        let place = &earlier.written().at;
        let (line, _) = place.source.line_col(place.span.start);
        let At { at, path, .. } = rule.written();
        let message = format!("this rule never answers: the one in line {line} does, for all that it fits");
        let help = "remove it, put it before that one, or give that one a `when`";
        found.push(Diagnostic::warning("world::shadowed", message).located(at.clone()).path(path).help(help));
    }
}

fn answers_instead<R: Rule>(earlier: &R, rule: &R) -> bool {
    let is_as_often = match (earlier.when(), rule.when()) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(one), Some(other)) => {
            let text = one.value.text();
            text.is_some() && text == other.value.text() && earlier.has_same_names(rule)
        }
    };
    is_as_often && earlier.covers(rule)
}

/// Whether a rule for one container, or for any, is for all that another is for.
fn covers_container(one: Option<&String>, other: Option<&String>) -> bool {
    one.is_none() || one == other
}

impl Rule for PodRule {
    fn written(&self) -> &At<()> {
        &self.written
    }

    fn when(&self) -> &When {
        &self.when
    }
}

impl Rule for ExecRule {
    fn written(&self) -> &At<()> {
        &self.written
    }

    fn when(&self) -> &When {
        &self.when
    }

    fn covers(&self, other: &Self) -> bool {
        covers_container(self.container.as_ref(), other.container.as_ref())
            && self.command.covers(&other.command)
    }

    fn has_same_names(&self, other: &Self) -> bool {
        self.command.is_same(&other.command)
    }
}

impl Rule for HttpRule {
    fn written(&self) -> &At<()> {
        &self.written
    }

    fn when(&self) -> &When {
        &self.when
    }

    fn covers(&self, other: &Self) -> bool {
        self.is_pod == other.is_pod
            && (self.method.is_none() || self.method == other.method)
            && (self.port.is_none() || self.port == other.port)
            && self.url.covers(&other.url)
    }

    fn has_same_names(&self, other: &Self) -> bool {
        self.url.is_same(&other.url) && has_same_state(self, other)
    }
}

/// Whether the state that conditions see is the same.
fn has_same_state(one: &HttpRule, other: &HttpRule) -> bool {
    one.per.is_none() && other.per.is_none()
}

impl Rule for LogRule {
    fn written(&self) -> &At<()> {
        &self.written
    }

    fn when(&self) -> &When {
        &self.when
    }

    fn covers(&self, other: &Self) -> bool {
        covers_container(self.container.as_ref(), other.container.as_ref())
    }
}

impl Rule for BalancerRule {
    fn written(&self) -> &At<()> {
        &self.written
    }

    fn when(&self) -> &When {
        &self.when
    }
}
