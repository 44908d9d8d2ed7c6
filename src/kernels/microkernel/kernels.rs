//! The kernels, written once for all instruction sets.
//!
//! The macros expand in a module that defines `Vector`, `LANES` and the operations on vectors.

/// Adds the sums of a tile to what it starts from.
///
/// A macro with a branch per row, because the sums would go through memory if they were passed to a
/// function or indexed by a variable.
macro_rules! finish {
    ($sums:ident, $tile:ident, $output:ident, $pitch:ident) => {
        finish!($sums, $tile, $output, $pitch, 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
    };
    ($sums:ident, $tile:ident, $output:ident, $pitch:ident, $($row:literal)*) => {
        $(if $row < ROWS {
            let last = $sums[$row].len() - 1;
            for (v, sum) in $sums[$row].into_iter().enumerate() {
                let count = if v == last { $tile.columns - last * LANES } else { LANES };
                // SAFETY: `count` floats from here on belong to this row of the output.
                unsafe {
                    let place = $output.add($row * $pitch + v * LANES);
                    let sum = match $tile.start {
                        Start::Zero => sum,
                        Start::Bias(bias) => add(sum, splat(*bias.as_ptr().add($row))),
                        Start::Output => add(sum, load_first(place, count)),
                    };
                    store_first(place, count, sum);
                }
            }
        })*
    };
}

/// The kernels that multiply, in terms of the vector operations that the surrounding module defines.
macro_rules! products {
    ($features:literal) => {
        /// See [`Engine::tile`].
        #[target_feature(enable = $features)]
        unsafe fn tile<const ROWS: usize, const VECTORS: usize>(
            tile: &Tile<'_>,
            right: *const f32,
            steps: &[Step],
            output: *mut f32,
            pitch: usize,
        ) {
            let mut sums = [[zero(); VECTORS]; ROWS];
            for step in steps {
                let mut left = tile.left.as_ptr().wrapping_add(step.left);
                let mut right = right.wrapping_add(step.right);
                for _ in 0..tile.depth {
                    let mut columns = [zero(); VECTORS];
                    for (v, column) in columns.iter_mut().enumerate() {
                        // SAFETY: the caller vouches for `depth` rows of the right panel.
                        *column = unsafe { load(right.add(v * LANES)) };
                    }
                    for (r, row) in sums.iter_mut().enumerate() {
                        // SAFETY: the caller vouches for `depth` rows of the left panel.
                        let factor = splat(unsafe { *left.add(r) });
                        for (sum, column) in row.iter_mut().zip(columns) {
                            *sum = multiply_add(factor, column, *sum);
                        }
                    }
                    // The last step may lead past the end of a panel.
                    left = left.wrapping_add(tile.left_pitch);
                    right = right.wrapping_add(VECTORS * LANES);
                }
            }
            finish!(sums, tile, output, pitch);
        }

        /// See [`Right::Staged`]; a vector has up to `RUNS` runs, each a place and its first lane.
        #[target_feature(enable = $features)]
        unsafe fn direct<const ROWS: usize, const RUNS: usize>(
            tile: &Tile<'_>,
            source: *const f32,
            offsets: &[usize],
            places: &Places,
            output: *mut f32,
            pitch: usize,
        ) {
            let mut sums = [[zero(); 2]; ROWS];
            let mut left = tile.left.as_ptr();
            for &offset in offsets {
                let mut columns = [zero(); 2];
                for (column, places) in columns.iter_mut().zip(&places.values) {
                    // SAFETY: the caller vouches for a vector from the start of every run; the
                    // lanes before a run, whose addresses may precede the source, are masked out.
                    unsafe {
                        let source = source.add(offset);
                        *column = load(source.add(places[0].0));
                        for &(place, lane) in &places[1..RUNS] {
                            *column = load_last(*column, source.wrapping_add(place), lane);
                        }
                    }
                }
                for (r, row) in sums.iter_mut().enumerate() {
                    // SAFETY: the caller vouches for a row of the left panel per offset.
                    let factor = splat(unsafe { *left.add(r) });
                    for (sum, column) in row.iter_mut().zip(columns) {
                        *sum = multiply_add(factor, column, *sum);
                    }
                }
                // The last step may lead past the end of the panel.
                left = left.wrapping_add(tile.left_pitch);
            }
            finish!(sums, tile, output, pitch);
        }
    };
}

/// Those of them that multiply vector by vector.
macro_rules! dot_products {
    ($features:literal) => {
        /// See [`Engine::dots`].
        #[target_feature(enable = $features)]
        unsafe fn dots<const LEFT: usize, const RIGHT: usize>(
            left: *const f32,
            right: *const f32,
            depth: usize,
            sums: *mut f32,
            pitch: usize,
        ) {
            let mut totals = [[zero(); RIGHT]; LEFT];
            let mut at = 0;
            while at < depth {
                let mut columns = [zero(); RIGHT];
                for (j, column) in columns.iter_mut().enumerate() {
                    // SAFETY: the caller vouches for `RIGHT` rows of `depth` floats.
                    *column = unsafe { load(right.add(j * depth + at)) };
                }
                for (i, row) in totals.iter_mut().enumerate() {
                    // SAFETY: the caller vouches for `LEFT` rows of `depth` floats.
                    let factor = unsafe { load(left.add(i * depth + at)) };
                    for (total, column) in row.iter_mut().zip(columns) {
                        *total = multiply_add(factor, column, *total);
                    }
                }
                at += LANES;
            }
            for (i, row) in totals.into_iter().enumerate() {
                for (j, total) in row.into_iter().enumerate() {
                    // SAFETY: the caller vouches for a vector of sums per pair.
                    unsafe {
                        let place = sums.add(i * pitch + j * LANES);
                        store(place, add(load(place), total));
                    }
                }
            }
        }

        /// See [`Engine::dots_of_stages`]; a vector has one run if `RUNS` is 1, else any number.
        #[target_feature(enable = $features)]
        unsafe fn dots_of_stages<const LEFT: usize, const RIGHT: usize, const RUNS: usize>(
            block: &StagedDots<'_>,
            sums: *mut f32,
        ) {
            let mut taps = [0; RIGHT];
            taps.copy_from_slice(block.taps);
            let mut totals = [[zero(); RIGHT]; LEFT];
            for image in 0..block.images {
                let mut left = block.left[image * block.left_image_pitch..].as_ptr();
                let stage = block.stage[image * block.stage_pitch..].as_ptr();
                for (at, &first) in block.runs.first.iter().enumerate() {
                    let mut columns = [zero(); RIGHT];
                    for (column, tap) in columns.iter_mut().zip(taps) {
                        // SAFETY: the caller vouches for a vector from the start of every run.
                        *column = unsafe { load(stage.add(first).add(tap)) };
                    }
                    // Where there is none, sums stay in registers only if no code looks for it.
                    if RUNS > 1 {
                        for &(place, lane) in &block.runs.others[at] {
                            for (column, tap) in columns.iter_mut().zip(taps) {
                                let from = stage.wrapping_add(tap).wrapping_add(place);
                                // SAFETY: as above; the lanes before a run, whose addresses may
                                // precede the stage, are masked out.
                                *column = unsafe { load_last(*column, from, lane) };
                            }
                        }
                    }
                    for (i, row) in totals.iter_mut().enumerate() {
                        // SAFETY: the caller vouches for `LEFT` rows of whole vectors.
                        let factor = unsafe { load(left.add(i * block.left_pitch)) };
                        for (total, column) in row.iter_mut().zip(columns) {
                            *total = multiply_add(factor, column, *total);
                        }
                    }
                    // The last step may lead past the end of the rows.
                    left = left.wrapping_add(LANES);
                }
            }
            for (i, row) in totals.into_iter().enumerate() {
                for (j, total) in row.into_iter().enumerate() {
                    // SAFETY: the caller vouches for a vector of sums per pair.
                    unsafe {
                        let place = sums.add(i * block.pitch + j * LANES);
                        store(place, add(load(place), total));
                    }
                }
            }
        }
    };
}

/// The other kernels, in the same terms.
macro_rules! kernels {
    ($features:literal) => {
        /// See [`Engine::sum`].
        #[target_feature(enable = $features)]
        fn sum(values: &[f32]) -> f32 {
            let mut sums = [zero(); 4];
            let (blocks, rest) = values.as_chunks::<LANES>();
            // Sums that a variable chooses would go through memory.
            let (fours, last) = blocks.as_chunks::<4>();
            for four in fours {
                for (sum, block) in sums.iter_mut().zip(four) {
                    // SAFETY: a block is one vector.
                    *sum = add(*sum, unsafe { load(block.as_ptr()) });
                }
            }
            for block in last {
                // SAFETY: as above.
                sums[0] = add(sums[0], unsafe { load(block.as_ptr()) });
            }
            if !rest.is_empty() {
                // SAFETY: the rest has at least one float and fewer than a vector.
                sums[0] = add(sums[0], unsafe { load_first(rest.as_ptr(), rest.len()) });
            }
            let mut lanes = [0.0; LANES];
            let [a, b, c, d] = sums;
            // SAFETY: the array is one vector.
            unsafe { store(lanes.as_mut_ptr(), add(add(a, b), add(c, d))) };
            lanes.iter().sum()
        }

        /// `count` floats of every row, `STRIDE` (1, 2 or 4) apart; see [`Engine::copy_rows`].
        #[target_feature(enable = $features)]
        unsafe fn copy_rows<const STRIDE: usize>(
            (source, source_pitch): (*const f32, usize),
            (target, target_pitch): (*mut f32, usize),
            (rows, count): (usize, usize),
        ) {
            for row in 0..rows {
                for at in (0..count).step_by(LANES) {
                    let length = (count - at).min(LANES);
                    // SAFETY: the caller vouches for these floats on both sides.
                    unsafe {
                        let from = source.add(row * source_pitch + at * STRIDE);
                        let to = target.add(row * target_pitch + at);
                        store_first(to, length, load_strided::<STRIDE>(from, length));
                    }
                }
            }
        }

        /// See [`Engine::pack`].
        #[target_feature(enable = $features)]
        unsafe fn pack(
            source: *const f32,
            offsets: &[usize],
            runs: &[Run],
            panel: *mut f32,
            pitch: usize,
        ) {
            for runs in runs.chunk_by(|one, next| one.target / LANES == next.target / LANES) {
                // SAFETY: the caller vouches for a vector of slack behind both places.
                unsafe {
                    let panel = panel.add(runs[0].target);
                    match runs.len() {
                        1 => pack_vector::<1>(source, offsets, runs, panel, pitch),
                        2 => pack_vector::<2>(source, offsets, runs, panel, pitch),
                        3 => pack_vector::<3>(source, offsets, runs, panel, pitch),
                        4 => pack_vector::<4>(source, offsets, runs, panel, pitch),
                        _ => pack_narrow(source, offsets, runs, panel, pitch),
                    }
                }
            }
        }

        /// Packs the column of vectors that `RUNS` runs make up.
        #[target_feature(enable = $features)]
        unsafe fn pack_vector<const RUNS: usize>(
            source: *const f32,
            offsets: &[usize],
            runs: &[Run],
            panel: *mut f32,
            pitch: usize,
        ) {
            let mut places = [(0, 0); RUNS];
            for (place, run) in places.iter_mut().zip(runs) {
                *place = (run.source, run.target % LANES);
            }
            for (row, &offset) in offsets.iter().enumerate() {
                // SAFETY: a load begins in its run and ends within the slack behind it; the lanes
                // before the run, whose addresses may precede the source, are masked out.
                unsafe {
                    let source = source.add(offset);
                    let mut vector = load(source.add(places[0].0));
                    for &(place, lane) in &places[1..] {
                        vector = load_last(vector, source.wrapping_add(place), lane);
                    }
                    store(panel.add(row * pitch), vector);
                }
            }
        }

        /// Packs a column of vectors that consist of many short runs.
        #[target_feature(enable = $features)]
        unsafe fn pack_narrow(
            source: *const f32,
            offsets: &[usize],
            runs: &[Run],
            panel: *mut f32,
            pitch: usize,
        ) {
            for (row, &offset) in offsets.iter().enumerate() {
                // SAFETY: as in `pack_vector`.
                unsafe {
                    let source = source.add(offset);
                    let mut vector = zero();
                    for run in runs {
                        let from = source.wrapping_add(run.source);
                        vector = load_last(vector, from, run.target % LANES);
                    }
                    store(panel.add(row * pitch), vector);
                }
            }
        }

        /// See [`Engine::scatter`].
        #[target_feature(enable = $features)]
        unsafe fn scatter(
            target: *mut f32,
            offsets: &[usize],
            runs: &[Run],
            panel: *const f32,
            pitch: usize,
        ) {
            for (row, &offset) in offsets.iter().enumerate() {
                for run in runs {
                    // SAFETY: the caller vouches for the floats of the run on both sides.
                    unsafe {
                        let from = panel.add(row * pitch + run.target);
                        let to = target.add(offset + run.source);
                        if run.length == HALF {
                            // A mask costs more than a vector of half the length.
                            let to = &mut *to.cast::<[f32; HALF]>();
                            for (to, from) in to.iter_mut().zip(*from.cast::<[f32; HALF]>()) {
                                *to += from;
                            }
                        } else {
                            let sum = add(load_first(from, run.length), load_first(to, run.length));
                            store_first(to, run.length, sum);
                        }
                    }
                }
            }
        }

        /// `Bᵀ` applied to six vectors; see [`super::super::winograd`].
        #[inline]
        #[target_feature(enable = $features)]
        fn to_frequencies([a, b, c, d, e, f]: [Vector; 6]) -> [Vector; 6] {
            let (near, far) = (splat(NEAR * NEAR), splat(FAR * FAR));
            let (product, sum) = (multiply(near, far), add(near, far));
            let (even_near, odd_near) = (subtract_product(far, c, e), subtract_product(far, b, d));
            let (even_far, odd_far) = (subtract_product(near, c, e), subtract_product(near, b, d));
            [
                multiply_add(product, a, subtract_product(sum, c, e)),
                multiply_add(splat(NEAR), odd_near, even_near),
                subtract_product(splat(NEAR), odd_near, even_near),
                multiply_add(splat(FAR), odd_far, even_far),
                subtract_product(splat(FAR), odd_far, even_far),
                multiply_add(product, b, subtract_product(sum, d, f)),
            ]
        }

        /// See [`Engine::transform_tiles`].
        #[target_feature(enable = $features)]
        unsafe fn transform_tiles(
            source: *const f32,
            items: &[usize],
            taps: &[usize; 36],
            runs: &[Run],
            target: *mut f32,
            (item_pitch, frequency_pitch): (usize, usize),
        ) {
            let Some((first, others)) = runs.split_first() else { return };
            for (at, &item) in items.iter().enumerate() {
                let mut rows = [[zero(); 6]; 6];
                for column in 0..6 {
                    let mut pixels = [zero(); 6];
                    for (row, pixel) in pixels.iter_mut().enumerate() {
                        // SAFETY: the caller vouches for a vector from the start of every run;
                        // lanes before a run are masked out.
                        unsafe {
                            let source = source.add(item + taps[6 * row + column]);
                            *pixel = load(source.add(first.source));
                            for run in others {
                                let from = source.wrapping_add(run.source);
                                *pixel = load_last(*pixel, from, run.target % LANES);
                            }
                        }
                    }
                    for (row, value) in rows.iter_mut().zip(to_frequencies(pixels)) {
                        row[column] = value;
                    }
                }
                for (row, pixels) in rows.into_iter().enumerate() {
                    for (column, value) in to_frequencies(pixels).into_iter().enumerate() {
                        // SAFETY: the caller vouches for a vector per item and frequency.
                        unsafe {
                            let frequency = (6 * row + column) * frequency_pitch;
                            store(target.add(at * item_pitch + frequency), value);
                        }
                    }
                }
            }
        }

        /// `A` applied to four vectors; see [`super::super::winograd`].
        #[inline]
        #[target_feature(enable = $features)]
        fn gradient_to_frequencies([a, b, c, d]: [Vector; 4]) -> [Vector; 6] {
            let (near, far) = (splat(NEAR * NEAR), splat(FAR * FAR));
            let (even_near, odd_near) = (multiply_add(near, c, a), multiply_add(near, d, b));
            let (even_far, odd_far) = (multiply_add(far, c, a), multiply_add(far, d, b));
            [
                a,
                multiply_add(splat(NEAR), odd_near, even_near),
                subtract_product(splat(NEAR), odd_near, even_near),
                multiply_add(splat(FAR), odd_far, even_far),
                subtract_product(splat(FAR), odd_far, even_far),
                d,
            ]
        }

        /// See [`Engine::transform_gradients`].
        #[target_feature(enable = $features)]
        unsafe fn transform_gradients(
            source: *const f32,
            items: &[usize],
            taps: &[usize; 16],
            target: *mut f32,
            (item_pitch, frequency_pitch): (usize, usize),
        ) {
            for (at, &item) in items.iter().enumerate() {
                let mut rows = [[zero(); 4]; 6];
                for column in 0..4 {
                    let mut pixels = [zero(); 4];
                    for (row, pixel) in pixels.iter_mut().enumerate() {
                        // SAFETY: the caller vouches for a vector at every tap of an item.
                        *pixel = unsafe { load(source.add(item + taps[4 * row + column])) };
                    }
                    for (row, value) in rows.iter_mut().zip(gradient_to_frequencies(pixels)) {
                        row[column] = value;
                    }
                }
                for (row, pixels) in rows.into_iter().enumerate() {
                    for (column, value) in gradient_to_frequencies(pixels).into_iter().enumerate() {
                        // SAFETY: the caller vouches for a vector per item and frequency.
                        unsafe {
                            let frequency = (6 * row + column) * frequency_pitch;
                            store(target.add(at * item_pitch + frequency), value);
                        }
                    }
                }
            }
        }

        /// `Aᵀ` applied to six vectors; see [`super::super::winograd`].
        #[inline]
        #[target_feature(enable = $features)]
        fn to_pixels([a, b, c, d, e, f]: [Vector; 6]) -> [Vector; 4] {
            let (near, far) = (splat(NEAR), splat(FAR));
            let (near_2, far_2) = (multiply(near, near), multiply(far, far));
            let (near_3, far_3) = (multiply(near_2, near), multiply(far_2, far));
            let (near_sum, near_difference) = (add(b, c), subtract(b, c));
            let (far_sum, far_difference) = (add(d, e), subtract(d, e));
            [
                add(add(a, near_sum), far_sum),
                multiply_add(far, far_difference, multiply(near, near_difference)),
                multiply_add(far_2, far_sum, multiply(near_2, near_sum)),
                multiply_add(far_3, far_difference, multiply_add(near_3, near_difference, f)),
            ]
        }

        /// See [`Engine::transform_back`].
        #[target_feature(enable = $features)]
        unsafe fn transform_back(
            (products, row_pitch, frequency_pitch): (*const f32, usize, usize),
            rows: usize,
            bias: *const f32,
            writes: &[Write],
            output: *mut f32,
            plane_pitch: usize,
        ) {
            for row in 0..rows {
                let mut columns = [[zero(); 6]; 4];
                for column in 0..6 {
                    let mut values = [zero(); 6];
                    for (at, value) in values.iter_mut().enumerate() {
                        let frequency = (6 * at + column) * frequency_pitch;
                        // SAFETY: the caller vouches for a vector per row and frequency.
                        *value = unsafe { load(products.add(row * row_pitch + frequency)) };
                    }
                    for (columns, value) in columns.iter_mut().zip(to_pixels(values)) {
                        columns[column] = value;
                    }
                }
                let mut start = zero();
                if !bias.is_null() {
                    // SAFETY: the caller vouches for a bias per row.
                    start = splat(unsafe { *bias.add(row) });
                }
                let mut pixels = [[zero(); 4]; 4];
                for (pixels, columns) in pixels.iter_mut().zip(columns) {
                    let [a, b, c, d] = to_pixels(columns).map(|pixel| add(pixel, start));
                    let (even, odd) = (interleave(a, c), interleave(b, d));
                    let ([p, q], [r, s]) =
                        (interleave(even[0], odd[0]), interleave(even[1], odd[1]));
                    *pixels = [p, q, r, s];
                }
                for write in writes {
                    // SAFETY: the caller vouches for the write within the plane of the row; the
                    // lanes before the first, whose addresses may precede it, are not written.
                    unsafe {
                        let place = output.add(row * plane_pitch + write.place);
                        let pixels = pixels[write.row][write.quarter];
                        store_some(place, (write.lane, write.length), pixels);
                    }
                }
            }
        }

        /// `count` pixels from `from` on, `STRIDE` (1, 2 or 4) apart.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn load_strided<const STRIDE: usize>(from: *const f32, count: usize) -> Vector {
            // SAFETY: the caller vouches for the first and the last of these pixels.
            unsafe {
                if STRIDE == 1 {
                    return load_first(from, count);
                }
                let span = STRIDE * (count - 1) + 1;
                let mut vectors = [zero(); STRIDE];
                for (at, vector) in vectors.iter_mut().enumerate() {
                    if at * LANES < span {
                        let length = (span - at * LANES).min(LANES);
                        *vector = load_first(from.add(at * LANES), length);
                    }
                }
                let half = every_second(vectors[0], vectors[1]);
                if STRIDE == 2 {
                    return half;
                }
                every_second(half, every_second(vectors[STRIDE - 2], vectors[STRIDE - 1]))
            }
        }

        /// See [`Engine::max_of_windows`].
        #[target_feature(enable = $features)]
        unsafe fn max_of_windows<const STRIDE: usize>(
            windows: &Windows,
            input: *const f32,
            output: *mut f32,
            winners: *mut u32,
        ) {
            for y in 0..windows.rows {
                let rows = windows.rows_under(y);
                for x in windows.inner.clone().step_by(LANES) {
                    let count = (windows.inner.end - x).min(LANES);
                    let column = x * STRIDE - windows.padding;
                    let mut largest = splat(f32::NEG_INFINITY);
                    let mut winner = places(rows.start * windows.width + column, STRIDE);
                    for row in rows.clone() {
                        for column in column..column + windows.window_width {
                            let first = row * windows.width + column;
                            // SAFETY: `count` windows from here on lie within the plane.
                            let pixel = unsafe { load_strided::<STRIDE>(input.add(first), count) };
                            let place = places(first, STRIDE);
                            (largest, winner) = larger((largest, winner), (pixel, place));
                        }
                    }
                    // SAFETY: these windows have places in the output.
                    unsafe {
                        let place = y * windows.columns + x;
                        store_first(output.add(place), count, largest);
                        store_places(winners.add(place), count, winner);
                    }
                }
            }
        }

        /// See [`Engine::sums_of_windows`].
        #[target_feature(enable = $features)]
        unsafe fn sums_of_windows<const STRIDE: usize>(
            windows: &Windows,
            input: *const f32,
            output: *mut f32,
        ) {
            for y in 0..windows.rows {
                for x in windows.inner.clone().step_by(LANES) {
                    let count = (windows.inner.end - x).min(LANES);
                    let column = x * STRIDE - windows.padding;
                    let mut sum = zero();
                    for row in windows.rows_under(y) {
                        for column in column..column + windows.window_width {
                            let first = row * windows.width + column;
                            // SAFETY: `count` windows from here on lie within the plane.
                            let pixel = unsafe { load_strided::<STRIDE>(input.add(first), count) };
                            sum = add(sum, pixel);
                        }
                    }
                    // SAFETY: these windows have places in the output.
                    unsafe { store_first(output.add(y * windows.columns + x), count, sum) };
                }
            }
        }
    };
}

/// `[[tile::<1, 1>, tile::<2, 1>, …], [tile::<1, 2>, …], …]`
macro_rules! tile_table {
    ($($vectors:literal: $rows:tt),*) => { &[$(tile_table!(of $vectors $rows)),*] };
    (of $vectors:literal ($($rows:literal)*)) => { &[$(tile::<$rows, $vectors>),*] };
}

/// `[[direct::<1, 1>, direct::<1, 2>, direct::<1, 3>], [direct::<2, 1>, …], …]`
macro_rules! direct_table {
    ($($rows:literal)*) => {
        &[$([direct::<$rows, 1>, direct::<$rows, 2>, direct::<$rows, 3>]),*]
    };
}

/// `[[dots::<1, 1>, dots::<1, 2>, …], [dots::<2, 1>, …], …]`
macro_rules! dot_table {
    ($($left:literal)*; $right:tt) => { &[$(dot_table!(row $left $right)),*] };
    (row $left:literal ($($right:literal)*)) => { &[$(dots::<$left, $right>),*] };
}

/// The same of `dots_of_stages`, each for vectors of one run and of several.
macro_rules! staged_dot_table {
    ($($left:literal)*; $right:tt) => { &[$(staged_dot_table!(row $left $right)),*] };
    (row $left:literal ($($right:literal)*)) => {
        &[$([dots_of_stages::<$left, $right, 1>, dots_of_stages::<$left, $right, 2>]),*]
    };
}

/// The lower 32 bits, for instructions that take numbers without a sign as numbers with one.
#[expect(clippy::cast_possible_truncation, reason = "numbers here are below 2³²")]
pub(super) fn low_bits(number: usize) -> i32 {
    (number as u32).cast_signed()
}
