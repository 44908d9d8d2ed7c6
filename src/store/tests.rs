//! What is written comes back, whole or not at all.

use omnivore_sim::objective::InitialModel;
use omnivore_sim::protocol::{Block, Cut, Holding, Loss, ModelContents};

use super::*;

fn state(first: f32, rest: &str) -> RunState<String> {
    let model = |x: f32| InitialModel { conv: vec![x, 2.0], fc: vec![3.0] };
    let subnet = Some(Block { number: 1, of: Cut::Subnets { subnets: 3, round: 7 } });
    let machines = vec![
        Holding::default(),
        Holding {
            received: Some(model(2.5 * first)),
            local: Some(model(3.0 * first)),
            velocity: Some(model(2.0 * first)),
            sum: Some(model(5.0 * first)),
            outgoing: None,
            loss: Loss::new(0.5),
            subnet,
        },
        Holding { outgoing: Some(model(4.0 * first)), ..Holding::default() },
    ];
    let (weights, velocity, waiting) = (model(first), model(-first), Some(model(6.0 * first)));
    RunState {
        model: ModelContents { weights, velocity, waiting },
        machines,
        activation_gradients: vec![vec![first], Vec::new(), Vec::new()],
        rest: rest.to_owned(),
    }
}

#[test]
fn a_state_comes_back_as_it_was_and_its_size_does_not_grow() {
    let place = tempfile::tempdir().expect("a scratch folder");
    let folder = RunFolder::create(place.path()).expect("writable");
    let files = || fs::read_dir(place.path()).expect("readable").count();
    save_state(&folder, &state(1.0, "one")).expect("writable");
    let n_files = files();
    save_state(&folder, &state(5.0, "two")).expect("writable");
    assert_eq!(files(), n_files);
    let back: RunState<String> =
        load_state(place.path()).expect("readable").expect("a state was saved");
    assert_eq!((back.rest.as_str(), back.model.weights.conv[0]), ("two", 5.0));
    let written = state(5.0, "two");
    assert_eq!((&back.model, &back.machines), (&written.model, &written.machines));
    assert_eq!(back.activation_gradients, written.activation_gradients);
    assert_eq!(load_model(place.path()).expect("readable"), back.model.weights);
}

#[test]
fn a_damaged_model_is_refused_with_its_file() {
    let place = tempfile::tempdir().expect("a scratch folder");
    let folder = RunFolder::create(place.path()).expect("writable");
    save_state(&folder, &state(1.0, "one")).expect("writable");
    let model = fs::read_dir(place.path())
        .expect("readable")
        .map(|entry| entry.expect("readable").path())
        .find(|path| path.to_string_lossy().contains("checkpoint-"))
        .expect("the checkpoint's model");
    let mut bytes = fs::read(&model).expect("readable");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(&model, bytes).expect("writable");
    let refused = load_state::<String>(place.path()).expect_err("damaged").to_string();
    assert!(refused.contains("checkpoint-") && refused.contains("check sum"), "{refused}");
}

#[test]
fn a_folder_without_a_state_has_none() {
    let place = tempfile::tempdir().expect("a scratch folder");
    assert!(load_state::<String>(place.path()).expect("readable").is_none());
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_with_its_path() {
    let place = tempfile::tempdir().expect("a scratch folder");
    let file = place.path().join("file");
    fs::write(&file, "not a folder").expect("writable");
    let refused = RunFolder::create(&file.join("run")).expect_err("a file is in the way");
    assert!(refused.to_string().contains("file"), "{refused}");
    assert!(refused.in_full().ends_with("Not a directory (os error 20)"), "{}", refused.in_full());
}

#[test]
fn new_folders_never_meet_an_old_one() {
    let place = tempfile::tempdir().expect("a scratch folder");
    let names: Vec<_> = (0..3)
        .map(|_| RunFolder::create_new(&place.path().join("run")).expect("writable"))
        .map(|folder| folder.path().file_name().expect("named").to_owned())
        .collect();
    assert_eq!(names, ["run", "run-2", "run-3"]);
}

#[test]
fn a_folder_is_claimed_by_one_or_shared_by_many_until_the_last_copy_of_the_claim_is_gone() {
    let place = tempfile::tempdir().expect("a scratch folder");
    let claim = |claim| RunFolder::create(place.path()).expect("writable").claim(claim);
    let alone = claim(Claim::Alone).expect("nobody else is there");
    let copy = alone.clone();
    drop(alone);
    for other in [Claim::Alone, Claim::Shared] {
        let refused = claim(other).expect_err("it is in use").to_string();
        assert!(refused.contains(&place.path().display().to_string()), "{refused}");
        assert!(refused.contains("in use") && refused.contains("`--out`"), "{refused}");
    }
    drop(copy);
    let shared = [Claim::Shared; 2].map(|kind| claim(kind).expect("both share it"));
    assert!(claim(Claim::Alone).is_err(), "it is shared by others");
    drop(shared);
    claim(Claim::Alone).expect("all are gone");
    assert_eq!(fs::read_dir(place.path()).expect("readable").count(), 0, "no file tells of it");
}

#[test]
fn a_file_that_is_written_piece_by_piece_appears_whole_or_not_at_all() {
    let place = tempfile::tempdir().expect("a scratch folder");
    let folder = RunFolder::create(place.path()).expect("writable");
    let write = |pieces: usize, end: Result<(), StoreError>| {
        folder.write_with("table", |file| {
            (0..pieces).for_each(|_| file.write_all(b"piece ").expect("writable"));
            end
        })
    };
    let given_up = || StoreError::InUse { path: place.path().to_owned() };
    let content = || fs::read_to_string(place.path().join("table")).ok();
    write(1, Err(given_up())).expect_err("given up");
    assert_eq!(content(), None);
    write(2, Ok(())).expect("writable");
    write(3, Err(given_up())).expect_err("given up");
    assert_eq!(content().as_deref(), Some("piece piece "));
    assert_eq!(fs::read_dir(place.path()).expect("readable").count(), 1, "nothing is left over");
}

/// A device that is always full.
#[test]
fn what_cannot_be_written_is_remembered_whatever_the_writer_says_of_it() {
    let full = fs::File::options().write(true).open("/dev/full").expect("it is there");
    let mut writer = Remembering { inner: full, failure: None };
    writer.write_all(b"piece").expect_err("there is no room");
    let failure = writer.failure.expect("it was remembered");
    assert_eq!(failure.kind(), std::io::ErrorKind::StorageFull);
}

#[test]
fn what_a_killed_process_had_not_finished_is_gone_once_a_folder_is_claimed_alone() {
    let place = tempfile::tempdir().expect("a scratch folder");
    let folder = RunFolder::create(place.path()).expect("writable");
    let left_over = |folder: &RunFolder| {
        let mut file = Beside::new(&folder.path().join("state.json")).expect("writable");
        file.0.write_all(b"half").expect("writable");
        // A process that is killed removes nothing.
        file.0.disable_cleanup(true);
    };
    let names = || -> Vec<String> {
        let entries = fs::read_dir(place.path()).expect("readable");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("readable").file_name();
        entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect()
    };
    left_over(&folder);
    left_over(&folder);
    folder.write("summary.json", b"{}").expect("writable");
    assert_eq!(names().len(), 3);
    // Of those that share a folder another may be at work.
    drop(folder.clone().claim(Claim::Shared).expect("nobody else is there"));
    assert_eq!(names().len(), 3);
    folder.claim(Claim::Alone).expect("nobody else is there");
    assert_eq!(names(), ["summary.json"]);
}
