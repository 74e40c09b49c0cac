//! `conch check-history`: holds a recorded history against the invariants. One pass, a line at a time; needs no server.

use std::io::{BufRead, BufReader, Read};

use conch_core::history::{Checker, Event, Lost, Report};
use serde_json::{Value, json};

use crate::args::CheckHistoryArgs;
use crate::exit::Failure;
use crate::output::{Format, Output};
use crate::safe::one_line;

/// Longest line, in bytes; an event has no body, so that a longer one is none.
const LINE_BYTES_MAX: u64 = 64 * 1024;

pub(crate) fn run(args: &CheckHistoryArgs, output: &Output) -> Result<(), Failure> {
    let name = args.file.display();
    let report = if args.file.as_os_str() == "-" {
        check(std::io::stdin().lock())
    } else {
        let file = std::fs::File::open(&args.file).map_err(|error| Failure::other(format!("{name}: {error}")))?;
        check(BufReader::new(file))
    };
    let report = report.map_err(|problem| Failure::other(format!("{name}: {problem}")))?;
    match output.format {
        Format::Json => output.json(&as_json(&report))?,
        Format::Human => {
            for violation in &report.violations {
                output.line(&one_line(&violation.to_string()))?;
            }
            for Lost { conversation, seq, write, acked } in &report.lost {
                let told = if *acked { "acked" } else { "shown" };
                output.line(&one_line(&format!("lost in a failover: {conversation} {seq}, {write}, {told}")))?;
            }
            let counts = report.counts;
            output.line(&format!(
                "{} events, {} writes, {} acks, {} records shown, {} in the log, {} lost in {} failovers: {} violations",
                counts.events,
                counts.keys,
                counts.acked,
                counts.observed,
                counts.records,
                counts.lost,
                counts.failovers,
                report.found
            ))?;
        }
    }
    if report.found == 0 { Ok(()) } else { Err(Failure::violations(format!("{} violations in {name}", report.found))) }
}

fn check(mut lines: impl BufRead) -> Result<Report, String> {
    let mut checker = Checker::default();
    let mut line = String::new();
    for number in 1_u64.. {
        line.clear();
        let placed = |problem: String| format!("line {number}: {problem}");
        let read = (&mut lines).take(LINE_BYTES_MAX).read_line(&mut line).map_err(|error| placed(error.to_string()))?;
        if read == 0 {
            break;
        }
        if read as u64 == LINE_BYTES_MAX {
            return Err(placed(format!("is longer than {LINE_BYTES_MAX} bytes")));
        }
        if !line.trim().is_empty() {
            let event = Event::parse(&line).map_err(placed)?;
            checker.event(&event).map_err(placed)?;
        }
    }
    Ok(checker.finish())
}

fn as_json(report: &Report) -> Value {
    let violations: Vec<_> = report
        .violations
        .iter()
        .map(|broken| json!({"invariant": broken.invariant as u8, "detail": broken.detail}))
        .collect();
    let lost: Vec<_> = report
        .lost
        .iter()
        .map(|Lost { conversation, seq, write, acked }| {
            json!({"conversation": conversation, "seq": seq, "write": write, "acked": acked})
        })
        .collect();
    let counts = report.counts;
    json!({
        "events": counts.events,
        "writes": counts.keys,
        "acks": counts.acked,
        "refusals": counts.refused,
        "unknown": counts.unknown,
        "shown": counts.observed,
        "records": counts.records,
        "failovers": counts.failovers,
        "lost_total": counts.lost,
        "lost": lost,
        "violations_total": report.found,
        "violations": violations,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_one_by_one_and_a_bad_one_is_named() {
        let good = concat!(
            r#"{"event":"invoked","client":"c","conversation":"a","sender":"s","client_msg_id":"k","t_us":1}"#,
            "\n\n",
            r#"{"event":"acked","client":"c","conversation":"a","sender":"s","client_msg_id":"k","seq":1,"epoch":1,"t_us":2}"#,
            "\n",
            r#"{"event":"final","conversation":"a","seq":1,"epoch":1,"sender":"s","client_msg_id":"k"}"#,
        );
        let report = check(good.as_bytes()).expect("a history");
        assert_eq!((report.found, report.counts.events, report.counts.records), (0, 3, 1));
        let lost = good.rsplit_once('\n').expect("lines").0;
        assert_eq!(check(lost.as_bytes()).expect("a history").found, 1, "acked, and not in the log");
        assert!(check(&b"\n{}\n"[..]).expect_err("no event").starts_with("line 2: "));
        let long = vec![b' '; 70_000];
        assert!(check(&long[..]).expect_err("too long").contains("longer than 65536 bytes"));
    }
}
