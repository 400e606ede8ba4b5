//! The order of launches.

/// One planned launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The index of the variant.
    pub variant: usize,
    /// Whether it is traced; the others are controls.
    pub is_traced: bool,
}

/// The launches of one block: A B B A A B B A…, so that drift affects all variants alike.
///
/// Control passes, which are not traced, are distributed among the others.
pub fn block(variant_count: usize, launch_count: usize, control_count: usize) -> Vec<Step> {
    let pass_count = launch_count + control_count;
    let mut steps = Vec::with_capacity(pass_count * variant_count);
    for pass in 0..pass_count {
        // A pass is a control if one more control is due by its end than by its beginning.
        let controls_until = |passes: usize| passes * control_count / pass_count.max(1);
        let is_traced = controls_until(pass + 1) == controls_until(pass);
        let forward = (0..variant_count).map(|variant| Step { variant, is_traced });
        if pass % 2 == 0 { steps.extend(forward) } else { steps.extend(forward.rev()) }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_interleaved_and_controls_spread() {
        let rows = [
            (2, 4, 0, "ABBAABBA"),
            (3, 2, 0, "ABCCBA"),
            (1, 3, 1, "AAAa"),
            (2, 4, 2, "ABBAabBAABba"),
            (2, 0, 1, "ab"),
            (2, 0, 0, ""),
        ];
        for (variants, launches, controls, expected) in rows {
            let found: String = block(variants, launches, controls)
                .iter()
                .map(|step| {
                    let letter = char::from(b'A' + u8::try_from(step.variant).unwrap());
                    if step.is_traced { letter } else { letter.to_ascii_lowercase() }
                })
                .collect();
            assert_eq!(found, expected);
        }
    }
}
