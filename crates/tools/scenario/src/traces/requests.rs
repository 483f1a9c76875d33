//! Requests to language models as load over time, in three formats: Azure's LLM inference traces
//! (`TIMESTAMP,ContextTokens,GeneratedTokens`), Mooncake's (a JSON object per line with `timestamp`,
//! `input_length`, `output_length`), and rates derived from ServeGen (`t_seconds,requests_per_second`).

use std::sync::Arc;

use berth_sim::experiment::Load;
use berth_sim::latency::Speed;
use serde::Deserialize;

use super::{Table, TraceError};

#[derive(Clone, Copy, Debug, PartialEq)]
struct Request {
    at_ms: f64,
    input: f64,
    output: f64,
}

/// Service time by tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenSpeed {
    /// Per input token.
    pub input_us: f64,
    /// Per output token.
    pub output_us: f64,
    /// Concurrent requests of a replica.
    pub slots: u32,
}

impl Default for TokenSpeed {
    /// A 70B-class model on one H100-class GPU with continuous batching; chosen, not measured.
    fn default() -> Self {
        Self { input_us: 100.0, output_us: 20_000.0, slots: 64 }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub load: Load,
    /// `None` if the trace has rates only.
    pub speed: Option<Speed>,
    pub duration_ms: i64,
}

const STEP_MS: i64 = 60_000;

const STEPS_MAX: i64 = 10_000_000;

/// Four years.
const DURATION_MAX_MS: f64 = 4.0 * 366.0 * 86_400_000.0;

/// Reads a trace of any of the three formats.
pub fn read(file: &str, text: &str, tokens: TokenSpeed, scale: f64) -> Result<Trace, TraceError> {
    if text.trim_start().starts_with('{') {
        return of_requests(file, mooncake(file, text)?, tokens, scale);
    }
    let table = Table::new(file, text)?;
    if table.has("requests_per_second") {
        return rates(&table, scale);
    }
    of_requests(file, azure(&table)?, tokens, scale)
}

fn mooncake(file: &str, text: &str) -> Result<Vec<Request>, TraceError> {
    #[derive(Deserialize)]
    struct Line {
        timestamp: f64,
        input_length: f64,
        output_length: f64,
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            let read: Result<Line, _> = serde_json::from_str(line);
            let Line { timestamp, input_length, output_length } = read.map_err(|error| {
                TraceError { file: file.to_owned(), line: at + 1, problem: error.to_string() }
            })?;
            Ok(Request { at_ms: timestamp, input: input_length, output: output_length })
        })
        .collect()
}

fn azure(table: &Table<'_>) -> Result<Vec<Request>, TraceError> {
    table
        .rows()
        .map(|row| {
            let text = row.text("TIMESTAMP")?;
            let at_ms = clock_ms(text).ok_or_else(|| {
                row.error(format!("invalid TIMESTAMP {text:?}; write it as 2023-11-16 18:17:03.97"))
            })?;
            Ok(Request {
                at_ms,
                input: row.number("ContextTokens", 1e9)?,
                output: row.number("GeneratedTokens", 1e9)?,
            })
        })
        .collect()
}

/// Milliseconds since some midnight: `2023-11-16 18:17:03.9799600`.
fn clock_ms(text: &str) -> Option<f64> {
    let (date, time) = text.split_once(' ')?;
    let mut of_date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (of_date.next()??, of_date.next()??, of_date.next()??);
    let mut of_time = time.splitn(3, ':');
    let hour: f64 = of_time.next()?.parse().ok()?;
    let minute: f64 = of_time.next()?.parse().ok()?;
    let second: f64 = of_time.next()?.parse().ok()?;
    // Days since 0000-03-01, by the civil calendar.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (month * 153 + 2) / 5
        + day;
    Some(((days as f64 * 24.0 + hour) * 60.0 + minute) * 60_000.0 + second * 1000.0)
}

fn of_requests(
    file: &str,
    mut requests: Vec<Request>,
    tokens: TokenSpeed,
    scale: f64,
) -> Result<Trace, TraceError> {
    let error = |problem: &str| {
        Err(TraceError { file: file.to_owned(), line: 1, problem: problem.to_owned() })
    };
    requests.sort_by(|one, other| one.at_ms.total_cmp(&other.at_ms));
    let (Some(first), Some(last)) = (requests.first(), requests.last()) else {
        return error("contains no requests");
    };
    let (begin_ms, length_ms) = (first.at_ms, last.at_ms - first.at_ms);
    if !(0.0..=DURATION_MAX_MS).contains(&length_ms) {
        return error("spans more than four years; are the times in milliseconds?");
    }
    let takes = |one: &Request| one.input * tokens.input_us + one.output * tokens.output_us;
    let mut times: Vec<f64> = requests.iter().map(takes).collect();
    times.sort_by(f64::total_cmp);
    let mean = (times.iter().sum::<f64>() / times.len() as f64).max(1.0);
    let p99 = times.get((times.len() - 1) * 99 / 100).copied().unwrap_or(mean).max(mean);
    let steps = (length_ms as i64 / STEP_MS + 1) as usize;
    let (mut counts, mut works) = (vec![0.0_f64; steps], vec![0.0_f64; steps]);
    for request in &requests {
        let at = ((request.at_ms - begin_ms) as i64 / STEP_MS) as usize;
        if let (Some(count), Some(work)) = (counts.get_mut(at), works.get_mut(at)) {
            *count += 1.0;
            *work += takes(request);
        }
    }
    let per_s: Vec<f32> =
        counts.iter().map(|count| (count / (STEP_MS as f64 / 1000.0) * scale) as f32).collect();
    let weight: Vec<f32> = counts
        .iter()
        .zip(&works)
        .map(|(count, work)| if *count > 0.0 { (work / count / mean) as f32 } else { 1.0 })
        .collect();
    Ok(Trace {
        load: Load { step_ms: STEP_MS, per_s: per_s.into(), weight: weight.into() },
        speed: Some(Speed { mean_us: mean as u64, p99_us: p99 as u64, slots: tokens.slots }),
        duration_ms: steps as i64 * STEP_MS,
    })
}

fn rates(table: &Table<'_>, scale: f64) -> Result<Trace, TraceError> {
    let mut steps: Vec<(i64, f32)> = Vec::new();
    for row in table.rows() {
        let at_ms = (row.number("t_seconds", DURATION_MAX_MS / 1000.0)? * 1000.0) as i64;
        if steps.last().is_some_and(|(before, _)| *before >= at_ms) {
            return Err(row.error("t_seconds must increase; sort the lines"));
        }
        let per_s = row.number("requests_per_second", 1e9)?;
        steps.push((at_ms, (per_s * scale) as f32));
    }
    let step_ms = match steps.as_slice() {
        [(one, _), (other, _), ..] => other - one,
        _ => STEP_MS,
    };
    let end_ms = steps.last().map_or(0, |(at_ms, _)| at_ms + step_ms);
    if end_ms / step_ms.max(1) > STEPS_MAX {
        let problem = format!("steps of {step_ms} ms are too short for a trace of that length");
        return Err(table.error(problem));
    }
    // Missing steps have no requests.
    let mut per_s = vec![0.0_f32; (end_ms / step_ms.max(1)) as usize];
    for (at_ms, rate) in &steps {
        if let Some(slot) = per_s.get_mut((at_ms / step_ms.max(1)) as usize) {
            *slot = *rate;
        }
    }
    let load = Load { step_ms, per_s: per_s.into(), weight: Arc::default() };
    Ok(Trace { load, speed: None, duration_ms: end_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: TokenSpeed = TokenSpeed { input_us: 1.0, output_us: 100.0, slots: 8 };

    #[test]
    fn requests_are_counted_by_the_minute_with_their_weight() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                    2023-11-16 23:59:30.5,100,1\n2023-11-17 00:00:31.0,300,1\n";
        let trace = read("azure.csv", text, SPEED, 60.0).unwrap();
        assert_eq!(trace.load.per_s[..], [1.0, 1.0]);
        assert_eq!(trace.speed.unwrap().mean_us, 300);
        assert!(trace.load.weight[0] < 1.0 && trace.load.weight[1] > 1.0);
    }

    #[test]
    fn the_three_formats_are_told_apart() {
        let mooncake = "{\"timestamp\": 0, \"input_length\": 10, \"output_length\": 5}\n";
        assert!(read("m.jsonl", mooncake, SPEED, 1.0).unwrap().speed.is_some());
        let rates = "t_seconds,requests_per_second,active_clients\n0,2.5,1\n600,3,1\n";
        let trace = read("s.csv", rates, SPEED, 2.0).unwrap();
        assert_eq!((trace.load.step_ms, trace.duration_ms), (600_000, 1_200_000));
        assert_eq!(trace.load.per_s[..], [5.0, 6.0]);
    }

    #[test]
    fn errors_name_the_line_and_the_column() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,many,1\n";
        let error = read("a.csv", text, SPEED, 1.0).unwrap_err().to_string();
        assert_eq!(
            error,
            "a.csv:2: ContextTokens must be a number from 0 to 1000000000 (got \"many\")"
        );
        let error = read("m.jsonl", "{\"timestamp\": 0}\n", SPEED, 1.0).unwrap_err().to_string();
        assert!(error.starts_with("m.jsonl:1: "), "{error}");
        assert!(read("e.csv", "", SPEED, 1.0).is_err());
    }
}
