use std::collections::BTreeSet;
use std::time::Duration;

use super::peers::{Comparison, bars, summarise};
use super::*;

fn survey() -> Survey {
    Survey { threads: vec![1, 2], effort: Effort::SMOKE, scale: Scale::Smoke }
}

#[test]
fn every_step_of_a_survey_of_kernels_gives_positive_values_under_names_of_their_own() {
    let survey = survey();
    let (peaks, mut rows) = Peaks::measure(&survey).expect("threads can be started");
    for step in kernel_steps(&survey) {
        let measured = (step.measure)(&peaks).expect("the shapes are possible");
        assert!(!measured.is_empty(), "{}", step.name);
        rows.extend(measured);
    }
    let names: BTreeSet<(String, usize)> =
        rows.iter().map(|row| (row.name(), row.threads)).collect();
    assert_eq!(names.len(), rows.len());
    for row in &rows {
        assert!(row.value >= 0.0 && row.value.is_finite(), "{row:?}");
        assert!(row.range.0 <= row.value && row.value <= row.range.1, "{row:?}");
        let of_the_peak = row.unit == Unit::GigaflopsPerSecond;
        assert!(!of_the_peak || row.fraction_of_limit.is_some(), "{row:?}");
    }
}

#[test]
fn thread_counts_are_powers_of_two_up_to_the_most() {
    assert_eq!(Survey::thread_counts(1), [1]);
    assert_eq!(Survey::thread_counts(2), [1, 2]);
    assert_eq!(Survey::thread_counts(6), [1, 2, 4, 6]);
}

#[test]
fn a_median_is_the_middle_of_the_samples() {
    assert_eq!(Timing::new(vec![3.0, 1.0, 2.0]).median().to_bits(), 2.0_f64.to_bits());
    assert_eq!(Timing::new(vec![4.0, 1.0, 3.0, 2.0]).median().to_bits(), 2.5_f64.to_bits());
}

#[test]
fn things_take_turns_and_each_gets_the_samples_that_were_asked_for() {
    let effort = Effort { rounds: 3, sample: Duration::ZERO };
    let mut turns = Vec::new();
    let timings = alternate(effort, 2, |who| turns.push(who));
    assert_eq!(turns, [0, 0, 1, 1, 0, 1, 0, 1, 0, 1]);
    assert!(timings.iter().all(|timing| timing.samples() == 3));
}

#[test]
fn requests_are_answered_line_by_line() {
    let requests = r#"{"prepare":{"convolution":{"name":"x","batch":2,"channels":2,"side":5,"filters":4,"kernel":3,"stride":1,"padding":1,"groups":2}}}
{"time":{"pass":"forward","calls":2}}
{"digest":"forward"}
{"time":{"pass":"backward","calls":1}}
{"digest":"backward_weights"}
{"prepare":{"convolution":{"name":"x","batch":2,"channels":3,"side":5,"filters":4,"kernel":3,"stride":1,"padding":1,"groups":2}}}
"#;
    let mut answers = Vec::new();
    for operations in [Operations::Own, Operations::Burn] {
        let mut output = Vec::new();
        answer_requests(requests.as_bytes(), &mut output, 1, operations).expect("all are requests");
        let lines: Vec<serde_json::Value> = String::from_utf8(output)
            .expect("text")
            .lines()
            .map(|line| serde_json::from_str(line).expect("an object a line"))
            .collect();
        assert_eq!(lines.len(), 7);
        assert_eq!(lines[1]["ready"]["passes"].as_array().map(Vec::len), Some(4));
        assert!(lines[2]["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
        assert!(lines[6]["refused"].as_str().is_some_and(|text| text.contains("groups")));
        answers.push([3, 5].map(|at| lines[at]["digest"].clone()));
    }
    for (own, burn) in answers[0].iter().zip(&answers[1]) {
        let close = |key: &str| {
            let (own, burn) = (own[key].as_f64(), burn[key].as_f64());
            let pair = own.zip(burn).expect("both are numbers");
            // Sums of 18 or 50 products in another order.
            (pair.0 - pair.1).abs() < 1e-5
        };
        assert!(close("projection") && close("size"), "{own} {burn}");
    }
}

#[test]
fn a_line_that_is_no_request_is_an_error_that_names_it() {
    let error = answer_requests(&b"{\"fly\":1}\n"[..], Vec::new(), 1, Operations::Own)
        .expect_err("this is no request");
    assert!(error.to_string().contains("fly"), "{error}");
}

fn comparison(name: &str, pass: Pass, ours: f64, peer_value: f64) -> Comparison {
    Comparison {
        name: name.to_owned(),
        pass,
        threads: 1,
        ours,
        peer: "pytorch".to_owned(),
        peer_value,
        ratio: peer_value / ours,
        our_range: (ours, ours),
        peer_range: (peer_value, peer_value),
        samples: 1,
    }
}

fn stack_of_four_and_one() -> Vec<Comparison> {
    let mut rows = Vec::new();
    for layer in ["conv1", "conv2g2", "conv3", "conv4", "conv5"] {
        for pass in Pass::OF_A_CONVOLUTION {
            let peer = if layer == "conv1" { 32.0 } else { 1.0 };
            rows.push(comparison(layer, pass, 1.0, peer));
        }
    }
    rows
}

#[test]
fn the_ratio_of_a_stack_is_the_geometric_mean_over_its_layers_of_summed_times() {
    let mut rows = stack_of_four_and_one();
    let stack = |rows: &[Comparison]| summarise(rows)[0].stack;
    // The fifth root of 32 · 1 · 1 · 1 · 1.
    assert!((stack(&rows).expect("it is whole") - 2.0).abs() < 1e-12);
    // Nothing before the first layer wants a gradient, so that pass does not count.
    rows[1].peer_value = 1e9;
    assert!((stack(&rows).expect("it is whole") - 2.0).abs() < 1e-12);
    rows.retain(|row| row.name != "conv4");
    assert_eq!(stack(&rows), None);
}

#[test]
fn bars_are_held_against_the_peers_that_they_name() {
    let mut rows = stack_of_four_and_one();
    rows.push(comparison("lenet/flex", Pass::Iteration, 1.0, 1.2));
    let verdict = |rows: &[Comparison], name: &str| {
        let bars = bars(&summarise(rows));
        bars.into_iter().find(|bar| bar.name == name).map(|bar| bar.verdict)
    };
    assert_eq!(verdict(&rows, "stack"), Some("met"));
    assert_eq!(verdict(&rows, "lenet/flex"), Some("missed"));
    rows.iter_mut().for_each(|row| "mxnet".clone_into(&mut row.peer));
    assert_eq!(verdict(&rows, "stack"), None);
}
