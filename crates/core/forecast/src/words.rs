//! Forecasts in plain English.

use std::fmt::Write as _;

use crate::forecast::{Confidence, Doubt, Eta, Forecast, Grade, Hold, Lack, Outlook};

/// A forecast in plain English: first the bound for a probability in thousandths, then its basis.
pub fn render(forecast: &Forecast, level_milli: u16) -> String {
    match &forecast.outlook {
        Outlook::Starts(eta) => {
            let [answer, half, most, nearly_all] =
                [level_milli, 500, 800, 950].map(|level| bound(eta, level));
            let level = percent(level_milli);
            let mut text = format!(
                "Starts {answer}, {level}. Half of such pods start {half}, 80 % {most}, 95 % \
                 {nearly_all}."
            );
            if let Some(blockers) = blockers(eta) {
                let _ = write!(text, " {blockers}");
            }
            let _ = write!(text, " {}", confidence(&eta.confidence));
            text
        }
        Outlook::Held(Hold::Quota(name)) => {
            format!("Held by quota {name} until the quota has room.")
        }
        Outlook::Held(Hold::Share) => {
            "Held by its team's share until the team has room.".to_owned()
        }
        Outlook::Held(Hold::Gates(gates)) => {
            let gates: Vec<&str> = gates.iter().map(AsRef::as_ref).collect();
            format!("Held by its scheduling gates: {}.", gates.join(", "))
        }
        Outlook::NeedsCapacity(Lack::Match) => {
            "Not before capacity is added: no existing or planned node matches its selectors and \
             tolerations."
                .to_owned()
        }
        Outlook::NeedsCapacity(Lack::Size) => {
            "Not before capacity is added: no existing or planned node is large enough even when empty."
                .to_owned()
        }
        Outlook::Never { node } => {
            format!("Never: it requests node {node}, which is too small even when empty.")
        }
    }
}

fn bound(eta: &Eta, level_milli: u16) -> String {
    match eta.within_ms(level_milli) {
        Some(within_ms) => format!("within {}", span(within_ms)),
        None => "later than the forecast horizon".to_owned(),
    }
}

fn percent(milli: u16) -> String {
    format!("{} %", (milli + 5) / 10)
}

/// A time span, rounded up to two digits at most.
fn span(span_ms: u64) -> String {
    const UNITS: [(u64, u64, &str); 3] = [
        (90_000, 1_000, "second"),
        (5_400_000, 60_000, "minute"),
        (172_800_000, 3_600_000, "hour"),
    ];
    let unit = UNITS.iter().find(|(up_to_ms, _, _)| span_ms <= *up_to_ms);
    let (unit_ms, name) = unit.map_or((86_400_000, "day"), |(_, unit_ms, name)| (*unit_ms, *name));
    match span_ms.div_ceil(unit_ms).max(1) {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    }
}

fn blockers(eta: &Eta) -> Option<String> {
    let likely = eta.waits_for.iter().filter(|blocker| blocker.share_milli >= 50);
    let names: Vec<String> = likely
        .map(|blocker| format!("{} ({})", blocker.name, percent(blocker.share_milli)))
        .collect();
    let names = (!names.is_empty()).then(|| names.join(", "))?;
    Some(format!(
        "It depends most on when these pods end (share of futures in which that made room): {names}."
    ))
}

fn confidence(confidence: &Confidence) -> String {
    let grade = match confidence.grade {
        Grade::High => "high",
        Grade::Medium => "medium",
        Grade::Low => "low",
    };
    let doubt = |doubt: &Doubt| match doubt {
        Doubt::FewLifetimes(count) => format!("only {count} similar pods have ended"),
        Doubt::FewForecasts(count) => {
            format!("only {count} similar forecasts have been verified")
        }
        Doubt::OftenNotStarting(milli) => {
            format!("it does not start in {} of the simulated futures", percent(*milli))
        }
        Doubt::RulesLeftOut => {
            "affinity, spread constraints and volumes are not modelled".to_owned()
        }
    };
    let doubts: Vec<String> = confidence.doubts.iter().map(doubt).collect();
    if doubts.is_empty() {
        format!("Confidence: {grade}.")
    } else {
        format!("Confidence: {grade}, because {}.", doubts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::Blocker;

    fn eta() -> Eta {
        let minutes = |count: u64| Some(count * 60_000);
        Eta {
            within_ms: [
                Some(30_000),
                minutes(1),
                minutes(4),
                minutes(6),
                minutes(10),
                minutes(40),
                None,
            ],
            simulated_ms: [None; 7],
            futures: 64,
            confidence: Confidence { grade: Grade::Medium, doubts: vec![Doubt::FewForecasts(40)] },
            waits_for: vec![Blocker {
                pod: "uid".into(),
                name: "train-0".into(),
                share_milli: 437,
            }],
        }
    }

    #[test]
    fn the_answer_comes_first_and_then_what_it_rests_on() {
        let forecast =
            Forecast { pod: "a".into(), at_ms: 0, outlook: Outlook::Starts(Box::new(eta())) };
        assert_eq!(
            render(&forecast, 800),
            "Starts within 10 minutes, 80 %. Half of such pods start within 4 minutes, 80 % within 10 \
             minutes, 95 % later than the forecast horizon. It depends most on when these pods end \
             (share of futures in which that made room): train-0 (44 %). Confidence: medium, because \
             only 40 similar forecasts have been verified."
        );
    }

    #[test]
    fn times_and_probabilities_agree() {
        assert_eq!(eta().probability_milli(600_000), 800);
        assert_eq!(eta().probability_milli(480_000), 725);
        assert_eq!(eta().within_ms(725), Some(480_000));
        // Nothing is known beyond the last bound.
        assert_eq!(eta().probability_milli(u64::MAX), 900);
        assert_eq!(eta().probability_milli(0), 0);
    }

    #[test]
    fn outlooks_have_different_texts() {
        let say = |outlook| render(&Forecast { pod: "a".into(), at_ms: 0, outlook }, 800);
        let told = [
            say(Outlook::Never { node: "one".into() }),
            say(Outlook::NeedsCapacity(Lack::Match)),
            say(Outlook::NeedsCapacity(Lack::Size)),
            say(Outlook::Held(Hold::Quota("team-a".into()))),
            say(Outlook::Held(Hold::Gates(vec!["wait".into()]))),
        ];
        assert!(told[0].starts_with("Never") && told[1].starts_with("Not before capacity"));
        assert!(told[3].contains("quota team-a") && told[4].contains("gates: wait"));
        assert_ne!(told[1], told[2]);
    }
}
