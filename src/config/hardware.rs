//! Hardware files: a cluster of conv machines, an FC server and the network between them.

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use omnivore_sim::hardware::{
    Cluster, Device, DeviceSplit, HardwareError, Link, Machine, Network, Overlap,
    ParameterExchange, Placement, ServiceLaw, Sharing,
};
use omnivore_sim::units::{BytesPerSecond, FlopsPerSecond, SimDuration, UnitError};

use super::error::Problem;
use super::files::{Context, Input};
use super::keys;
use super::reader::{Bound, Field, Reader};
use super::run::MOST_MACHINES;
use super::service::Service;
use super::source::Source;
use super::tree::{self, Value};

/// Longest fixed duration that a hardware file may give: an hour.
const LONGEST_US: f64 = 3.6e9;

/// Stretches of the text that name sample files, and what the samples are.
type Inlined = RefCell<Vec<(Range<usize>, String)>>;

struct File<'a> {
    context: &'a Context<'a>,
    inlined: Inlined,
}

/// Reads the hardware file that a key names; `copy` is the name of its copy beside a result.
pub(super) fn read(field: &Field<'_>, context: &Context<'_>, copy: &str) -> Option<Cluster> {
    let (_, source) = context.text(field)?;
    let file = File { context, inlined: RefCell::default() };
    let cluster = file.parse(&source)?;
    let (text, inlined) = (source.text().to_owned(), file.inlined.into_inner());
    context.inputs.borrow_mut().push(Input { copy: copy.to_owned(), text, inlined });
    Some(cluster)
}

impl File<'_> {
    fn parse(&self, source: &Arc<Source>) -> Option<Cluster> {
        let mistakes = self.context.mistakes;
        let document = match tree::parse(source) {
            Ok(document) => document,
            Err(mistake) => {
                mistakes.add(mistake);
                return None;
            }
        };
        let reader = Reader::open_file(&document, &keys::HARDWARE, mistakes);
        let name = reader.required("name").and_then(|field| field.text());
        let machines = reader.required("machine").and_then(|field| self.machines(&field));
        let fc_server = reader.required("fc_server").and_then(|field| {
            let reader = field.table(&keys::FC_SERVER)?;
            let server = self.machine(&reader);
            reader.close();
            server
        });
        let network = self.optional(&reader, "network", |field| self.network(field));
        let update_rate = self.optional(&reader, "update_gbyte_per_s", |field| {
            rate(field, |value| BytesPerSecond::new(value * 1e9))
        });
        reader.close();
        let cluster = Cluster {
            name: name?.to_owned(),
            machines: machines?,
            fc_server: fc_server?,
            network: network?,
            update_rate: update_rate?,
        };
        Some(cluster)
    }

    /// `Some(None)` for a key that is not there, `None` for one with a mistake in it.
    fn optional<T>(
        &self,
        reader: &Reader<'_>,
        key: &'static str,
        read: impl Fn(&Field<'_>) -> Option<T>,
    ) -> Option<Option<T>> {
        match reader.optional(key) {
            Some(field) => read(&field).map(Some),
            None => Some(None),
        }
    }

    fn machines(&self, field: &Field<'_>) -> Option<Vec<Machine>> {
        let kinds = field.list("[[machine]] tables", |item| {
            let reader = item.table(&keys::MACHINE)?;
            let count = reader.required("count").and_then(|field| field.count(1..=MOST_MACHINES));
            let machine = self.machine(&reader);
            reader.close();
            Some((machine?, count?))
        })?;
        let total: u64 = kinds.iter().map(|(_, count)| u64::from(*count)).sum();
        if total > u64::from(MOST_MACHINES) {
            let (key, value) = (field.name.clone(), format!("{total} machines"));
            let expected = format!("at most {MOST_MACHINES} machines");
            return field.refuse(Problem::OutOfRange { key, value, expected });
        }
        Some(kinds.into_iter().flat_map(|(machine, count)| copies(machine, count)).collect())
    }

    fn machine(&self, reader: &Reader<'_>) -> Option<Machine> {
        let name = reader.required("name").and_then(|field| field.text());
        let devices =
            reader.required("devices").and_then(|field| field.list("devices", read_device));
        let overhead = reader.required("overhead_us").and_then(|field| read_duration(&field));
        let service = reader.required("service").and_then(|field| self.service(&field));
        let price =
            self.optional(reader, "price_usd_per_hour", |field| field.number(Bound::NotNegative));
        Some(Machine {
            name: name?.to_owned(),
            devices: devices?,
            split: DeviceSplit::Proportional,
            overhead: overhead?,
            service: service?,
            dollars_per_hour: price?,
        })
    }

    /// The link, and how it is used where the file says so.
    fn network(&self, field: &Field<'_>) -> Option<Network> {
        let reader = field.table(&keys::LINK)?;
        let latency = reader.required("latency_us").and_then(|field| read_duration(&field));
        let bandwidth = reader
            .required("bandwidth_gbit_per_s")
            .and_then(|field| rate(&field, BytesPerSecond::from_gigabits));
        let exchange = self.optional(&reader, "exchange", read_exchange);
        let placement = self.optional(&reader, "placement", |field| {
            field.choice(&[("even", Placement::Even), ("per_layer", Placement::PerLayer)])
        });
        let sharing = self.optional(&reader, "sharing", |field| {
            field.choice(&[("in_turn", Sharing::InTurn), ("fair", Sharing::Fair)])
        });
        let overlap = self.optional(&reader, "overlap", |field| {
            field.choice(&[("none", Overlap::None), ("per_layer", Overlap::PerLayer)])
        });
        let overhead = self.optional(&reader, "message_overhead_us", read_duration);
        let factor =
            self.optional(&reader, "gradient_bytes_factor", |field| field.number(Bound::Fraction));
        let (placed_at, overlaps_at) = (reader.optional("placement"), reader.optional("overlap"));
        reader.close();
        let plain = Network::plain(Link { latency: latency?, bandwidth: bandwidth? });
        let network = Network {
            exchange: exchange?.unwrap_or(plain.exchange),
            placement: placement?.unwrap_or(plain.placement),
            sharing: sharing?.unwrap_or(plain.sharing),
            overlap: overlap?.unwrap_or(plain.overlap),
            message_overhead: overhead?.unwrap_or(plain.message_overhead),
            gradient_bytes_factor: factor?.unwrap_or(plain.gradient_bytes_factor),
            ..plain
        };
        match network.check() {
            Ok(()) => Some(network),
            Err(error) => {
                let (message, help) = (error.to_string(), String::new());
                let at = match error {
                    HardwareError::Overlap => overlaps_at,
                    _ => placed_at,
                };
                at.unwrap_or_else(|| field.clone()).refuse(Problem::Refused { message, help })
            }
        }
    }

    fn service(&self, field: &Field<'_>) -> Option<ServiceLaw> {
        let service = Service::read(field, self.context)?;
        if let (ServiceLaw::Empirical(samples), Some(_)) = (&service.law, &service.file) {
            let list = format!("{{ empirical = {samples:?} }}");
            self.inlined.borrow_mut().push((field.node.place.span.clone(), list));
        }
        Some(service.law)
    }
}

fn copies(machine: Machine, count: u32) -> impl Iterator<Item = Machine> {
    let name = machine.name.clone();
    (1..=count).map(move |number| Machine {
        name: if count == 1 { name.clone() } else { format!("{name} {number}") },
        ..machine.clone()
    })
}

fn read_device(field: &Field<'_>) -> Option<Device> {
    let reader = field.table(&keys::DEVICE)?;
    let name = reader.required("name").and_then(|field| field.text());
    let flops = |field: Field<'_>| rate(&field, FlopsPerSecond::from_giga);
    let conv_rate = reader.required("conv_gflop_per_s").and_then(flops);
    let fc_rate = reader.required("fc_gflop_per_s").and_then(flops);
    reader.close();
    Some(Device { name: name?.to_owned(), conv_rate: conv_rate?, fc_rate: fc_rate? })
}

/// Parts that a model can be spread over.
const MOST_SERVERS: u32 = 4096;

/// `"ring"`, `"tree"` or `{ servers = S }`.
fn read_exchange(field: &Field<'_>) -> Option<ParameterExchange> {
    if let Value::Table(_) = &field.node.value {
        let shards = field.only_entry(&["servers"])?.count(1..=MOST_SERVERS)?;
        return NonZeroU32::new(shards).map(|shards| ParameterExchange::Servers { shards });
    }
    field.choice(&[("ring", ParameterExchange::Ring), ("tree", ParameterExchange::Tree)])
}

/// A rate, at least so large that nothing takes longer than virtual time can show.
fn rate<T>(field: &Field<'_>, convert: impl Fn(f64) -> Result<T, UnitError>) -> Option<T> {
    const LEAST: f64 = 1e-6;
    let value = field.number(Bound::Positive)?;
    match convert(value) {
        Ok(rate) if value >= LEAST => Some(rate),
        _ => {
            let (key, value) = (field.name.clone(), field.node.written());
            let expected = format!("at least {LEAST}");
            field.refuse(Problem::OutOfRange { key, value, expected })
        }
    }
}

/// A bandwidth that links can have, in Gbit/s.
pub(super) fn gigabits(field: &Field<'_>) -> Option<f64> {
    rate(field, BytesPerSecond::from_gigabits)?;
    field.number(Bound::Positive)
}

/// A duration in microseconds.
fn read_duration(field: &Field<'_>) -> Option<SimDuration> {
    let value = field.number(Bound::NotNegative)?;
    match SimDuration::from_secs_f64(value / 1e6) {
        Ok(duration) if value <= LONGEST_US => Some(duration),
        _ => {
            let (key, value) = (field.name.clone(), field.node.written());
            let expected = format!("at most {LONGEST_US} (an hour)");
            field.refuse(Problem::OutOfRange { key, value, expected })
        }
    }
}
