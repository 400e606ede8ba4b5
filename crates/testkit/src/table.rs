//! Table-driven tests: one check, many rows, all failures reported together.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use floe_sync::Mutex;

/// The maximum number of failing rows that are reported in full.
const FAILURES_TOLD_MAX: usize = 40;

/// Runs `check` on every row, with a thread per CPU. A row fails by returning strings or by panicking.
///
/// # Panics
/// A row failed; the message lists all failures.
pub fn check_rows<Row: Sync>(
    rows: &[Row],
    name: impl Fn(&Row) -> String + Sync,
    check: impl Fn(&Row) -> Vec<String> + Sync,
) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let work = || {
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = catch_unwind(AssertUnwindSafe(|| check(row)));
            let complaints = outcome.unwrap_or_else(|panic| vec![format!("panicked: {}", panic_message(&*panic))]);
            if !complaints.is_empty() {
                failures.lock().push((name(row), complaints));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
    let mut failures = failures.into_inner();
    failures.sort();
    if !failures.is_empty() {
        let told: Vec<String> = failures
            .iter()
            .take(FAILURES_TOLD_MAX)
            .map(|(name, complaints)| format!("{name}:\n    {}", complaints.join("\n    ")))
            .collect();
        panic!("{} of {} rows fail\n{}", failures.len(), rows.len(), told.join("\n"));
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("with no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs_and_every_failing_row_is_reported() {
        let rows: Vec<u32> = (0..100).collect();
        let outcome = catch_unwind(|| {
            check_rows(
                &rows,
                |row| format!("row {row}"),
                |row| {
                    assert_ne!(*row, 51, "fifty-one");
                    if *row == 7 { vec!["seven".to_owned()] } else { Vec::new() }
                },
            );
        });
        let message = outcome.expect_err("two rows fail").downcast::<String>().expect("a formatted message");
        assert!(message.starts_with("2 of 100 rows fail"), "{message}");
        assert!(message.contains("row 51:\n    panicked: ") && message.contains("row 7:\n    seven"), "{message}");
    }
}
