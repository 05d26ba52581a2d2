//! The report, for people and as JSON.

use std::fmt;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::Result;
use crate::count::Counted;
use crate::measure::{Cpu, Machine};
use crate::rounds::{BareRound, ManagerRound, Round, per_second};

/// All results.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    date: String,
    operetta: &'static str,
    machine: Machine,
    instances: usize,
    concurrency: usize,
    summary: Summary,
    rounds: Vec<Round>,
    counted: Option<Counted>,
}

/// Medians over the rounds.
#[derive(Debug, Serialize)]
struct Summary {
    backlog: Rate,
    arriving: Rate,
}

#[derive(Debug, Serialize)]
struct Rate {
    /// Instances a second of the manager.
    manager: f64,
    /// Instances a second of the bare client that applies the children.
    bare: f64,
    /// The manager's rate relative to `bare`: the median of the rounds' ratios.
    ratio: f64,
    /// Instances a second of the bare client that also writes the statuses.
    whole: f64,
    /// The manager's rate relative to `whole`: the median of the rounds' ratios.
    ratio_whole: f64,
    /// Instances a second of the same client while it watches all that the manager watches.
    watching: f64,
    /// The manager's rate relative to `watching`: the median of the rounds' ratios.
    ratio_watching: f64,
}

impl Report {
    /// Summarizes the rounds.
    pub(crate) fn new(
        instances: usize,
        concurrency: usize,
        rounds: Vec<Round>,
        counted: Option<Counted>,
    ) -> Self {
        let of = |f: &dyn Fn(&Round) -> f64| median(rounds.iter().map(f).collect());
        let rate = |manager: &dyn Fn(&Round) -> f64, bare: &dyn Fn(&BareRound) -> f64| Rate {
            manager: of(&|r| per_second(instances, manager(r))),
            bare: of(&|r| per_second(instances, bare(&r.bare))),
            ratio: of(&|r| bare(&r.bare) / manager(r)),
            whole: of(&|r| per_second(instances, bare(&r.whole))),
            ratio_whole: of(&|r| bare(&r.whole) / manager(r)),
            watching: of(&|r| per_second(instances, bare(&r.watching))),
            ratio_watching: of(&|r| bare(&r.watching) / manager(r)),
        };
        let summary = Summary {
            backlog: rate(&|r| r.backlog.all, &|b| b.applying),
            // Here the instances are created while the clock runs.
            arriving: rate(&|r| r.arriving.all, &|b| b.creating + b.applying),
        };
        Self {
            date: today(),
            operetta: env!("CARGO_PKG_VERSION"),
            machine: Machine::here(),
            instances,
            concurrency,
            summary,
            rounds,
            counted,
        }
    }

    /// The report with every round as JSON.
    pub(crate) fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    fn median_of(&self, f: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(f).collect())
    }

    fn cpu(&self, f: impl Fn(&Round) -> Cpu) -> Cpu {
        let of = |part: fn(&Cpu) -> f64| self.median_of(|r| part(&f(r)));
        Cpu {
            manager: of(|c| c.manager),
            apiserver: of(|c| c.apiserver),
            etcd: of(|c| c.etcd),
            controllers: of(|c| c.controllers),
            client: of(|c| c.client),
            others: of(|c| c.others),
        }
    }
}

/// The median: the middle value, or the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { processor, cores, memory, kernel } = &self.machine;
        let n = self.instances;
        writeln!(f, "operetta {}, {}", self.operetta, self.date)?;
        writeln!(f, "{processor}, {cores} cores, {:.1} GiB, {kernel}", gib(*memory))?;
        writeln!(
            f,
            "{n} instances of five light children; {} requests in flight; medians of {} rounds\n",
            self.concurrency,
            self.rounds.len()
        )?;
        let Summary { backlog, arriving } = &self.summary;
        writeln!(
            f,
            "{:<44} {:>9} {:>9} {:>6} {:>9} {:>6} {:>9} {:>6}",
            "instances a second", "manager", "children", "ratio", "+ status", "ratio", "+ watches", "ratio"
        )?;
        for (name, rate) in [
            ("backlog: they are there, the manager starts", backlog),
            ("arriving: the manager runs, they are made", arriving),
        ] {
            let Rate { manager, bare, ratio, whole, ratio_whole, watching, ratio_watching } = rate;
            write!(f, "{name:<44} {manager:>9.1} {bare:>9.1} {ratio:>6.2} {whole:>9.1} {ratio_whole:>6.2}")?;
            writeln!(f, " {watching:>9.1} {ratio_watching:>6.2}")?;
        }
        self.seconds(f)?;
        self.cpu_table(f)?;
        self.memory(f)?;
        match &self.counted {
            Some(counted) => requests(f, counted),
            None => Ok(()),
        }
    }
}

impl Report {
    fn seconds(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<44} {:>11} {:>11} {:>11}", "seconds", "backlog", "arriving", "bare client")?;
        let line =
            |f: &mut fmt::Formatter<'_>, name: &str, of: fn(&ManagerRound) -> f64, bare: Option<f64>| {
                let (backlog, arriving) =
                    (self.median_of(|r| of(&r.backlog)), self.median_of(|r| of(&r.arriving)));
                write!(f, "{name:<44} {backlog:>11.2} {arriving:>11.2}")?;
                match bare {
                    Some(bare) => writeln!(f, " {bare:>11.2}"),
                    None => writeln!(f),
                }
            };
        line(f, "until the first is Ready", |r| r.first, None)?;
        line(
            f,
            "until all are Ready; all children applied",
            |r| r.all,
            Some(self.median_of(|r| r.bare.applying)),
        )?;
        line(f, "after that, until the manager rests", |r| r.trailing, None)
    }

    #[allow(clippy::many_single_char_names, clippy::type_complexity)] // columns of a table
    fn cpu_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<32} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "CPU seconds", "backlog", "arriving", "children", "+ status", "+ watches", "rest"
        )?;
        let (backlog, arriving) = (self.cpu(|r| r.backlog.cpu), self.cpu(|r| r.arriving.cpu));
        let (bare, whole) = (self.cpu(|r| r.bare.cpu), self.cpu(|r| r.whole.cpu));
        let watching = self.cpu(|r| r.watching.cpu);
        let after = self.cpu(|r| r.backlog.trailing_cpu);
        let parts: [(&str, fn(&Cpu) -> f64); 6] = [
            ("operetta run", |c| c.manager),
            ("kube-apiserver", |c| c.apiserver),
            ("etcd", |c| c.etcd),
            ("kube-controller-manager", |c| c.controllers),
            ("the benchmark itself", |c| c.client),
            ("others on the machine", |c| c.others),
        ];
        for (name, of) in parts {
            write!(f, "{name:<32}")?;
            for cpu in [&backlog, &arriving, &bare, &whole, &watching, &after] {
                write!(f, " {:>9.2}", of(cpu))?;
            }
            writeln!(f)?;
        }
        let disturbed = bare.others > 0.1 * bare.apiserver || backlog.others > 0.1 * backlog.apiserver;
        if disturbed {
            writeln!(f, "The machine had other work: these figures are not to be compared with others.")?;
        }
        Ok(())
    }

    fn memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<44} {:>11} {:>11}", "memory of operetta run, MiB", "backlog", "arriving")?;
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let line = |f: &mut fmt::Formatter<'_>, name: &str, of: fn(&ManagerRound) -> u64| {
            let (a, b) = (self.median_of(|r| mib(of(&r.backlog))), self.median_of(|r| mib(of(&r.arriving))));
            writeln!(f, "{name:<44} {a:>11.1} {b:>11.1}")
        };
        line(f, "resident, all Ready (VmRSS)", |r| r.memory.resident)?;
        line(f, "at most (VmHWM)", |r| r.memory.peak)
    }
}

fn requests(f: &mut fmt::Formatter<'_>, counted: &Counted) -> fmt::Result {
    writeln!(
        f,
        "\n{:<44} {:>11} {:>11} {:>11}",
        format!("requests of the manager, {} instances", counted.instances),
        "all",
        "an instance",
        "a restart"
    )?;
    let names =
        counted.requests.keys().chain(counted.restart.keys()).collect::<std::collections::BTreeSet<_>>();
    let mut sums = (0, 0);
    for name in names {
        let of = |map: &std::collections::BTreeMap<String, usize>| map.get(name).copied().unwrap_or(0);
        let (all, restart) = (of(&counted.requests), of(&counted.restart));
        sums = (sums.0 + all, sums.1 + restart);
        writeln!(f, "{name:<44} {all:>11} {:>11.2} {restart:>11}", share(all, counted.instances))?;
    }
    writeln!(f, "{:<44} {:>11} {:>11.2} {:>11}", "together", sums.0, share(sums.0, counted.instances), sums.1)
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn share(count: usize, of: usize) -> f64 {
    count as f64 / of as f64
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

#[expect(clippy::disallowed_methods, reason = "for people to read")]
fn today() -> String {
    format!("{:.0}", Timestamp::now())
}
