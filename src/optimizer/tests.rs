//! What counts as reached, and as faster.

use omnivore_sim::objective::Evaluation;
use omnivore_sim::trace::CurvePoint;
use omnivore_sim::units::SimTime;

use super::*;
use crate::config::Target;

fn curve(qualities: &[(f64, f64)]) -> Vec<CurvePoint> {
    (0..)
        .zip(qualities)
        .map(|(index, (loss, accuracy))| CurvePoint {
            update: 10 * index,
            time: SimTime::from_nanos(1_000_000_000 * index),
            evaluation: Evaluation {
                loss: *loss,
                validation_loss: Some(loss + 0.1),
                accuracy: Some(*accuracy),
            },
        })
        .collect()
}

/// Straight lines, which a centred mean leaves as they are.
fn straight() -> Vec<CurvePoint> {
    let falling: Vec<(f64, f64)> =
        (0..=10).map(|i| (2.0 - 0.1 * f64::from(i), 0.05 * f64::from(i))).collect();
    curve(&falling)
}

#[test]
fn a_goal_is_reached_where_its_own_quantity_crosses_it() {
    let reached = |target| Goal::new(target).reached(&straight()).map(|c| (c.updates, c.time_s));
    let near = |found: Option<(f64, f64)>, updates: f64| {
        let (u, t) = found.expect("reached");
        (u - updates).abs() < 1e-9 && (t - updates / 10.0).abs() < 1e-9
    };
    assert!(near(reached(Target::Loss(1.55)), 45.0));
    assert!(near(reached(Target::ValidationLoss(1.55)), 55.0));
    assert!(near(reached(Target::Accuracy(0.2)), 40.0));
    assert_eq!(reached(Target::Loss(0.5)), None);
    assert_eq!(reached(Target::Accuracy(0.9)), None);
}

fn measurement(time_to_target_s: Option<f64>, budget_s: f64) -> Measurement {
    Measurement {
        time_per_update_s: 0.1,
        updates_to_target: None,
        time_to_target_s,
        budget_s,
        updates: 100,
    }
}

#[test]
fn a_speed_up_over_what_never_arrived_is_a_lower_bound() {
    let chosen = measurement(Some(2.0), 10.0);
    let slower = measurement(Some(6.0), 10.0);
    let never = measurement(None, 10.0);
    assert_eq!(speed_up(&chosen, &slower), Some(SpeedUp::Exactly(3.0)));
    assert_eq!(speed_up(&chosen, &never), Some(SpeedUp::AtLeast { at_least: 5.0 }));
    assert_eq!(speed_up(&never, &chosen), None);
}
