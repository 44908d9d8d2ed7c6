//! The hardware as data: devices, machines, links, clusters, prices, and how service times vary.

use std::num::NonZeroU32;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, Gamma, LogNormal, Pareto};
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, SimDuration};

/// Why a piece of hardware cannot exist as described.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HardwareError {
    /// A law's parameter is out of its range.
    #[error("a {law} service law needs {parameter} above 0 and finite, not {value}")]
    LawParameter {
        /// The law's name.
        law: &'static str,
        /// The parameter's name.
        parameter: &'static str,
        /// The refused value.
        value: f64,
    },
    /// An empirical law without a usable sample.
    #[error(
        "an empirical service law needs samples that are finite and above 0; sample {index} is {value}"
    )]
    Sample {
        /// Position of the sample.
        index: usize,
        /// The refused value.
        value: f64,
    },
    /// An empirical law without samples.
    #[error("an empirical service law needs at least one sample")]
    NoSamples,
    /// A machine without a device.
    #[error("machine `{machine}` has no device; give it at least one")]
    NoDevice {
        /// The machine's name.
        machine: String,
    },
    /// A share of a machine's examples that is no share.
    #[error("a device cannot compute {share} of the examples; a share is a number from 0 to 1")]
    Share {
        /// The refused share.
        share: f64,
    },
    /// Layers go to servers, and there is none.
    #[error(
        "an all-reduce has no servers that layers could be placed on; leave `placement` out or use `exchange = {{ servers = 1 }}`"
    )]
    PlacementWithoutServers,
    /// Layers overlap computation only where they are messages in a queue.
    #[error(
        "layers overlap with computing only on links of servers that carry one message at a time; leave `overlap` out, or use `exchange = {{ servers = 1 }}` with `sharing = \"in_turn\"`"
    )]
    Overlap,
    /// A factor that makes nothing of a gradient, or more.
    #[error("`gradient_bytes_factor` must be above 0 and at most 1, not {value}")]
    GradientBytes {
        /// The refused factor.
        value: f64,
    },
    /// A cluster without machines.
    #[error("cluster `{cluster}` has no conv machine; give it at least one")]
    NoMachine {
        /// The cluster's name.
        cluster: String,
    },
}

/// How a service time varies about its mean. Every law is scaled to mean 1, so a service time is
/// the nominal duration times a draw.
///
/// Equal machines under `Constant` run round robin; under `Exponential` group cycles are
/// memoryless, as the papers assume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceLaw {
    /// Always the nominal duration: coefficient of variation 0.
    Constant,
    /// Exponential: coefficient of variation 1.
    Exponential,
    /// Gamma of the given shape: coefficient of variation 1/√shape.
    Gamma(f64),
    /// Log-normal of the given coefficient of variation.
    Lognormal(f64),
    /// Pareto of the given coefficient of variation: a heavy tail, P(x > t) = (x₀/t)^α for t ≥ x₀
    /// with α = 1 + √(1 + 1/cv²), above 2, and x₀ = 1 − 1/α.
    Pareto(f64),
    /// A measured sample, drawn with replacement, scaled to mean 1.
    Empirical(Vec<f64>),
}

impl ServiceLaw {
    /// An empirical law from measured durations in any unit, scaled to mean 1.
    ///
    /// # Errors
    /// [`HardwareError::NoSamples`] and [`HardwareError::Sample`].
    #[expect(clippy::cast_precision_loss, reason = "a sample has far fewer than 2⁵³ entries")]
    pub fn empirical(durations: &[f64]) -> Result<Self, HardwareError> {
        let bad = durations.iter().enumerate().find(|(_, d)| !(d.is_finite() && **d > 0.0));
        if let Some((index, &value)) = bad {
            return Err(HardwareError::Sample { index, value });
        }
        if durations.is_empty() {
            return Err(HardwareError::NoSamples);
        }
        let mean = durations.iter().sum::<f64>() / durations.len() as f64;
        Ok(ServiceLaw::Empirical(durations.iter().map(|d| d / mean).collect()))
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// A [`HardwareError`] that names the parameter and its value.
    pub fn check(&self) -> Result<(), HardwareError> {
        let positive = |law, parameter, value: f64| {
            if value.is_finite() && value > 0.0 {
                Ok(())
            } else {
                Err(HardwareError::LawParameter { law, parameter, value })
            }
        };
        match self {
            ServiceLaw::Constant | ServiceLaw::Exponential => Ok(()),
            ServiceLaw::Gamma(shape) => positive("gamma", "a shape", *shape),
            ServiceLaw::Lognormal(cv) => positive("lognormal", "a coefficient of variation", *cv),
            ServiceLaw::Pareto(cv) => positive("pareto", "a coefficient of variation", *cv),
            ServiceLaw::Empirical(samples) => Self::empirical(samples).map(drop),
        }
    }

    /// Standard deviation over mean.
    pub fn coefficient_of_variation(&self) -> f64 {
        match self {
            ServiceLaw::Constant => 0.0,
            ServiceLaw::Exponential => 1.0,
            ServiceLaw::Gamma(shape) => shape.sqrt().recip(),
            ServiceLaw::Lognormal(cv) | ServiceLaw::Pareto(cv) => *cv,
            ServiceLaw::Empirical(samples) => {
                statrs::statistics::Statistics::population_std_dev(samples.as_slice())
            }
        }
    }

    /// One draw of mean 1 from a law whose parameters were checked.
    pub fn draw(&self, generator: &mut ChaCha8Rng) -> f64 {
        match self {
            ServiceLaw::Constant => 1.0,
            ServiceLaw::Exponential => Exp1.sample(generator),
            ServiceLaw::Gamma(shape) => Gamma::new(*shape, shape.recip())
                .expect("the shape was checked when the law was read")
                .sample(generator),
            ServiceLaw::Lognormal(cv) => {
                // With σ² = ln(1 + cv²), the mean exp(μ + σ²/2) is 1 at μ = −σ²/2.
                let variance = (cv * cv).ln_1p();
                LogNormal::new(-variance / 2.0, variance.sqrt())
                    .expect("the coefficient of variation was checked when the law was read")
                    .sample(generator)
            }
            ServiceLaw::Pareto(cv) => {
                let shape = 1.0 + (1.0 + (cv * cv).recip()).sqrt();
                Pareto::new(1.0 - shape.recip(), shape)
                    .expect("the coefficient of variation was checked when the law was read")
                    .sample(generator)
            }
            ServiceLaw::Empirical(samples) => samples[generator.random_range(0..samples.len())],
        }
    }
}

/// One CPU or GPU as a unit of throughput: a black box with the rates it really achieves.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// What people call it.
    pub name: String,
    /// Achieved rate in the conv phase, forward and backward together.
    pub conv_rate: FlopsPerSecond,
    /// Achieved rate in the FC phase.
    pub fc_rate: FlopsPerSecond,
}

/// How the devices of a machine share its examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceSplit {
    /// In proportion to their rates, so that all end at the same time; nothing is faster.
    #[default]
    Proportional,
    /// The first device computes this share of them, from 0 to 1; the others share the rest in
    /// proportion to their rates.
    First(f64),
}

/// One computer: its devices share a mini-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// What people call it.
    pub name: String,
    /// At least one device.
    pub devices: Vec<Device>,
    /// How they share the machine's examples; a device that is alone computes all of them.
    pub split: DeviceSplit,
    /// Time that every pass costs whatever its size.
    pub overhead: SimDuration,
    /// How its service times vary.
    pub service: ServiceLaw,
    /// Price of an hour in dollars, where known.
    pub dollars_per_hour: Option<f64>,
}

impl Machine {
    /// Conv-phase rate of all devices together: F FLOPs of whole examples over the time at which the
    /// last device has computed its part.
    ///
    /// Of devices with rates r₁, r₂, …, that is Σ rᵢ where they share in proportion (paper, section
    /// on heterogeneous devices), and min(r₁ / s, (r₂ + …) / (1 − s)) where the first computes a
    /// share s: r₁ alone for s = 1, the others alone for s = 0, and never more than Σ rᵢ.
    ///
    /// # Errors
    /// [`HardwareError::NoDevice`], [`HardwareError::Share`].
    pub fn conv_rate(&self) -> Result<FlopsPerSecond, HardwareError> {
        self.total(|device| device.conv_rate)
    }

    /// FC-phase rate of all devices together; see [`Machine::conv_rate`].
    ///
    /// # Errors
    /// [`HardwareError::NoDevice`], [`HardwareError::Share`].
    pub fn fc_rate(&self) -> Result<FlopsPerSecond, HardwareError> {
        self.total(|device| device.fc_rate)
    }

    fn total(
        &self,
        rate: impl Fn(&Device) -> FlopsPerSecond,
    ) -> Result<FlopsPerSecond, HardwareError> {
        let all: f64 = self.devices.iter().map(|device| rate(device).get()).sum();
        let together = match (self.split, self.devices.as_slice()) {
            (DeviceSplit::First(share), _) if !(0.0..=1.0).contains(&share) => {
                return Err(HardwareError::Share { share });
            }
            (DeviceSplit::First(share), [first, others @ ..]) if !others.is_empty() => {
                let others: f64 = others.iter().map(|device| rate(device).get()).sum();
                // Nothing to compute takes no time: the rate of a device without a share is
                // infinite.
                (rate(first).get() / share).min(others / (1.0 - share))
            }
            _ => all,
        };
        FlopsPerSecond::new(together)
            .map_err(|_| HardwareError::NoDevice { machine: self.name.clone() })
    }

    /// Whether there are devices that could share examples.
    pub fn shares(&self) -> bool {
        self.devices.len() > 1
    }

    /// Time for `flops` of a phase at `rate`, before variation.
    pub fn pass(&self, flops: Flops, rate: FlopsPerSecond) -> SimDuration {
        self.overhead + flops / rate
    }
}

/// A network link: a message of n bytes takes latency + n / bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Time before the first byte arrives.
    pub latency: SimDuration,
    /// Rate at which the bytes follow.
    pub bandwidth: BytesPerSecond,
}

impl Link {
    /// Time that a message keeps the sender's or receiver's card busy.
    pub fn occupation(self, size: Bytes) -> SimDuration {
        size / self.bandwidth
    }
}

/// How models and gradients travel between machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterExchange {
    /// Through model servers that hold parts of the parameters, each behind a link of its own: a
    /// message keeps every link busy for the part of its server.
    Servers {
        /// S, number of servers.
        shards: NonZeroU32,
    },
    /// All-reduce along a ring of k machines: 2·(k − 1) steps of n/k bytes, each of which takes
    /// latency + n/(k·bandwidth). Nothing is sent back.
    ///
    /// Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    /// workstations", JPDC 2009.
    Ring,
    /// All-reduce along a binary tree of k machines: ⌈log₂ k⌉ steps of n bytes up to the root and
    /// as many down, each of which takes latency + n/bandwidth.
    Tree,
}

/// How parameters are spread over model servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In equal parts whatever the layers, one message to each server.
    Even,
    /// Layer by layer, a message for each: the largest layers first, each to the server that holds
    /// the fewest bytes by then.
    PerLayer,
}

/// How messages share the link of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One at a time, in the order in which they are sent.
    InTurn,
    /// All at once, each at the n-th part of the bandwidth while there are n (processor sharing).
    Fair,
}

/// Whether messages wait for whole gradients and models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// A gradient is pushed once it is whole, and computing begins with a whole model.
    None,
    /// The gradient of a layer is pushed while the layers before it still go backward, and a layer
    /// goes forward as soon as its parameters are there, which are sent from the first layer on.
    PerLayer,
}

/// The network of a cluster: the link of every machine and server, and how it is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Every link.
    pub link: Link,
    /// How models and gradients travel.
    pub exchange: ParameterExchange,
    /// How parameters are spread over model servers.
    pub placement: Placement,
    /// How messages share the link of a server.
    pub sharing: Sharing,
    /// Whether they wait for whole gradients and models.
    pub overlap: Overlap,
    /// Time for which every message keeps a link busy whatever its size.
    pub message_overhead: SimDuration,
    /// Bytes of a pushed gradient over bytes of the parameters, in (0, 1]: below 1 where gradients
    /// are compressed.
    pub gradient_bytes_factor: f64,
}

impl Network {
    /// One model server whose link carries one message at a time, and nothing else of note.
    pub fn plain(link: Link) -> Self {
        Network {
            link,
            exchange: ParameterExchange::Servers { shards: NonZeroU32::MIN },
            placement: Placement::Even,
            sharing: Sharing::InTurn,
            overlap: Overlap::None,
            message_overhead: SimDuration::ZERO,
            gradient_bytes_factor: 1.0,
        }
    }

    /// Checks what makes no sense together.
    ///
    /// # Errors
    /// [`HardwareError::PlacementWithoutServers`], [`HardwareError::Overlap`],
    /// [`HardwareError::GradientBytes`].
    pub fn check(&self) -> Result<(), HardwareError> {
        let servers = matches!(self.exchange, ParameterExchange::Servers { .. });
        if self.placement == Placement::PerLayer && !servers {
            return Err(HardwareError::PlacementWithoutServers);
        }
        if self.overlap == Overlap::PerLayer && !(servers && self.sharing == Sharing::InTurn) {
            return Err(HardwareError::Overlap);
        }
        let value = self.gradient_bytes_factor;
        if value > 0.0 && value <= 1.0 {
            Ok(())
        } else {
            Err(HardwareError::GradientBytes { value })
        }
    }
}

/// Conv machines, the merged FC server, and the network between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// What people call it.
    pub name: String,
    /// The machines that compute the conv phase.
    pub machines: Vec<Machine>,
    /// The machine that holds and computes a merged FC phase.
    pub fc_server: Machine,
    /// What lies between them; `None` where messages cost nothing.
    pub network: Option<Network>,
    /// Rate at which the model server applies an update, in bytes of parameters per second.
    pub update_rate: Option<BytesPerSecond>,
}

impl Cluster {
    /// The same cluster, where the devices of every conv machine share its examples in a way. The
    /// FC server, which may be another kind of machine, stays as it is.
    #[must_use]
    pub fn split(mut self, split: DeviceSplit) -> Self {
        self.machines.iter_mut().for_each(|machine| machine.split = split);
        self
    }

    /// The cluster with a number of conv machines: its first, and where it has fewer, more of their
    /// kind. `None` where more are wanted of machines that are not all alike.
    #[must_use]
    pub fn with_conv_machines(mut self, wanted: u32) -> Option<Self> {
        let (wanted, described) = (wanted as usize, self.machines.len());
        let Some(first) = self.machines.first().cloned().filter(|_| wanted > described) else {
            self.machines.truncate(wanted);
            return Some(self);
        };
        let kind = |machine: &Machine| Machine { name: String::new(), ..machine.clone() };
        let is_alike = self.machines.iter().all(|machine| kind(machine) == kind(&first));
        let numbered = first.name.strip_suffix(" 1").filter(|_| described > 1);
        let name = numbered.unwrap_or(&first.name);
        let machine = |number| Machine { name: format!("{name} {number}"), ..first.clone() };
        self.machines = (1..=wanted).map(machine).collect();
        is_alike.then_some(self)
    }

    /// The cluster with links of another bandwidth; `None` where messages cost nothing.
    #[must_use]
    pub fn with_bandwidth(mut self, bandwidth: BytesPerSecond) -> Option<Self> {
        self.network.as_mut()?.link.bandwidth = bandwidth;
        Some(self)
    }

    /// Price of an hour in dollars: Σ over the first conv machines, and the machine of the FC server,
    /// which is paid for wherever the FC layers live, because it holds the model. `None` where a price
    /// is not known.
    pub fn dollars_per_hour(&self, conv_machines: u32) -> Option<f64> {
        let first = self.machines.iter().take(conv_machines as usize);
        first.chain([&self.fc_server]).map(|machine| machine.dollars_per_hour).sum()
    }

    /// Checks that there is a machine, that every machine has a device, and every law its
    /// parameters.
    ///
    /// # Errors
    /// The first [`HardwareError`] found.
    pub fn check(&self) -> Result<(), HardwareError> {
        if self.machines.is_empty() {
            return Err(HardwareError::NoMachine { cluster: self.name.clone() });
        }
        for machine in self.machines.iter().chain([&self.fc_server]) {
            machine.conv_rate()?;
            machine.service.check()?;
        }
        self.network.map_or(Ok(()), |network| network.check())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::MachineId;
    use crate::rng::{Seed, Stream, stream};

    #[test]
    fn every_law_has_mean_one_and_its_stated_coefficient_of_variation() {
        let measured = ServiceLaw::empirical(&[1.0, 2.0, 2.0, 7.0]).expect("all above 0");
        let laws = [
            ServiceLaw::Constant,
            ServiceLaw::Exponential,
            ServiceLaw::Gamma(4.0),
            ServiceLaw::Lognormal(0.3),
            // Heavier tails have no fourth moment, and so no standard error of their deviation.
            ServiceLaw::Pareto(0.2),
            measured,
        ];
        for law in laws {
            let machine = MachineId(0);
            let mut generator = stream(Seed(1), Stream::ServiceTime { machine });
            let n = 200_000;
            let draws: Vec<f64> = (0..n).map(|_| law.draw(&mut generator)).collect();
            let mean = statrs::statistics::Statistics::mean(draws.as_slice());
            let deviation = statrs::statistics::Statistics::std_dev(draws.as_slice());
            let cv = law.coefficient_of_variation();
            // Five standard errors of the mean; the deviation's own error is of the same order
            // times the law's kurtosis, for which 4 is generous here.
            let standard_error = cv / f64::from(n).sqrt();
            assert!((mean - 1.0).abs() <= 5.0 * standard_error, "{law:?}: mean {mean}");
            assert!((deviation - cv).abs() <= 20.0 * standard_error, "{law:?}: {deviation}");
        }
    }

    #[test]
    fn a_law_with_a_meaningless_parameter_is_refused() {
        for law in [
            ServiceLaw::Gamma(0.0),
            ServiceLaw::Gamma(f64::NAN),
            ServiceLaw::Lognormal(-0.5),
            ServiceLaw::Pareto(0.0),
            ServiceLaw::Empirical(vec![]),
            ServiceLaw::Empirical(vec![1.0, -1.0]),
        ] {
            assert!(law.check().is_err(), "{law:?}");
        }
    }

    fn machine(rates: &[(f64, f64)], split: DeviceSplit) -> Machine {
        let rate = |value| FlopsPerSecond::new(value).expect("above 0");
        let device = |(conv, fc): &(f64, f64)| Device {
            name: "device".to_owned(),
            conv_rate: rate(*conv),
            fc_rate: rate(*fc),
        };
        Machine {
            name: "machine".to_owned(),
            devices: rates.iter().map(device).collect(),
            split,
            overhead: SimDuration::ZERO,
            service: ServiceLaw::Constant,
            dollars_per_hour: None,
        }
    }

    /// Conv and FC rate.
    fn rates(devices: &[(f64, f64)], split: DeviceSplit) -> [f64; 2] {
        let machine = machine(devices, split);
        [machine.conv_rate(), machine.fc_rate()].map(|rate| rate.expect("possible").get())
    }

    proptest! {
        #[test]
        fn no_share_is_faster_than_the_proportional_one(
            devices in prop::collection::vec((1e3..1e15, 1e3..1e15), 2..6),
            share in 0.0..=1.0,
        ) {
            let proportional = rates(&devices, DeviceSplit::Proportional);
            let fixed = rates(&devices, DeviceSplit::First(share));
            // Two roundings of a division and one of a sum.
            let bound = 1.0 + 4.0 * f64::EPSILON;
            prop_assert!(fixed[0] <= bound * proportional[0] && fixed[1] <= bound * proportional[1]);
            let fair = rates(&devices, DeviceSplit::First(devices[0].0 / proportional[0]));
            prop_assert!((fair[0] / proportional[0] - 1.0).abs() < 1e-9, "the share in proportion");
        }

        #[test]
        fn the_whole_share_is_the_first_device_alone_and_none_are_the_others(
            devices in prop::collection::vec((1e3..1e15, 1e3..1e15), 2..6),
        ) {
            let bits = |devices, split| rates(devices, split).map(f64::to_bits);
            let alone = |devices| bits(devices, DeviceSplit::Proportional);
            prop_assert_eq!(bits(&devices, DeviceSplit::First(1.0)), alone(&devices[..1]));
            prop_assert_eq!(bits(&devices, DeviceSplit::First(0.0)), alone(&devices[1..]));
        }
    }

    fn cluster(prices: &[f64], server: Option<f64>) -> Cluster {
        let plain = || machine(&[(1e9, 1e9)], DeviceSplit::Proportional);
        let priced = |(number, price): (usize, &f64)| Machine {
            name: format!("kind {number}"),
            dollars_per_hour: Some(*price),
            ..plain()
        };
        Cluster {
            name: "cluster".to_owned(),
            machines: prices.iter().enumerate().map(priced).collect(),
            fc_server: Machine { dollars_per_hour: server, ..plain() },
            network: None,
            update_rate: None,
        }
    }

    proptest! {
        #[test]
        fn an_hour_costs_the_sum_of_the_machines_in_use_and_the_server(
            prices in prop::collection::vec(0.0..10.0, 1..20),
            server in 0.0..10.0,
            used in 1_usize..20,
        ) {
            let used = used.min(prices.len());
            let sum: f64 = prices[..used].iter().sum::<f64>() + server;
            let n = u32::try_from(used).expect("at most 20");
            let price = cluster(&prices, Some(server)).dollars_per_hour(n).expect("all are known");
            prop_assert!((price - sum).abs() <= 1e-12 * sum.max(1.0), "{price} {sum}");
            prop_assert_eq!(cluster(&prices, None).dollars_per_hour(n), None);
        }

        #[test]
        fn machines_of_one_kind_give_any_number_and_others_as_many_as_there_are(
            described in 2_u32..12,
            wanted in 1_u32..40,
        ) {
            let alike = cluster(&vec![0.5; described as usize], Some(0.5));
            let sized = alike.with_conv_machines(wanted).expect("one kind");
            prop_assert_eq!(sized.machines.len(), wanted as usize);
            let prices: Vec<f64> = (0..described).map(f64::from).collect();
            let sized = cluster(&prices, Some(0.5)).with_conv_machines(wanted);
            prop_assert_eq!(sized.is_some(), wanted <= described);
        }
    }

    #[test]
    fn a_device_that_is_alone_computes_everything_and_a_share_is_from_0_to_1() {
        let alone = rates(&[(2e9, 1e9)], DeviceSplit::First(0.25));
        assert_eq!(alone.map(f64::to_bits), [2e9, 1e9].map(f64::to_bits));
        for share in [-0.1, 1.1, f64::NAN] {
            let refused = machine(&[(1e9, 1e9), (1e9, 1e9)], DeviceSplit::First(share)).conv_rate();
            assert!(matches!(refused, Err(HardwareError::Share { .. })), "{refused:?}");
        }
    }
}
