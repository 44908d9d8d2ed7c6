//! Convolutions by every method, and the sweeps of the paper's section on one device.

use super::convolution::{CONVOLUTIONS, ConvolutionSubject, Pass, Tensors};
use super::numbers::made_up;
use super::sample::{Timing, alternate};
use super::{Measurement, Peaks, Scale, Section, SpeedError, Step, Survey, Unit, on_threads, pool};
use crate::kernels::{
    Instructions, KernelError, Lowering, MixedPath, matrix_product, release_scratch, scratch_bytes,
};
use crate::threads::{Permits, Pool};

/// Shapes of the sweep over `b_p`.
const SWEPT: [&str; 4] = ["conv1", "conv2g2", "conv3", "lenet2"];

/// Shapes whose matrix product is measured alone.
const MULTIPLIED: [&str; 5] = ["conv1", "conv2", "conv3", "conv4", "conv5"];

/// The conv phase of CaffeNet.
const CAFFENET: [&str; 5] = ["conv1", "conv2g2", "conv3", "conv4g2", "conv5g2"];

/// Partitions that a mini-batch is cut into.
const PARTITIONS: [usize; 5] = [1, 2, 4, 8, 16];

/// Images lowered at once.
const IMAGES_AT_ONCE: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// A method by the name under which its rates appear.
type Method = (String, Lowering);

/// The steps of a survey of the kernels.
pub fn kernel_steps(survey: &Survey) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    for &threads in &survey.threads {
        for (_, subject) in CONVOLUTIONS {
            steps.push(step("convolution", survey, subject, threads, convolution));
        }
        for subject in SWEPT.into_iter().filter_map(ConvolutionSubject::named) {
            steps.push(step("lowering", survey, subject, threads, lowering));
        }
        for subject in MULTIPLIED.into_iter().filter_map(ConvolutionSubject::named) {
            steps.push(step("product", survey, subject, threads, product));
        }
    }
    steps.push(Step {
        name: "partitions/caffenet".to_owned(),
        measure: Box::new(move |peaks| partitions(survey, peaks)),
    });
    steps
}

type Measure =
    fn(&Survey, &ConvolutionSubject, usize, &Peaks) -> Result<Vec<Measurement>, SpeedError>;

/// A step on one shape and one number of threads.
fn step<'a>(
    section: &str,
    survey: &'a Survey,
    subject: ConvolutionSubject,
    threads: usize,
    measure: Measure,
) -> Step<'a> {
    let subject = match survey.scale {
        Scale::Full => subject,
        Scale::Smoke => subject.tiny(),
    };
    Step {
        name: format!("{section}/{}/threads={threads}", subject.name),
        measure: Box::new(move |peaks| {
            on_threads(threads, || measure(survey, &subject, threads, peaks))?
        }),
    }
}

/// The default, and every path that can be forced where it differs from it.
fn methods(subject: &ConvolutionSubject) -> Vec<Method> {
    let best = Instructions::detect();
    let mut methods = vec![("default".to_owned(), Lowering::default())];
    if (subject.kernel, subject.stride) == (3, 1) {
        methods.push((format!("packed, {best}"), Lowering::Packed(best)));
    }
    let others = Instructions::ALL.into_iter().filter(|path| path.is_available() && *path != best);
    methods.extend(others.map(|path| (path.to_string(), Lowering::Winograd(path))));
    methods.extend(MixedPath::detect().map(|path| (path.to_string(), Lowering::Mixed(path))));
    methods
}

/// All passes of a shape by all methods.
fn convolution(
    survey: &Survey,
    subject: &ConvolutionSubject,
    threads: usize,
    peaks: &Peaks,
) -> Result<Vec<Measurement>, SpeedError> {
    let mut tensors = Tensors::new(subject)?;
    let methods = methods(subject);
    let mut rows = Vec::new();
    for pass in Pass::OF_A_CONVOLUTION {
        let timings = timings(survey, &mut tensors, pass, &methods)?;
        for ((method, lowering), timing) in methods.iter().zip(&timings) {
            let names = [subject.name.as_ref(), &pass.to_string(), method];
            let work = (timing, tensors.flops());
            rows.push(peaks.rate_of(Section::Convolution, names, threads, work, *lowering));
        }
    }
    Ok(rows)
}

fn timings(
    survey: &Survey,
    tensors: &mut Tensors,
    pass: Pass,
    methods: &[Method],
) -> Result<Vec<Timing>, KernelError> {
    let mut outcome = Ok(());
    let timings = alternate(survey.effort, methods.len(), |method| {
        let ran = tensors.run(pass, methods[method].1);
        outcome = std::mem::replace(&mut outcome, Ok(())).and(ran);
    });
    outcome.map(|()| timings)
}

/// Lowering of `b_p` images at once, from 1 to the whole mini-batch, beside the default; the time
/// of every pass, and the working memory that it needs.
fn lowering(
    survey: &Survey,
    subject: &ConvolutionSubject,
    threads: usize,
    peaks: &Peaks,
) -> Result<Vec<Measurement>, SpeedError> {
    let mut tensors = Tensors::new(subject)?;
    let mut counts: Vec<usize> =
        IMAGES_AT_ONCE.into_iter().filter(|count| *count < subject.batch).collect();
    counts.push(subject.batch);
    let mut methods = vec![("default".to_owned(), Lowering::default())];
    let lowered =
        |count: &usize| ("lowered".to_owned(), Lowering::Materialised { images_at_once: *count });
    methods.extend(counts.iter().map(lowered));
    let counts: Vec<Option<usize>> =
        std::iter::once(None).chain(counts.into_iter().map(Some)).collect();
    let mut rows = Vec::new();
    for pass in Pass::OF_A_CONVOLUTION {
        let timings = timings(survey, &mut tensors, pass, &methods)?;
        for (((method, lowering), timing), count) in methods.iter().zip(&timings).zip(&counts) {
            let names = [subject.name.as_ref(), &pass.to_string(), method];
            let work = (timing, tensors.flops());
            let rate = peaks.rate(Section::Lowering, names, threads, work);
            let memory = scratch(&mut tensors, pass, *lowering, &rate)?;
            rows.extend([rate, memory].map(|row| match count {
                Some(count) => row.with_count(*count),
                None => row,
            }));
        }
    }
    Ok(rows)
}

/// Working memory of one call of a pass.
fn scratch(
    tensors: &mut Tensors,
    pass: Pass,
    lowering: Lowering,
    rate: &Measurement,
) -> Result<Measurement, SpeedError> {
    release_scratch();
    let before = scratch_bytes();
    tensors.run(pass, lowering)?;
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2⁵³ bytes")]
    let value = scratch_bytes().saturating_sub(before) as f64 / 1e6;
    Ok(Measurement {
        method: format!("{} memory", rate.method),
        value,
        range: (value, value),
        samples: 1,
        unit: Unit::Megabytes,
        fraction_of_limit: None,
        ..rate.clone()
    })
}

/// The matrix product of a lowered convolution alone, against `b_p`: filters × depth times
/// depth × (`b_p` · pixels of the output).
fn product(
    survey: &Survey,
    subject: &ConvolutionSubject,
    threads: usize,
    peaks: &Peaks,
) -> Result<Vec<Measurement>, SpeedError> {
    let shape = subject.shape()?;
    let depth = subject.channels * subject.kernel * subject.kernel;
    let pixels = shape.output_height() * shape.output_width();
    let counts: Vec<usize> =
        IMAGES_AT_ONCE.into_iter().filter(|count| *count <= subject.batch).collect();
    let columns = pixels * counts.last().copied().unwrap_or(1);
    let left = made_up(subject.filters * depth, 0);
    let right = made_up(depth * columns, 1);
    let mut output = vec![0.0; subject.filters * columns];
    let mut outcome = Ok(());
    let timings = alternate(survey.effort, counts.len(), |at| {
        let columns = pixels * counts[at];
        let output = &mut output[..subject.filters * columns];
        let sizes = [subject.filters, depth, columns];
        let product = matrix_product(sizes, &left, &right[..depth * columns], output);
        outcome = std::mem::replace(&mut outcome, Ok(())).and(product);
    });
    outcome?;
    let row = |(count, timing): (&usize, &Timing)| {
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2⁵³ operations")]
        let flops = 2.0 * (subject.filters * depth * pixels * count) as f64;
        let names = [subject.name.as_ref(), "", "matrix product"];
        peaks.rate(Section::Product, names, threads, (timing, flops)).with_count(*count)
    };
    Ok(counts.iter().zip(&timings).map(row).collect())
}

/// How a partition is computed.
#[derive(Clone, Copy)]
enum Style {
    /// All images of a partition are lowered at once.
    Lowered,
    /// The default.
    Packed,
}

/// A layer whose mini-batch is cut into partitions.
struct Cut {
    passes: &'static [Pass],
    parts: Vec<Tensors>,
}

impl Cut {
    fn new(subject: &ConvolutionSubject, partitions: usize) -> Result<Self, SpeedError> {
        let batch = subject.batch;
        let sizes = (0..partitions).map(|i| (i + 1) * batch / partitions - i * batch / partitions);
        let part = |size| Tensors::new(&subject.clone().with_batch(size));
        let parts = sizes.filter(|size| *size > 0).map(part).collect::<Result<_, _>>()?;
        // Nothing before the first layer wants a gradient.
        let passes: &[Pass] = match subject.name.as_ref() {
            "conv1" => &[Pass::Forward, Pass::BackwardWeights],
            _ => &Pass::OF_A_CONVOLUTION,
        };
        Ok(Cut { passes, parts })
    }

    fn flops(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "three passes at most")]
        let passes = self.passes.len() as f64;
        passes * self.parts.iter().map(Tensors::flops).sum::<f64>()
    }

    /// Runs all passes, one partition a pool; the gradients of the weights are summed.
    fn run(&mut self, style: Style, pools: &Pools) -> Result<(), KernelError> {
        for pass in self.passes {
            let outcomes: Vec<Result<(), KernelError>> = std::thread::scope(|scope| {
                let part = |(part, pool): (&'_ mut Tensors, &'_ Pool)| {
                    let lowering = style.lowering(part.shape.sizes().batch);
                    pools.permits.compute(pool, || part.run(*pass, lowering))
                };
                let threads: Vec<_> = self
                    .parts
                    .iter_mut()
                    .zip(&pools.pools)
                    .map(|pair| scope.spawn(move || part(pair)))
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("no kernel panics")).collect()
            });
            outcomes.into_iter().collect::<Result<(), _>>()?;
        }
        let Some((first, others)) = self.parts.split_first_mut() else { return Ok(()) };
        for other in others {
            for (sum, term) in first.weight_gradient.iter_mut().zip(&other.weight_gradient) {
                *sum += term;
            }
        }
        Ok(())
    }
}

impl Style {
    fn lowering(self, batch: usize) -> Lowering {
        match self {
            Style::Lowered => Lowering::Materialised { images_at_once: batch },
            Style::Packed => Lowering::default(),
        }
    }
}

/// CaffeNet's convolutions, forward and backward, with the mini-batch cut into partitions that each
/// have a thread of their own; one partition has all threads inside its products.
///
/// Beside them stands one image after the other with all threads inside its lowering and its
/// product; Caffe does this with a serial lowering.
fn partitions(survey: &Survey, peaks: &Peaks) -> Result<Vec<Measurement>, SpeedError> {
    let threads = survey.largest();
    let mut rows = Vec::new();
    let subjects: Vec<ConvolutionSubject> = CAFFENET
        .into_iter()
        .filter_map(ConvolutionSubject::named)
        .map(|subject| match survey.scale {
            Scale::Full => subject,
            Scale::Smoke => subject.tiny(),
        })
        .collect();
    for partitions in PARTITIONS {
        let cuts: Result<Vec<Cut>, _> =
            subjects.iter().map(|subject| Cut::new(subject, partitions)).collect();
        let mut cuts = cuts?;
        let flops = cuts.iter().map(Cut::flops).sum();
        let pools = Pools::new(partitions, if partitions == 1 { threads } else { 1 })?;
        let styles = [("lowered", Style::Lowered), ("packed", Style::Packed)];
        let measured = time_cuts(survey, &mut cuts, &styles.map(|(_, style)| style), &pools)?;
        for ((name, _), timing) in styles.into_iter().zip(measured) {
            let row = partition_row(peaks, threads, name, (&timing, flops));
            rows.push(row.with_count(partitions));
        }
    }
    rows.push(one_image_after_the_other(survey, &subjects, threads, peaks)?);
    Ok(rows)
}

/// The row of a partitioning: the time of all its passes, and their rate over the peak.
fn partition_row(
    peaks: &Peaks,
    threads: usize,
    method: &str,
    (timing, flops): (&Timing, f64),
) -> Measurement {
    let names = ["caffenet convolutions", "", method];
    let row = Measurement::seconds(Section::Partitions, names, threads, timing, None);
    let fraction = |peak| flops / 1e9 / timing.median() / peak;
    Measurement { fraction_of_limit: peaks.of(threads).map(fraction), ..row }
}

/// Pools that compute at the same time.
struct Pools {
    permits: Permits,
    pools: Vec<Pool>,
}

impl Pools {
    fn new(count: usize, threads: usize) -> Result<Self, SpeedError> {
        let pools = (0..count).map(|_| pool(threads)).collect::<Result<_, _>>()?;
        Ok(Pools { permits: Permits::new(count * threads), pools })
    }
}

fn time_cuts(
    survey: &Survey,
    cuts: &mut [Cut],
    styles: &[Style],
    pools: &Pools,
) -> Result<Vec<Timing>, SpeedError> {
    let mut outcome = Ok(());
    let timings = alternate(survey.effort, styles.len(), |style| {
        let ran = cuts.iter_mut().try_for_each(|cut| cut.run(styles[style], pools));
        outcome = std::mem::replace(&mut outcome, Ok(())).and(ran);
    });
    Ok(outcome.map(|()| timings)?)
}

fn one_image_after_the_other(
    survey: &Survey,
    subjects: &[ConvolutionSubject],
    threads: usize,
    peaks: &Peaks,
) -> Result<Measurement, SpeedError> {
    let pools = Pools::new(1, threads)?;
    let mut images: Vec<(usize, Cut)> = Vec::new();
    for subject in subjects {
        images.push((subject.batch, Cut::new(&subject.clone().with_batch(1), 1)?));
    }
    #[expect(clippy::cast_precision_loss, reason = "mini-batches are small")]
    let flops = images.iter().map(|(batch, image)| *batch as f64 * image.flops()).sum();
    let mut outcome = Ok(());
    let timings = alternate(survey.effort, 1, |_| {
        for (batch, image) in &mut images {
            for _ in 0..*batch {
                let ran = image.run(Style::Lowered, &pools);
                outcome = std::mem::replace(&mut outcome, Ok(())).and(ran);
            }
        }
    });
    outcome?;
    Ok(partition_row(peaks, threads, "image by image", (&timings[0], flops)))
}
