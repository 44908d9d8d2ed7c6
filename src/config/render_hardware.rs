//! A cluster as a hardware file.

use omnivore_sim::hardware::{
    Cluster, Device, Machine, Network, Overlap, ParameterExchange, Placement, Sharing,
};
use omnivore_sim::units::SimDuration;

use super::render::{Writer, only, write_law};

/// The text of a hardware file that describes a cluster; machines in a row that differ in their number
/// only are one kind.
///
/// Read again it gives the same cluster, down to the last bit but for the samples of an empirical law,
/// which are scaled to mean 1 once more.
pub(super) fn hardware_text(cluster: &Cluster) -> String {
    let kinds: Vec<toml::Value> = kinds(&cluster.machines)
        .into_iter()
        .map(|(name, count, machine)| write_machine(name, Some(count), machine))
        .collect();
    let server = &cluster.fc_server;
    let writer = Writer::default().with("name", cluster.name.as_str());
    let writer = match cluster.update_rate {
        Some(rate) => writer.with("update_gbyte_per_s", giga(rate.get())),
        None => writer,
    };
    let writer =
        writer.with("machine", kinds).with("fc_server", write_machine(&server.name, None, server));
    let writer = match &cluster.network {
        Some(network) => writer.with("network", write_network(network)),
        None => writer,
    };
    writer.table().to_string()
}

/// Runs of machines of one kind: its name, how many, and the first of them.
fn kinds(machines: &[Machine]) -> Vec<(&str, u32, &Machine)> {
    let mut kinds: Vec<(&str, u32, &Machine)> = Vec::new();
    for machine in machines {
        if let Some((name, count, first)) = kinds.last_mut()
            && (Machine { name: first.name.clone(), ..machine.clone() }) == **first
            && let Some(base) = if *count == 1 { name.strip_suffix(" 1") } else { Some(*name) }
            && machine.name == format!("{base} {}", *count + 1)
        {
            (*name, *count) = (base, *count + 1);
        } else {
            kinds.push((&machine.name, 1, machine));
        }
    }
    kinds
}

fn write_machine(name: &str, count: Option<u32>, machine: &Machine) -> toml::Value {
    let writer = Writer::default().with("name", name);
    let writer = match count {
        Some(count) => writer.with("count", count),
        None => writer,
    };
    let devices: Vec<toml::Value> = machine.devices.iter().map(write_device).collect();
    let writer = writer
        .with("overhead_us", microseconds(machine.overhead))
        .with("service", write_law(&machine.service));
    let writer = match machine.dollars_per_hour {
        Some(price) => writer.with("price_usd_per_hour", price),
        None => writer,
    };
    writer.with("devices", devices).value()
}

fn write_device(device: &Device) -> toml::Value {
    Writer::default()
        .with("name", device.name.as_str())
        .with("conv_gflop_per_s", giga(device.conv_rate.get()))
        .with("fc_gflop_per_s", giga(device.fc_rate.get()))
        .value()
}

fn write_network(network: &Network) -> toml::Value {
    let exchange = match network.exchange {
        ParameterExchange::Servers { shards } => only("servers", shards.get()),
        ParameterExchange::Ring => "ring".into(),
        ParameterExchange::Tree => "tree".into(),
    };
    let placement = match network.placement {
        Placement::Even => "even",
        Placement::PerLayer => "per_layer",
    };
    let sharing = match network.sharing {
        Sharing::InTurn => "in_turn",
        Sharing::Fair => "fair",
    };
    let overlap = match network.overlap {
        Overlap::None => "none",
        Overlap::PerLayer => "per_layer",
    };
    Writer::default()
        .with("latency_us", microseconds(network.link.latency))
        .with("bandwidth_gbit_per_s", gigabits(network.link.bandwidth.get()))
        .with("exchange", exchange)
        .with("placement", placement)
        .with("sharing", sharing)
        .with("overlap", overlap)
        .with("message_overhead_us", microseconds(network.message_overhead))
        .with("gradient_bytes_factor", network.gradient_bytes_factor)
        .value()
}

fn microseconds(duration: SimDuration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// A bandwidth in bytes per second as Gbit/s.
pub(super) fn gigabits(bytes_per_s: f64) -> f64 {
    giga(8.0 * bytes_per_s)
}

/// The number of which a file makes this rate; dividing alone may be off by a rounding.
fn giga(rate: f64) -> f64 {
    let near = rate / 1e9;
    let is_it = |value: &f64| (value * 1e9).to_bits() == rate.to_bits();
    [near, near.next_up(), near.next_down()].into_iter().find(is_it).unwrap_or(near)
}
