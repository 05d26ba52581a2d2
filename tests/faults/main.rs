//! What must hold when the network, the API server, other people and the manager itself misbehave: `faults.md`
//! case by case, with faults injected between a manager in this process and a real API server. See
//! `docs/testing.md`.

#[path = "../support/faults/mod.rs"]
mod faults;
#[path = "../support/mod.rs"]
mod support;

mod hands;
mod kills;
mod reads;
mod replies;
mod schedules;
mod sweeps;

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use futures::future::LocalBoxFuture;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, Semaphore};

use faults::case::Case;
use support::oracles::{Logs, State};

/// How many cases run at once: they mostly wait.
const AT_ONCE: usize = 12;

/// Tests that run side by side however few processors there are.
macro_rules! cases {
    ($($module:ident::$name:ident),* $(,)?) => {
        const CASES: &[(&str, fn() -> LocalBoxFuture<'static, ()>)] =
            &[$((stringify!($name), || -> LocalBoxFuture<'static, ()> { Box::pin($module::$name()) })),*];
        $(
            #[test]
            fn $name() {
                run(stringify!($name));
            }
        )*
    };
}

cases! {
    kills::killed_before_an_odd_write,
    kills::killed_before_an_even_write,
    kills::killed_after_an_odd_write,
    kills::killed_after_an_even_write,
    replies::a_lost_reply_is_no_second_object,
    replies::a_storm_of_conflicts_is_bounded,
    replies::retry_after_is_honoured_and_the_others_go_on,
    replies::a_dry_run_that_is_not_answered_is_told,
    replies::what_is_too_large_is_a_condition_and_no_loop,
    replies::a_server_that_never_answers_is_given_up,
    replies::a_list_that_never_comes_is_asked_for_again,
    replies::one_that_hangs_holds_up_no_other,
    reads::what_a_dropped_watch_missed_is_found,
    reads::a_watch_that_may_not_begin_where_it_was_begins_anew,
    reads::lists_are_streams_that_go_on_as_watches,
    reads::a_stream_that_breaks_off_is_no_list,
    reads::where_no_list_is_a_stream_they_come_in_pages,
    reads::own_writes_that_no_watch_has_brought_are_not_repeated,
    reads::a_state_in_between_that_nobody_saw_does_not_matter,
    reads::a_server_that_lags_is_not_believed,
    reads::what_cannot_be_discovered_is_not_pruned,
    reads::a_kind_that_leaves_the_record_holds_up_nobody,
    hands::deleted_by_hand_it_comes_back_and_a_job_runs_once,
    hands::edited_by_hand_it_is_restored,
    hands::what_is_stuck_terminating_is_named,
    hands::a_terminating_namespace_is_left_to_end,
    hands::a_field_of_another_manager_is_named,
    hands::a_foreign_object_is_neither_taken_nor_deleted,
    hands::what_is_no_longer_wanted_goes_without_rendering,
    hands::refused_deletions_of_former_children_back_off,
    hands::a_refused_orphaning_backs_off,
    hands::a_dead_owner_is_never_set,
    hands::the_pods_of_a_job_go_with_it,
    hands::one_malformed_instance_or_annotation_degrades_alone,
    hands::no_secret_is_ever_shown,
    schedules::any_mix_of_faults_ends_the_same,
    schedules::the_same_seed_is_the_same_trace,
    sweeps::whoever_ends_before_a_write_of_a_motley_package,
    sweeps::whoever_ends_after_a_write_of_a_motley_package,
    sweeps::whoever_ends_before_a_write_of_webapp,
    sweeps::whoever_ends_after_a_write_of_webapp,
    sweeps::whoever_ends_before_a_write_of_etcd,
    sweeps::whoever_ends_after_a_write_of_etcd,
    sweeps::any_mix_of_faults_ends_the_same_for_a_motley_package,
}

/// The source of a test binary, be it a file or a folder, or of one file of a folder.
fn test_binary(stem: &str) -> String {
    let file = format!("tests/{stem}.rs");
    if std::path::Path::new(&file).exists() {
        return support::ext::file(&file);
    }
    let folder = std::fs::read_dir(format!("tests/{stem}"));
    let files = folder.unwrap_or_else(|error| panic!("there is no {file}, nor a folder: {error}"));
    files.map(|entry| std::fs::read_to_string(entry.expect("an entry").path()).unwrap_or_default()).collect()
}

/// `docs/testing.md` names a test for each fault, in the file that it names.
#[test]
fn the_tables_name_tests_that_are_there() {
    let doc = support::ext::file("docs/testing.md");
    let mut numbers = std::collections::BTreeSet::new();
    let mut found = 0;
    for row in doc.lines().filter(|line| line.starts_with("| ")) {
        let first = row.trim_start_matches("| ").split(' ').next().unwrap_or_default();
        numbers.extend(first.parse::<u32>());
        let mut source = String::new();
        for word in row.split('`').skip(1).step_by(2) {
            if let Some(stem) = word.strip_suffix(".rs") {
                source = if word.starts_with("src/") { support::ext::file(word) } else { test_binary(stem) };
            } else if word.contains('_') {
                assert!(source.contains(&format!("fn {word}(")), "{word}, of {row}");
                found += 1;
            }
        }
    }
    let wanted = (1..=18).chain([22]).chain(24..=34).chain([39, 40, 42, 43, 52]);
    let missing: Vec<u32> = wanted.filter(|number| !numbers.contains(number)).collect();
    assert!(missing.is_empty(), "no test is named for {missing:?}");
    assert!(found > 60, "{found}");
}

/// One runtime for all: the runtime of a test ends with it.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().expect("a runtime")
});

static SLOTS: Semaphore = Semaphore::const_new(AT_ONCE);

static RUNNING: LazyLock<Mutex<HashMap<&'static str, JoinHandle<()>>>> = LazyLock::new(|| {
    let wanted = |name: &str| {
        let mut args = std::env::args().skip(1).peekable();
        let (mut filters, mut exact) = (Vec::new(), false);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--skip" if args.next().is_some_and(|skip| name.contains(&skip)) => return false,
                "--exact" => exact = true,
                // Numbers and words are values of options.
                _ if CASES.iter().any(|(case, _)| case.contains(&arg)) => filters.push(arg),
                _ => {}
            }
        }
        filters.is_empty()
            || filters.iter().any(|f| if exact { name == f } else { name.contains(f.as_str()) })
    };
    let start = |name: &'static str, case: fn() -> LocalBoxFuture<'static, ()>| {
        std::thread::spawn(move || {
            RUNTIME.block_on(async {
                let _slot = SLOTS.acquire().await;
                let started = Instant::now();
                case().await;
                eprintln!("{name}: {:.1} s", started.elapsed().as_secs_f32());
            });
        })
    };
    Mutex::new(
        CASES
            .iter()
            .filter(|(name, _)| wanted(name))
            .map(|(name, case)| (*name, start(name, *case)))
            .collect(),
    )
});

fn run(name: &'static str) {
    let handle = RUNNING.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    let case = CASES.iter().find(|(case, _)| *case == name).expect("it is a case").1;
    match handle {
        Some(handle) => {
            let thread = handle.thread().id();
            if let Err(panic) = handle.join() {
                // It was told where nobody listens: among the output of the test that started it.
                let text = Logs::capture().panic_of(thread);
                eprintln!("{}", text.unwrap_or_default());
                std::panic::resume_unwind(panic);
            }
        }
        None => RUNTIME.block_on(case()),
    }
}

/// The first spec.
fn first() -> Value {
    json!({"stage": "one"})
}

/// The second: something of everything changes.
fn second() -> Value {
    json!({"stage": "two", "members": ["b", "c"], "keep": false, "port": 81})
}

/// What an undisturbed run comes to after each of its steps, and what it creates and deletes for that.
struct Reference {
    deployed: Step,
    edited: Step,
    deleted: Step,
}

struct Step {
    state: State,
    counts: Counts,
}

/// Creations and deletions by object.
type Counts = std::collections::BTreeMap<String, (usize, usize)>;

async fn reference() -> &'static Reference {
    static REFERENCE: OnceCell<Reference> = OnceCell::const_new();
    REFERENCE
        .get_or_init(async || {
            let case = Case::new().await;
            let process = case.start().await;
            let mut steps = Vec::new();
            for spec in [Some(first()), Some(second()), None] {
                let mark = case.wire.mark();
                if let Some(spec) = spec {
                    case.apply("i-calm", &spec).await;
                    case.ready("i-calm").await;
                } else {
                    case.delete("i-calm").await;
                    case.gone("i-calm").await;
                }
                case.quiet().await;
                steps.push(Step { state: case.state("i-calm").await, counts: case.counts(mark, "i-calm") });
            }
            case.finish(process).await;
            let [deployed, edited, deleted] = <[Step; 3]>::try_from(steps).ok().expect("three steps");
            assert_eq!(deployed.state.len(), 8, "{:?}", deployed.state.keys());
            assert_eq!(deleted.state.keys().collect::<Vec<_>>(), ["configmaps <name>-kept"]);
            Reference { deployed, edited, deleted }
        })
        .await
}
