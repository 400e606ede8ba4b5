//! Random mutations of an image.

use floe_testkit::Random;

use super::{
    recipe::{Change, Edit, Recipe},
    seed::Seed,
    structures::Structure,
};

/// The maximum number of changes per image.
const CHANGES_MAX: u64 = 5;

/// The lengths of data copied from one image to another, in bytes.
const SPLICE_BYTES: [usize; 4] = [32, 512, 4096, 8194];

/// Creates mutations of a seed; `donor` is an image of the same format from which data is copied.
pub(super) struct Mutator<'a> {
    seed: &'a Seed,
    donor: &'a Seed,
    random: Random,
}

impl<'a> Mutator<'a> {
    /// Creates a mutator; `chance` determines all choices.
    pub(super) fn new(seed: &'a Seed, donor: &'a Seed, chance: u64) -> Self {
        Self { seed, donor, random: Random::new(chance) }
    }

    /// Creates one image. Most have one or two changes; usually the checksum is updated.
    pub(super) fn recipe(mut self) -> Recipe {
        let mut count = 1;
        while count < CHANGES_MAX && self.below(3) == 0 {
            count += 1;
        }
        let changes = (0..count).map(|_| self.change()).collect();
        Recipe { seed: self.seed.name.clone(), changes, repair: self.below(16) != 0 }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound.max(1) as u64) as usize
    }

    fn change(&mut self) -> Change {
        match self.below(100) {
            0..40 => self.numbers(1),
            40..50 => {
                let count = 2 + self.below(3);
                self.numbers(count)
            }
            50..57 => self.flip_bits(),
            57..64 => self.swap(),
            64..72 => self.copy(),
            72..82 => self.refer(),
            82..88 => self.splice(),
            88..94 => self.noise(),
            94..97 => self.resize(),
            _ => self.byte(),
        }
    }

    /// A random structure; all kinds are equally likely.
    fn structure(&mut self) -> Option<Structure> {
        let kind = self.below(self.seed.structures.kinds().len());
        let structures = self.seed.structures.of_kind(kind);
        structures.get(self.below(structures.len())).copied()
    }

    /// Sets numbers of a structure to values at the edge of the valid range, or beyond.
    fn numbers(&mut self, count: usize) -> Change {
        let Some(structure) = self.structure() else { return self.byte() };
        let numbers = structure.numbers();
        let mut edits = Vec::new();
        let mut kind = format!("number of {}", structure.kind);
        for _ in 0..count {
            let Some(&(name, offset, size)) = numbers.get(self.below(numbers.len())) else { continue };
            if count == 1 && !name.is_empty() {
                kind = format!("{}.{name}", structure.kind);
            }
            let value = self.value(offset, size);
            edits.push(self.edit(offset, &value.to_le_bytes()[..size.min(8)]));
        }
        Change { kind, edits, len: None }
    }

    fn value(&mut self, offset: usize, size: usize) -> u64 {
        let bits = 8 * size.min(8) as u32;
        let max = u64::MAX >> (64 - bits);
        let now = self.number(offset, size.min(8));
        let image_len = self.seed.bytes.len() as u64;
        let near = self.random.below(64);
        let somewhere = self.random.next();
        match self.below(20) {
            0 => 0,
            1 => 1,
            2 => max,
            3 => max - 1,
            4 => 1 << (bits - 1),
            5 => (1 << (bits - 1)) - 1,
            6 => now.wrapping_add(1),
            7 => now.wrapping_sub(1),
            8 => now.wrapping_mul(2),
            9 => now / 2,
            10 | 11 => now ^ 1 << (somewhere % u64::from(bits)),
            12 => image_len,
            13 => image_len / 4096,
            14 => now.wrapping_add(near),
            15 => now.wrapping_sub(near),
            16 => near,
            17 => somewhere % image_len,
            18 => 1 << (somewhere % u64::from(bits)),
            _ => somewhere,
        }
    }

    fn number(&self, offset: usize, size: usize) -> u64 {
        let mut bytes = [0; 8];
        let start = offset + self.seed.offset as usize;
        if let Some(stored) = self.seed.bytes.get(start..start + size) {
            bytes[..size].copy_from_slice(stored);
        }
        u64::from_le_bytes(bytes)
    }

    fn flip_bits(&mut self) -> Change {
        let Some(structure) = self.structure() else { return self.byte() };
        let count = 1 + self.below(4);
        let flipped = (0..count).map(|_| {
            let offset = structure.offset + self.below(structure.len);
            let byte = self.number(offset, 1) as u8 ^ 1 << self.below(8);
            self.edit(offset, &[byte])
        });
        Change { edits: flipped.collect(), kind: format!("bits of {}", structure.kind), len: None }
    }

    /// Swaps two structures of a kind.
    fn swap(&mut self) -> Change {
        let Some((one, other)) = self.pair() else { return self.byte() };
        let len = one.len.min(other.len);
        let edits = vec![self.copied(one.offset, other.offset, len), self.copied(other.offset, one.offset, len)];
        Change { kind: format!("swapped {}", one.kind), edits, len: None }
    }

    /// Overwrites one structure with another, so that two references lead to equal structures.
    fn copy(&mut self) -> Change {
        let Some((one, other)) = self.pair() else { return self.byte() };
        let edits = vec![self.copied(one.offset, other.offset, one.len.min(other.len))];
        Change { kind: format!("copied {}", one.kind), edits, len: None }
    }

    fn pair(&mut self) -> Option<(Structure, Structure)> {
        let one = self.structure()?;
        let kinds = self.seed.structures.kinds();
        let alike = kinds.into_iter().find(|(kind, _)| *kind == one.kind)?.1;
        let other = alike.get(self.below(alike.len()))?;
        Some((one, *other))
    }

    /// Replaces a number by a reference to some part of the image, possibly to the structure itself.
    fn refer(&mut self) -> Change {
        let Some(structure) = self.structure() else { return self.byte() };
        let numbers = structure.numbers();
        let wide: Vec<_> = numbers.iter().filter(|(_, _, size)| (2..=8).contains(size)).collect();
        let Some(&&(_, offset, size)) = wide.get(self.below(wide.len())) else { return self.flip_bits() };
        let references = &self.seed.structures.references;
        let count = references.len();
        let reference = match self.below(count + 2) {
            index if index < count => references[index],
            index if index == count => structure.offset as u64,
            _ => structure.offset as u64 / 32,
        };
        let edits = vec![self.edit(offset, &reference.to_le_bytes()[..size])];
        Change { kind: format!("reference in {}", structure.kind), edits, len: None }
    }

    /// Copies a run of bytes from elsewhere in this image or from another.
    fn splice(&mut self) -> Change {
        let donor = if self.below(2) == 0 { self.seed } else { self.donor };
        let len = SPLICE_BYTES[self.below(SPLICE_BYTES.len())];
        let from = self.below(donor.bytes.len()) / len * len;
        let to = if self.below(2) == 0 { from } else { self.below(self.seed.bytes.len()) / len * len };
        let stored = &donor.bytes[from..donor.bytes.len().min(from + len)];
        Change { kind: "spliced".to_owned(), edits: vec![Edit { offset: to, bytes: stored.to_vec() }], len: None }
    }

    /// Overwrites a run of bytes inside a structure with noise, zeros or ones.
    fn noise(&mut self) -> Change {
        let Some(structure) = self.structure() else { return self.byte() };
        let from = self.below(structure.len);
        let len = (1 + self.below(24)).min(structure.len - from);
        let bytes = match self.below(4) {
            0 => vec![0; len],
            1 => vec![0xff; len],
            _ => self.random.noise(len),
        };
        Change {
            kind: format!("noise in {}", structure.kind),
            edits: vec![self.edit(structure.offset + from, &bytes)],
            len: None,
        }
    }

    fn resize(&mut self) -> Change {
        let len = self.seed.bytes.len();
        let len = match self.below(4) {
            0 => len + self.below(8192),
            1 => len.saturating_sub(self.below(4096)),
            2 => self.below(len) / 4096 * 4096,
            _ => self.below(len),
        };
        Change { kind: "resized".to_owned(), edits: Vec::new(), len: Some(len) }
    }

    fn byte(&mut self) -> Change {
        let offset = self.below(self.seed.bytes.len());
        let edits = vec![Edit { offset, bytes: self.random.noise(1) }];
        Change { kind: "some byte".to_owned(), edits, len: None }
    }

    /// An edit at an offset from the beginning of the file system.
    fn edit(&self, offset: usize, bytes: &[u8]) -> Edit {
        Edit { offset: offset + self.seed.offset as usize, bytes: bytes.to_vec() }
    }

    fn copied(&self, from: usize, to: usize, len: usize) -> Edit {
        let start = from + self.seed.offset as usize;
        self.edit(to, &self.seed.bytes[start..start + len])
    }
}
