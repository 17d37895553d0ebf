//! What enough nodes agree on: pure functions.

use roundtrip::listener::SourceBlock;

/// The height that so many of these nodes have reached.
pub(super) fn reached_by(mut heights: Vec<u64>, needed: usize) -> Option<u64> {
    heights.sort_unstable_by(|one, other| other.cmp(one));
    heights.get(needed.checked_sub(1)?).copied()
}

/// The value that at least so many of these are, if there is one.
pub(super) fn agreed<T: PartialEq + Clone>(values: &[T], needed: usize) -> Option<T> {
    let votes = |value: &T| values.iter().filter(|other| *other == value).count();
    values.iter().find(|value| votes(value) >= needed).cloned()
}

/// The blocks that at least so many answers show alike, from the first on; and which of the
/// answers show something else.
pub(super) fn agreed_blocks(answers: &[Vec<SourceBlock>], needed: usize) -> (Vec<SourceBlock>, Vec<usize>) {
    let (mut blocks, mut astray) = (Vec::new(), Vec::new());
    loop {
        let at = blocks.len();
        let with = |n: &usize| !astray.contains(n) && answers[*n].len() > at;
        let present: Vec<usize> = (0..answers.len()).filter(with).collect();
        let shown: Vec<&SourceBlock> = present.iter().map(|&n| &answers[n][at]).collect();
        let Some(block) = agreed(&shown, needed) else { return (blocks, astray) };
        // Who shows another block, or other requests in it, is heard no more.
        astray.extend(present.iter().filter(|&&n| answers[n][at] != *block));
        blocks.push(block.clone());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use roundtrip::listener::request;
    use roundtrip::words::{Height, Payload, Position, RouteName, UnixMs};

    use super::*;

    /// A block of a branch that shows so many requests.
    fn block(height: u64, fork: u8, requests: u8) -> SourceBlock {
        let route = RouteName::new("r").unwrap();
        let shown = (0..requests).map(|n| request(&route, Payload::raw(vec![n]))).collect();
        let at = Position { height: Height(height), hash: [fork; 32] };
        SourceBlock { at, parent: [0; 32], time: UnixMs(0), requests: shown, answered: Vec::new() }
    }

    #[test]
    fn the_height_that_enough_nodes_have_reached() {
        let reached = |needed| reached_by(vec![7, 9, 3], needed);
        assert_eq!([1, 2, 3, 4].map(reached), [Some(9), Some(7), Some(3), None]);
        assert_eq!(reached_by(vec![1], 0), None);
    }

    #[test]
    fn blocks_count_as_far_as_enough_nodes_show_them_alike() {
        let honest = vec![block(1, 0, 1), block(2, 0, 0), block(3, 0, 2)];
        let short = honest[..2].to_vec();
        let hiding = vec![block(1, 0, 1), block(2, 0, 0), block(3, 0, 1)];
        let forging = vec![block(1, 0, 2), block(2, 0, 0), block(3, 0, 2)];
        let check = |answers: &[&Vec<SourceBlock>], needed, count: usize, astray: &[usize]| {
            let answers: Vec<Vec<SourceBlock>> = answers.iter().map(|&answer| answer.clone()).collect();
            let (blocks, gone) = agreed_blocks(&answers, needed);
            assert_eq!((blocks.len(), gone.as_slice()), (count, astray));
            assert_eq!(blocks, honest[..count]);
        };
        check(&[&honest, &honest], 2, 3, &[]);
        check(&[&honest, &short, &honest], 2, 3, &[]);
        check(&[&honest, &short], 2, 2, &[]);
        check(&[&hiding, &honest, &honest], 2, 3, &[0]);
        check(&[&honest, &forging, &honest], 2, 3, &[1]);
        check(&[&honest, &forging], 2, 0, &[]);
        check(&[&honest, &hiding], 2, 2, &[]);
        // Who was wrong once does not count for what follows.
        check(&[&honest, &forging, &short], 2, 2, &[1]);
        check(&[], 1, 0, &[]);
    }
}
