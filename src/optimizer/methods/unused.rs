//! What a method makes nothing of.

use super::Method;
use crate::config::{Replan, Search};

/// Every setting of a search that a method makes nothing of, in a sentence each: it would be searched
/// by it, or be carried out, by another one.
pub fn unused(search: &Search, method: Method) -> Vec<String> {
    let word = method.word();
    let asked = [("probe", search.probe.is_some()), ("replan", search.replan != Replan::Never)];
    let only_model = asked.into_iter().filter(|(_, is_asked)| *is_asked && method != Method::Model);
    let only_model = only_model.map(|(key, _)| {
        format!("`search.{key}` has no effect with `--method {word}`, only with `model`")
    });
    let varies_these =
        matches!(method, Method::Model | Method::Grid | Method::Random | Method::Bayes);
    let lengths = [
        ("device", search.device.as_ref().map(Vec::len)),
        ("mini_batch", search.mini_batch.as_ref().map(Vec::len)),
        ("fc", search.fc.as_ref().map(Vec::len)),
        ("strategy", search.strategy.as_ref().map(Vec::len)),
        ("hardware_split", search.hardware_split.as_ref().map(Vec::len)),
    ];
    let several = lengths.into_iter().filter(|(_, n)| !varies_these && n.is_some_and(|n| n > 1));
    let several = several.map(|(key, _)| {
        format!("of `search.{key}` only the first is tried with `--method {word}`")
    });
    only_model.chain(several).collect()
}
