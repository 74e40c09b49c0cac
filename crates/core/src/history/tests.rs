//! One good history, and for every invariant mutants of it that the checker must catch.

use super::*;
use crate::invariant::Invariant;

/// Two senders, a takeover, an observer that re-joins; everything is as it should be.
const GOOD: &str = r#"
{"event":"claimed","conversation":"c","epoch":1,"t_us":1}
{"event":"joined","observer":"o","conversation":"c","after":0,"t_us":2}
{"event":"invoked","client":"x","conversation":"c","sender":"alice","client_msg_id":"a1","t_us":3}
{"event":"committed","conversation":"c","seq":1,"epoch":1,"t_us":4}
{"event":"acked","client":"x","conversation":"c","sender":"alice","client_msg_id":"a1","seq":1,"epoch":1,"t_us":5}
{"event":"observed","observer":"o","conversation":"c","seq":1,"epoch":1,"sender":"alice","client_msg_id":"a1","log":"s.1","t_us":6}
{"event":"invoked","client":"y","conversation":"c","sender":"bob","client_msg_id":"b1","t_us":7}
{"event":"committed","conversation":"c","seq":2,"epoch":1,"t_us":8}
{"event":"unknown","client":"y","conversation":"c","sender":"bob","client_msg_id":"b1","t_us":9}
{"event":"invoked","client":"y","conversation":"c","sender":"bob","client_msg_id":"b9","t_us":10}
{"event":"refused","client":"y","conversation":"c","sender":"bob","client_msg_id":"b9","t_us":11}
{"event":"claimed","conversation":"c","epoch":2,"t_us":12}
{"event":"invoked","client":"x","conversation":"c","sender":"alice","client_msg_id":"a2","t_us":13}
{"event":"committed","conversation":"c","seq":2001,"epoch":2,"t_us":14}
{"event":"acked","client":"x","conversation":"c","sender":"alice","client_msg_id":"a2","seq":2001,"epoch":2,"t_us":15}
{"event":"joined","observer":"o","conversation":"c","after":1,"t_us":16}
{"event":"observed","observer":"o","conversation":"c","seq":2,"epoch":1,"sender":"bob","client_msg_id":"b1","log":"s.1","t_us":17}
{"event":"observed","observer":"o","conversation":"c","seq":2001,"epoch":2,"sender":"alice","client_msg_id":"a2","log":"s.1","t_us":18}
{"event":"caught_up","observer":"o","conversation":"c","seq":2001,"t_us":19}
{"event":"invoked","client":"y","conversation":"c","sender":"bob","client_msg_id":"b1","t_us":20}
{"event":"acked","client":"y","conversation":"c","sender":"bob","client_msg_id":"b1","seq":2,"epoch":1,"t_us":21}
{"event":"cursor","client":"x","sub":"alice","conversation":"c","seq":1,"t_us":22}
{"event":"cursor","client":"x","sub":"alice","conversation":"c","seq":2,"t_us":23}
{"event":"final","conversation":"c","seq":1,"epoch":1,"sender":"alice","client_msg_id":"a1"}
{"event":"final","conversation":"c","seq":2,"epoch":1,"sender":"bob","client_msg_id":"b1"}
{"event":"final","conversation":"c","seq":2001,"epoch":2,"sender":"alice","client_msg_id":"a2"}
{"event":"final_cursor","sub":"alice","conversation":"c","seq":2}
"#;

/// The good history with every line that holds `line` changed from `from` to `to`.
fn mutated(line: &str, from: &str, to: &str) -> String {
    let change = |text: &str| if text.contains(line) { text.replace(from, to) } else { text.to_owned() };
    let mutant = GOOD.lines().map(change).collect::<Vec<_>>().join("\n");
    assert_ne!(mutant.trim(), GOOD.trim(), "the mutant differs: {line} {from}");
    mutant
}

fn found(history: &str) -> Vec<Invariant> {
    let report = check_lines(history.lines()).expect("well-formed");
    let mut found: Vec<Invariant> = report.violations.iter().map(|broken| broken.invariant).collect();
    found.dedup();
    found
}

#[test]
fn a_good_history_passes_and_is_counted() {
    let report = check_lines(GOOD.lines()).expect("well-formed");
    assert_eq!(report.violations, Vec::new());
    let counts = Counts {
        events: 27,
        keys: 4,
        acked: 3,
        refused: 1,
        unknown: 1,
        observed: 3,
        records: 3,
        failovers: 0,
        lost: 0,
    };
    assert_eq!(report.counts, counts);
}

#[test]
fn every_line_goes_there_and_back() {
    for line in GOOD.lines().filter(|line| !line.is_empty()) {
        assert_eq!(Event::parse(line).expect("parses").to_line(), line);
    }
}

/// What is looked for, what becomes of it, and the invariant that must be reported.
#[test]
fn every_invariant_has_mutants_that_are_caught() {
    use Invariant::*;
    let cases = [
        // The final log's epoch falls; a claim does not raise it.
        (r#""final","conversation":"c","seq":1,"#, r#""epoch":1"#, r#""epoch":9"#, EpochNeverFalls),
        (r#""claimed","conversation":"c","epoch":2"#, r#""epoch":2"#, r#""epoch":1"#, EpochNeverFalls),
        // A seq is two records: between ack and log, between observer and log, in the log, at commit.
        (r#""t_us":15"#, r#""seq":2001"#, r#""seq":2"#, SeqOnce),
        (r#""t_us":6}"#, r#""a1""#, r#""a7""#, SeqOnce),
        (r#""final","conversation":"c","seq":2001"#, r#""seq":2001"#, r#""seq":2"#, SeqOnce),
        (r#""t_us":14"#, r#""seq":2001"#, r#""seq":1"#, SeqOnce),
        // An acked record is gone, has two numbers, is there twice, was acked before it was durable.
        (r#""final","conversation":"c","seq":1,"#, r#""a1""#, r#""zz""#, AckedOnce),
        (r#""t_us":21"#, r#""seq":2"#, r#""seq":3"#, AckedOnce),
        (r#""final","conversation":"c","seq":2001"#, r#""a2""#, r#""a1""#, AckedOnce),
        (r#""committed","conversation":"c","seq":1,"#, r#""seq":1"#, r#""seq":7"#, AckedOnce),
        // A refused or unknown one lands twice.
        (r#""final""#, r#""bob","client_msg_id":"b1""#, r#""bob","client_msg_id":"b9""#, SeqOnce),
        // Order of acks: a later send gets the lower number.
        (r#""t_us":5}"#, r#""seq":1,"#, r#""seq":3000,"#, OrderOfAcks),
        // Observers: a gap, a repetition, a wrong beginning, a missing end, another log without a resync.
        (r#""t_us":17"#, r#""observed","observer":"o""#, r#""observed","observer":"p""#, ObserversSeeTheLog),
        (r#""t_us":16"#, r#""after":1"#, r#""after":0"#, ObserversSeeTheLog),
        (r#""t_us":16"#, r#""after":1"#, r#""after":2"#, ObserversSeeTheLog),
        (r#""t_us":18"#, r#""observer":"o""#, r#""observer":"p""#, ObserversSeeTheLog),
        (r#""t_us":18"#, r#""s.1""#, r#""s.2""#, ObserversSeeTheLog),
        // Shown before it is durable, or never durable.
        (r#""t_us":14"#, r#""seq":2001"#, r#""seq":2002"#, DurableBeforeShown),
        (r#""final","conversation":"c","seq":2,"#, r#""seq":2,"#, r#""seq":3,"#, DurableBeforeShown),
        // Committed by another epoch than the one that reigned; told another epoch than the log's.
        (r#""t_us":14"#, r#""epoch":2"#, r#""epoch":1"#, CommittedInReign),
        (r#""t_us":21"#, r#""epoch":1"#, r#""epoch":2"#, CommittedInReign),
        // A cursor falls while it is watched, or in the end.
        (r#""t_us":23"#, r#""seq":2"#, r#""seq":0"#, CursorMonotone),
        (r#""final_cursor""#, r#""seq":2"#, r#""seq":1"#, CursorMonotone),
    ];
    for (line, from, to, invariant) in cases {
        let found = found(&mutated(line, from, to));
        assert!(found.contains(&invariant), "{line}: {from} → {to}: {invariant:?} is not among {found:?}");
    }
}

#[test]
fn a_write_of_unknown_outcome_may_land_once_but_not_twice() {
    let invoked = r#"{"event":"invoked","client":"y","conversation":"c","sender":"bob","client_msg_id":"b1","t_us":1}"#;
    let row = |seq: u64| {
        format!(r#"{{"event":"final","conversation":"c","seq":{seq},"epoch":1,"sender":"bob","client_msg_id":"b1"}}"#)
    };
    assert_eq!(found(invoked), vec![]);
    assert_eq!(found(&[invoked.to_owned(), row(1)].join("\n")), vec![]);
    assert_eq!(found(&[invoked.to_owned(), row(1), row(2)].join("\n")), vec![Invariant::UnknownAtMostOnce]);
}

#[test]
fn a_resync_begins_a_new_stretch() {
    let resync = r#"{"event":"resync","observer":"o","conversation":"c","log":"s.2","head_seq":2,"t_us":16}"#;
    let history: Vec<String> = GOOD
        .lines()
        .filter(|line| !line.contains(r#""t_us":17"#))
        .map(|line| if line.contains(r#""t_us":16"#) { resync.to_owned() } else { line.to_owned() })
        .collect();
    assert_eq!(found(&history.join("\n")), vec![]);
}

#[test]
fn a_history_without_commits_and_claims_is_checked_for_the_rest() {
    let keep = |line: &&str| !line.contains(r#""committed""#) && !line.contains(r#""claimed""#);
    let bare = GOOD.lines().filter(keep).collect::<Vec<_>>().join("\n");
    assert_eq!(found(&bare), vec![]);
    let misnumbered = bare.replace(r#""a1","seq":1,"#, r#""a1","seq":3,"#);
    assert_eq!(found(&misnumbered), vec![Invariant::OrderOfAcks, Invariant::AckedOnce]);
}

#[test]
fn malformed_lines_are_named() {
    let error = |history: &str| check_lines(history.lines()).expect_err("must be refused").to_string();
    assert!(error("\nnonsense").starts_with("line 2: expected"));
    let cases = [
        (r#"{"event":"claimed","conversation":"c","t_us":1}"#, "line 1: missing field `epoch`"),
        (r#"{"event":"claimed","conversation":"c","epoch":1,"t_us":1,"x":1}"#, "line 1: unknown field `x`"),
        (r#"{"event":"slept"}"#, "line 1: unknown variant `slept`"),
        (r#"{"event":"claimed","conversation":"","epoch":1,"t_us":1}"#, "line 1: conversation: is empty"),
        (
            r#"{"event":"refused","client":"x","conversation":"c","sender":"a","client_msg_id":"k","t_us":1}"#,
            "line 1: a/k has an outcome but was never invoked",
        ),
        (&mutated(r#""t_us":20"#, r#""t_us":20"#, r#""t_us":4"#), "line 21: t_us: 4 is before 19"),
        (&mutated(r#""final","conversation":"c","seq":2,"#, r#""seq":2"#, r#""seq":5000"#), "line 27: seq: final rows"),
    ];
    for (history, message) in cases {
        assert!(error(history).starts_with(message), "{}", error(history));
    }
}

#[test]
fn reports_are_bounded() {
    let rows = (0..1_000).map(|epoch| {
        format!(r#"{{"event":"final","conversation":"c","seq":{},"epoch":{},"sender":"s"}}"#, epoch + 1, 1_000 - epoch)
    });
    let history = rows.collect::<Vec<_>>().join("\n");
    let report = check_lines(history.lines()).expect("well-formed");
    assert_eq!((report.violations.len(), report.found), (MOST_REPORTED, 999));
}

/// A standby without 2 and 3 is promoted: both were acked, 2 was shown; the unknown `b1` landed on both, the unknown `b2` on none
/// but the old primary, where it was shown as 4.
const FAILOVER: &str = r#"
{"event":"joined","observer":"o","conversation":"c","after":0,"t_us":1}
{"event":"invoked","client":"x","conversation":"c","sender":"alice","client_msg_id":"a1","t_us":2}
{"event":"acked","client":"x","conversation":"c","sender":"alice","client_msg_id":"a1","seq":1,"epoch":1,"t_us":3}
{"event":"observed","observer":"o","conversation":"c","seq":1,"epoch":1,"sender":"alice","client_msg_id":"a1","log":"s.1","t_us":4}
{"event":"invoked","client":"x","conversation":"c","sender":"alice","client_msg_id":"a2","t_us":5}
{"event":"acked","client":"x","conversation":"c","sender":"alice","client_msg_id":"a2","seq":2,"epoch":1,"t_us":6}
{"event":"observed","observer":"o","conversation":"c","seq":2,"epoch":1,"sender":"alice","client_msg_id":"a2","log":"s.1","t_us":7}
{"event":"invoked","client":"x","conversation":"c","sender":"alice","client_msg_id":"a3","t_us":8}
{"event":"invoked","client":"y","conversation":"c","sender":"bob","client_msg_id":"b2","t_us":9}
{"event":"acked","client":"x","conversation":"c","sender":"alice","client_msg_id":"a3","seq":3,"epoch":2,"t_us":10}
{"event":"observed","observer":"o","conversation":"c","seq":3,"epoch":2,"sender":"alice","client_msg_id":"a3","log":"s.1","t_us":11}
{"event":"observed","observer":"o","conversation":"c","seq":4,"epoch":2,"sender":"bob","client_msg_id":"b2","log":"s.1","t_us":12}
{"event":"unknown","client":"y","conversation":"c","sender":"bob","client_msg_id":"b2","t_us":13}
{"event":"cursor","client":"x","sub":"alice","conversation":"c","seq":2,"t_us":14}
{"event":"failover","log":"s.2","t_us":15}
{"event":"invoked","client":"x","conversation":"c","sender":"alice","client_msg_id":"a4","t_us":16}
{"event":"acked","client":"x","conversation":"c","sender":"alice","client_msg_id":"a4","seq":1001002,"epoch":1000002,"t_us":17}
{"event":"invoked","client":"y","conversation":"c","sender":"bob","client_msg_id":"b2","t_us":18}
{"event":"acked","client":"y","conversation":"c","sender":"bob","client_msg_id":"b2","seq":1001003,"epoch":1000002,"t_us":19}
{"event":"resync","observer":"o","conversation":"c","log":"s.2","head_seq":1001002,"t_us":20}
{"event":"observed","observer":"o","conversation":"c","seq":1001003,"epoch":1000002,"sender":"bob","client_msg_id":"b2","log":"s.2","t_us":21}
{"event":"cursor","client":"x","sub":"alice","conversation":"c","seq":1,"t_us":22}
{"event":"final","conversation":"c","seq":1,"epoch":1,"sender":"alice","client_msg_id":"a1"}
{"event":"final","conversation":"c","seq":1001002,"epoch":1000002,"sender":"alice","client_msg_id":"a4"}
{"event":"final","conversation":"c","seq":1001003,"epoch":1000002,"sender":"bob","client_msg_id":"b2"}
{"event":"final_cursor","sub":"alice","conversation":"c","seq":1}
"#;

#[test]
fn what_a_failover_lost_is_named() {
    let report = check_lines(FAILOVER.lines()).expect("well-formed");
    assert_eq!(report.violations, Vec::new());
    assert_eq!((report.counts.failovers, report.counts.lost), (1, 3));
    let lost = |seq, write: &str, acked| Lost {
        conversation: "c".parse().expect("valid"),
        seq: Seq(seq),
        write: write.to_owned(),
        acked,
    };
    assert_eq!(report.lost, [lost(2, "alice/a2", true), lost(3, "alice/a3", true), lost(4, "bob/b2", false)]);
}

/// What is looked for, what becomes of it (nothing: the line is not there), and the invariant that must be reported.
#[test]
fn no_loss_hides_behind_a_failover() {
    use Invariant::*;
    let cases = [
        // Nobody announced it; or only before the lost write was sent.
        (r#""failover""#, "", "", AckedOnce),
        (r#""failover""#, "", "", DurableBeforeShown),
        // No generation ended there: the numbers go on without a skip.
        (r#""epoch":1000002"#, "100100", "100", AckedOnce),
        // Lost behind the skip, or behind the last row.
        (r#""final","conversation":"c","seq":1001002"#, "", "", AckedOnce),
        (r#""final","conversation":"c","seq":1001003"#, "", "", AckedOnce),
        // A lost number comes back: as another write, or as the same one; or among those that were lost, which the epochs show.
        (r#""alice","client_msg_id":"a4""#, "1001002", "3", SeqOnce),
        (r#""bob","client_msg_id":"b2","seq":1001003"#, "1001003", "4", CommittedInReign),
        (r#""seq":2,"epoch":1"#, r#""epoch":1"#, r#""epoch":3"#, EpochNeverFalls),
        // An ack from before the failover bounds what is sent after it.
        (r#""t_us":17"#, "1001002", "2", OrderOfAcks),
        // An observer passes from what was lost to what came after it; or does not see all that was lost later.
        (r#""resync""#, "", "", ObserversSeeTheLog),
        (r#""t_us":11"#, "", "", ObserversSeeTheLog),
    ];
    for (line, from, to, invariant) in cases {
        let change = |text: &str| match (text.contains(line), from) {
            (true, "") => None,
            (true, _) => Some(text.replace(from, to)),
            (false, _) => Some(text.to_owned()),
        };
        let mutant = FAILOVER.lines().filter_map(change).collect::<Vec<_>>().join("\n");
        assert_ne!(mutant.trim(), FAILOVER.trim(), "the mutant differs: {line} {from}");
        let found = found(&mutant);
        assert!(found.contains(&invariant), "{line}: {from} → {to}: {invariant:?} is not among {found:?}");
    }
}

#[test]
fn one_failover_excuses_one_skip_and_no_later_write() {
    let late = FAILOVER.replace(r#"{"event":"failover","log":"s.2","t_us":15}"#, "");
    let early = late.replacen('\n', "\n{\"event\":\"failover\",\"log\":\"s.2\",\"t_us\":0}\n", 1);
    assert!(found(&early).contains(&Invariant::AckedOnce), "all was sent after it");
    // A second skip, in which 1001003 is lost.
    let row =
        r#"{"event":"final","conversation":"c","seq":1001003,"epoch":1000002,"sender":"bob","client_msg_id":"b2"}"#;
    let later =
        r#"{"event":"final","conversation":"c","seq":2002003,"epoch":2000002,"sender":"bob","client_msg_id":"b9"}"#;
    let twice = FAILOVER.replace(row, later);
    assert!(found(&twice).contains(&Invariant::AckedOnce));
    let second =
        "{\"event\":\"failover\",\"log\":\"s.3\",\"t_us\":23}\n{\"event\":\"final\",\"conversation\":\"c\",\"seq\":1,";
    let announced = twice.replace(r#"{"event":"final","conversation":"c","seq":1,"#, second);
    let announced = announced.replace(r#"{"event":"final_cursor","sub":"alice","conversation":"c","seq":1}"#, "");
    assert_eq!(found(&announced), vec![]);
    assert_eq!(check_lines(announced.lines()).expect("well-formed").counts.lost, 4);
    let again = announced.replace(r#""log":"s.3""#, r#""log":"s.2""#);
    let error = check_lines(again.lines()).expect_err("announced twice").to_string();
    assert!(error.contains("log: generation 2 is not above 2"), "{error}");
}
